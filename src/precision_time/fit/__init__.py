"""Fitting: tables of measurements become the parameters that `timing/` and `anchors/` read.

takes     the tables of `data/` and folders of `precision-time measure`
gives     `timing/data/*.json`, `anchors/data/published.json`, each with the checksum of what it was fitted to
knows not how a prediction is printed or served

| stage | module | fits |
|---|---|---|
| kernels | `kernels`, `kernel_*`, `monotone`, `measured_*` | utilisation curves of kernels and their corrections |
| collectives | `collectives`, `collective_cases` | latency and bandwidth of collectives by fabric |
| steps | `steps`, `cases`, `factors`, `folds`, `row_correlation` | factors between kernels and steps, interval width |
| anchors | `anchors` | what a measured job says about similar jobs |
| layouts | `layouts`, `cases` | factors of sharded, pipelined and tensor-parallel steps |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Stage:
    """`table`: a file below the data folder that the stage needs. `judges`: the stage can judge without writing."""

    table: str
    judges: bool = False


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        "kernels": Stage("kernels/aic_gemm.parquet"),
        "collectives": Stage("kernels/aic_nccl.parquet"),
        "steps": Stage("published/measurements.csv", judges=True),
        "anchors": Stage("published/measurements.csv", judges=True),
        "layouts": Stage("published/measurements_llm.csv", judges=True),
    }
)
"""In the order in which they build on each other."""
