"""The makespan of two jobs over the start offset, in both orders, and the gain of the best start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.alternatives import alone_s, first_epoch_s, no_eviction_s, shared_preparation_s
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.rates import Array, JobRates, SharedCache, Slowdowns

Evaluate = Callable[[Array, Array], Array]

SAME = 1e-7
"""Makespans closer than this share count as equal; the smaller offset is then preferred."""


@dataclass(frozen=True, slots=True)
class Stagger:
    """One way to start two jobs: `first` (0 or 1) at once and the other `offset_s` later."""

    first: int
    offset_s: float
    makespan_s: float

    @property
    def offsets_s(self) -> tuple[float, float]:
        """Offset of each job."""
        return (0.0, self.offset_s) if self.first == 0 else (self.offset_s, 0.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """Makespans over staggers.

    jobs          names
    offsets_s     [points] from 0 on
    makespan_s    [2, points] row f: job f starts first
    best          least over all offsets and both orders, refined between the points
    at_once       both start at once
    wait_epoch    the second starts when the first, alone, has done its first epoch; for each order
    serial        the second starts when the first has ended; for each order
    shared_preparation_s  one loader feeds both, see alternatives.py; None if they read different data
    no_eviction_s         least over the points with a cache that does not evict; None if it does not evict anyway
    """

    jobs: tuple[str, str]
    offsets_s: Array
    makespan_s: Array
    best: Stagger
    at_once: Stagger
    wait_epoch: tuple[Stagger, Stagger]
    serial: tuple[Stagger, Stagger]
    shared_preparation_s: float | None
    no_eviction_s: float | None

    @property
    def gains(self) -> dict[str, float]:
        """Share of the makespan saved over each plain way to start; the better order of each."""
        others = {
            "together": self.at_once.makespan_s,
            "wait_epoch": min(way.makespan_s for way in self.wait_epoch),
            "serial": min(way.makespan_s for way in self.serial),
        }
        return {name: 1.0 - self.best.makespan_s / other for name, other in others.items()}


def stagger_curve(
    jobs: Sequence[JobRates],
    slowdowns: Slowdowns,
    cache: SharedCache,
    points: int = 100,
    longest: float | None = None,
    *,
    count_start_up: bool = False,
) -> Curve:
    """Predict the makespan of two jobs for `points` offsets up to `longest` seconds, in both orders.

    longest  1.2 cold epochs of either job, or the longer makespan alone if that is more
    """
    if len(jobs) != 2:
        raise IngestError(f"A curve is of two jobs, but {len(jobs)} are given: use best_offsets for another number.")
    if points < 2:
        raise IngestError(f"points is {points}: give at least 2.")
    alone = [alone_s(job, cache) for job in jobs]
    epoch = [first_epoch_s(job, cache) for job in jobs]
    if longest is None:
        longest = max(*alone, *(1.2 * job.cold_epoch_s for job in jobs))
    if not longest > 0:
        raise IngestError(f"longest is {longest}: give seconds above 0.")

    def evaluate(first: Array, offsets: Array) -> Array:
        rows = np.stack([np.where(first == 0, 0.0, offsets), np.where(first == 0, offsets, 0.0)], axis=1)
        return run(jobs, slowdowns, cache, rows, count_start_up=count_start_up).makespan_s

    offsets = np.linspace(0.0, longest, points)
    plain_first = np.array([0.0, 0.0, 1.0, 0.0, 1.0])
    plain_offset = np.array([0.0, epoch[0], epoch[1], alone[0], alone[1]])
    # One run for all lanes: more lanes cost little.
    first = np.concatenate([np.repeat([0.0, 1.0], points), plain_first])
    predicted = evaluate(first, np.concatenate([offsets, offsets, plain_offset]))
    makespan, plain = predicted[: 2 * points].reshape(2, points), predicted[2 * points :]
    ways = [Stagger(int(f), float(o), float(m)) for f, o, m in zip(plain_first, plain_offset, plain, strict=True)]
    candidates = [*ways, *_refined(evaluate, offsets, makespan)]
    rows = [(0.0, float(o)) for o in offsets] + [(float(o), 0.0) for o in offsets]
    return Curve(
        (jobs[0].name, jobs[1].name),
        offsets,
        makespan,
        _least(candidates),
        ways[0],
        (ways[1], ways[2]),
        (ways[3], ways[4]),
        shared_preparation_s(jobs, slowdowns, cache),
        no_eviction_s(jobs, slowdowns, cache, rows),
    )


def _refined(evaluate: Evaluate, offsets: Array, makespan: Array, wells: int = 4, rounds: int = 3) -> list[Stagger]:
    """All points of the curve, and the results of a search around the lowest `wells` points of each order."""
    candidates = [
        Stagger(first, float(offsets[p]), float(row[p])) for first, row in enumerate(makespan) for p in range(len(row))
    ]
    lowest = [
        sorted((s for s in candidates if s.first == first), key=lambda s: s.makespan_s)[:wells] for first in (0, 1)
    ]
    centres = [s for centre_ways in lowest for s in centre_ways]
    width = float(offsets[1] - offsets[0])
    steps = np.linspace(-1.0, 1.0, 17)
    for _ in range(rounds):
        first = np.repeat([float(s.first) for s in centres], len(steps))
        tried = np.clip((np.array([[s.offset_s] for s in centres]) + width * steps).ravel(), 0.0, offsets[-1])
        value = evaluate(first, tried).reshape(len(centres), -1)
        best = value.argmin(axis=1)
        tried = tried.reshape(value.shape)
        centres = [
            Stagger(s.first, float(tried[c, p]), float(value[c, p]))
            for c, (s, p) in enumerate(zip(centres, best, strict=True))
        ]
        width *= 2.0 / (len(steps) - 1)
    return candidates + centres


def _least(ways: Sequence[Stagger]) -> Stagger:
    bound = min(way.makespan_s for way in ways) * (1.0 + SAME)
    return min((way for way in ways if way.makespan_s <= bound), key=lambda way: (way.offset_s, way.makespan_s))
