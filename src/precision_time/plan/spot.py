"""Spot instances: when they can be had and when they are taken away, and a run on them that is still done in time.

Availability is an alternating renewal process: spells with an instance and spells without follow each other, each with
a Weibull distribution of its own. A run works on spot while there is an instance. It loses the work since its last
checkpoint when the instance is taken, starts again on the next one, and goes over to on-demand for good at the point of
no return: when one more start that is lost with all since the last checkpoint would leave just enough time on demand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.estimate.levels import Distribution, Floats
from precision_time.reading import read_mapping
from precision_time.shipped import shipped_file

PARAMETERS = "plan/data/spot.json"
PUBLISHED = "published"
PATHS = 1000
"""Runs that are played for one option."""
BEFORE_H = 100.0
"""Hours that the process has run before a job may start, so that it starts at any moment of a spell."""
MOST_SPELLS = 4000
"""Spells of a run that are played; what is left then is done on demand."""


@dataclass(frozen=True, slots=True)
class Spells:
    """Lengths of spells in hours: Weibull with this shape and scale."""

    shape: float
    scale: float

    @property
    def mean(self) -> float:
        return self.scale * math.gamma(1.0 + 1.0 / self.shape)

    def drawn(self, levels: Floats) -> Floats:
        """Lengths at levels between 0 and 1."""
        lengths: Floats = self.scale * (-np.log1p(-levels)) ** (1.0 / self.shape)
        return lengths

    @classmethod
    def fitted(cls, hours: Sequence[float], cut: Sequence[float] = ()) -> Spells:
        """The likeliest parameters of whole spells, and of spells that were `cut` off while they lasted."""
        whole, every = np.asarray(hours, float), np.asarray([*hours, *cut], float)
        logs = np.log(whole)

        def slope(shape: float) -> float:
            powers = every**shape
            return float((powers * np.log(every)).sum() / powers.sum() - 1.0 / shape - logs.mean())

        low, high = 0.05, 20.0
        for _ in range(80):  # `slope` increases with the shape
            middle = math.sqrt(low * high)
            low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
        shape = math.sqrt(low * high)
        return cls(shape, float((every**shape).sum() / len(whole)) ** (1.0 / shape))


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone's spells with (`up`) and without an instance."""

    name: str
    up: Spells
    down: Spells

    @property
    def availability(self) -> float:
        """Share of the time with an instance."""
        return self.up.mean / (self.up.mean + self.down.mean)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "up": [self.up.shape, self.up.scale],
            "down": [self.down.shape, self.down.scale],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Zone:
        return cls(values["name"], Spells(*values["up"]), Spells(*values["down"]))

    @classmethod
    def of_trace(cls, name: str, trace: Sequence[bool], gap_h: float) -> Zone | None:
        """The zone of a trace with one entry every `gap_h` hours; None where it has not two spells of each kind."""
        lengths: dict[bool, list[float]] = {True: [], False: []}
        cut: dict[bool, list[float]] = {True: [], False: []}
        edges = [0, *(i for i in range(1, len(trace)) if trace[i] != trace[i - 1]), len(trace)]
        for place, (start, end) in enumerate(pairwise(edges)):
            ends = cut if place in (0, len(edges) - 2) else lengths  # the first and the last one are seen in part
            ends[trace[start]].append((end - start) * gap_h)
        if min(len(lengths[True]), len(lengths[False])) < 2:
            return None
        return cls(name, *(Spells.fitted(lengths[kind], cut[kind]) for kind in (True, False)))


@cache
def published_zones() -> tuple[Zone, ...]:
    """The zones that ship, of one instance each (`precision-time fit spot`)."""
    content = json.loads(shipped_file(PARAMETERS).read_bytes())
    return tuple(Zone.from_dict(each) for each in content["zones"])


@dataclass(frozen=True, slots=True)
class Market:
    """Spot instances as published, or as a trace of one's own has them.

    counts   numbers of instances, one every `gap_h` hours; empty: the published zones of one instance each
    """

    name: str
    counts: tuple[float, ...] = ()
    gap_h: float = 0.0

    def zones(self, instances: int) -> tuple[Zone, ...]:
        """The zones of so many instances at once; none where nothing is known of so many."""
        if not self.counts:
            return published_zones() if instances == 1 else ()
        zone = Zone.of_trace(self.name, [count >= instances for count in self.counts], self.gap_h)
        return () if zone is None else (zone,)


