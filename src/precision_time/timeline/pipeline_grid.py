"""A pipeline schedule laid out in rows: what every stage does in a row depends on the row before, and on nothing else.

Each stage has a fixed order of operations; F(s, j) is the j-th forward of stage s, B(s, k) its k-th backward. The rows
below put every operation after what it waits for, whatever the seconds are. They are bookkeeping, not time.

*Pairs* (one chunk per stage). F(s, j) stands in row 2j + s and B(s, k) in row 2k + offset - s, so in every row
neighbours do opposite things and wait for each other's row before: (s - 1, s) trade places if s does a forward. The
offset is odd; 2p - 1 makes it 1F1B (stage s has p - s forwards before its first backward), a larger one GPipe.

*Ring* (several chunks per stage; Megatron-LM's interleaved 1F1B, arXiv:2104.04473 section 2.2). Stage s runs
2(p - s - 1) + (v - 1)p forwards, then a forward and a backward in turn. F(s, j) stands in the forward half of row
j + s, B(s, k) in the backward half of row k + vp + p - 2 - s. Every forward then waits for the stage before it in the
row before, every backward for the stage after it, and the last stage hands to the first as any other pair does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """Seconds of every cell; cells without an operation take none and hand nothing on.

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
    """Which operation stands where: (rows, stages); `micro` counts the micro-batch of either kind."""

    forward: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    micro: Index


def pair_offset(stages: int, micro_batches: int, all_forwards_first: bool) -> int:
    """Where the backward rows begin."""
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
    """Seconds (stages,) in rows. With `delayed_weight_s`, stage s makes weight gradients after its backwards k >= s."""
    stages = len(forward_s)
    stage = np.arange(stages)
    offset = pair_offset(stages, micro_batches, all_forwards_first)

    def cost(row: Index) -> Array:
        cells = pair_cells(row, stages, micro_batches, offset)
        seconds = np.where(cells.forward, forward_s, np.where(cells.backward, backward_s, 0.0))
        sends = cells.forward & (stage < stages - 1)
        returns = cells.backward & (stage > 0)
        own, handed = seconds, sends | returns
        if blocking:
            # An exchange after this row holds both ends of its link: a stage sends, receives, or does both at once
            # (Megatron's send_forward_recv_backward); only then does either go on.
            handed[:, 1:] |= sends[:, :-1]
            handed[:, :-1] |= returns[:, 1:]
            own = seconds + send_s * handed
        onward = np.where(handed, seconds + send_s, -np.inf)
        if delayed_weight_s is not None:
            own = seconds + np.where(cells.backward & (cells.micro >= stage), delayed_weight_s, 0.0)
        return np.stack([own, onward], axis=1)[:, None]

    rows = pair_rows(micro_batches, offset)
    first = offset + (stages - 1 if delayed_weight_s is not None else 0)
    rounds = 0 if all_forwards_first else max(0, (2 * micro_batches - 1 - first) // 2)
    drain = first + 2 * rounds
    if rounds:
        repeated = np.tile(cost(np.arange(first, first + 2)), (rounds, 1, 1, 1))
        table = np.concatenate([cost(np.arange(first)), repeated, cost(np.arange(drain, rows))])
    else:
        table = cost(np.arange(rows))
    return Grid(table, Steady(first, 2, rounds), offset - stage + 2 * (micro_batches - 1))


@dataclass(frozen=True, slots=True, eq=False)
class RingCells:
    """Which operation stands where: (rows, 2 halves, stages)."""

    real: NDArray[np.bool_]
    chunk: Index
    micro: Index


def ring_rows(stages: int, chunks: int, micro_batches: int) -> int:
    return micro_batches * chunks + stages * chunks + stages - 2


def _ring_order(row: Index, stages: int, chunks: int) -> Index:
    """(rows, halves, stages): the how-many-th forward, and backward, of the stage this is."""
    stage = np.arange(stages)
    return np.stack([row[:, None] - stage, row[:, None] - (stages * chunks + stages - 2) + stage], axis=1)


def ring_cells(row: Index, stages: int, chunks: int, micro_batches: int) -> RingCells:
    """Micro-batches go through the chunks in groups of `stages`."""
    order = _ring_order(row, stages, chunks)
    group, within = np.divmod(order, stages * chunks)
    chunk, in_group = np.divmod(within, stages)
    chunk[:, 1] = chunks - 1 - chunk[:, 1]
    real = (order >= 0) & (order < micro_batches * chunks)
    return RingCells(real, chunk, group * stages + in_group)


def ring_grid(forward_s: Array, backward_s: Array, send_s: float, micro_batches: int) -> Grid:
    """Seconds (stages, chunks) in rows."""
    stages, chunks = forward_s.shape
    group = stages * chunks
    rows = ring_rows(stages, chunks, micro_batches)
    # One group as it repeats, then without what comes before the first and after the last of all.
    chunk = ring_cells(np.arange(group), stages, chunks, micro_batches).chunk
    own = np.stack([forward_s, backward_s])[np.arange(2)[:, None], np.arange(stages), chunk]
    onward = own + send_s
    onward[:, 0, -1][chunk[:, 0, -1] == chunks - 1] = -np.inf  # the model's last part turns round by itself
    onward[:, 1, 0][chunk[:, 1, 0] == 0] = -np.inf  # nothing is before the model's first part
    table = np.take(np.stack([own, onward], axis=2), np.arange(rows) % group, axis=0)
    first, end = group + stages - 2, micro_batches * chunks
    fill = min(first, end)
    for begin, until in ((0, fill), (max(fill, end), rows)):
        order = _ring_order(np.arange(begin, until), stages, chunks)
        absent = (order < 0) | (order >= end)
        table[begin:until, :, 0][absent] = 0.0
        table[begin:until, :, 1][absent] = -np.inf
    last = rows - 1 - np.arange(stages)
    return Grid(table, Steady(first, group, max(0, (end - first) // group)), last)
