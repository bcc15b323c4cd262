"""When to start each of several co-located jobs: the predicted makespan over offsets, the best, and its gain.

An *order* is a tuple of job numbers, the first to start first; an *offset* is how much later than the first one starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.calibration import Calibration, Model
from precision_time.ingest.fluid import Outcome, run
from precision_time.ingest.rates import Array, JobRates, SharedCache, Together

REACH = 1.2
"""Curves go from 0 to so many cold epochs of the job that starts first."""
BAND_POINTS = 25
QUANTILES = (0.1, 0.9)
SMALL = 0.02
"""A gain of a smaller share is not told from none: the model itself is not better than this."""
LEVEL = 1e-3
"""Of offsets that are as good as this share, the smallest is chosen: it leaves most room for what goes wrong."""
MOST_ORDERS_JOBS = 5
ORDERS = ("both", "given", "reversed")


@dataclass(frozen=True)
class Curve:
    """Makespan over the offset of the second job, in one order. `low`, `high`: P10 and P90 of what was measured."""

    order: tuple[int, ...]
    offsets_s: Array
    makespan_s: Array
    low_s: Array
    high_s: Array

    @property
    def best(self) -> int:
        """The smallest offset that is as good as the best."""
        least = float(self.makespan_s.min())
        return int(np.flatnonzero(self.makespan_s <= least * (1.0 + LEVEL))[0])


@dataclass(frozen=True)
class Way:
    """One way to run the jobs: offsets by job number, and what is predicted of it."""

    name: str
    offsets_s: tuple[float, ...]
    makespan_s: float
    finish_s: tuple[float, ...] = ()

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "way": self.name, "makespan_s": self.makespan_s,
            "offsets_s": dict(zip(names, self.offsets_s, strict=False)),
            "finish_s": dict(zip(names, self.finish_s, strict=False)),
        }  # fmt: skip


@dataclass(frozen=True)
class Staggering:
    """The answer: curves (of two jobs), the best way, the ways it is compared with, and whether its gain is real.

    best         what the model says is best
    advised      `best`, or starting together where the gain is within the uncertainty
    gain_error_s standard error of the gain of `best` over `together`, from the errors of the measured rates
    others       starting together, waiting a full first epoch, one after the other
    alternatives what else would help, without staggering
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
        """Whether the gain over starting together is more than what the measurements and the model leave open."""
        return self.gain_s > max(2.0 * self.gain_error_s, SMALL * self.together.makespan_s)

    @property
    def launch(self) -> Way:
        """What is run: the user's offset, or the advised one."""
        return self.chosen or self.advised

    def to_dict(self) -> dict[str, Any]:
        names = self.names
        return {
            "best": self.best.to_dict(names),
            "advised": self.advised.to_dict(names),
            "chosen": self.chosen.to_dict(names) if self.chosen else None,
            "gain_s": self.gain_s, "gain_standard_error_s": self.gain_error_s, "gain_is_sure": self.sure,
            "others": [way.to_dict(names) for way in self.others],
            "alternatives": [way.to_dict(names) for way in self.alternatives],
            "curves": [
                {
                    "first": names[curve.order[0]],
                    **{w: [round(float(v), 4) for v in getattr(curve, w)]
                       for w in ("offsets_s", "makespan_s", "low_s", "high_s")},
                }
                for curve in self.curves
            ],
            "calibration": self.calibration.to_dict(),
            "calibration_share_of_makespan": self.calibration.cost_s / self.together.makespan_s,
        }  # fmt: skip


