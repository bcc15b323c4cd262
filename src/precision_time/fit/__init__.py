"""Fitting: tables of measurements become the parameters that `timing/` and `anchors/` read.

takes     the tables of `data/` and folders of `precision-time measure`
gives     `timing/data/*.json`, `estimate/data/*.json`, `plan/data/spot.json`, `anchors/data/published.json`, each
          with the checksum of what it was fitted to
knows not how a prediction is printed or served

| stage | module | fits |
|---|---|---|
| kernels | `kernels`, `kernel_*`, `monotone`, `measured_*` | utilisation curves of kernels and their corrections |
| collectives | `collectives`, `collective_cases` | latency and bandwidth of collectives by fabric |
| host | `host` | launch costs of operators; traces our H100's steps, so only where it is named |
| traced | `traced` | nothing: traces published jobs, which needs torch and timm, so only where it is named |
| kernel_factors | `kernel_factors` | factors on kernels, from whole steps of hundreds of networks |
| steps | `steps`, `cases`, `factors`, `folds`, `row_correlation` | groups of kernels, host, ranks; interval width |
| anchors | `anchors` | what a measured job says about similar jobs |
| layouts | `layouts`, `cases` | factors of sharded, pipelined and tensor-parallel steps |
| brackets | `brackets` | nothing: traces published memory brackets, as `traced` does steps |
| run_parts | `run_parts` | start-up and evaluations of whole runs |
| spot | `spot` | spells with and without a spot instance |
| memory | `memory` | bytes that a process holds beside tensors; interval width of memory |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Stage:
    """`table`: a file below the data folder that the stage needs. `judges`: the stage can judge without writing.
    `usual`: it runs where no stage is named."""

    table: str
    judges: bool = False
    usual: bool = True


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        "kernels": Stage("kernels/aic_gemm.parquet"),
        "collectives": Stage("kernels/aic_nccl.parquet"),
        "host": Stage("measured/h100/usage.csv", usual=False),
        "traced": Stage("published/timm_train.csv", usual=False),
        "kernel_factors": Stage("traced/works.parquet", judges=True),
        "steps": Stage("published/measurements.csv", judges=True),
        "anchors": Stage("published/measurements.csv", judges=True),
        "layouts": Stage("published/measurements_llm.csv", judges=True),
        "brackets": Stage("published/memory_brackets.csv", usual=False),
        "run_parts": Stage("published/run_parts.csv", judges=True),
        "spot": Stage("published/spot_traces.csv"),
        "memory": Stage("traced/brackets.parquet", judges=True),
    }
)
"""In the order in which they build on each other."""
