"""Seconds of a `StepProgram`: every pass of every unit as three numbers, every collective in its group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Phase
from precision_time.hardware.fabric import Cluster, Group
from precision_time.layout.program import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    Buckets,
    Chunk,
    Stage,
    StepProgram,
    UnitProgram,
)
from precision_time.layout.segment import Segment, joined_segments
from precision_time.layout.step_program import EXPERT_DATA, REPLICAS, TIED
from precision_time.timing.communicators import Communicators
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.layout_costs import FrameworkOverhead
from precision_time.timing.offload import NOT_OFFLOADED, OffloadTimes, offload_times
from precision_time.timing.operators import WorkOptions
from precision_time.timing.passes import (
    FREE,
    BucketReady,
    Pass,
    UnitTimes,
    all_unit_times,
    bucket_ready,
    pass_of,
    sums_of,
)
from precision_time.timing.signature_times import (
    TimedSignatures,
    fields_of,
    machine,
    time_signature_part,
    time_signatures,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DataTimes:
    """Seconds of the data-parallel collectives of a stage or unit: gathering weights, reducing gradients."""

    gather_s: float
    reduce_s: float

    def __add__(self, other: DataTimes) -> DataTimes:
        return DataTimes(self.gather_s + other.gather_s, self.reduce_s + other.reduce_s)


@dataclass(frozen=True, slots=True)
class SweepTimes:
    """The passes over all parameters of a stage (see `Stage`)."""

    tails: tuple[Pass, ...]
    accumulate: Pass
    into_buckets: Pass
    out_of_buckets: Pass

    @property
    def tail_s(self) -> float:
        """Seconds of the update after the last backward pass of a pipeline stage."""
        return sum(tail.seconds for tail in self.tails)

    def host_s(self, micro_batches: int, reductions: int) -> float:
        """Host seconds of all sweeps of a step."""
        copies = self.into_buckets.host_s + self.out_of_buckets.host_s
        tails = sum(tail.host_s for tail in self.tails)
        return tails + (micro_batches - 1) * self.accumulate.host_s + reductions * copies


@dataclass(frozen=True, eq=False)
class TimedProgram(TimedSignatures):
    """Seconds of a `StepProgram` on a cluster."""

    program: StepProgram
    units: tuple[UnitTimes, ...]
    unit_data: tuple[DataTimes, ...]
    """Of one use of each unit, where weights are gathered or gradients reduced unit by unit."""
    stage_data: tuple[DataTimes, ...]
    """Of all of a stage at once."""
    sweeps: tuple[SweepTimes, ...]
    """The passes over all parameters of each stage."""
    bucket_s: tuple[float, ...]
    """All-reduce of each of DDP's buckets."""
    bucket_ready: tuple[BucketReady, ...]
    """When the gradients of each bucket are complete."""
    broadcast_s: float
    send_s: float
    tied_s: float
    """All-reduce of the embedding's gradient between first and last stage, where they share it."""
    busiest: Stage
    """The stage with the longest micro-batch."""
    calls: Array
    unit_kinds: TimedSignatures | None = None
    """The units' operators alone (the first of all), which programs share; None: no program shares them."""
    all_kinds: TimedSignatures | None = None
    """All operators, shared by programs on other clusters of the same machine; None: no program shares them."""
    offload: OffloadTimes = NOT_OFFLOADED
    wait_share: float = 0.0
    slowdown: float = 1.0
    """Compute beside a collective of the data-parallel ranks, over compute alone."""
    overhead: FrameworkOverhead = FREE
    """Of the framework, on the passes of units and the update."""
    kernel_factor: float = 1.0
    host_factor: float = 1.0
    """Factors that passes contain and the times of single operators do not (see `scaled`)."""
    phases: dict[Stage, tuple[list[float], float]] = field(default_factory=dict)
    """By stage, once asked for, what `phase_seconds` finds without `kernel_factor`."""

    @property
    def calls_per_kind(self) -> Array:
        """Of the rank with the most work."""
        return self.calls