def stagger(found: Calibration, points: int = 100, orders: str = "both", offset_s: float | None = None) -> Staggering:
    """Predict from a calibration. `offset_s` is asked about (and launched) instead of the best."""
    jobs = found.jobs
    if len(jobs) < 2:
        raise IngestError("one job alone has nobody to be staggered against; list at least two jobs")
    given = tuple(range(len(jobs)))
    wanted = {"both": [given, given[::-1]], "given": [given], "reversed": [given[::-1]]}[orders]
    together = _way("together", found, (0.0,) * len(jobs))
    curves: tuple[Curve, ...] = ()
    if len(jobs) == 2:
        curves = tuple(_curve(found, order, points) for order in wanted)
        curve = min(curves, key=lambda one: one.makespan_s[one.best])
        best = _way("staggered", found, _offsets(curve.order, float(curve.offsets_s[curve.best])))
    else:
        if offset_s is not None:
            raise IngestError("one offset says little of more than two jobs; leave --offset out")
        best = _way("staggered", found, best_of_many(found.jobs, found.together, found.cache, points))
    chosen = None
    if offset_s is not None:
        chosen = min(
            (_way("chosen", found, _offsets(order, offset_s)) for order in wanted), key=lambda way: way.makespan_s
        )
    gains = [_makespan(m, found.cache, together) - _makespan(m, found.cache, best) for m in found.draws]
    answer = Staggering(
        found, curves, best, best, float(np.std(gains)) if gains else 0.0,
        (together, *_usual(found, wanted)), _alternatives(found, curves, together), chosen,
    )  # fmt: skip
    return answer if answer.sure else replace(answer, advised=together)


def _model(found: Calibration) -> Model:
    return found.jobs, found.together


def _run(model: Model, cache: SharedCache, offsets: Array | Sequence[Sequence[float]]) -> Outcome:
    return run(model[0], model[1], cache, np.asarray(offsets, dtype=float), start_up_presses=True)


def _way(name: str, found: Calibration, offsets: tuple[float, ...]) -> Way:
    outcome = _run(_model(found), found.cache, [offsets])
    return Way(name, offsets, float(outcome.makespan_s[0]), tuple(float(s) for s in outcome.finish_s[0]))


def _makespan(model: Model, cache: SharedCache, way: Way) -> float:
    return float(_run(model, cache, [way.offsets_s]).makespan_s[0])


def _offsets(order: tuple[int, ...], offset_s: float) -> tuple[float, ...]:
    """By job number, of two jobs in this order."""
    return (0.0, offset_s) if order == (0, 1) else (offset_s, 0.0)


def _curve(found: Calibration, order: tuple[int, ...], points: int) -> Curve:
    first = found.jobs[order[0]]
    offsets = np.linspace(0.0, REACH * (first.start_up_s + first.cold_epoch_s), points)
    lanes = np.array([_offsets(order, float(s)) for s in offsets])
    makespan = _run(_model(found), found.cache, lanes).makespan_s
    if not found.draws:
        return Curve(order, offsets, makespan, makespan, makespan)
    some = np.unique(np.linspace(0, points - 1, min(points, BAND_POINTS)).round().astype(int))
    drawn = np.array([_run(model, found.cache, lanes[some]).makespan_s for model in found.draws])
    # What the draws do to the curve, put on the curve itself: between the points it has no noise of its own.
    low, high = (np.interp(offsets, offsets[some], np.quantile(drawn, q, axis=0) / makespan[some]) * makespan
                 for q in QUANTILES)  # fmt: skip
    return Curve(order, offsets, makespan, np.minimum(low, makespan), np.maximum(high, makespan))


def _usual(found: Calibration, orders: Sequence[tuple[int, ...]]) -> tuple[Way, ...]:
    """Waiting a full first epoch, and one after the other; each in its better order."""

    def chain(order: tuple[int, ...], wait: Any) -> tuple[float, ...]:
        offsets, at = [0.0] * len(order), 0.0
        for job in order:
            offsets[job] = at
            at += wait(found.jobs[job], at)
        return tuple(offsets)

    def epoch(job: JobRates, at: float) -> float:
        return job.start_up_s + (job.cold_epoch_s if at == 0 else job.hot_epoch_s)

    def whole(job: JobRates, at: float) -> float:
        return epoch(job, at) + (job.epochs - 1) * job.hot_epoch_s + job.end_s

    ways = []
    for name, wait in (("after a full first epoch", epoch), ("one after the other", whole)):
        made = [_way(name, found, chain(order, wait)) for order in orders]
        ways.append(min(made, key=lambda way: way.makespan_s))
    return tuple(ways)


