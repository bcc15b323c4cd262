"""From rates seen in windows to the parameters of the fluid model, by its own equations (contention.py) backwards.

Alone and cold, a job takes max(hot, storage) a sample, whatever its overlap; half cached, it takes something between
max(hot, storage/2) and the mean of cold and hot, and where in between is the overlap. Two jobs that are hot are
busy all the time, so that hot[i][j] is a quotient. Two that are cold take t_i = max(hot_i', storage_i'), where

    hot_i' = hot_i / (1 - g_j (1 - 1 / hot[i][j]))               g_j = hot_j' / t_j
    storage_i' = storage_i / (1 - u_j (1 - 1 / storage[i][j]))   u_j = min(1, storage_j' / t_j)

and all t are known. What a window cannot tell is taken from elsewhere, and a note says so.
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
"""A cold epoch that is slower than a hot one by less than this, or by less than twice the error, shows no storage."""
FAIR = 2.0
"""What a storage does that serves two readers as fast together as one alone, shared out evenly."""
MOST = 16.0
"""No measured stretch is believed beyond this; a quotient of small differences can be anything."""
_UNSURE = 0.3
"""A stretch whose error is a larger share of it than this is not told by its window."""


@dataclass(frozen=True, slots=True)
class SoloRates:
    """Rates of one job alone, in seconds per sample, and its sizes.

    cold, hot, half   half None: not measured
    bytes_per_sample  None: not known; all jobs then count as reading samples of one size
    """

    name: str
    cold: Rate
    hot: Rate
    half: Rate | None = None
    bytes_per_sample: float | None = None


@dataclass(frozen=True, slots=True)
class PairRates:
    """Rates of two jobs that run together, cold and hot; `hot_alone` are those of the same launches alone."""

    cold: tuple[Rate, Rate]
    hot: tuple[Rate, Rate]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by job and by ordered pair, and what could not be told from the windows."""

    storage_s: tuple[float, ...]
    overlap: tuple[float, ...]
    hot: tuple[tuple[float, ...], ...]
    storage: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...] = field(default=())


def is_storage_bound(job: SoloRates) -> bool:
    """Whether the storage is what a cold epoch of the job waits for."""
    excess = job.cold.seconds - job.hot.seconds
    return excess > max(BOUND * job.hot.seconds, 2 * math.hypot(job.cold.error, job.hot.error))


def overlap_from_half(job: SoloRates, storage_s: float) -> float | None:
    """From the time of an epoch of which half is cached; None where it makes no difference that could be seen."""
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
    """Parameters that give these rates. `which`: jobs that count as bound, where the caller knows."""
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
    """Seconds that the storage needs for a sample of job i: its cold pace, or that of a job that waits for it."""
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
    # Nobody waits for the storage alone. Two may, together: then each has its share of it, and gets t / 2 by itself.
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
        """How far the model is off with what this start of the iteration leads to, and that."""
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

    # Both jobs may be slow because of the storage, or because each is slowed by the other's work: from below and from
    # above the iteration finds the one or the other, and the model itself says which.
    above = [h * s for h, s in zip(alone_hot, stretch_hot, strict=True)]
    _, waits, stretches = min((tried(start) for start in (alone_hot, above)), key=lambda one: one[0])
    for a in (0, 1):
        if stretches[a] is None:
            me, beside = jobs[key[a]].name, jobs[key[1 - a]].name
            why = f"{beside} hardly uses the storage" if waits[a] else f"{me} does not wait for the storage"
            notes.append(
                f"what {beside} does to {me}'s reads was not told by the window ({why} there); taken is "
                + (
                    f"the {stretches[1 - a]:.2f} of the other direction"
                    if stretches[1 - a]
                    else "a storage shared evenly"
                )
            )
    first, second = (stretches[a] or stretches[1 - a] or FAIR for a in (0, 1))
    return first, second


def _stretch(storage_s: float, time: Rate, other: tuple[float, float] | None) -> float | None:
    """The stretch that makes `storage_s` last `time`; None: ill-conditioned.

    `other` None: it waits for the storage too, so it reads all the time. Else its own storage_s and time: it reads for
    the share storage_s' / time, where storage_s' is what the same stretch makes of its storage_s.
    """

    def slowed(stretch: float) -> float:
        """Share of the speed of reads that is lost."""
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
