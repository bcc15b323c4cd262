"""Parameters of the fluid model from rates measured in windows: the equations of contention.py, inverted.

Alone and cold, a job takes max(hot, storage) per sample for any overlap. With half of the samples cached it takes
between max(hot, storage / 2) and the mean of cold and hot; the position in this range is the overlap. Two hot jobs are
always busy, so hot[i][j] is a quotient of times. Two cold jobs take t_i = max(hot_i', storage_i'), where

    hot_i' = hot_i / (1 - g_j (1 - 1 / hot[i][j]))               g_j = hot_j' / t_j
    storage_i' = storage_i / (1 - u_j (1 - 1 / storage[i][j]))   u_j = min(1, storage_j' / t_j)

with all t measured. Parameters that a window does not determine are assumed, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from precision_time.ingest.model.contention import Contention
from precision_time.ingest.model.rates import JobRates, Slowdowns
from precision_time.ingest.stagger.trace_rates import Rate

BOUND = 0.04
"""A job waits for the storage if its cold rate differs from its hot rate by more than this and by twice the error."""
FAIR = 2.0
"""The slowdown of a storage that serves two readers as fast in total as one, in equal shares."""
MOST = 16.0
"""Largest slowdown accepted from a measurement, since a quotient of small differences is unreliable."""
_UNSURE = 0.3
"""A slowdown with a larger relative error counts as not determined by its window."""


@dataclass(frozen=True, slots=True)
class SoloRates:
    """Rates of one job alone, in seconds per sample.

    cold, hot, half   with no, all and half of the samples cached; half None: not measured
    bytes_per_sample  None: not known; all jobs then count as having samples of one size
    """

    name: str
    cold: Rate
    hot: Rate
    half: Rate | None = None
    bytes_per_sample: float | None = None


@dataclass(frozen=True, slots=True)
class PairRates:
    """Rates of two jobs that run concurrently, cold and hot, in seconds per sample."""

    cold: tuple[Rate, Rate]
    hot: tuple[Rate, Rate]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by job and by ordered pair, and notes on parameters that the windows did not determine."""

    storage_s: tuple[float, ...]
    overlap: tuple[float, ...]
    hot: tuple[tuple[float, ...], ...]
    storage: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...] = field(default=())


def is_storage_bound(job: SoloRates) -> bool:
    """Whether a cold epoch of the job waits for the storage."""
    excess = job.cold.seconds - job.hot.seconds
    return excess > max(BOUND * job.hot.seconds, 2 * math.hypot(job.cold.error, job.hot.error))


def overlap_from_half(job: SoloRates, storage_s: float) -> float | None:
    """Overlap from the rate with half of the samples cached; None if it makes no measurable difference."""
    if job.half is None:
        return None
    hot = job.hot.seconds
    shallow, deep = (max(hot, storage_s) + hot) / 2, max(hot, storage_s / 2)
    if shallow - deep < max(2 * job.half.error, 0.02 * shallow):
        return None
    return min(1.0, max(0.0, (shallow - job.half.seconds) / (shallow - deep)))


def invert(
    jobs: Sequence[SoloRates], pairs: Mapping[tuple[int, int], PairRates], storage_bound: Sequence[bool] | None = None
) -> Parameters:
    """Parameters that reproduce these rates. `storage_bound`: jobs that wait for the storage, if known already."""
    notes: list[str] = []
    storage_bound = [is_storage_bound(job) for job in jobs] if storage_bound is None else list(storage_bound)
    storage_s = [_storage_s(i, jobs, storage_bound, pairs, notes) for i in range(len(jobs))]
    overlap = []
    for i, job in enumerate(jobs):
        predicted = overlap_from_half(job, storage_s[i]) if storage_bound[i] else None
        if predicted is None and storage_bound[i]:
            notes.append(
                f"how far {job.name} reads ahead was not seen"
                + (": half cached, both extremes are as fast" if job.half else ": it cannot read a half-cached subset")
                + "; a deep queue is assumed"
            )
        overlap.append(1.0 if predicted is None else predicted)
    hot = [[1.0] * len(jobs) for _ in jobs]
    storage = [[1.0] * len(jobs) for _ in jobs]
    for (i, j), pair_rates in pairs.items():
        for a, (me, other) in enumerate(((i, j), (j, i))):
            hot[me][other] = min(MOST, max(1.0, pair_rates.hot[a].seconds / jobs[me].hot.seconds))
        storage[i][j], storage[j][i] = _stretches((i, j), jobs, storage_s, hot, pair_rates, notes)
    return Parameters(
        tuple(storage_s), tuple(overlap), tuple(map(tuple, hot)), tuple(map(tuple, storage)), tuple(notes)
    )


