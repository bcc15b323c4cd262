"""Recorded operators of jobs or of the zoo as benchmarks, each measured alone in its own shape.

A surface through a few dozen points does not know every shape, so the jobs that shall be predicted here are measured in
their own shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from precision_time.job.job import Job
from precision_time.measure.bench import Bench
from precision_time.measure.recording import Counted, Recorded, call_of, label, passes, record
from precision_time.timing.operators import WorkOptions, works

_FLOP_PER_BYTE = {"cpu": 8.0, "cuda": 60.0}
"""Approximate ratio of arithmetic to memory throughput in float32; only used to rank the operators of a step."""
LEAST_SHARE = 5e-4
"""Share of a step's time below which an operator is not measured."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A benchmark and the approximate share of its operator in the step's time."""

    bench: Bench
    share: float


def replay_benches(jobs: Iterable[Job], device: torch.device) -> list[Bench]:
    """Every distinct operator of the jobs whose share is at least `LEAST_SHARE`, the largest shares first."""
    benches: dict[str, Weighed] = {}
    for job in jobs:
        for each in weighed(record(job, device.type), device.type, options_of(job, device.type)):
            known = benches.get(each.bench.label)
            if known is None or known.share < each.share:
                benches[each.bench.label] = each
    return [each.bench for each in sorted(benches.values(), key=lambda each: -each.share)]


def options_of(job: Job, device_type: str) -> WorkOptions:
    """Settings of the job that select an operator's kernels; TF32 exists on GPUs only."""
    precision, gpu = job.precision_spec, device_type == "cuda"
    return WorkOptions(
        tf32=precision.tf32 and gpu,
        channels_last=job.memory_format == "nhwc",
        tf32_convolutions=precision.tf32_convolutions and gpu,
    )


def weighed(
    recorded: Iterable[Counted],
    device_type: str,
    options: WorkOptions = WorkOptions(),  # noqa: B008
) -> Iterator[Weighed]:
    """The operators of one step as benchmarks, without those below `LEAST_SHARE`."""
    for each, share in weighed_operators(recorded, device_type, options):
        own = options.of_operator(each.kind.name)
        if share >= LEAST_SHARE:
            for part, one in passes(each.recorded):
                yield Weighed(bench_of(one, part, own.tf32, own.channels_last), share)


def weighed_operators(
    recorded: Iterable[Counted], device_type: str, options: WorkOptions | None = None
) -> list[tuple[Counted, float]]:
    """(operator, approximate share of the step's time), without operators that the timing registry lacks."""
    costs: list[tuple[Counted, float]] = []
    for each in recorded:
        parts = works(each.kind, options or WorkOptions()) or []
        cost = sum(max(work.flops / _FLOP_PER_BYTE[device_type], work.bytes) for work in parts)
        costs.append((each, each.calls * cost))
    whole = sum(cost for _, cost in costs) or 1.0
    return [(each, cost / whole) for each, cost in costs if cost]


def bench_of(each: Recorded, part: str = "", tf32: bool = False, nhwc: bool = False) -> Bench:
    """The benchmark of one recorded operator, or of one `part` of it (see `recording.passes`)."""
    name = " ".join(filter(None, (label(each), part, "tf32" if tf32 else "", "nhwc" if nhwc else "")))
    return Bench(each.operator, name, lambda device: call_of(each, device, nhwc), tf32, nhwc)
