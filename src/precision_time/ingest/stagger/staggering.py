"""When to start each of several co-located jobs: the predicted makespan over offsets, the best, and its gain.

An *order* is a tuple of job numbers, the first to start first; an *offset* is how much later than the first one starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.alternatives import shared_preparation_s
from precision_time.ingest.model.curve import Curve as BothOrders
from precision_time.ingest.model.curve import stagger_curve
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.offsets import best_offsets
from precision_time.ingest.model.outcome import Outcome
from precision_time.ingest.model.rates import Array, SharedCache
from precision_time.ingest.stagger.calibration import Calibration, Model

REACH = 1.2
"""Longest offset of a curve, in cold epochs of the longer job."""
BAND_POINTS = 25
FEW_DRAWS = 8
QUANTILES = (0.1, 0.9)
SMALL = 0.02
"""A smaller relative gain counts as none: the accuracy of the model."""
LEVEL = 1e-3
"""Of offsets with makespans within this share of the least, the smallest is chosen."""
MOST_ORDERS_JOBS = 5
COUNT_START_UP = True
"""A job that starts up (imports, compiles) slows the others' preparation as training does."""


@dataclass(frozen=True)
class Curve:
    """Makespan over the offset of the second job, in one order; low_s and high_s are P10 and P90."""

    order: tuple[int, ...]
    offsets_s: Array
    makespan_s: Array
    low_s: Array
    high_s: Array

    @property
    def best(self) -> int:
        """Index of the smallest offset that is as good as the best."""
        least = float(self.makespan_s.min())
        return int(np.flatnonzero(self.makespan_s <= least * (1.0 + LEVEL))[0])


@dataclass(frozen=True)
class Way:
    """One way to start the jobs: offsets by job number, and the predicted times."""

    name: str
    offsets_s: tuple[float, ...]
    makespan_s: float
    finish_s: tuple[float, ...] = ()

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "way": self.name,
            "makespan_s": self.makespan_s,
            "offsets_s": dict(zip(names, self.offsets_s, strict=False)),
            "finish_s": dict(zip(names, self.finish_s, strict=False)),
        }


@dataclass(frozen=True)
class Staggering:
    """The prediction: curves (of two jobs), the best way to start, the ways compared, and whether the gain is
    significant.

    best         the way with the least predicted makespan
    advised      `best`, or starting together where the gain is within the uncertainty
    gain_error_s standard error of the gain of `best` over `together`, from the errors of the measured rates
    others       starting together, waiting a full first epoch, one after the other
    alternatives predictions without staggering: shared preparation, a cache without eviction
    """

    calibration: Calibration
    curves: tuple[Curve, ...]
    best: Way
    advised: Way
    gain_error_s: float
    others: tuple[Way, ...]
    alternatives: tuple[Way, ...]
    chosen: Way | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(job.name for job in self.calibration.jobs)

    @property
    def together(self) -> Way:
        return self.others[0]

    @property
    def gain_s(self) -> float:
        return self.together.makespan_s - self.best.makespan_s

    @property
    def sure(self) -> bool:
        """Whether the gain over starting together exceeds the errors of the measurements and of the model."""
        return self.gain_s > max(2.0 * self.gain_error_s, SMALL * self.together.makespan_s)

    @property
    def launch(self) -> Way:
        """The way that is run: the user's offset, or the advised one."""
        return self.chosen or self.advised

    def to_dict(self) -> dict[str, Any]:
        names = self.names
        return {
            "best": self.best.to_dict(names),
            "advised": self.advised.to_dict(names),
            "chosen": self.chosen.to_dict(names) if self.chosen else None,
            "gain_s": self.gain_s,
            "gain_standard_error_s": self.gain_error_s,
            "gain_is_sure": self.sure,
            "others": [way.to_dict(names) for way in self.others],
            "alternatives": [way.to_dict(names) for way in self.alternatives],
            "curves": [
                {
                    "first": names[curve.order[0]],
                    **{
                        w: [round(float(v), 4) for v in getattr(curve, w)]
                        for w in ("offsets_s", "makespan_s", "low_s", "high_s")
                    },
                }
                for curve in self.curves
            ],
            "calibration": self.calibration.to_dict(),
            "calibration_share_of_makespan": self.calibration.cost_s / self.together.makespan_s,
        }


