"""A pass over the operators of a unit, as three numbers.

A pass over operators in order is a max-plus map from (host, device) to (host', device'):

    host' = host + host_s        device' = max(device + device_s, host + launch_bound_s)

`launch_bound_s` is the earliest end of the pass that launching alone allows, from the start of launching. Passes
compose without reading their operators again, so neither layers nor micro-batches add cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from precision_time.layout.program import CollectiveOp, UnitProgram
from precision_time.layout.segment import Segment, joined_segments
from precision_time.timing.communicators import Communicators
from precision_time.timing.layout_costs import FrameworkOverhead
from precision_time.timing.signature_times import TimedSignatures

LAUNCH_LATENCY_S = 3e-6
"""Seconds from the host's launch call to the start of the kernel on an idle device. Assumed; the fitted start of a
kernel (`start` in `data/kernels.json`) is of this size."""


class Pass(NamedTuple):
    """One pass of a unit. `exposed` and `hidden` are seconds of its collectives by group; `device_s` includes
    `exposed`."""

    device_s: float
    host_s: float
    launch_bound_s: float
    exposed: Mapping[str, float]
    hidden: Mapping[str, float]
    gap_s: float = 0.0
    """Of `device_s`: waiting for the host."""

    def then(self, after: Pass) -> Pass:
        return Pass(
            self.device_s + after.device_s,
            self.host_s + after.host_s,
            max(self.launch_bound_s + after.device_s, self.host_s + after.launch_bound_s),
            _sum(self.exposed, after.exposed),
            _sum(self.hidden, after.hidden),
            self.gap_s + after.gap_s,
        )

    def times(self, count: int) -> Pass:
        """The pass `count` times in a row."""
        if count < 2:
            return self if count else NOTHING
        rest = count - 1
        return Pass(
            count * self.device_s,
            count * self.host_s,
            self.launch_bound_s + rest * max(self.host_s, self.device_s),
            {k: v * count for k, v in self.exposed.items()},
            {k: v * count for k, v in self.hidden.items()},
            count * self.gap_s,
        )

    @property
    def seconds(self) -> float:
        """Seconds of each of many equal passes in a row: the longer of device and host."""
        return max(self.device_s, self.host_s)


FREE = FrameworkOverhead()
NOTHING = Pass(0.0, 0.0, float("-inf"), {}, {})


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> Mapping[str, float]:
    if not b:
        return a
    return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in (*a, *(k for k in b if k not in a))}


class UnitTimes(NamedTuple):
    """The passes of a unit; `backward` without what it recomputes."""

    forward: Pass
    backward: Pass
    recompute: Pass


class Sums(NamedTuple):
    """Of the operators of a segment in order: device seconds, host seconds, and the earliest end that launching alone
    allows."""

    device_s: float
    host_s: float
    launch_bound_s: float


def sums_of(kinds: TimedSignatures, segments: tuple[Segment, ...]) -> list[Sums | None]:
    """The sums of each segment; None where it has no operators. Those of all segments are found together."""
    joined = joined_segments(segments)
    found: list[Sums | None] = [None] * len(segments)
    if not joined.filled:
        return found
    duration, launched = kinds.device_seconds(joined.all), kinds.launched_seconds(segments)
    passed = np.empty_like(duration)
    totals = np.zeros(len(segments))
    for place in joined.filled:
        start, end = joined.spans[place]
        of_segment = duration[start:end]
        of_segment.cumsum(out=passed[start:end])
        totals[place] = np.add.reduce(of_segment)
    left = np.repeat(totals, joined.lengths) - passed + duration
    bounds = np.maximum.reduceat(launched + LAUNCH_LATENCY_S + left, joined.starts).tolist()
    for place, total, bound in zip(joined.filled, totals[joined.lengths > 0].tolist(), bounds, strict=True):
        found[place] = Sums(total, float(launched[joined.spans[place][1] - 1]), bound)
    return found


def pass_of(
    sums: Sums | None,
    exchanges: tuple[tuple[str, float, float], ...],
    overhead: FrameworkOverhead = FREE,
    synchronous: bool = False,
) -> Pass:
    """The pass of a segment with these sums and with its collectives: (group, exposed, hidden) seconds.

    With the default `overhead` the host runs ahead of the device: it launches the optimizer while the device still runs
    the backward pass.
    """
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    for group, shown, behind in exchanges:
        exposed[group] = exposed.get(group, 0.0) + shown
        hidden[group] = hidden.get(group, 0.0) + behind
    waiting = sum(exposed.values())
    if sums is None:
        return Pass(waiting, 0.0, float("-inf"), exposed, hidden) if exchanges else NOTHING
    total, launching, launch_bound = sums
    if synchronous:
        return Pass(total + launching + waiting, total, total, exposed, hidden, launching)
    seconds = overhead.pass_seconds(total + waiting, launching)
    return Pass(seconds, launching, launch_bound + waiting, exposed, hidden, seconds - total - waiting)


class BucketReady(NamedTuple):
    """When an operator of a backward pass has ended: a share of the pass's device seconds after its start, and no
    earlier than `launch_bound_s` after the start of launching it."""

    share: float
    launch_bound_s: float


def bucket_ready(kinds: TimedSignatures, segment: Segment, position: int) -> BucketReady:
    """The end of the operator at a position of a segment, or of its last."""
    if not len(segment):
        return BucketReady(1.0, float("-inf"))
    duration = kinds.device_seconds(segment)
    passed = duration.cumsum()
    last = min(position, len(segment) - 1)
    share = float(passed[last] / passed[-1]) if passed[-1] > 0.0 else 1.0
    if kinds.synchronous:
        return BucketReady(share, float("-inf"))
    launched = kinds.launched_seconds((segment,)) + LAUNCH_LATENCY_S
    left = passed[last] - passed + duration
    return BucketReady(share, float(np.max((launched + left)[: last + 1])))


def all_unit_times(
    kinds: TimedSignatures, units: tuple[UnitProgram, ...], joined: Communicators | None, overhead: FrameworkOverhead
) -> tuple[UnitTimes, ...]:
    """The passes of units whose ranks communicate in `joined` (None: not at all)."""
    if not units:
        return ()
    segments = tuple(chain.from_iterable([(unit.forward, unit.backward, unit.recompute) for unit in units]))
    sums = iter(sums_of(kinds, segments))
    return tuple(
        _unit_times(kinds, unit, of_passes, joined, overhead)
        for unit, of_passes in zip(units, zip(sums, sums, sums, strict=True), strict=True)
    )


def _unit_times(
    kinds: TimedSignatures,
    unit: UnitProgram,
    sums: tuple[Sums | None, Sums | None, Sums | None],
    joined: Communicators | None,
    overhead: FrameworkOverhead,
) -> UnitTimes:
    def timed(collectives: tuple[CollectiveOp, ...], backward: bool) -> tuple[tuple[str, float, float], ...]:
        if joined is None:
            return ()
        sharing = sum(1 for each in collectives if each.behind in ("weights", "products")) or 1
        times = []
        for each in collectives:
            seconds = each.times * joined.seconds(each.group, each.collective, each.nbytes, each.copies, each.spread)
            hidden = min(seconds, _room_s(kinds, unit, each, backward, sharing))
            # What runs beside a collective runs slower: that much of it is exposed after all.
            exposed = seconds - hidden + hidden * (joined.slowdown(each.group, each.collective) - 1.0)
            times.append((each.group, exposed, hidden))
        return tuple(times)

    apart = kinds.synchronous
    forward = pass_of(sums[0], timed(unit.forward_collectives, False), overhead, apart)
    repeats = unit.recompute is unit.forward and unit.recompute_collectives == unit.forward_collectives
    return UnitTimes(
        forward=forward,
        backward=pass_of(sums[1], timed(unit.backward_collectives, True), overhead, apart),
        recompute=forward if repeats else pass_of(sums[2], timed(unit.recompute_collectives, False), overhead, apart),
    )


def _room_s(kinds: TimedSignatures, unit: UnitProgram, collective: CollectiveOp, backward: bool, sharing: int) -> float:
    """Seconds of compute that may hide a collective (see `CollectiveOp.behind`), of products one of `sharing` parts."""
    segment = unit.backward if backward else unit.forward
    if collective.behind == "weights":  # one of the two gradients of each product is its weight's
        return _products_s(kinds, unit.backward) / 2 / sharing
    if collective.behind == "compute":
        return _all_s(kinds, segment)
    if collective.behind == "products":
        return _products_s(kinds, segment) / (2 if backward else 1) / sharing
    if collective.behind == "attention":
        # The first part is local; each later part is sent behind the attention of the step before.
        attention = _kinds_s(kinds, unit.forward, unit.attention)
        return (2.5 if backward else 1.0) * attention * collective.times / (collective.times + 1)
    return 0.0


def _all_s(kinds: TimedSignatures, segment: Segment) -> float:
    return float(kinds.device_seconds(segment).sum()) if len(segment) else 0.0


def _products_s(kinds: TimedSignatures, segment: Segment) -> float:
    names = kinds.kinds.names
    return _kinds_s(kinds, segment, tuple([i for i in set(segment.kind.tolist()) if names[i] in _PRODUCTS]))


_PRODUCTS = frozenset({
    "aten.mm", "aten.addmm", "pt.scaled_mm", "pt.grouped_mm", "pt.grouped_mm_weight", "pt.scaled_grouped_mm",
    "pt.scaled_grouped_mm_weight",
})  # fmt: skip


def _kinds_s(kinds: TimedSignatures, segment: Segment, wanted: tuple[int, ...]) -> float:
    if not wanted or not len(segment):
        return 0.0
    return float(kinds.device_seconds(segment)[np.isin(segment.kind, wanted)].sum())
