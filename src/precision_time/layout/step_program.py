"""From a training step in units and a layout to the `StepProgram` of all distinct ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import (
    BYTES_PER_ELEMENT,
    Category,
    OpGraph,
    OpSignature,
    Parameter,
    Phase,
    Skeleton,
)
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.optimizer import rule
from precision_time.capture.quantized_weights import STORED_BYTES
from precision_time.capture.training_step import TrainingStep
from precision_time.job.choices import NOT_PYTORCH
from precision_time.job.layout import FSDP_FRAMEWORKS, Layout
from precision_time.layout.buckets import stage_buckets
from precision_time.layout.options import Options
from precision_time.layout.program import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    Buckets,
    Chunk,
    Offload,
    Stage,
    StepProgram,
    UnitProgram,
)
from precision_time.layout.recomputation import check_modules
from precision_time.layout.segment import OpSignatures, Segment, joined_segments
from precision_time.layout.stages import chunks_of, cut_into_parts
from precision_time.layout.sweeps import Cut, Held, Updates, sweeps, updates_of
from precision_time.layout.unit_program import (
    SignatureTable,
    gradient_copies,
    plain_unit,
    unit_program,
)

REPLICAS, EXPERT_DATA, TIED = "replicas", "expert_data", "tied"
_ACCUMULATES_IN_PRODUCTS = frozenset({"megatron", "megatron-bridge"})
"""Frameworks whose weight-gradient products add to the existing gradient (Megatron-LM's
gradient_accumulation_fusion)."""


def groups(layout: Layout) -> dict[str, tuple[int, int]]:
    """Ranks and stride of every communicator: tp ranks are neighbours, then cp, then dp, then pp (Megatron's order).

    Experts are spread over the ranks of a stage, expert-tensor ranks innermost. First and last stage are half of all
    ranks apart, or more.
    """
    etp = layout.etp or layout.tp
    return {
        TENSOR: (layout.tp, 1),
        CONTEXT: (layout.cp, layout.tp),
        EXPERT: (layout.ep, etp),
        DATA: (layout.shard_ranks if layout.zero else layout.data_ranks, layout.tp),
        REPLICAS: (layout.data_ranks // layout.shard_ranks if layout.zero else 1, layout.tp * layout.shard_ranks),
        EXPERT_DATA: (layout.expert_ranks, layout.ep * etp),
        PIPELINE: (layout.pp, layout.tp * layout.cp * layout.dp),
        TIED: (2 if layout.pp > 1 else 1, layout.gpus // 2),
    }


_OUTSIDE_UNITS = frozenset(
    {"dp", "pp", "vpp", "zero", "shard", "schedule", "overlap_grad_reduce", "overlap_param_gather"}
)
"""Fields of a layout that change neither a unit's operators nor the collectives inside it."""
_INSIDE_UNITS = attrgetter(*(item.name for item in fields(Layout) if item.name not in _OUTSIDE_UNITS))


@dataclass(frozen=True, slots=True)
class _Inside:
    """The part of a layout that units depend on; equal where all `words` (its fields) are equal."""

    words: tuple[Any, ...]
    layout: Layout = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """Every unit of a step, and their distinct operators beside those of the step's graphs."""

    programs: tuple[UnitProgram, ...]
    more: OpSignatures
    table: SignatureTable


def step_program(step: TrainingStep, layout: Layout, options: Options) -> StepProgram:
    """The program of one optimizer step. Raises `JobError` for a part to recompute that the model lacks."""
    check_modules(step.layers.graph.skeleton, step.layers.units, options.recompute, step.layers.graph.name)
    adds = options.micro_batches > 1 and options.framework not in _ACCUMULATES_IN_PRODUCTS
    left = 1.0 - options.offload_ratio if options.offload else 1.0  # what the GPU updates
    shards = (layout.shard_ranks, layout.expert_ranks) if layout.zero else (1, 1)
    over, expert_over = (ranks / (left or 1.0) for ranks in shards)
    replicated = layout.data_ranks > 1
    wire = options.communication_dtype if replicated else None
    copied = replicated and layout.zero >= 2
    divides = options.framework in ("pytorch", *NOT_PYTORCH)  # as they copy into buckets
    ddp = replicated and divides and not layout.zero
    units = _units(step, _Inside(_INSIDE_UNITS(layout), layout), options.repeated, copied, wire if copied else None)
    units = _with_reference(units) if options.reference else units
    cut = Cut(
        layout.pp,
        layout.vpp,
        over,
        expert_over,
        options.recompute,
        options.recompute_layers,
        options.recompute_method,
        adds,
        sums=over if copied else 1,
        weights_over=shards if layout.zero >= 3 else (1, 1),
        loss_scale=options.loss_scale,
        averages=replicated and not copied and not ddp,
        buckets=ddp,
        wire=None if copied else wire,
    )
    updates = updates_of(step) if left else replace(updates_of(step), optimizer="none")
    stages, more = _stages(updates, step.layers.order, units, cut)
    weight, gradient = _wire(step, options)
    unit_kinds = _of_graphs(step, units.more)
    tied = shared_weights(step.layers.graph.skeleton, step.layers.units) if layout.pp > 1 else ()
    return StepProgram(
        kinds=_joined(unit_kinds, more),
        units=units.programs,
        stages=stages,
        layout=layout,
        micro_batches=options.micro_batches,
        weight_bytes=weight,
        gradient_bytes=gradient,
        boundary_bytes=_boundary(step, layout.tp if layout.sp else 1) if layout.pp > 1 else 0,
        tied_bytes=int(sum(p.numel for p in tied) * gradient),
        groups=groups(layout),
        framework=options.framework,
        reduces_always=not options.no_sync,
        buckets=stage_buckets(step.layers.units, stages[0].chunks, wire) if ddp and layout.pp == 1 else Buckets(),
        broadcast_bytes=step.layers.graph.buffer_bytes if ddp else 0,
        length_spread=step.length_spread,
        offload=_offload(step, layout, options, max(stages, key=_trained), (weight, gradient)),
        stored_bytes=_stored_bytes(step.layers.units),
        reference=options.reference,
        unit_kinds=unit_kinds,
    )


@bounded(budget=STRUCTURES)
def _stored_bytes(units: tuple[Unit, ...]) -> float:
    return next((STORED_BYTES[p.packed] for unit in units for p in unit.parameters if p.packed), 0.0)


def _trained(stage: Stage) -> int:
    return stage.dense_trainable + stage.expert_trainable


_CPU_KERNELS = frozenset({"deepspeed", "megatron-deepspeed"})
"""Frameworks with a fused update on CPUs (DeepSpeed's CPUAdam, CPULion, CPUAdagrad)."""


def _offload(
    step: TrainingStep, layout: Layout, options: Options, stage: Stage, wire: tuple[float, float]
) -> Offload | None:
    """What the rank's host does. `wire`: bytes per element of gathered weights and of reduced gradients."""
    if options.offload is None:
        return None
    precision, chosen = step.precision, rule(step.optimizer)
    over, expert_over = layout.shard_ranks, max(1, min(layout.expert_ranks, layout.shard_ranks))
    width, masters = BYTES_PER_ELEMENT[precision.state_dtype], precision.master_weights
    shards = masters and layout.zero >= 2 and options.framework in FSDP_FRAMEWORKS
    fused = options.framework in _CPU_KERNELS or step.implementation == "fused"
    moved = sum(width * (p.reads + p.writes) for p in (chosen.fused if fused else chosen.passes))
    return Offload(
        ratio=options.offload_ratio,
        parameters=options.offload.startswith("parameters"),
        nvme=options.offload.endswith("nvme"),
        trained_elements=options.offload_ratio * (stage.dense_trainable / over + stage.expert_trainable / expert_over),
        held_elements=stage.dense_elements / over + stage.expert_elements / expert_over,
        state_bytes=chosen.state_bytes(width) + (4.0 if masters else 0.0),
        update_bytes=moved + (wire[0] if masters else 0.0),
        weight_bytes=4.0 if shards else wire[0],
        gradient_bytes=4.0 if shards else wire[1],
        reduces_each=layout.zero >= 2,
    )


def _units(step: TrainingStep, inside: _Inside, recompute: str, copied: bool, wire: str | None) -> _Units:
    """The units of a step. `copied`: gradients are copied to dtype `wire` (None: their own) before they are reduced."""
    layout, skeleton, units = inside.layout, step.layers.graph.skeleton, step.layers.units
    if step.sharded is None and layout.expert_load == 1.0 and layout.tp == layout.cp == layout.ep == 1:
        return _plain_units(skeleton, units, recompute, copied, wire)
    return _divided_units(step, inside, recompute, copied, wire)


@bounded(UnitProgram, OpSignatures, budget=STRUCTURES)
def _plain_units(skeleton: Skeleton, units: tuple[Unit, ...], recompute: str, copied: bool, wire: str | None) -> _Units:
    """Of ranks that exchange nothing within units: the same at all input sizes."""
    kinds = SignatureTable(len(skeleton.names))
    copies = [gradient_copies(unit, wire) if copied else () for unit in units]
    programs = tuple(
        plain_unit(skeleton, unit, recompute, tuple(map(kinds, more))) for unit, more in zip(units, copies, strict=True)
    )
    return _Units(programs, _remembered(tuple(kinds.index)), kinds)


@bounded(OpSignatures)
def _divided_units(step: TrainingStep, inside: _Inside, recompute: str, copied: bool, wire: str | None) -> _Units:
    sharded = 0 if step.sharded is None else len(step.sharded.graph.kinds)
    kinds = SignatureTable(len(step.layers.graph.kinds) + sharded)
    programs = tuple(
        unit_program(step, unit, inside.layout, recompute, gradient_copies(unit, wire) if copied else (), kinds)
        for unit in step.layers.units
    )
    return _Units(programs, _remembered(tuple(kinds.index)), kinds)


@bounded(UnitProgram, OpSignatures, budget=STRUCTURES)
def _with_reference(units: _Units) -> _Units:
    """The same with the forward pass of a frozen model before that of each unit. (The model runs whole before; only
    the order of equal work differs.)"""
    programs = tuple(
        replace(
            unit, forward=joined_segments((unit.forward, unit.forward)).all,
            forward_collectives=unit.forward_collectives * 2,
        )
        for unit in units.programs
    )  # fmt: skip
    return replace(units, programs=programs)


@bounded(OpSignatures)
def _stages(step: Updates, order: tuple[int, ...], units: _Units, cut: Cut) -> tuple[tuple[Stage, ...], OpSignatures]:
    """All stages, equal ones as one object, and the distinct operators that they add to those of the units."""
    kinds = SignatureTable(units.table.before, units.table.index)
    by_parts: dict[tuple[tuple[int, ...], ...], Stage] = {}
    stages = []
    every = _parts(step.units, order, cut.pp, cut.vpp)
    swept = replace(
        cut, pp=1, vpp=1, recompute="none", recompute_layers=None, recompute_method=None
    )  # not what sweeps depend on
    tied = shared_weights(step.skeleton, step.units) if cut.pp > 1 else ()
    for parts in every:
        if parts not in by_parts:
            split = chunks_of(units.programs, parts, cut.recompute, cut.recompute_layers, cut.recompute_method)
            by_parts[parts] = _stage(step, units.programs, *split, tied if parts is every[-1] else (), swept, kinds)
        stages.append(by_parts[parts])
    return tuple(stages), _remembered(tuple(kinds.index)[len(units.more) :])


@bounded(budget=STRUCTURES)
def _parts(units: tuple[Unit, ...], order: tuple[int, ...], pp: int, vpp: int) -> list[tuple[tuple[int, ...], ...]]:
    return cut_into_parts(order, units, pp, vpp)


@bounded(OpSignatures)
def _of_graphs(step: TrainingStep, more: OpSignatures) -> OpSignatures:
    """The operators of the units: of the rank's graph, of that on its part of the sequence, and `more`."""
    graphs = [step.layers.graph, *([] if step.sharded is None else [step.sharded.graph])]
    return _joined(*map(_of_graph, graphs), more)


@bounded()
def _of_graph(graph: OpGraph) -> OpSignatures:
    return OpSignatures(graph.kinds)


@bounded(OpSignatures)
def _joined(*parts: OpSignatures) -> OpSignatures:
    return OpSignatures.joined(*parts)


@bounded()
def _remembered(kinds: tuple[OpSignature, ...]) -> OpSignatures:
    """The same object for the same operators, so that programs share what is timed for them."""
    return OpSignatures(kinds)


def _stage(
    step: Updates,
    units: tuple[UnitProgram, ...],
    chunks: tuple[Chunk, ...],
    held: Held,
    copies: tuple[Parameter, ...],
    cut: Cut,
    kinds: SignatureTable,
) -> Stage:
    """One stage: its chunks and its sweeps. `copies`: weights of another stage that it also holds (tied embeddings)."""
    swept = sweeps(step, held, copies, cut)
    copied = sum(p.numel for p in copies)

    def enter(operators: Sequence[tuple[Phase, OpSignature]]) -> Segment:
        return _swept(tuple((kinds(kind), phase) for phase, kind in operators))

    return Stage(
        chunks=chunks,
        tails=tuple(enter(operators) for operators in swept.tails),
        into_buckets=enter(swept.into_buckets),
        out_of_buckets=enter(swept.out_of_buckets),
        accumulate=enter(swept.accumulate),
        dense_trainable=sum(units[i].dense_trainable * n for i, n in held) + copied,
        expert_trainable=sum(units[i].expert_trainable * n for i, n in held),
        dense_elements=sum(units[i].dense_elements * n for i, n in held) + copied,
        expert_elements=sum(units[i].expert_elements * n for i, n in held),
        packed_dense=sum(units[i].packed_dense * n for i, n in held),
        packed_expert=sum(units[i].packed_expert * n for i, n in held),
    )


@bounded()
def _swept(rows: tuple[tuple[int, Phase], ...]) -> Segment:
    """The same object for the same rows, which stages with equal parameters share."""
    return Segment.of([(kind, phase, 0, 0) for kind, phase in rows])


@bounded(Parameter, budget=STRUCTURES)
def shared_weights(skeleton: Skeleton, units: tuple[Unit, ...]) -> tuple[Parameter, ...]:
    """Weights of the unit before the blocks that the unit after them also reads: tied embeddings.

    The last stage of a pipeline holds a copy, and both stages sum their gradients.
    """
    before = {p.name for u in units if u.name == BEFORE for p in u.parameters}
    after = [i for u in units if u.name == AFTER for i in u.forward]
    read = set(skeleton.calls.read_by(after).tolist())
    return tuple(p for storage, p in enumerate(skeleton.parameters) if p.name in before and storage in read)


def _wire(step: TrainingStep, options: Options) -> tuple[float, float]:
    """Bytes per element of gathered weights and of reduced gradients."""
    weight, trained = _widest(step.layers.units)
    gradient = options.communication_dtype or trained or weight
    fp8_weights = step.precision.fp8_scaling and options.framework == "megatron-bridge"
    return (1.0 if fp8_weights else float(BYTES_PER_ELEMENT[weight])), float(BYTES_PER_ELEMENT[gradient])


@bounded(budget=STRUCTURES)
def _widest(units: tuple[Unit, ...]) -> tuple[str, str | None]:
    """The widest dtype of a weight, and the dtype of the first gradient."""
    parameters = [p for unit in units for p in unit.parameters]
    gradients = (p.grad_dtype for p in parameters if p.trainable)
    return max((p.dtype for p in parameters), key=lambda dtype: BYTES_PER_ELEMENT[dtype]), next(gradients, None)


@bounded()
def _boundary(step: TrainingStep, parts: int) -> int:
    """Activations between two stages: the residual stream of one micro-batch, of which a rank holds one of `parts`."""
    after = next((u for u in step.layers.units if u.name == AFTER), None)
    graph = step.layers.graph
    if after is None or not after.forward:
        return 0
    inside = set(after.forward)
    taken: dict[int, None] = dict.fromkeys(graph.skeleton.calls.read_by(after.forward).tolist())
    size = sum(
        graph.storages[r].nbytes
        for r in taken
        if graph.storages[r].born not in inside and graph.storages[r].category is Category.ACTIVATIONS
    )
    return size // parts
