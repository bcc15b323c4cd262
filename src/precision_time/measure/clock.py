"""Times short calls: warm-up, repeats, the median and the spread of the repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # fits read measured times without torch

SHORTEST_SAMPLE_S = 300e-6
"""Short calls are grouped into samples of at least this length, so that the resolution of the clock is negligible."""
LEAST_SAMPLES, MOST_SAMPLES = 5, 25
LEAST_IN_WINDOW = 4
_QUEUE_CYCLES = 2_000_000
"""Cycles of a waiting kernel (about 1 ms), during which the host queues the calls of a sample."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one call: median of `samples` samples, relative spread (scaled median deviation), slowest sample."""

    seconds: float
    spread: float
    samples: int
    slowest: float


def summary(samples: list[float]) -> Timed:
    """Median and robust relative spread; the factor 1.4826 makes it the standard deviation of a normal distribution."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return Timed(middle, 1.4826 * deviation / middle if middle else 0.0, len(samples), max(samples))


def timed(call: Callable[[], Any], device: torch.device, budget_s: float = 0.05, warm: bool = False) -> Timed:
    """Time of `call` in about `budget_s` seconds, after one warm-up call unless it is `warm` already.

    A call that takes longer than the budget is sampled three times. On a GPU, calls are queued behind a waiting kernel
    and timed with events, so that the host's launch time is not included.
    """
    if not warm:
        call()
    first = sample(call, device, 1)
    group = max(1, min(1000, int(SHORTEST_SAMPLE_S / max(first, 1e-7))))
    wanted = budget_s / max(first * group, 1e-7)
    count = LEAST_SAMPLES if wanted < LEAST_SAMPLES else min(int(wanted), MOST_SAMPLES)
    if first > budget_s:
        return summary([first, sample(call, device, 1), sample(call, device, 1)])
    return summary([sample(call, device, group) for _ in range(count)])


def timed_for(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Median seconds of one call that is repeated for `seconds`, at least four times.

    For processes that run at the same time: their windows overlap, and the first quarter of the samples, during which
    the scheduler may still move the processes, is dropped.
    """
    group = max(1, min(1000, int(SHORTEST_SAMPLE_S / max(sample(call, device, 1), 1e-7))))
    end = time.perf_counter() + seconds
    samples: list[float] = []
    while time.perf_counter() < end or len(samples) < LEAST_IN_WINDOW:
        samples.append(sample(call, device, group))
    return statistics.median(samples[len(samples) // 4 :])


def sample(call: Callable[[], Any], device: torch.device, group: int) -> float:
    """Seconds of one call, as the mean of `group` calls."""
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(group):
            call()
        return (time.perf_counter() - begin) / group
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_QUEUE_CYCLES)
    start.record()
    for _ in range(group):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / group
