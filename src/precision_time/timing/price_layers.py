"""Puts seconds on a `LayeredProgram`: every pass of every unit as three numbers, every collective by its group.

A pass over operators in order is a max-plus map from (host, device) to (host', device'):

    host' = host + host_s        device' = max(device + device_s, host + reach_s)

`reach_s` is the latest that launching holds the device up. Passes compose without looking at their operators again, so
that neither layers nor micro-batches cost anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import Phase
from precision_time.hardware.fabric import Cluster, Group
from precision_time.layout.layered_program import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    Chunk,
    Exchange,
    LayeredProgram,
    Stage,
    UnitProgram,
)
from precision_time.layout.layers import EXPERT_DATA, REPLICAS, TIED
from precision_time.layout.rank_program import Segment
from precision_time.timing.collectives import collective_seconds
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.layout_costs import LayoutCosts
from precision_time.timing.operators import WorkOptions
from precision_time.timing.overlap import overlap_slowdown
from precision_time.timing.price import PricedKinds, fields_of, machine, price_kinds, price_part

Array = NDArray[np.float64]

LAUNCH_LATENCY_S = 3e-6
"""From the host's launch call to the start of the kernel on an idle device (FACTS: kernel floor 3.4-4 us with it)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a unit. `exposed` and `hidden` are the seconds of its exchanges by group, `exposed` within
    `device_s`."""

    device_s: float
    host_s: float
    reach_s: float
    exposed: Mapping[str, float]
    hidden: Mapping[str, float]
    gap_s: float = 0.0
    """Of `device_s`: waiting for the host."""

    def then(self, after: Pass) -> Pass:
        return Pass(
            self.device_s + after.device_s,
            self.host_s + after.host_s,
            max(self.reach_s + after.device_s, self.host_s + after.reach_s),
            _sum(self.exposed, after.exposed),
            _sum(self.hidden, after.hidden),
            self.gap_s + after.gap_s,
        )

    def times(self, count: int) -> Pass:
        """The pass `count` times in a row."""
        if count == 0:
            return NOTHING
        rest = count - 1
        return Pass(
            count * self.device_s,
            count * self.host_s,
            self.reach_s + rest * max(self.host_s, self.device_s),
            {k: v * count for k, v in self.exposed.items()},
            {k: v * count for k, v in self.hidden.items()},
            count * self.gap_s,
        )

    def share(self, part: float) -> Pass:
        """Part of the pass, where it is spread over several others."""
        return Pass(
            self.device_s * part,
            self.host_s * part,
            self.reach_s * part,
            {k: v * part for k, v in self.exposed.items()},
            {k: v * part for k, v in self.hidden.items()},
        )

    @property
    def seconds(self) -> float:
        """In a long row of passes: of host and device, the slower."""
        return max(self.device_s, self.host_s)


NOTHING = Pass(0.0, 0.0, float("-inf"), {}, {})


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> Mapping[str, float]:
    if not b:
        return a
    return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in (*a, *(k for k in b if k not in a))}


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """The passes of a unit; `backward` without what it recomputes."""

    forward: Pass
    backward: Pass
    recompute: Pass


@dataclass(frozen=True, slots=True)
class DataTimes:
    """Seconds of a stage's or unit's collectives over data-parallel ranks: weights gathered, gradients reduced."""

    gather_s: float
    reduce_s: float

    def __add__(self, other: DataTimes) -> DataTimes:
        return DataTimes(self.gather_s + other.gather_s, self.reduce_s + other.reduce_s)


@dataclass(frozen=True, eq=False)
class PricedLayers(PricedKinds):
    """Seconds of a layered program on a cluster."""

    program: LayeredProgram
    units: tuple[UnitTimes, ...]
    unit_data: tuple[DataTimes, ...]
    """Of one use of each unit, where weights or gradients travel unit by unit."""
    stage_data: tuple[DataTimes, ...]
    """Of all of a stage at once."""
    tails: tuple[Pass, ...]
    accumulates: tuple[Pass, ...]
    copies: tuple[Pass, ...]
    send_s: float
    tied_s: float
    """All-reduce of the embedding's gradient between first and last stage, where they share it."""
    calls: Array
    unit_kinds: PricedKinds | None = None
    """The units' kinds alone, the first of all, which programs share; None: all are the program's own."""
    all_kinds: PricedKinds | None = None
    """All kinds as programs on other clusters of the same machine share them; None: they are the program's own."""
    wait_share: float = 0.0
    slowdown: float = 1.0
    """Compute beside a collective of the data-parallel ranks, over compute alone."""

    @property
    def calls_per_kind(self) -> Array:
        """Of the rank with the most to do."""
        return self.calls