def _storage_s(
    i: int,
    jobs: Sequence[SoloRates],
    storage_bound: Sequence[bool],
    pairs: Mapping[tuple[int, int], PairRates],
    notes: list[str],
) -> float:
    """Seconds of the storage for a sample of job i: its cold rate, or that of a job that waits for the storage."""
    if storage_bound[i]:
        return jobs[i].cold.seconds
    job = jobs[i]
    others = [jobs[j] for j in range(len(jobs)) if storage_bound[j]]
    if others:
        other = min(others, key=lambda pair_rates: pair_rates.cold.seconds)
        weights = (job.bytes_per_sample, other.bytes_per_sample)
        scale = weights[0] / weights[1] if weights[0] and weights[1] else 1.0
        notes.append(
            f"{job.name} is as fast cold as hot, so the storage's time for its samples is that of {other.name}"
            + (", by bytes" if scale != 1.0 else "")
        )
        return min(scale * other.cold.seconds, job.cold.seconds)
    # No job waits for the storage alone. Two concurrent jobs may: each then gets half of it.
    slowdowns = [pair.cold[key.index(i)].seconds for key, pair in pairs.items() if i in key]
    notes.append(
        f"no job waits for the storage alone, so its time for a sample of {job.name} is only bounded from above"
    )
    return min([job.hot.seconds, *(t / FAIR for t in slowdowns)])


def _stretches(
    key: tuple[int, int],
    jobs: Sequence[SoloRates],
    storage_s: Sequence[float],
    hot: Sequence[Sequence[float]],
    pair_rates: PairRates,
    notes: list[str],
) -> tuple[float, float]:
    """storage[i][j] and storage[j][i] of one pair."""
    mine = [storage_s[k] for k in key]
    stretch_hot = [hot[key[0]][key[1]], hot[key[1]][key[0]]]
    alone_hot = [jobs[k].hot.seconds for k in key]
    times = [rate.seconds for rate in pair_rates.cold]

    def tried(start: Sequence[float]) -> tuple[float, list[bool], list[float | None]]:
        """The error of the model after iterating from `start`, which jobs wait for the storage, and their slowdowns."""
        hots = list(start)
        for _ in range(50):
            busy = [min(1.0, hots[1 - a] / times[1 - a]) for a in (0, 1)]
            hots = [alone_hot[a] / (1.0 - busy[a] * (1.0 - 1.0 / stretch_hot[a])) for a in (0, 1)]
        waits = [times[a] > hots[a] * (1.0 + BOUND) + 2 * pair_rates.cold[a].error for a in (0, 1)]
        stretches = [
            _stretch(mine[a], pair_rates.cold[a], None if waits[1 - a] else (mine[1 - a], times[1 - a]))
            if waits[a]
            else None
            for a in (0, 1)
        ]
        first, second = (stretches[a] or stretches[1 - a] or FAIR for a in (0, 1))
        pair = [
            JobRates(jobs[k].name, 1, 1, hot_s=h, storage_s=s) for k, h, s in zip(key, alone_hot, mine, strict=True)
        ]
        effects = Slowdowns(((1.0, stretch_hot[0]), (stretch_hot[1], 1.0)), ((1.0, first), (second, 1.0)))
        predicted = Contention(pair, effects).solve(np.ones((2, 1)), np.ones((2, 1), dtype=bool))[0][:, 0]
        return max(abs(float(predicted[a]) / times[a] - 1.0) for a in (0, 1)), waits, stretches

    # Two jobs may be slow because of the storage or because of each other's work. The iteration finds either solution,
    # from below or from above; the one that reproduces the times better is taken.
    above = [h * s for h, s in zip(alone_hot, stretch_hot, strict=True)]
    _, waits, stretches = min((tried(start) for start in (alone_hot, above)), key=lambda one: one[0])
    for a in (0, 1):
        if stretches[a] is None:
            me, beside = jobs[key[a]].name, jobs[key[1 - a]].name
            why = f"{beside} hardly uses the storage" if waits[a] else f"{me} does not wait for the storage"
            notes.append(
                f"what {beside} does to {me}'s reads was not determined by the window ({why} there); taken is "
                + (
                    f"the {stretches[1 - a]:.2f} of the other direction"
                    if stretches[1 - a]
                    else "a storage shared evenly"
                )
            )
    first, second = (stretches[a] or stretches[1 - a] or FAIR for a in (0, 1))
    return first, second


def _stretch(storage_s: float, time: Rate, other: tuple[float, float] | None) -> float | None:
    """The slowdown with which `storage_s` becomes `time`; None if it is ill-conditioned.

    `other` None: it waits for the storage too, so it reads all the time. Else its own storage_s and time: it reads for
    the share storage_s' / time, where storage_s' is what the same stretch makes of its storage_s.
    """

    def slowed(stretch: float) -> float:
        """Share of the read speed that is lost."""
        busy = 1.0 if other is None else min(1.0, other[0] * stretch / other[1])
        return busy * (1.0 - 1.0 / stretch)

    lost, error = max(0.0, 1.0 - storage_s / time.seconds), time.spread * storage_s / time.seconds
    low, high = 1.0, MOST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slowed(middle) < lost else (low, middle)
    step = 0.01 * low
    slope = (slowed(low + step) - slowed(low)) / step
    if low > 0.999 * MOST or error / slope > _UNSURE * low:
        return None
    return low
