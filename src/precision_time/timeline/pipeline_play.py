"""Simulates a grid: the start of every operation, and the period after which the schedule repeats.

An operation starts when its stage is free and its input has arrived, so a row is a maximum and an addition over the row
before: start = max(start_before + own, neighbour's start_before + onward). Where costs repeat every round, one row
determines all later rows. Once a row equals the row c rounds earlier plus one constant on all stages, everything after
it repeats with that constant, and multiples of c rounds are skipped. This is exact. (c = 1 where the slowest stage sets
the period, c = L for a round trip over L stages.) Without such a row, every row is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from precision_time.timeline.pipeline_grid import Array, Grid

_EQUAL = 1e-13
"""Largest spread of a shift that counts as one constant, relative to the simulated time: about 100 float64
roundings."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """By stage, skipped rounds included: start of the first forward and of the last backward, and `exposed_send_s`.

    Every `period` rounds (0: no repetition found) take `period_s` and add `period_exposed_s`.
    """

    first_forward_s: Array
    last_backward_s: Array
    exposed_send_s: Array
    period: int
    period_s: float
    period_exposed_s: Array

    def longer(self, periods: int) -> Played:
        """The result with this many more periods."""
        if not periods:
            return self
        return replace(
            self,
            last_backward_s=self.last_backward_s + periods * self.period_s,
            exposed_send_s=self.exposed_send_s + periods * self.period_exposed_s,
        )

    def at_last_rate(self, shorter: Played, times: float) -> Played:
        """The result with so many times the micro-batches that this one has more than a `shorter` one."""
        return replace(
            self,
            last_backward_s=self.last_backward_s + times * (self.last_backward_s - shorter.last_backward_s),
            exposed_send_s=self.exposed_send_s + times * (self.exposed_send_s - shorter.exposed_send_s),
        )


class _Ring:
    """Position of the stages of a ring: their own time, and arrivals from the stage before and from the one after.

    Arrivals have one more cell, a copy of what the last stage sends to the first and the first to the last.
    """

    def __init__(self, grid: Grid) -> None:
        rows, halves, _, stages = grid.cost.shape
        self.cost = grid.cost
        self.start = np.empty((rows, halves, stages))
        self.first_backward = grid.steady.rows - 1
        self.last_forward = rows - grid.steady.rows
        self.own = np.zeros(stages)
        self.before = np.full(stages + 1, -np.inf)
        self.after = np.full(stages + 1, -np.inf)

    def later(self, seconds: float) -> None:
        for times in (self.own, self.before, self.after):
            times += seconds

    def run(self, first: int, end: int) -> None:
        """Play rows [first, end). Those of the fill that have no backwards, and of the drain, take half the work."""
        fill = min(max(first, self.first_backward), end)
        drain = max(min(end, self.last_forward + 1), fill)
        start, cost, before, after = self.start, self.cost, self.before, self.after
        self._run_half(start[first:fill, 0], cost[first:fill, 0], before, before[:-1], before[1:], (0, -1))
        start[first:fill, 1] = start[first:fill, 0] + cost[first:fill, 0, 0]
        self._run_both(fill, drain)
        if drain < end:
            start[drain, 0] = self.own
            self._run_half(start[drain:end, 1], cost[drain:end, 1], after, after[1:], after[:-1], (-1, 0))
            start[drain + 1 : end, 0] = start[drain : end - 1, 1] + cost[drain : end - 1, 1, 0]

    def _run_half(
        self, start: Array, cost: Array, arrivals: Array, into: Array, out: Array, turn: tuple[int, int]
    ) -> None:
        maximum, add, own = np.maximum, np.add, self.own
        to, of = turn
        for begun, own_s, onward_s in zip(start, cost[:, 0], cost[:, 1], strict=True):
            maximum(own, into, out=begun)
            add(begun, own_s, own)
            add(begun, onward_s, out)
            arrivals[to] = arrivals[of]

    def _run_both(self, first: int, end: int) -> None:
        maximum, add = (
            np.maximum,
            np.add,
        )  # calls on short vectors are all the cost: flat arrays, given outputs (by place)
        own, before, after = self.own, self.before, self.after
        before_in, before_out, after_in, after_out = before[:-1], before[1:], after[1:], after[:-1]
        start, cost = self.start[first:end], self.cost[first:end]
        for start_f, start_b, own_f, onward_f, own_b, onward_b in zip(
            start[:, 0], start[:, 1], cost[:, 0, 0], cost[:, 0, 1], cost[:, 1, 0], cost[:, 1, 1], strict=True
        ):
            maximum(own, before_in, out=start_f)
            add(start_f, own_f, own)
            add(start_f, onward_f, before_out)
            before[0] = before[-1]
            maximum(own, after_in, out=start_b)
            add(start_b, own_b, own)
            add(start_b, onward_b, after_out)
            after[-1] = after[0]


class _Pairs:
    """Position of the stages of pairs: `state[0]` own time, `state[1]` time at which the neighbour has the result.

    Stage s is in column s + 1. Columns (0, 1), (2, 3) ... exchange in even rows, (1, 2), (3, 4) ... in odd rows. The
    outermost columns hold no stage.
    """

    def __init__(self, grid: Grid) -> None:
        rows, halves, _, stages = grid.cost.shape
        self.padded = np.empty((rows, halves, stages + 2))
        self.start = self.padded[..., 1:-1]
        self.cost = np.zeros((rows, 2, stages + 2))
        self.cost[:, 1, (0, -1)] = -np.inf
        self.cost[..., 1:-1] = grid.cost[:, 0]
        self.state = np.zeros((2, stages + 2))
        self.state[1] = -np.inf

    def later(self, seconds: float) -> None:
        self.state += seconds

    def run(self, first: int, end: int) -> None:
        """Play rows [first, end)."""
        maximum, add = np.maximum, np.add
        lanes = []
        for skip in (0, 1):
            at = first + skip
            pairs = (self.state.shape[1] - at % 2) // 2
            lane = slice(at % 2, at % 2 + 2 * pairs)
            state = self.state[:, lane].reshape(2, pairs, 2)
            start, cost = self.padded[at:end:2, 0, lane], self.cost[at:end:2, :, lane]
            rows = zip(start.reshape(-1, pairs, 2), cost.reshape(-1, 2, pairs, 2), strict=True)
            lanes.append((state, state[0], state[1, :, ::-1], rows))
        (state_a, own_a, other_a, rows_a), (state_b, own_b, other_b, rows_b) = lanes
        for (start, cost), following in zip_longest(rows_a, rows_b):
            maximum(own_a, other_a, out=start)
            add(start, cost, state_a)
            if following:  # none after the last of an odd number of rows
                start, cost = following
                maximum(own_b, other_b, out=start)
                add(start, cost, state_b)


def _clock(grid: Grid) -> _Ring | _Pairs:
    return _Ring(grid) if grid.ring else _Pairs(grid)


def play_all(grid: Grid) -> Array:
    """Start of every operation (rows, halves, stages); cells without one hold a time of no meaning."""
    clock = _clock(grid)
    clock.run(0, len(grid.cost))
    return clock.start


def play_whole(grid: Grid, send_s: float) -> Played:
    """Simulates every row of a grid; for short grids this is faster than searching for the period."""
    start, stage = play_all(grid), np.arange(grid.cost.shape[3])
    none = exposed = np.zeros(len(stage))
    if send_s:
        exposed = _exposed(start, grid.cost[:, :, 0], send_s, 0.0, None).sum(axis=0)
    return Played(start[stage, 0, stage], start[grid.last_backward, -1, stage], exposed, 0, 0.0, none)


def play(grid: Grid, send_s: float, extra_rounds: int = 0) -> Played:
    """Simulates a grid whose steady part has `extra_rounds` more; they are added only where the steady part repeats."""
    clock = _clock(grid)
    rows, steady = len(grid.cost), grid.steady
    resumed, played, skips, period, constant, shift = 0, 0, 0, 0, 0.0, 0.0
    check = 1
    while check < steady.rounds:  # after 1, 2, 4 ... rounds
        end = steady.start + check * steady.rows + 1
        clock.run(played, end)
        played = end
        repetition = _repeats(clock.start, steady.start, steady.rows, check)
        if repetition:
            period, constant = repetition
            to_come = steady.rounds - 1 - check
            skips, left = divmod(extra_rounds + to_come, period)
            shift = skips * constant
            clock.later(shift)
            resumed = played + steady.rows * (to_come - left)
            break
        check *= 2
    if not period:
        resumed = played
    clock.run(resumed, rows)
    start, stage = clock.start, np.arange(grid.cost.shape[3])
    first, last = start[stage, 0, stage], start[grid.last_backward, -1, stage]
    exposed = again = np.zeros(len(stage))
    if send_s:
        own = grid.cost[:, :, 0]
        waited = _exposed(start[:played], own[:played], send_s, 0.0, None)
        again = waited[played - period * steady.rows :].sum(axis=0) if period else again
        before = start[played - 1, -1] + own[played - 1, -1] + shift if played else None
        after = _exposed(start[resumed:], own[resumed:], send_s, shift, before)
        exposed = waited.sum(axis=0) + skips * again + after.sum(axis=0)
    return Played(first, last, exposed, period, constant, again)


def _repeats(start: Array, first: int, rows: int, rounds: int) -> tuple[int, float] | None:
    """(c, constant): the newest row equals the row c rounds earlier plus this constant on all stages; None if no row
    does."""
    history = start[first : first + rows * rounds + 1 : rows].reshape(rounds + 1, -1)
    later = history[-1] - history[-2::-1]
    spread = later.max(axis=1) - later.min(axis=1)
    uniform = np.flatnonzero(spread <= _EQUAL * float(history[-1].max()))
    if not len(uniform):
        return None
    nearest = int(uniform[0])
    return nearest + 1, float(later[nearest].mean())


def _exposed(start: Array, own: Array, send_s: float, since: float, free: Array | None) -> Array:
    """(rows, stages): the idle seconds before each operation in which its input was on the way.

    An operation that starts later than its stage is free starts when its input arrives, so the last `send_s` of the
    wait are the sending. `free` is when the stages were free before the first row.
    """
    rows, halves, stages = start.shape
    if not rows:
        return np.zeros((0, stages))
    flat = start.reshape(rows * halves, stages)
    idle = np.empty_like(flat)
    idle[0] = flat[0] - (since if free is None else free)
    np.subtract(flat[1:], flat[:-1], out=idle[1:])
    idle[1:] -= own.reshape(rows * halves, stages)[:-1]
    np.clip(idle, 0.0, send_s, out=idle)
    return np.asarray(idle.reshape(rows, halves, stages).sum(axis=1), dtype=np.float64)