def stagger(
    calibration: Calibration, points: int = 100, orders: str = "both", offset_s: float | None = None
) -> Staggering:
    """Predict from a calibration. `offset_s` replaces the best offset; `orders` is both, given or reversed.

    Raises IngestError for fewer than two jobs, or for an offset with more than two.
    """
    if len(calibration.jobs) < 2:
        raise IngestError("one job alone cannot be staggered; list at least two jobs")
    if len(calibration.jobs) > 2 and offset_s is not None:
        raise IngestError("one offset is not enough for more than two jobs; leave --offset out")
    answer = _of_two(calibration, points, orders, offset_s) if len(calibration.jobs) == 2 else _of_many(calibration)
    pair = [answer.together.offsets_s, answer.best.offsets_s]
    drawn = [_run(model, calibration.cache, pair).makespan_s for model in _draws(calibration)]
    answer = replace(answer, gain_error_s=float(np.std([before - after for before, after in drawn])) if drawn else 0.0)
    return answer if answer.sure else replace(answer, advised=answer.together)


def _of_two(calibration: Calibration, points: int, orders: str, offset_s: float | None) -> Staggering:
    jobs, cache = calibration.jobs, calibration.cache
    longest = REACH * max(job.start_up_s + job.cold_epoch_s for job in jobs)
    both = stagger_curve(jobs, calibration.slowdowns, cache, points, longest, count_start_up=COUNT_START_UP)
    allowed = {"both": (0, 1), "given": (0,), "reversed": (1,)}[orders]
    curves = _curves(calibration, allowed, both)
    if orders == "both":
        offsets = both.best.offsets_s
    else:
        curve = curves[0]
        offsets = _offsets(allowed[0], float(curve.offsets_s[curve.best]))
    named = [("staggered", offsets), ("together", (0.0, 0.0))]
    for name, ways in (("after a full first epoch", both.wait_epoch), ("one after the other", both.serial)):
        least = min((way for way in ways if way.first in allowed), key=lambda way: way.makespan_s)
        named.append((name, least.offsets_s))
    best, *others = _ways(calibration, named)
    chosen = None
    if offset_s is not None:
        made = _ways(calibration, [("chosen", _offsets(first, offset_s)) for first in allowed])
        chosen = min(made, key=lambda way: way.makespan_s)
    alternatives = []
    # The first is only bounded from above: a bound that is no better than starting together says nothing.
    if both.shared_preparation_s is not None and both.shared_preparation_s < others[0].makespan_s:
        alternatives.append(Way("shared preparation, at most", (), both.shared_preparation_s))
    if both.no_eviction_s is not None and _too_small(calibration):
        alternatives.append(Way("no-eviction cache, at its best offset", (), both.no_eviction_s))
    return Staggering(calibration, curves, best, best, 0.0, tuple(others), tuple(alternatives), chosen)


def _of_many(calibration: Calibration) -> Staggering:
    jobs, cache = calibration.jobs, calibration.cache
    offsets = best_offsets(jobs, calibration.slowdowns, cache, count_start_up=COUNT_START_UP)
    best, *others = _ways(calibration, [("staggered", offsets.offsets_s), ("together", (0.0,) * len(jobs))])
    orders = list(permutations(range(len(jobs)))) if len(jobs) <= MOST_ORDERS_JOBS else [tuple(range(len(jobs)))]
    for name, whole in (("after a full first epoch", False), ("one after the other", True)):
        made = _ways(calibration, [(name, _chain(calibration, order, whole)) for order in orders])
        others.append(min(made, key=lambda way: way.makespan_s))
    alternatives = []
    shared = shared_preparation_s(jobs, calibration.slowdowns, cache)
    if shared is not None and shared < others[0].makespan_s:
        alternatives.append(Way("shared preparation, at most", (), shared))
    return Staggering(calibration, (), best, best, 0.0, tuple(others), tuple(alternatives))