def price_layers(
    program: LayeredProgram,
    cluster: Cluster,
    options: WorkOptions,
    execution: str = "eager",
    constants: StepConstants | None = None,
) -> PricedLayers:
    """Seconds for every pass and collective."""
    constants = constants or shipped()
    # Ranks that read text do not crowd each other's hosts as those that decode images do.
    habits = constants.layouts.habits(program.framework)
    kinds = price_kinds(program.kinds, cluster, options, execution, constants, habits)
    costs = constants.layouts
    joined = _Groups.of(program, cluster, costs)
    within = tuple(joined.groups.get(name) for name in WITHIN_UNITS)
    # The units' kinds come first among the program's, and are priced alike in every program.
    first = program.kinds.parts[0] if program.kinds.parts else program.kinds
    shared = price_part(first, machine(cluster), options, execution, constants, habits)
    units = _all_unit_times(shared, program.units, within, cluster, constants)
    data = {
        id(stage): _data_times(
            program, joined, stage.dense_elements, stage.expert_elements, stage.dense_trainable, stage.expert_trainable
        )
        for stage in dict.fromkeys(program.stages)
    }
    return PricedLayers(
        **fields_of(kinds),
        program=program,
        units=units,
        unit_data=tuple(
            _data_times(
                program, joined, u.dense_elements, u.expert_elements, u.dense_trainable, u.expert_trainable
            )
            for u in program.units
        ),
        stage_data=tuple(data[id(stage)] for stage in program.stages),
        tails=tuple(_sweep(kinds, stage.tail, constants, True) for stage in program.stages),
        accumulates=tuple(_sweep(kinds, stage.accumulate, constants, False) for stage in program.stages),
        copies=tuple(_sweep(kinds, stage.copies, constants, False) for stage in program.stages),
        send_s=joined.seconds(PIPELINE, "send_recv", program.boundary_bytes),
        tied_s=joined.seconds(TIED, "all_reduce", program.tied_bytes),
        calls=_calls(program, units, len(program.kinds)),
        unit_kinds=shared,
        all_kinds=kinds,
        wait_share=constants.rank_costs.wait_share(program.layout.gpus, 0.0),
        slowdown=_slowdown(program, joined),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _sweep(kinds: PricedKinds, segment: Segment, constants: StepConstants, waits: bool) -> Pass:
    return _pass(kinds, segment, (), constants.layouts if waits else None)


def _slowdown(program: LayeredProgram, joined: _Groups) -> float:
    return joined.slowdown(DATA, "all_reduce" if program.layout.zero == 0 else "reduce_scatter")


WITHIN_UNITS = (TENSOR, CONTEXT, EXPERT)
"""Communicators in which ranks exchange within a unit."""


@lru_cache(maxsize=1024)
def _all_unit_times(
    kinds: PricedKinds, units: tuple[UnitProgram, ...], within: tuple[Group | None, ...], cluster: Cluster,
    constants: StepConstants,
) -> tuple[UnitTimes, ...]:  # fmt: skip
    groups = {name: group for name, group in zip(WITHIN_UNITS, within, strict=True) if group is not None}
    joined = _Groups(groups, cluster, constants.layouts.overlap)
    return tuple(_unit_times(kinds, unit, joined, constants.layouts) for unit in units)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Communicators and the seconds of collectives in them; `overlap` scales how much compute slows beside these."""

    groups: Mapping[str, Group]
    cluster: Cluster
    overlap: float

    @classmethod
    def of(cls, program: LayeredProgram, cluster: Cluster, costs: LayoutCosts) -> _Groups:
        share = costs.network.get(cluster.node.name, 1.0)
        groups = {
            name: _group(cluster, size, stride, share) for name, (size, stride) in program.groups.items() if size > 1
        }
        return cls(groups, cluster, costs.overlap)

    def seconds(self, group: str, collective: str, nbytes: float, copies: int = 0) -> float:
        found = self.groups.get(group)
        if found is None or nbytes <= 0:
            return 0.0
        if copies:
            nbytes = nbytes * _sent_once(found, copies)
        return _seconds(collective, float(nbytes), found)

    def slowdown(self, group: str, collective: str) -> float:
        """Compute beside the collective over compute alone."""
        found = self.groups.get(group)
        return 1.0 if found is None else _slowed(self.cluster, found, collective, self.overlap)


@lru_cache(maxsize=4096)
def _group(cluster: Cluster, size: int, stride: int, share: float) -> Group:
    group = cluster.group(size, stride)
    return group if share == 1.0 else replace(group, network_bytes_per_s=share * group.network_bytes_per_s)


def _sent_once(group: Group, copies: int) -> float:
    """Share of `copies` of a token, for as many experts, that is left when each node is sent it once (between nodes) or
    each rank (within one): expected distinct places of evenly spread experts."""
    places = group.domains if group.domains > 1 else group.ranks
    return min(1.0, places * (1.0 - (1.0 - 1.0 / places) ** copies) / copies)


@lru_cache(maxsize=4096)
def _slowed(cluster: Cluster, group: Group, collective: str, scale: float) -> float:
    return overlap_slowdown(cluster, group, collective, scale).compute


@lru_cache(maxsize=65536)
def _seconds(collective: str, nbytes: float, group: Group) -> float:
    return float(collective_seconds(collective, nbytes, group).seconds)


def _pass(
    kinds: PricedKinds,
    segment: Segment,
    exchanges: tuple[tuple[str, float, float], ...],
    costs: LayoutCosts | None,
) -> Pass:
    """A segment with its exchanges: (group, exposed, hidden) seconds. Without `costs` the host may run ahead: sweeps
    that loop over tensors are launched while the device still has the backward pass to do."""
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    for group, shown, behind in exchanges:
        exposed[group] = exposed.get(group, 0.0) + shown
        hidden[group] = hidden.get(group, 0.0) + behind
    waiting = sum(exposed.values())
    if not len(segment):
        return Pass(waiting, 0.0, float("-inf"), exposed, hidden) if exchanges else NOTHING
    host = np.cumsum(kinds.host_seconds(segment))
    duration = kinds.device_seconds(segment)
    total = float(duration.sum())
    left = total - np.cumsum(duration) + duration
    reach = float(np.max(host + LAUNCH_LATENCY_S + left))
    launching = float(host[-1])
    if kinds.synchronous:
        return Pass(total + launching + waiting, total, total, exposed, hidden, launching)
    together = total + waiting if costs is None else costs.together(total + waiting, launching)
    return Pass(together, launching, reach + waiting, exposed, hidden, together - total - waiting)


def _unit_times(kinds: PricedKinds, unit: UnitProgram, joined: _Groups, costs: LayoutCosts) -> UnitTimes:
    products = _products_s(kinds, unit.backward) / 2  # one of each product's two gradients is its weight's
    attention = _kinds_s(kinds, unit.forward, unit.attention)

    def timed(exchanges: tuple[Exchange, ...], backward: bool) -> tuple[tuple[str, float, float], ...]:
        behind_weights = sum(1 for e in exchanges if e.behind in ("weights", "products")) or 1
        found = []
        for each in exchanges:
            seconds = each.times * joined.seconds(each.group, each.collective, each.nbytes, each.copies)
            room = 0.0
            if each.behind == "weights":
                room = products / behind_weights
            elif each.behind == "compute":
                room = _all_s(kinds, unit.backward if backward else unit.forward)
            elif each.behind == "products":
                room = (products if backward else _products_s(kinds, unit.forward)) / behind_weights
            elif each.behind == "attention":
                steps = each.times + 1
                # The first part is there from the start; each later one travels behind the step before it.
                room = (2.5 if backward else 1.0) * attention * each.times / steps
            hidden = min(seconds, room)
            # What runs beside a collective runs slower: that much of it shows after all.
            shown = seconds - hidden + hidden * (joined.slowdown(each.group, each.collective) - 1.0)
            found.append((each.group, shown, hidden))
        return tuple(found)

    return UnitTimes(
        forward=_pass(kinds, unit.forward, timed(unit.forward_exchanges, False), costs),
        backward=_pass(kinds, unit.backward, timed(unit.backward_exchanges, True), costs),
        recompute=_pass(kinds, unit.recompute, timed(unit.recompute_exchanges, False), costs),
    )


def _all_s(kinds: PricedKinds, segment: Segment) -> float:
    return float(kinds.device_seconds(segment).sum()) if len(segment) else 0.0


def _products_s(kinds: PricedKinds, segment: Segment) -> float:
    names = {i for i in set(segment.kind.tolist()) if kinds.kinds[i].name in _PRODUCTS}
    return _kinds_s(kinds, segment, tuple(names))


_PRODUCTS = frozenset({
    "aten.mm", "aten.addmm", "pt.scaled_mm", "pt.grouped_mm", "pt.grouped_mm_weight", "pt.scaled_grouped_mm",
    "pt.scaled_grouped_mm_weight",
})  # fmt: skip


def _kinds_s(kinds: PricedKinds, segment: Segment, wanted: tuple[int, ...]) -> float:
    if not wanted or not len(segment):
        return 0.0
    return float(kinds.device_seconds(segment)[np.isin(segment.kind, wanted)].sum())


def _data_times(
    program: LayeredProgram, joined: _Groups, dense: int, expert: int, dense_trained: int, expert_trained: int
) -> DataTimes:
    """Collectives over data-parallel ranks for so many parameters; experts have fewer replicas."""
    zero = program.layout.zero
    gather = reduce = 0.0
    for held, trained, group in ((dense, dense_trained, DATA), (expert, expert_trained, EXPERT_DATA)):
        weights, gradients = held * program.weight_bytes, trained * program.gradient_bytes
        updated = (held if zero >= 3 else trained) * program.weight_bytes
        if zero == 0:
            reduce += joined.seconds(group, "all_reduce", gradients)
            continue
        gather += joined.seconds(group, "all_gather", updated if zero < 3 else weights)
        reduce += joined.seconds(group, "reduce_scatter", gradients)
        if group == DATA:  # hybrid sharding: the shards of all replicas are summed
            shards = program.groups[DATA][0]
            reduce += joined.seconds(REPLICAS, "all_reduce", gradients / shards)
    return DataTimes(gather, reduce)


def _calls(program: LayeredProgram, units: tuple[UnitTimes, ...], count: int) -> Array:
    """How often each kind runs on the busiest stage in an optimizer step."""
    stage = busiest_stage(program, units)
    total = np.zeros(count)
    within = _unit_calls(program.units, stage.chunks)
    total[: len(within)] = within * program.micro_batches
    for segment, times in (
        (stage.tail, 1), (stage.accumulate, program.micro_batches - 1), (stage.copies, program.reductions)
    ):  # fmt: skip
        if len(segment) and times:
            total += np.bincount(segment.kind, minlength=count) * times
    return total


@lru_cache(maxsize=1024)
def _unit_calls(units: tuple[UnitProgram, ...], chunks: tuple[Chunk, ...]) -> Array:
    """How often each of the units' kinds runs in a micro-batch."""
    last = (int(s.kind.max()) for unit in units for s in (unit.forward, unit.backward, unit.recompute) if len(s))
    total = np.zeros(1 + max(last, default=-1))
    for chunk in chunks:
        for index, repeat, again in chunk.units:
            unit = units[index]
            for segment, times in ((unit.forward, repeat), (unit.backward, repeat), (unit.recompute, again)):
                if len(segment):
                    total += np.bincount(segment.kind, minlength=len(total)) * times
    return total


def busiest_stage(program: LayeredProgram, units: tuple[UnitTimes, ...]) -> Stage:
    """The stage with the most to do in a micro-batch."""
    distinct = dict.fromkeys(program.stages)
    return program.stages[0] if len(distinct) == 1 else max(distinct, key=lambda s: _stage_s(s, units))


def _stage_s(stage: Stage, units: tuple[UnitTimes, ...]) -> float:
    return sum(
        repeat * (units[i].forward.seconds + units[i].backward.seconds) + again * units[i].recompute.seconds
        for chunk in stage.chunks
        for i, repeat, again in chunk.units
    )


def host_seconds(priced: PricedLayers, stage: Stage) -> float:
    """What the host of a stage launches in a step."""
    program, units = priced.program, priced.units
    place = program.stages.index(stage)
    micro = sum(
        repeat * (units[i].forward.host_s + units[i].backward.host_s) + again * units[i].recompute.host_s
        for chunk in stage.chunks
        for i, repeat, again in chunk.units
    )
    adds = priced.accumulates[place].host_s * (program.micro_batches - 1)
    copies = priced.copies[place].host_s * program.reductions
    return priced.host.step_s + program.micro_batches * micro + adds + copies + priced.tails[place].host_s


def phase_seconds(priced: PricedLayers, stage: Stage) -> tuple[dict[Phase, float], float, float]:
    """Compute seconds of a stage in a step by phase, of its casts, and of what it recomputes."""
    busy = [0.0] * (len(_PHASES) + 1)  # casts are the last
    again_s = 0.0
    micro = priced.program.micro_batches
    sweeps = ((stage.tail, 1), (stage.accumulate, micro - 1), (stage.copies, priced.program.reductions))
    runs = [(_by_phase_once(priced.all_kinds or priced, s), n) for s, n in sweeps if len(s) and n]
    shared = priced.unit_kinds or priced
    for chunk in stage.chunks:
        for index, repeat, again in chunk.units:
            unit = priced.program.units[index]
            runs += [(_by_phase_once(shared, s), repeat * micro) for s in (unit.forward, unit.backward) if len(s)]
            if len(unit.recompute) and again:
                again_s += sum(_by_phase_once(shared, unit.recompute)) * again * micro
    for totals, times in runs:
        busy = [before + total * times for before, total in zip(busy, totals, strict=True)]
    return dict(zip(_PHASES, busy, strict=False)), busy[-1], again_s


_PHASES = tuple(Phase)


def _by_phase(kinds: PricedKinds, segment: Segment) -> tuple[float, ...]:
    """Seconds of a segment by phase, without its casts, and of these."""
    seconds = kinds.device_seconds(segment)
    cast = kinds.works.is_cast[segment.kind]
    rest = ~cast
    totals = np.bincount(segment.phase[rest], weights=seconds[rest], minlength=len(Phase))
    return (*totals.tolist(), float(seconds[cast].sum()))


_by_phase_once = lru_cache(maxsize=4096)(_by_phase)


__all__ = ["CONTEXT", "TENSOR", "PricedLayers", "price_layers"]