def time_program(
    program: StepProgram,
    cluster: Cluster,
    options: WorkOptions,
    execution: str = "eager",
    constants: StepConstants | None = None,
) -> TimedProgram:
    """Seconds of every pass and collective. `constants`: other than the shipped ones (used by the fits)."""
    constants = constants or shipped()
    overhead = constants.layouts.overhead(program.framework)
    kinds = time_signatures(program.kinds, cluster, options, execution, constants, overhead)
    costs = constants.layouts
    joined = Communicators.of(program, cluster, costs)
    within = tuple((name, joined.groups[name]) for name in WITHIN_UNITS if name in joined.groups)
    # The units' operators come first and have the same times in every program.
    first = program.kinds if program.unit_kinds is None else program.unit_kinds
    shared = time_signature_part(first, machine(cluster), options, execution, constants, overhead)
    units = _all_unit_times(shared, program.units, within, cluster if within else None, costs.overlap, overhead)
    stages, busiest = tuple(dict.fromkeys(program.stages)), busiest_stage(program, units)
    data = dict(zip(stages, _data_times(program, joined, stages), strict=True))
    sweeps = {stage: _sweeps(kinds, _segments(stage), overhead) for stage in stages}
    buckets = program.buckets
    return TimedProgram(
        **fields_of(kinds),
        program=program,
        units=units,
        unit_data=_unit_data(program, joined),
        stage_data=tuple([data[stage] for stage in program.stages]),
        sweeps=tuple([sweeps[stage] for stage in program.stages]),
        bucket_s=_bucket_seconds(buckets, joined) if buckets.buckets else (),
        bucket_ready=_bucket_ready(shared, program.units, stages[0].chunks, buckets) if buckets.buckets else (),
        broadcast_s=joined.seconds(DATA, "broadcast", program.broadcast_bytes),
        send_s=joined.seconds(PIPELINE, "send_recv", program.boundary_bytes),
        tied_s=joined.seconds(TIED, "all_reduce", program.tied_bytes),
        busiest=busiest,
        calls=_calls(program, busiest, len(program.kinds)),
        unit_kinds=shared,
        all_kinds=kinds,
        offload=_offload(program, cluster, units),
        wait_share=constants.rank_costs.wait_share(program.layout.gpus, program.length_spread),
        slowdown=_slowdown(program, joined),
        overhead=overhead,
        communication_source="measured" if joined.measured else "learned",
    )


def _offload(program: StepProgram, cluster: Cluster, units: tuple[UnitTimes, ...]) -> OffloadTimes:
    if program.offload is None:
        return NOT_OFFLOADED
    stage = max(program.stages, key=lambda stage: stage.dense_trainable + stage.expert_trainable)
    rows = [row for chunk in stage.chunks for row in chunk.units]
    forward = sum(repeat * units[i].forward.seconds for i, repeat, _ in rows)
    backward = sum(repeat * units[i].backward.seconds + again * units[i].recompute.seconds for i, repeat, again in rows)
    return offload_times(program, cluster, forward, backward)


def _segments(stage: Stage) -> tuple[Segment, ...]:
    return (*stage.tails, stage.accumulate, stage.into_buckets, stage.out_of_buckets)


@bounded()
def _sweeps(kinds: TimedSignatures, segments: tuple[Segment, ...], overhead: FrameworkOverhead) -> SweepTimes:
    *tails, accumulate, into_buckets, out_of_buckets = sums_of(kinds, segments)
    apart = kinds.synchronous
    return SweepTimes(
        tails=tuple([pass_of(tail, (), overhead, apart) for tail in tails]),
        accumulate=pass_of(accumulate, (), FREE, apart),
        into_buckets=pass_of(into_buckets, (), FREE, apart),
        out_of_buckets=pass_of(out_of_buckets, (), FREE, apart),
    )


def _bucket_seconds(buckets: Buckets, joined: Communicators) -> tuple[float, ...]:
    return joined.seconds_of_each(DATA, "all_reduce", tuple([float(bucket.nbytes) for bucket in buckets.buckets]))