def best_of_many(jobs: Sequence[JobRates], together: Together, cache: SharedCache, points: int) -> tuple[float, ...]:
    """Offsets of more than two jobs: coordinate descent from every order, all points of a coordinate at once."""
    reach = REACH * max(job.start_up_s + job.cold_epoch_s for job in jobs)
    orders = list(permutations(range(len(jobs)))) if len(jobs) <= MOST_ORDERS_JOBS else [tuple(range(len(jobs)))]
    best, least = tuple(0.0 for _ in jobs), math.inf
    for order in orders:
        offsets = np.zeros(len(jobs))
        value = math.inf
        for _ in range(3):
            before = value
            for job in order[1:]:
                lanes = np.tile(offsets, (points, 1))
                lanes[:, job] = np.linspace(0.0, reach, points)
                makespans = run(jobs, together, cache, lanes, start_up_presses=True).makespan_s
                at = int(np.flatnonzero(makespans <= makespans.min() * (1.0 + LEVEL))[0])
                offsets[job], value = lanes[at, job], float(makespans[at])
            if value > before * (1.0 - LEVEL):
                break
        if value < least * (1.0 - LEVEL):
            best, least = tuple(float(s) for s in offsets - offsets.min()), value
    return best


def _alternatives(found: Calibration, curves: tuple[Curve, ...], together: Way) -> tuple[Way, ...]:
    """One loader that feeds all jobs; a cache that, when full, keeps what it has."""
    made = []
    # It is only bounded from above: a bound that is no better than starting together says nothing.
    if (shared := _shared_preparation(found)) and shared.makespan_s < together.makespan_s:
        made.append(shared)
    if found.cache.capacity is not None and found.cache.policy == "lru" and _too_small(found):
        kept = replace(found, cache=SharedCache(found.cache.capacity, "no-eviction"), draws=())
        offsets = [_offsets(curve.order, float(s)) for curve in curves for s in curve.offsets_s]
        ways = np.array(offsets or [(0.0,) * len(found.jobs)])
        least = int(_run(_model(kept), kept.cache, ways).makespan_s.argmin())
        made.append(_way("no-eviction cache, at its best offset", kept, tuple(float(s) for s in ways[least])))
    return tuple(made)


def _too_small(found: Calibration) -> bool:
    assert found.cache.capacity is not None  # asked by the caller
    return found.cache.capacity < max(job.samples for job in found.jobs)


def _shared_preparation(found: Calibration) -> Way | None:
    """All read every sample once, in step (Joader, CoorDL); at most, for that it is prepared once counts as no gain."""
    if len({tuple(sorted(job.parts.items())) for job in found.jobs}) > 1:
        return None
    left = {i: float(job.epochs) for i, job in enumerate(found.jobs)}
    samples = max(job.samples for job in found.jobs)
    at = max(job.start_up_s for job in found.jobs)
    finish = [0.0] * len(found.jobs)
    fast = max(job.storage_s for job in found.jobs)
    first = True
    while left:
        hot = max(
            found.jobs[i].hot_s * (1.0 + sum(found.together.hot[i][j] - 1.0 for j in left if j != i)) for i in left
        )
        lasts = min(left.values()) if not first else min(1.0, *left.values())
        at += lasts * samples * (max(hot, fast) if first else hot)
        first = False
        left = {i: epochs - lasts for i, epochs in left.items()}
        for i in [i for i, epochs in left.items() if epochs <= 1e-9]:
            finish[i] = at + found.jobs[i].end_s
            del left[i]
    return Way("shared preparation, at most", (), max(finish), tuple(finish))