def _chain(calibration: Calibration, order: Sequence[int], whole: bool) -> tuple[float, ...]:
    """Offsets with which each job starts when the one before has done its first epoch, or, if `whole`, all its
    epochs."""
    offsets, at = [0.0] * len(order), 0.0
    for job in order:
        offsets[job] = at
        rates = calibration.jobs[job]
        first = rates.cold_epoch_s if at == 0 else rates.hot_epoch_s
        at += rates.start_up_s + first + ((rates.epochs - 1) * rates.hot_epoch_s + rates.end_s if whole else 0.0)
    return tuple(offsets)


def _run(model: Model, cache: SharedCache, offsets: Array | Sequence[Sequence[float]]) -> Outcome:
    return run(model[0], model[1], cache, np.asarray(offsets, dtype=float), count_start_up=COUNT_START_UP)


def _ways(calibration: Calibration, named: Sequence[tuple[str, tuple[float, ...]]]) -> list[Way]:
    """Ways with these names and offsets, all in one run, which takes hardly longer than that of one."""
    outcome = _run((calibration.jobs, calibration.slowdowns), calibration.cache, [offsets for _, offsets in named])
    return [
        Way(name, offsets, float(makespan), tuple(float(s) for s in finish))
        for (name, offsets), makespan, finish in zip(named, outcome.makespan_s, outcome.finish_s, strict=True)
    ]


def _offsets(first: int, offset_s: float) -> tuple[float, float]:
    """Offsets by job number, of two jobs."""
    return (0.0, offset_s) if first == 0 else (offset_s, 0.0)


def _curves(calibration: Calibration, allowed: Sequence[int], both: BothOrders) -> tuple[Curve, ...]:
    """The curve of each order, named by its first job, with the band from the errors of the measured rates."""
    points, draws = len(both.offsets_s), _draws(calibration)
    some = np.unique(np.linspace(0, points - 1, min(points, BAND_POINTS)).round().astype(int))
    lanes = [_offsets(first, float(s)) for first in allowed for s in both.offsets_s[some]]
    drawn = np.array([_run(model, calibration.cache, lanes).makespan_s for model in draws])
    by_order = drawn.reshape(len(draws), len(allowed), len(some))
    return tuple(_curve(first, both, some, by_order[:, place]) for place, first in enumerate(allowed))


def _curve(first: int, both: BothOrders, some: Array, drawn: Array) -> Curve:
    """`drawn`: the makespans of every draw at `some` of the offsets."""
    offsets, makespan = both.offsets_s, both.makespan_s[first]
    order = (first, 1 - first)
    if not len(drawn):
        return Curve(order, offsets, makespan, makespan, makespan)
    # The relative spread of the draws, interpolated onto the curve.
    low, high = (
        np.interp(offsets, offsets[some], np.quantile(drawn, q, axis=0) / makespan[some]) * makespan for q in QUANTILES
    )
    return Curve(order, offsets, makespan, np.minimum(low, makespan), np.maximum(high, makespan))


def _draws(calibration: Calibration) -> tuple[Model, ...]:
    """Parameter draws; fewer for a cache that is too small or jobs that read in one order, whose runs take longer."""
    slow = _too_small(calibration) or calibration.slowdowns.same_order
    return calibration.draws[:FEW_DRAWS] if slow else calibration.draws


def _too_small(calibration: Calibration) -> bool:
    return calibration.cache.capacity is not None and calibration.cache.capacity < max(
        job.samples for job in calibration.jobs
    )
