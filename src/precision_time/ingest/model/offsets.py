"""When to start each of several jobs so that the last ends soonest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from precision_time.ingest.model.alternatives import alone_s, first_epoch_s
from precision_time.ingest.model.fluid import STEP, run
from precision_time.ingest.model.rates import Array, JobRates, SharedCache, Slowdowns


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets [jobs] in seconds, the least of them 0; their makespan, and that of starting all at once."""

    offsets_s: tuple[float, ...]
    makespan_s: float
    together_s: float

    @property
    def gain(self) -> float:
        """Share of the makespan saved over starting all at once."""
        return 1.0 - self.makespan_s / self.together_s


def best_offsets(
    jobs: Sequence[JobRates],
    slowdowns: Slowdowns,
    cache: SharedCache,
    *,
    starts: int = 10,
    rounds: int = 7,
    seed: int = 0,
    count_start_up: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Offsets:
    """Coordinate descent from several starts: all at once, in orders an epoch or half an epoch apart, and at random.

    Each round tries 13 offsets for one job after another; their span starts at the longest makespan alone and
    halves every round. The model uses longer steps during the search. `progress` is called with the share done.
    """
    count = len(jobs)
    epochs = [first_epoch_s(job, cache) for job in jobs]
    longest = max(alone_s(job, cache) for job in jobs)

    def makespans(rows: Array, step: float = 2 * STEP) -> Array:
        return run(jobs, slowdowns, cache, rows, count_start_up=count_start_up, step=step).makespan_s

    rows = _starts(epochs, longest, starts, np.random.default_rng(seed))
    value = makespans(rows)
    span = longest
    steps = np.linspace(-1.0, 1.0, 13)
    for turn in range(rounds * count if count > 1 else 0):
        job = turn % count
        tried = np.repeat(rows[:, None, :], len(steps), axis=1)
        tried[:, :, job] += span * steps
        # A start before the others is a start of the others after it.
        tried -= tried.min(axis=2, keepdims=True)
        tried_makespans = makespans(tried.reshape(-1, count)).reshape(len(rows), len(steps))
        pick = tried_makespans.argmin(axis=1)
        better = tried_makespans[np.arange(len(rows)), pick] < value
        rows = np.where(better[:, None], tried[np.arange(len(rows)), pick], rows)
        value = np.where(better, tried_makespans[np.arange(len(rows)), pick], value)
        if job == count - 1:
            span *= 0.5
        if progress is not None:
            progress((turn + 1) / (rounds * count))
    least = rows[int(value.argmin())]
    together_s, least_s = makespans(np.stack([np.zeros(count), least]), STEP)
    if together_s <= least_s:
        least, least_s = np.zeros(count), together_s
    return Offsets(tuple(float(v) for v in least), float(least_s), float(together_s))


def _starts(epochs: Sequence[float], longest: float, starts: int, rng: np.random.Generator) -> Array:
    """Rows of offsets, the first all 0."""
    count = len(epochs)
    rows = [np.zeros(count)]
    orders = list(permutations(range(count))) if count <= 4 else [tuple(rng.permutation(count)) for _ in range(24)]
    for k in range(max(starts - 1, 0)):
        if k % 3 == 2:
            row = rng.uniform(0.0, longest, count)
        else:
            order = orders[int(rng.integers(len(orders)))]
            row, at = np.zeros(count), 0.0
            for job in order:
                row[job], at = at, at + epochs[job] * (1.0 if k % 3 == 0 else 0.5)
        rows.append(row - row.min())
    return np.array(rows)
