"""Failures of a run: their rate, the work they lose, and the interval between checkpoints that loses least.

The time of a run with failures at a constant rate follows Daly 2006 ("A higher order estimate of the optimum checkpoint
interval for restart dumps", Future Generation Computer Systems 22): a segment of `tau` seconds of work and a checkpoint
of `delta` takes M exp(R / M) (exp((tau + delta) / M) - 1) seconds on average, M being the mean time between failures of
all GPUs together and R the time of a restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.estimate.levels import COUNT, Floats, normal, uniform

PUBLISHED_FAILURES, PUBLISHED_GPU_HOURS = 419, 54 * 24 * 16_384
"""Unexpected interruptions and GPU-hours of 54 days of Llama 3 405B (arXiv:2407.21783, table 5): one in 50,700."""
PRIOR_SHAPE = 1.0
"""The published rate counts as much as one failure seen: chosen, since clusters differ by much more than the published
count would say. P10 to P90 of the rate are then 0.1 to 2.3 times the published one."""
MOST_FAILURES = 60.0
"""Mean failures in a segment above which `exp` is held: such a run does not end in practice."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Failures of a GPU per hour, as a gamma distribution; without `shape` it is certain.

    source   where the rate comes from, in words
    """

    gpu_hours: float
    """Between two failures of one GPU, on average."""
    shape: float | None
    source: str

    @classmethod
    def known(cls, gpu_hours: float) -> FailureRate:
        return cls(gpu_hours, None, f"one failure in {gpu_hours:,.0f} GPU-hours, as given")

    @classmethod
    def published(cls, seen: int = 0, gpu_hours: float = 0.0) -> FailureRate:
        """The published rate, updated by `seen` failures in `gpu_hours` of the user's own log."""
        each = PUBLISHED_GPU_HOURS / PUBLISHED_FAILURES
        shape = PRIOR_SHAPE + seen
        mean = (PRIOR_SHAPE * each + gpu_hours) / shape
        log = f", updated by {seen} in {gpu_hours:,.0f} GPU-hours of the log" if gpu_hours else ""
        return cls(mean, shape, f"one failure in {each:,.0f} GPU-hours (Llama 3 405B, arXiv:2407.21783){log}")

    def hours_between(self, gpus: int, axis: int) -> Floats:
        """Mean hours between failures of `gpus` GPUs, at every level of its uncertainty."""
        if self.shape is None:
            return np.full(COUNT, self.gpu_hours / gpus)
        # Wilson and Hilferty 1931: the cube root of a gamma variable is nearly normal. A high rate is a slow run.
        k = self.shape
        relative = np.maximum(1.0 - 1.0 / (9.0 * k) + normal(axis) / (3.0 * math.sqrt(k)), 0.05) ** 3
        between: Floats = self.gpu_hours / gpus / relative
        return between


def best_interval(checkpoint_s: float, between_s: float) -> float:
    """Seconds of work between checkpoints that lose the least (Daly 2006, equation 37; Young's sqrt(2 delta M) is its
    first term)."""
    if checkpoint_s >= 2.0 * between_s:
        return between_s
    x = checkpoint_s / (2.0 * between_s)
    return math.sqrt(2.0 * checkpoint_s * between_s) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - checkpoint_s


def lost_shares(intervals_s: Sequence[float], checkpoint_s: float, restart_s: float, between_s: float) -> list[float]:
    """Seconds of checkpoints, lost work and restarts for every second of work, at each interval between checkpoints."""
    tau = np.array(intervals_s)
    shares: list[float] = (_segment(np.array([between_s]), tau, checkpoint_s, restart_s) / tau - 1.0).tolist()
    return shares


def _segment(between_s: Floats, interval_s: Floats | float, checkpoint_s: float, restart_s: float) -> Floats:
    """Mean seconds of a segment of work, its checkpoint and all failures in it."""
    whole = np.minimum((interval_s + checkpoint_s) / between_s, MOST_FAILURES)
    again = np.minimum(restart_s / between_s, MOST_FAILURES)
    mean: Floats = between_s * np.exp(again) * np.expm1(whole)
    return np.maximum(mean, interval_s + checkpoint_s)


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Seconds of a run that failures cost, at every level."""

    lost_work_s: Floats
    restarts_s: Floats
    mean_failures: float

    @classmethod
    def of(
        cls, work_s: Floats, interval_s: float | None, checkpoint_s: float, restart_s: float, between_s: Floats
    ) -> Interruptions:
        """Of `work_s` seconds of work; without `interval_s` there is no checkpoint, and a failure loses all."""
        tau: Floats | float = work_s if interval_s is None else np.minimum(interval_s, work_s)
        segments = work_s / tau
        total = segments * _segment(between_s, tau, checkpoint_s, restart_s)
        overhead = np.maximum(total - work_s - segments * checkpoint_s, 0.0)
        mean = total / between_s
        restarts = np.minimum(mean * restart_s, overhead)
        share = _counts(mean, axis=6) / np.maximum(mean, 1e-300)
        return cls((overhead - restarts) * share, restarts * share, float(mean.mean()))


def _counts(mean: Floats, axis: int) -> Floats:
    """Numbers of failures with these means at the levels of an axis: Poisson, and normal above a mean of 30."""
    large = mean > 30.0
    counts, small, level = np.zeros(COUNT), mean, uniform(axis)
    if large.any():
        counts = np.where(large, np.maximum(np.round(mean + np.sqrt(mean) * normal(axis)), 0.0), 0.0)
        small = np.where(large, 0.0, mean)
        level = np.where(large, 0.0, level)  # none of them counts below
    term = np.exp(-small)
    below = term.copy()
    for number in range(1, 101):
        more = level > below
        if not more.any():
            break
        counts[more] = number
        term = term * small / number
        below += term
    return counts