@bounded()
def _bucket_ready(
    kinds: TimedSignatures, units: tuple[UnitProgram, ...], chunks: tuple[Chunk, ...], buckets: Buckets
) -> tuple[BucketReady, ...]:
    uses = [unit for chunk in reversed(chunks) for unit, repeat, _ in reversed(chunk.units) for _ in range(repeat)]
    known = {(uses[b.use], b.position): None for b in buckets.buckets}
    ready = {key: bucket_ready(kinds, units[key[0]].backward, key[1]) for key in known}
    return tuple(ready[uses[b.use], b.position] for b in buckets.buckets)


def _slowdown(program: StepProgram, joined: Communicators) -> float:
    return joined.slowdown(DATA, "all_reduce" if program.layout.zero == 0 else "reduce_scatter")


WITHIN_UNITS = (TENSOR, CONTEXT, EXPERT)
"""Communicators in which ranks exchange within a unit."""


@bounded()
def _all_unit_times(
    kinds: TimedSignatures,
    units: tuple[UnitProgram, ...],
    within: tuple[tuple[str, Group], ...],
    cluster: Cluster | None,
    overlap: float,
    overhead: FrameworkOverhead,
) -> tuple[UnitTimes, ...]:
    """`cluster` is None where no ranks exchange within units: then the times do not depend on the number of nodes."""
    joined = None if cluster is None else Communicators(dict(within), cluster, overlap)
    return all_unit_times(kinds, units, joined, overhead)


def _unit_data(program: StepProgram, joined: Communicators) -> tuple[DataTimes, ...]:
    """Of each unit, where its weights or gradients travel alone and not in buckets."""
    if program.buckets.buckets:
        return (DataTimes(0.0, 0.0),) * len(program.units)
    return _data_times(program, joined, program.units)


def _data_times(
    program: StepProgram, joined: Communicators, parts: tuple[Stage, ...] | tuple[UnitProgram, ...]
) -> tuple[DataTimes, ...]:
    """Data-parallel collectives of the parameters of stages or units; experts have fewer replicas."""
    zero = program.layout.zero
    gather = reduce = [0.0] * len(parts)

    def seconds(group: str, collective: str, elements: list[int], width: float) -> tuple[float, ...]:
        return joined.seconds_of_each(group, collective, tuple([count * width for count in elements]))

    whole, bytes_of = zero >= 3, program.gathered_bytes
    for group, gathered, trained in (
        (DATA, [bytes_of(p.dense_elements, p.packed_dense) for p in parts], [p.dense_trainable for p in parts]),
        (
            EXPERT_DATA,
            [bytes_of(p.expert_elements, p.packed_expert) for p in parts],
            [p.expert_trainable for p in parts],
        ),
    ):
        sizes = gathered if whole else [count * program.weight_bytes for count in trained]
        if zero == 0:
            reduce = _added(reduce, seconds(group, "all_reduce", trained, program.gradient_bytes))
            continue
        gather = _added(gather, joined.seconds_of_each(group, "all_gather", tuple(sizes)))
        reduce = _added(reduce, seconds(group, "reduce_scatter", trained, program.gradient_bytes))
        if group == DATA:  # hybrid sharding: the shards of all replicas are summed
            shards = [count * program.gradient_bytes / program.groups[DATA][0] for count in trained]
            reduce = _added(reduce, joined.seconds_of_each(REPLICAS, "all_reduce", tuple(shards)))
    return tuple(map(DataTimes, gather, reduce))


