"""A pipeline schedule as rows of operations, each of which depends only on the row before.

Each stage has a fixed order of operations; F(s, j) is the j-th forward of stage s, B(s, k) its k-th backward. The rows
below put every operation after its inputs, whatever the seconds are. A row is an order, not a time.

*Pairs* (one chunk per stage). F(s, j) is in row 2j + s and B(s, k) in row 2k + offset - s. In every row one of two
neighbours runs a forward and the other a backward, and both wait for the row before: (s - 1, s) if s runs a forward.
The offset is odd; 2p - 1 makes it 1F1B (stage s has p - s forwards before its first backward), a larger one GPipe.

*Ring* (several chunks per stage; Megatron-LM's interleaved 1F1B, arXiv:2104.04473 section 2.2). Stage s runs
2(p - s - 1) + (v - 1)p forwards, then a forward and a backward in turn. F(s, j) is in the forward half of row
j + s, B(s, k) in the backward half of row k + vp + p - 2 - s. Every forward then waits for the stage before it in the
row before, every backward for the stage after it, and the last stage sends to the first like any other pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steady:
    """From row `start` on, `rounds` times `rows` rows of equal costs."""

    start: int
    rows: int
    rounds: int


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Seconds of every cell; cells without an operation take no time and send nothing.

    `cost` is (rows, halves, 2, stages). Its first part, *own*, is from the start of the operation to the start of the
    next on that stage, if nothing else is waited for; the second, *onward*, from the start until a neighbour has the
    result, minus infinity where none waits for it. A ring's row has two halves (forward, then backward), a row of
    pairs one.
    """

    cost: Array
    steady: Steady
    last_backward: Index
    """The row of every stage's last backward (in the backward half of a ring)."""

    @property
    def ring(self) -> bool:
        return bool(self.cost.shape[1] == 2)


@dataclass(frozen=True, slots=True, eq=False)
class PairCells:
    """The operation of each cell: (rows, stages); `micro` is its micro-batch."""

    forward: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    micro: Index


def pair_offset(stages: int, micro_batches: int, all_forwards_first: bool) -> int:
    """The row at which the backward rows begin."""
    return 2 * stages - 1 + (2 * (micro_batches - 1) if all_forwards_first else 0)


def pair_rows(micro_batches: int, offset: int) -> int:
    return 2 * (micro_batches - 1) + offset + 1


def pair_cells(row: Index, stages: int, micro_batches: int, offset: int) -> PairCells:
    stage = np.arange(stages)
    ahead, behind = row[:, None] - stage, row[:, None] - offset + stage
    is_forward = ahead % 2 == 0
    micro = np.where(is_forward, ahead, behind) // 2
    real = (micro >= 0) & (micro < micro_batches)
    return PairCells(real & is_forward, real & ~is_forward, micro)


def pair_grid(
    forward_s: Array,
    backward_s: Array,
    send_s: float,
    micro_batches: int,
    *,
    all_forwards_first: bool = False,
    blocking: bool = False,
    delayed_weight_s: Array | None = None,
) -> Grid:
    """The grid of seconds (stages,). With `delayed_weight_s`, stage s computes weight gradients after backwards k >=
    s."""
    stages = len(forward_s)
    plan = _pair_plan(stages, micro_batches, all_forwards_first, blocking, delayed_weight_s is not None)
    seconds = np.stack([np.zeros(stages), forward_s, backward_s])[plan.which, np.arange(stages)]
    own = seconds
    if blocking:
        own = seconds + send_s * plan.handed
    if delayed_weight_s is not None:
        own = seconds + plan.delayed * delayed_weight_s
    return Grid(_table(own, seconds, send_s, plan.handed)[:, None], plan.steady, plan.last_backward)


def _table(own: Array, seconds: Array, send_s: float, handed: NDArray[np.bool_]) -> Array:
    """`Grid.cost`, where `handed` results reach the neighbour after `seconds` and the send."""
    return np.stack([own, np.where(handed, seconds + send_s, -np.inf)], axis=-2)


@dataclass(frozen=True, slots=True, eq=False)
class _PairPlan:
    """A grid without seconds: (rows, stages). `which`: 0 nothing, 1 forward, 2 backward; `handed`: sent on, or received
    in a blocking exchange; `delayed`: a weight gradient follows."""

    which: NDArray[np.int8]
    handed: NDArray[np.bool_]
    delayed: NDArray[np.bool_]
    steady: Steady
    last_backward: Index