def market_of(name: str) -> Market:
    """The market "published", or of a trace in SkyPilot's JSON: {"metadata": {"gap_seconds": 600}, "data": [1, 0]}.

    Raises `DataError` for a file that cannot be read or is no trace.
    """
    if name == PUBLISHED:
        return Market(name)
    content = read_mapping(name, "spot trace", '{"metadata": {"gap_seconds": 600}, "data": [1, 0, 1]}')
    metadata = content.get("metadata")
    gap = content.get("gap_seconds", metadata.get("gap_seconds") if isinstance(metadata, dict) else None)
    data = content.get("data")
    if not isinstance(gap, (int, float)) or isinstance(gap, bool) or not 1.0 <= gap <= 1e6:
        raise DataError(f"spot trace {show(name)} has no gap_seconds from 1 to 1,000,000; give the seconds of an entry")
    if not isinstance(data, list) or not data or not all(isinstance(v, (int, float)) and 0 <= v <= 1e9 for v in data):
        raise DataError(
            f"spot trace {show(name)} has no data; give a list of numbers of instances, one every gap_seconds"
        )
    return Market(name, tuple(data), gap / 3600.0)


@dataclass(frozen=True, slots=True)
class SpotRuns:
    """Runs as played: hours until they are done, and of them on spot and on demand; one entry for each path."""

    finish_h: Floats
    spot_h: Floats
    demand_h: Floats

    def usd(self, spot: float, demand: float) -> Floats:
        """Dollars at these prices an hour."""
        cost: Floats = self.spot_h * spot + self.demand_h * demand
        return cost


def played(
    work_h: Floats,
    zones: Sequence[Zone],
    deadline_h: float | None,
    start_h: float,
    checkpoint_h: float,
    seed: int = 0,
) -> SpotRuns:
    """Runs of these hours of work on spot, each in one of the zones.

    `start_h`: of a start; `checkpoint_h`: between checkpoints, of which half is lost when an instance is taken. Without
    a deadline no run goes over to on-demand, unless it is not done after `MOST_SPELLS` spells.
    """
    rng = np.random.default_rng(seed)
    state = _State.begun(np.asarray(work_h, float), len(zones), rng)
    for _ in range(MOST_SPELLS):
        if not state.open.any():
            break
        state.spell(zones, deadline_h, start_h, checkpoint_h, rng)
    state.on_demand(state.open, start_h)
    return SpotRuns(state.clock, state.spot, state.demand)


@dataclass(slots=True)
class _State:
    """All paths: their clock, work left, hours so far, and whether they have an instance."""

    clock: Floats
    left: Floats
    spot: Floats
    demand: Floats
    zone: NDArray[np.int64]
    up: NDArray[np.bool_]
    open: NDArray[np.bool_]
    first: NDArray[np.bool_]

    @classmethod
    def begun(cls, work_h: Floats, zones: int, rng: np.random.Generator) -> _State:
        count = len(work_h)
        before = -BEFORE_H * rng.uniform(0.5, 1.0, count)
        return cls(
            before, work_h.copy(), np.zeros(count), np.zeros(count), rng.integers(0, zones, count),
            rng.random(count) < 0.5, np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_),
        )  # fmt: skip

    def spell(
        self,
        zones: Sequence[Zone],
        deadline_h: float | None,
        start_h: float,
        checkpoint_h: float,
        rng: np.random.Generator,
    ) -> None:
        """One spell of every open path, with an instance or without."""
        levels = rng.random(len(self.clock))
        length = np.empty_like(self.clock)
        for index, zone in enumerate(zones):
            for up, spells in ((True, zone.up), (False, zone.down)):
                there = (self.zone == index) & (self.up == up)
                length[there] = spells.drawn(levels[there])
        begin = np.maximum(self.clock, 0.0)  # of the part of the spell after the launch
        end = self.clock + length
        after = self.open & (end > 0.0)
        if deadline_h is not None:
            last = deadline_h - self.left - 2.0 * start_h - checkpoint_h  # the point of no return
            gone = after & ((begin >= last) | (~self.up & (end > last)))
            self.clock[gone] = np.maximum(begin, np.minimum(last, end))[gone]
            self.on_demand(gone, start_h)
            after &= ~gone
        works = after & self.up
        start = np.where(self.first, 0.0, start_h)
        room = np.maximum(end - begin - start, 0.0)
        done = works & (room >= self.left)
        self.clock[done] = (begin + start + self.left)[done]
        self.spot[done] += (start + self.left)[done]
        taken = works & ~done
        self.spot[taken] += (end - begin)[taken]
        progress = np.maximum(room - 0.5 * checkpoint_h, 0.0)
        self.left[taken] -= progress[taken]
        self.first &= ~works
        self.open &= ~done
        self.clock[self.open] = end[self.open]
        self.up = ~self.up

    def on_demand(self, paths: NDArray[np.bool_], start_h: float) -> None:
        """Do what is left on demand."""
        hours = self.left + np.where(self.first, 0.0, start_h)
        self.clock[paths] += hours[paths]
        self.demand[paths] += hours[paths]
        self.open &= ~paths


def work_levels(wall: Distribution) -> Floats:
    """Hours of a run at `PATHS` equally probable levels, in an order that does not depend on the paths."""
    levels = (np.arange(PATHS) * 0.6180339887498949 + 0.5) % 1.0
    ranks = (levels.argsort().argsort() + 0.5) / PATHS
    return np.array([wall.quantile(float(level)) for level in ranks]) / 3600.0