def _added(one: Iterable[float], other: Iterable[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _calls(program: StepProgram, stage: Stage, count: int) -> Array:
    """How often each kind runs on a stage in an optimizer step."""
    total = np.zeros(count)
    within = _unit_calls(program.units, stage.chunks)
    total[: len(within)] = within * program.micro_batches
    for segment, times in program.sweeps(stage):
        if len(segment) and times:
            total += np.bincount(segment.kind, minlength=count) * times
    return total


@bounded()
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


def busiest_stage(program: StepProgram, units: tuple[UnitTimes, ...]) -> Stage:
    """The stage with the longest micro-batch."""
    distinct = dict.fromkeys(program.stages)
    return program.stages[0] if len(distinct) == 1 else max(distinct, key=lambda s: _stage_s(s, units))


def _stage_s(stage: Stage, units: tuple[UnitTimes, ...]) -> float:
    return sum(
        repeat * (units[i].forward.seconds + units[i].backward.seconds) + again * units[i].recompute.seconds
        for chunk in stage.chunks
        for i, repeat, again in chunk.units
    )


def host_seconds(timed: TimedProgram, stage: Stage) -> float:
    """Host seconds of a stage in a step."""
    program, units = timed.program, timed.units
    place = program.stages.index(stage)
    micro = sum(
        repeat * (units[i].forward.host_s + units[i].backward.host_s) + again * units[i].recompute.host_s
        for chunk in stage.chunks
        for i, repeat, again in chunk.units
    )
    sweeps = timed.sweeps[place].host_s(program.micro_batches, program.reductions)
    return timed.host.step_s + program.micro_batches * micro + sweeps


def phase_seconds(timed: TimedProgram, stage: Stage) -> tuple[dict[Phase, float], float, float]:
    """Compute seconds of a stage in a step: by phase (without casts), of casts, and of recomputed forward passes."""
    found = timed.phases.get(stage)
    if found is None:
        timed.phases[stage] = found = _phase_totals(timed, stage)
    factor = timed.kernel_factor
    *busy, casts = [seconds * factor for seconds in found[0]]
    phases = dict(zip(_PHASES, busy, strict=True))
    phases[Phase.OPTIMIZER] += timed.offload.update_s
    return phases, casts, found[1] * factor


def _phase_totals(timed: TimedProgram, stage: Stage) -> tuple[list[float], float]:
    """By phase and of casts, and of what is computed again."""
    program, shared = timed.program, timed.unit_kinds or timed
    micro = program.micro_batches
    sweeps = [(segment, times) for segment, times in program.sweeps(stage) if len(segment) and times]
    runs: list[tuple[Segment, int]] = []
    repeated: list[tuple[Segment, int]] = []
    for chunk in stage.chunks:
        for index, repeat, again in chunk.units:
            unit = program.units[index]
            runs += [(segment, repeat * micro) for segment in (unit.forward, unit.backward) if len(segment)]
            if len(unit.recompute) and again:
                repeated.append((unit.recompute, again))
    spent = [
        _by_phase(kinds, tuple([segment for segment, _ in segments])) * np.array([[times] for _, times in segments])
        for kinds, segments in ((timed.all_kinds or timed, sweeps), (shared, runs))
        if segments
    ]
    totals = np.add.reduce(np.concatenate(spent), axis=0) if spent else np.zeros(len(_PHASES) + 1)
    again_s = 0.0
    if repeated:
        each = _by_phase(shared, tuple([segment for segment, _ in repeated])).tolist()
        again_s = sum([sum(phases) * times * micro for phases, (_, times) in zip(each, repeated, strict=True)])
    return totals.tolist(), again_s


_PHASES = tuple(Phase)


@bounded()
def _by_phase(kinds: TimedSignatures, segments: tuple[Segment, ...]) -> Array:
    """Seconds of each segment (rows) by phase without casts, and of its casts."""
    joined = joined_segments(segments)
    seconds, cast = kinds.device_seconds(joined.all), kinds.works.is_cast[joined.all.kind]
    place = joined.row * len(_PHASES) + joined.all.phase
    found = np.zeros((len(segments), len(_PHASES) + 1))
    if cast.any():
        for row in dict.fromkeys(joined.row[cast].tolist()):
            start, end = joined.spans[row]
            found[row, -1] = seconds[start:end][cast[start:end]].sum()
        rest = ~cast
        seconds, place = seconds[rest], place[rest]
    by_phase = np.bincount(place, weights=seconds, minlength=len(segments) * len(_PHASES))
    found[:, :-1] = by_phase.reshape(len(segments), len(_PHASES))
    return found
