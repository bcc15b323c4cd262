"""Many equal micro-batches in a row on a rank: a few are run and the others counted, with the result of all.

The positions of a rank are maxima of sums, and so is the effect of a micro-batch on them. While every maximum is
decided the same way (the host, the device or the wire is ahead by its *margin*), a micro-batch is a linear map. Two in
a row with equal increments and the same decisions are therefore followed by more of the same, until a shrinking margin
reaches zero: a queue of launched work is used up, or communication no longer hides the host's time. The micro-batches
up to there are skipped, and those that follow are run until they repeat again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from precision_time.timeline.rank import Position, Rank

MOST_RUN = 48
"""Micro-batches run. Where these do not repeat one by one, the mean of the last `CYCLE` is repeated."""
CYCLE = 12
"""A whole number of turns for micro-batches that take turns: a wait that recurs every second, third or fourth one."""
EQUAL = 1e-9
"""Largest relative difference of equal times; margins below this share of a micro-batch are ties."""


def accumulate(rank: Rank, run: Callable[[], None], count: int) -> int:
    """Advances the rank by `count` equal micro-batches, of which `run` runs one. Returns how many were skipped."""
    left, ran, skipped = count, 0, 0
    passed = [rank.position()]  # since the last skip
    known: tuple[Position, list[float]] | None = None
    while left:
        rank.margins.clear()
        run()
        left, ran = left - 1, ran + 1
        passed.append(rank.position())
        increments = passed[-1].since(passed[-2])
        times = 0
        if known is not None and _equal(increments, known[0], rank.device):
            times = min(_repetitions(known[1], rank.margins, EQUAL * max(increments)), left)
        elif ran >= MOST_RUN and len(passed) > CYCLE:
            increments = Position(*(total / CYCLE for total in passed[-1].since(passed[-1 - CYCLE])))
            times = left
        known = (increments, rank.margins.copy())
        if times:
            rank.skip(increments, times)
            left, skipped, known = left - times, skipped + times, None
            passed = [rank.position()]
    return skipped


def _equal(one: Position, other: Position, position_s: float) -> bool:
    """Whether increments differ by no more than rounding at this position."""
    tolerance = EQUAL * max(one) + 1e-14 * position_s
    return all(abs(a - b) <= tolerance for a, b in zip(one, other, strict=True))


def _repetitions(before: Sequence[float], now: Sequence[float], tie_s: float) -> int:
    """Further micro-batches that decide every maximum as the last two did, whose margins these are."""
    if len(before) != len(now):
        return 0
    least = inf
    for then, margin in zip(before, now, strict=True):
        if then == margin or abs(margin - then) <= tie_s:
            continue
        if then * margin < 0.0 and min(abs(then), abs(margin)) > tie_s:
            return 0
        if abs(margin) < abs(then):
            least = min(least, abs(margin) / abs(then - margin))
    return int(min(least + EQUAL, 1e18))