@bounded()
def _pair_plan(stages: int, micro_batches: int, all_forwards_first: bool, blocking: bool, delays: bool) -> _PairPlan:
    stage = np.arange(stages)
    offset = pair_offset(stages, micro_batches, all_forwards_first)
    rows = pair_rows(micro_batches, offset)
    cells = pair_cells(np.arange(rows), stages, micro_batches, offset)
    sends = cells.forward & (stage < stages - 1)
    returns = cells.backward & (stage > 0)
    handed = sends | returns
    if blocking:
        # An exchange after this row holds both ends of its link: a stage sends, receives, or does both at once
        # (Megatron's send_forward_recv_backward); only then does either go on.
        handed[:, 1:] |= sends[:, :-1]
        handed[:, :-1] |= returns[:, 1:]
    first = offset + (stages - 1 if delays else 0)
    rounds = 0 if all_forwards_first else max(0, (2 * micro_batches - 1 - first) // 2)
    return _PairPlan(
        which=cells.forward + np.int8(2) * cells.backward,
        handed=handed,
        delayed=cells.backward & (cells.micro >= stage),
        steady=Steady(first, 2, rounds),
        last_backward=offset - stage + 2 * (micro_batches - 1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RingCells:
    """The operation of each cell: (rows, 2 halves, stages)."""

    real: NDArray[np.bool_]
    chunk: Index
    micro: Index


def ring_rows(stages: int, chunks: int, micro_batches: int) -> int:
    return micro_batches * chunks + stages * chunks + stages - 2


def _ring_order(row: Index, stages: int, chunks: int) -> Index:
    """(rows, halves, stages): index of the forward, and of the backward, of the stage."""
    stage = np.arange(stages)
    return np.stack([row[:, None] - stage, row[:, None] - (stages * chunks + stages - 2) + stage], axis=1)


def ring_cells(row: Index, stages: int, chunks: int, micro_batches: int) -> RingCells:
    """The cells of a ring; micro-batches go through the chunks in groups of `stages`."""
    order = _ring_order(row, stages, chunks)
    group, within = np.divmod(order, stages * chunks)
    chunk, in_group = np.divmod(within, stages)
    chunk[:, 1] = chunks - 1 - chunk[:, 1]
    real = (order >= 0) & (order < micro_batches * chunks)
    return RingCells(real, chunk, group * stages + in_group)


def ring_grid(forward_s: Array, backward_s: Array, send_s: float, micro_batches: int) -> Grid:
    """The grid of seconds (stages, chunks)."""
    stages, chunks = forward_s.shape
    plan = _ring_plan(stages, chunks, micro_batches)
    own = np.take(np.concatenate([forward_s.ravel(), backward_s.ravel(), [0.0]]), plan.which)
    return Grid(_table(own, own, send_s, plan.handed), plan.steady, plan.last_backward)


@dataclass(frozen=True, slots=True, eq=False)
class _RingPlan:
    """A grid without seconds: (rows, halves, stages). `which`: index into all forwards' seconds (stages, chunks), then
    all backwards', then a zero; `handed`: whether the result is sent on."""

    which: NDArray[np.intp]
    handed: NDArray[np.bool_]
    steady: Steady
    last_backward: Index


@bounded()
def _ring_plan(stages: int, chunks: int, micro_batches: int) -> _RingPlan:
    group = stages * chunks
    rows = ring_rows(stages, chunks, micro_batches)
    cells = ring_cells(np.arange(rows), stages, chunks, micro_batches)
    half, stage = np.arange(2)[:, None], np.arange(stages)
    which = np.where(cells.real, (half * stages + stage) * chunks + cells.chunk, 2 * group)
    handed = cells.real.copy()
    handed[:, 0, -1] &= cells.chunk[:, 0, -1] != chunks - 1  # the model's last part turns round by itself
    handed[:, 1, 0] &= cells.chunk[:, 1, 0] != 0  # nothing is before the model's first part
    first, end = group + stages - 2, micro_batches * chunks
    steady = Steady(first, group, max(0, (end - first) // group))
    return _RingPlan(which, handed, steady, rows - 1 - stage)
