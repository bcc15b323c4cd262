"""A stand-in for an Estimate, with round numbers that a reader can check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precision_time.job import Job

BREAKDOWN = {
    "forward": 0.030,
    "backward": 0.050,
    "optimizer": 0.010,
    "loss_scaling": 0.0,
    "casts": 0.0,
    "host_gaps": 0.0,
    "communication_exposed": 0.010,
}


@dataclass(frozen=True)
class FakeInterval:
    p10: float
    p50: float
    p90: float

    def __float__(self) -> float:
        return float(self.p50)


@dataclass(frozen=True)
class FakeMemory:
    peak_bytes: float = 10 * 2**30
    capacity_bytes: float = 40 * 2**30

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class FakeEstimate:
    """100 samples per GPU and step, 0.1 s in all, unless the job and `breakdown` say otherwise."""

    job: Job
    breakdown: Mapping[str, float] = field(default_factory=lambda: dict(BREAKDOWN))
    memory: FakeMemory = FakeMemory()
    bound_shares: Mapping[str, float] = field(default_factory=dict)
    communication_hidden_s: float = 0.005
    epoch: FakeInterval | None = None
    run: FakeInterval | None = None
    cost_usd: float | FakeInterval | None = None

    @property
    def step(self) -> FakeInterval:
        total = sum(self.breakdown.values())
        return FakeInterval(0.9 * total, total, 1.2 * total)

    @property
    def samples_per_s(self) -> float:
        return (self.job.batch_size or 100) * self.job.grad_accum * self.job.gpus / self.step.p50

    def to_dict(self) -> dict[str, Any]:
        return {"job": self.job.to_dict(), "step_s": self.step.p50}

    def trace_events(self) -> dict[str, Any]:
        return {"traceEvents": []}

    def __str__(self) -> str:
        return f"fake estimate of {self.job.signature()}"


def fake(job: Job, **terms: float) -> FakeEstimate:
    """The usual fake with some terms of the breakdown changed."""
    return FakeEstimate(job, breakdown={**BREAKDOWN, **terms})
