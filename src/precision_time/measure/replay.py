"""Recorded operators as benchmarks: those of given jobs, or of the zoo, in their very shapes, each measured alone.

A surface through a few dozen points cannot know every shape; a job that is to be predicted here brings the shapes that
matter for it.
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
"""Roughly, in float32: which operators of a step take most of its time is all that is asked of it."""
LEAST_SHARE = 5e-4
"""Of a step's time: what takes less is not worth a measurement of its own."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A benchmark and roughly the share of its step that its operator takes."""

    bench: Bench
    share: float


def replay_benches(jobs: Iterable[Job], device: torch.device) -> list[Bench]:
    """Every distinct operator of the jobs that takes a share worth measuring, the largest shares first."""
    found: dict[str, Weighed] = {}
    for job in jobs:
        tf32 = job.precision_spec.tf32 and device.type == "cuda"
        for each in weighed(record(job, device.type), device.type, tf32, job.memory_format == "nhwc"):
            known = found.get(each.bench.label)
            if known is None or known.share < each.share:
                found[each.bench.label] = each
    return [each.bench for each in sorted(found.values(), key=lambda each: -each.share)]


def weighed(recorded: Iterable[Counted], device_type: str, tf32: bool = False, nhwc: bool = False) -> Iterator[Weighed]:
    """The operators of one step as benchmarks, those worth a measurement."""
    for each, share in weighed_operators(recorded, device_type, WorkOptions(tf32, nhwc)):
        if share >= LEAST_SHARE:
            for part, one in passes(each.recorded):
                yield Weighed(bench_of(one, part, tf32, nhwc), share)


def weighed_operators(
    recorded: Iterable[Counted], device_type: str, options: WorkOptions | None = None
) -> list[tuple[Counted, float]]:
    """The operators of one step with the share that they roughly take; none for what has no rule in the registry."""
    costs: list[tuple[Counted, float]] = []
    for each in recorded:
        found = works(each.kind, options or WorkOptions()) or []
        cost = sum(max(work.flops / _FLOP_PER_BYTE[device_type], work.bytes) for work in found)
        costs.append((each, each.calls * cost))
    whole = sum(cost for _, cost in costs) or 1.0
    return [(each, cost / whole) for each, cost in costs if cost]


def bench_of(each: Recorded, part: str = "", tf32: bool = False, nhwc: bool = False) -> Bench:
    words = [label(each), part, "tf32" if tf32 else "", "nhwc" if nhwc else ""]
    name = " ".join(word for word in words if word)
    return Bench(each.operator, name, lambda device: call_of(each, device, nhwc), tf32, nhwc)
