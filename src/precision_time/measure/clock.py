"""Times of short pieces of real work: warm-up, repeats, the median, and how far the repeats lie apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # a fit reads measured times without it

SHORTEST_SAMPLE_S = 300e-6
"""Calls are grouped until a sample lasts this long, so that the clock's own microsecond does not count."""
LEAST_SAMPLES, MOST_SAMPLES = 5, 25
LEAST_IN_WINDOW = 4
_QUEUE_CYCLES = 2_000_000
"""About a millisecond of a GPU's clock: time for the host to queue the calls of a sample behind it."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one call: the median of `samples`, their relative spread (scaled median deviation), the slowest."""

    seconds: float
    spread: float
    samples: int
    slowest: float


def summary(samples: list[float]) -> Timed:
    """Median and robust relative spread of repeated times; 1.4826 makes it a standard deviation for a normal one."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return Timed(middle, 1.4826 * deviation / middle if middle else 0.0, len(samples), max(samples))


def timed(call: Callable[[], Any], device: torch.device, budget_s: float = 0.05, warm: bool = False) -> Timed:
    """Time of `call` after warm-up (unless it is `warm`), in about `budget_s` seconds; slow calls run three times.

    On a GPU the calls are queued behind a waiting kernel and timed with events, so that what is measured is the device
    and not the host that launches.
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
    """Median seconds of one call, called for so long whatever it takes (three times at least).

    For processes that shall disturb each other: their windows overlap, and the first quarter, in which the scheduler
    still moves them about, does not count.
    """
    group = max(1, min(1000, int(SHORTEST_SAMPLE_S / max(sample(call, device, 1), 1e-7))))
    end = time.perf_counter() + seconds
    samples: list[float] = []
    while time.perf_counter() < end or len(samples) < LEAST_IN_WINDOW:
        samples.append(sample(call, device, group))
    return statistics.median(samples[len(samples) // 4 :])


def sample(call: Callable[[], Any], device: torch.device, group: int) -> float:
    """Seconds of one call, the mean of `group` calls."""
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
