"""From a training step in units and a layout to the `StepProgram` of all distinct ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import ceil
from operator import attrgetter
from typing import Any

from precision_time.capture.graph import BYTES_PER_ELEMENT, Category, OpGraph, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.optimizer import Sweep, sweep_kind
from precision_time.capture.training_step import TrainingStep
from precision_time.errors import JobError
from precision_time.job.job import Job
from precision_time.job.layout import Layout
from precision_time.layout import tensor_parallel
from precision_time.layout.buckets import stage_buckets
from precision_time.layout.program import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    Buckets,
    Chunk,
    CollectiveOp,
    Stage,
    StepProgram,
    UnitProgram,
)
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.layout.sweeps import EXPERTS, Cut, Held, sizes_of, sweeps

REPLICAS, EXPERT_DATA, TIED = "replicas", "expert_data", "tied"
_ACCUMULATES_IN_PRODUCTS = frozenset({"megatron", "megatron-bridge"})
"""Frameworks whose weight-gradient products add to the existing gradient (Megatron-LM's
gradient_accumulation_fusion)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Fields of a job beside its layout that decide the program: micro-batches, recomputation, dtypes on the wire."""

    micro_batches: int
    recompute: str = "none"
    recompute_layers: int | None = None
    communication_dtype: str | None = None
    framework: str = "pytorch"
    loss_scale: str = "dynamic"
    no_sync: bool = True

    @classmethod
    def of(cls, job: Job) -> Options:
        """The options of a job."""
        return cls(
            job.grad_accum, job.recompute, job.recompute_layers, job.communication_dtype, job.framework, job.loss_scale,
            job.no_sync,
        )  # fmt: skip


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
    """Every unit of a step with their distinct operators."""

    programs: tuple[UnitProgram, ...]
    kinds: OpSignatures
    table: Mapping[OpSignature, int]


def step_program(step: TrainingStep, layout: Layout, options: Options) -> StepProgram:
    """The program of one optimizer step."""
    adds = options.micro_batches > 1 and options.framework not in _ACCUMULATES_IN_PRODUCTS
    over, expert_over = (layout.shard_ranks, layout.expert_ranks) if layout.zero else (1, 1)
    replicated = layout.data_ranks > 1
    wire = options.communication_dtype if replicated else None
    copied = replicated and layout.zero >= 2
    ddp = replicated and options.framework == "pytorch" and not layout.zero  # divides as it copies into its buckets
    units = _units(step, _Inside(_INSIDE_UNITS(layout), layout), options.recompute, copied, wire if copied else None)
    cut = Cut(
        layout.pp, layout.vpp, over, expert_over, options.recompute, options.recompute_layers, adds,
        sums=over if copied else 1, loss_scale=options.loss_scale,
        averages=replicated and not copied and not ddp, buckets=ddp,
        wire=None if copied else wire,
    )  # fmt: skip
    stages, kinds = _stages(step, units, cut)
    weight, gradient = _wire(step, options)
    return StepProgram(
        kinds=kinds,
        units=units.programs,
        stages=stages,
        layout=layout,
        micro_batches=options.micro_batches,
        weight_bytes=weight,
        gradient_bytes=gradient,
        boundary_bytes=_boundary(step, layout.tp if layout.sp else 1) if layout.pp > 1 else 0,
        tied_bytes=int(sum(p.numel for p in shared_weights(step)) * gradient) if layout.pp > 1 else 0,
        groups=groups(layout),
        framework=options.framework,
        reduces_always=not options.no_sync,
        buckets=stage_buckets(step.layers.units, stages[0].chunks, wire) if ddp and layout.pp == 1 else Buckets(),
        broadcast_bytes=step.layers.graph.buffer_bytes if ddp else 0,
        length_spread=step.length_spread,
    )


@lru_cache(maxsize=256)
def _units(step: TrainingStep, inside: _Inside, recompute: str, copied: bool, wire: str | None) -> _Units:
    """The units of a step. `copied`: gradients are copied to dtype `wire` (None: their own) before they are reduced."""
    kinds = _KindTable()

    def copies(unit: Unit) -> tuple[OpSignature, ...]:
        return _gradient_copies(unit, wire) if copied else ()

    programs = tuple(_unit(step, unit, inside.layout, recompute, copies(unit), kinds) for unit in step.layers.units)
    return _Units(programs, _remembered(tuple(kinds.found)), kinds.found)  # what recomputes has no other kinds


@lru_cache(maxsize=1024)
def _stages(step: TrainingStep, units: _Units, cut: Cut) -> tuple[tuple[Stage, ...], OpSignatures]:
    """All stages, equal ones as one object, and the distinct operators of the whole program."""
    kinds = _KindTable(dict(units.table))
    by_parts: dict[tuple[tuple[int, ...], ...], Stage] = {}
    stages = []
    every = _parts(step, cut.pp, cut.vpp)
    swept = replace(cut, pp=1, vpp=1, recompute="none", recompute_layers=None)  # not what sweeps depend on
    tied = shared_weights(step) if cut.pp > 1 else ()
    for parts in every:
        if parts not in by_parts:
            split = _chunks(units.programs, parts, cut.recompute, cut.recompute_layers)
            by_parts[parts] = _stage(step, units.programs, *split, tied if parts is every[-1] else (), swept, kinds)
        stages.append(by_parts[parts])
    more = _remembered(tuple(kinds.found)[len(units.kinds) :])
    return tuple(stages), _together(units.kinds, more)


@lru_cache(maxsize=256)
def _parts(step: TrainingStep, pp: int, vpp: int) -> list[tuple[tuple[int, ...], ...]]:
    return _cut(step.layers.order, step.layers.units, pp, vpp)


@lru_cache(maxsize=1024)
def _together(first: OpSignatures, more: OpSignatures) -> OpSignatures:
    return OpSignatures.joined(first, more)


@lru_cache(maxsize=4096)
def _remembered(kinds: tuple[OpSignature, ...]) -> OpSignatures:
    """The same object for the same operators, so that programs share what is timed for them."""
    return OpSignatures(kinds)


@dataclass(slots=True)
class _KindTable:
    found: dict[OpSignature, int] = field(default_factory=dict)

    def __call__(self, kind: OpSignature) -> int:
        return self.found.setdefault(kind, len(self.found))


def cut_layers(order: Sequence[int], units: Sequence[Unit], layout: Layout) -> list[tuple[tuple[int, ...], ...]]:
    """The units of every chunk of every stage.

    Blocks are divided evenly. Where they do not divide, the units before the first and after the last block count as
    one block each (Megatron-LM's account-for-embedding-in-pipeline-split and -loss-), else the first parts hold fewer.
    """
    return _cut(order, units, layout.pp, layout.vpp)


def _cut(order: Sequence[int], units: Sequence[Unit], pp: int, vpp: int) -> list[tuple[tuple[int, ...], ...]]:
    parts = pp * vpp
    before = [i for i in order if units[i].name == BEFORE]
    after = [i for i in order if units[i].name == AFTER]
    blocks = [i for i in order if units[i].name not in (BEFORE, AFTER)]
    if len(blocks) < parts:
        raise JobError(
            f"layout pp={pp} x vpp={vpp} cuts the model into {parts} parts, but it has {len(blocks)} "
            "blocks; lower pp or vpp"
        )
    sizes = _shares(len(blocks), parts)
    cut: list[list[int]] = []
    start = 0
    for size in sizes:
        cut.append(blocks[start : start + size])
        start += size
    cut[0] = before + cut[0]
    cut[-1] = cut[-1] + after
    return [tuple(tuple(cut[c * pp + s]) for c in range(vpp)) for s in range(pp)]


def _shares(blocks: int, parts: int) -> list[int]:
    if parts == 1 or blocks % parts == 0:
        return [blocks // parts] * parts
    if parts > 1 and (blocks + 2) % parts == 0 and (blocks + 2) // parts > 1:
        each = (blocks + 2) // parts
        return [each - 1, *[each] * (parts - 2), each - 1]
    each, more = divmod(blocks, parts)
    # The last part holds the head, the first the embedding, so the longer parts are those before the last.
    sizes = [each] * parts
    for k in range(more):
        sizes[parts - 2 - k if parts - 2 - k >= 0 else parts - 1] += 1
    return sizes


def _unit(
    step: TrainingStep, unit: Unit, layout: Layout, recompute: str, copies: Sequence[OpSignature],
    kinds: _KindTable,
) -> UnitProgram:  # fmt: skip
    graph = step.layers.graph
    collectives = tensor_parallel.exchanges(graph, unit, step.split, layout, int(step.config.get("topk") or 0))
    block = unit.name not in (BEFORE, AFTER)
    again = _recomputed(graph, unit, recompute) if block else ()
    experts = sum(p.numel for p in unit.parameters if EXPERTS in f".{p.name}.")
    trainable = [p for p in unit.parameters if p.trainable and p.ready >= 0]
    expert_trainable = sum(p.numel for p in trainable if EXPERTS in f".{p.name}.")
    total = sum(p.numel for p in unit.parameters)
    sorting = _sorting(graph, unit, layout) if step.split is not None else ()
    attention = {i for i in unit.forward if graph.kinds[graph.calls[i].kind].name.startswith("pt.attention")}
    return UnitProgram(
        name=unit.name,
        forward=_segment(step, unit, unit.forward, layout, kinds, sorting, Phase.FORWARD),
        backward=_segment(step, unit, unit.backward, layout, kinds, (*copies, *sorting)),
        recompute=_segment(step, unit, again, layout, kinds),
        forward_collectives=collectives.forward,
        backward_collectives=collectives.backward,
        recompute_collectives=_exchanged_again(collectives.forward, recompute) if block else (),
        dense_elements=total - experts,
        expert_elements=experts,
        dense_trainable=sum(p.numel for p in trainable) - expert_trainable,
        expert_trainable=expert_trainable,
        tensors=len(trainable),
        attention=tuple(sorted({kinds(_local_kind(step, unit, i, layout)) for i in attention})),
    )


def _sorting(graph: OpGraph, unit: Unit, layout: Layout) -> tuple[OpSignature, ...]:
    """Operators that sort the tokens received from other ranks by expert, and back (Megatron-LM's
    `sort_chunks_by_idxs`); the backward pass has the same."""
    routed = tensor_parallel.routed_tokens(graph, unit) if layout.ep > 1 else None
    if routed is None:
        return ()
    rows = ceil(routed.shape[0] * layout.expert_load / (layout.tp if layout.sp else 1))
    tokens = TensorSpec((rows, routed.shape[1]), routed.dtype)
    kind = OpSignature("aten.index_select", (tokens, TensorSpec((rows,), "int64")), (tokens,), (("dim", 0),))
    return (kind, kind)


def _recomputed(graph: OpGraph, unit: Unit, mode: str) -> tuple[int, ...]:
    """Forward calls that run again in the backward pass.

    Selective recomputation runs what lies between the projections of attention again: scores, softmax, dropout and
    their product with the values (arXiv:2205.05198), or the fused kernel that replaces them.
    """
    if mode == "full":
        return unit.forward
    if mode == "selective":
        return core_attention(graph, unit)
    return ()


def _exchanged_again(forward: tuple[CollectiveOp, ...], mode: str) -> tuple[CollectiveOp, ...]:
    """Collectives that recomputation repeats: all with `full`, keys and values of other ranks with `selective`."""
    if mode == "full":
        return forward
    return tuple(e for e in forward if e.group == CONTEXT) if mode == "selective" else ()


def core_attention(graph: OpGraph, unit: Unit) -> tuple[int, ...]:
    """Forward calls from the scores to the context of every attention in the unit."""
    calls: list[int] = []
    inside = False
    for i in unit.forward:
        name = graph.kinds[graph.calls[i].kind].name
        own = graph.modules[graph.calls[i].module].endswith("attention")
        inside = own and (inside or name in ("aten.bmm", "pt.attention"))
        if inside:
            calls.append(i)
    return tuple(calls)


def _local_kind(step: TrainingStep, unit: Unit, index: int, layout: Layout) -> OpSignature:
    sharded = step.sharded.graph if step.sharded else None
    call, graph = tensor_parallel.local_call(step.layers.graph, sharded, unit, index, step.split)
    kind = graph.kinds[call.kind]
    if layout.expert_load != 1.0 and kind.name.startswith("pt.grouped"):
        return _busiest(kind, layout.expert_load)
    return kind


def _busiest(kind: OpSignature, imbalance: float) -> OpSignature:
    """Grouped products of the rank whose experts got the most tokens."""

    def more(spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != 2:
            return spec
        return TensorSpec((ceil(spec.shape[0] * imbalance), spec.shape[1]), spec.dtype)

    return replace(kind, inputs=tuple(map(more, kind.inputs)), outputs=tuple(map(more, kind.outputs)))


def _gradient_copies(unit: Unit, wire: str | None) -> tuple[OpSignature, ...]:
    """Operators on a unit's whole gradient before FSDP reduces it, in every micro-batch: a cast to the dtype on the
    wire and a division (torch/distributed/fsdp/_runtime_utils.py, _reduce_grad)."""
    sizes = sizes_of(unit)
    if sizes.first is None:
        return ()
    sweep = Sweep((sum(numel * times for numel, _, times in sizes.sizes),))
    own = sizes.first.grad_dtype
    wire = wire or own
    cast = () if wire == own else (sweep_kind("to_wire", sweep, [own], [wire], "fused"),)
    return (*cast, sweep_kind("average", sweep, [wire], [wire], "fused"))


def _segment(
    step: TrainingStep, unit: Unit, calls: Sequence[int], layout: Layout, kinds: _KindTable,
    more: Sequence[OpSignature] = (), phase: Phase = Phase.BACKWARD,
) -> Segment:  # fmt: skip
    rows: list[tuple[int, Phase, int, int]] = []
    for index in calls:
        call = step.layers.graph.calls[index]
        kind = _local_kind(step, unit, index, layout)
        row = (kinds(kind), call.phase, call.views, call.module)
        rows += [row] * tensor_parallel.attention_parts(kind, layout)
    rows += [(kinds(kind), phase, 0, 0) for kind in more]
    return Segment.of(rows)


def _stage(
    step: TrainingStep, units: tuple[UnitProgram, ...], chunks: tuple[Chunk, ...], held: Held,
    copies: tuple[Parameter, ...], cut: Cut, kinds: _KindTable,
) -> Stage:  # fmt: skip
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
    )


@lru_cache(maxsize=4096)
def _swept(rows: tuple[tuple[int, Phase], ...]) -> Segment:
    """The same object for the same rows, which stages with equal parameters share."""
    return Segment.of([(kind, phase, 0, 0) for kind, phase in rows])


@lru_cache(maxsize=1024)
def _chunks(
    units: tuple[UnitProgram, ...], parts: tuple[tuple[int, ...], ...], recompute: str, recompute_layers: int | None
) -> tuple[tuple[Chunk, ...], Held]:
    """The chunks of a stage, and which units it holds how many times."""
    chunks = []
    held: dict[int, int] = {}
    for place, part in enumerate(parts):
        left = _recomputed_layers(recompute, recompute_layers, place, len(parts))
        runs: list[list[int]] = []
        for index in part:
            block = units[index].name not in (BEFORE, AFTER)
            again = 1 if block and (left is None or left > 0) else 0
            if again and left is not None:
                left -= 1
            if runs and runs[-1][0] == index:
                runs[-1][1] += 1
                runs[-1][2] += again
            else:
                runs.append([index, 1, again])
            held[index] = held.get(index, 0) + 1
        chunks.append(Chunk(tuple((u, n, r) for u, n, r in runs)))
    return tuple(chunks), tuple(held.items())


def _recomputed_layers(recompute: str, layers: int | None, chunk: int, chunks: int) -> int | None:
    """Blocks of a chunk that recompute (None: all): `layers` per stage, divided over its chunks as in Megatron-LM."""
    if recompute == "none":
        return 0
    if layers is None:
        return None
    each, more = divmod(layers, chunks)
    return each + (chunk < more)


@lru_cache(maxsize=256)
def shared_weights(step: TrainingStep) -> tuple[Parameter, ...]:
    """Weights of the unit before the blocks that the unit after them also reads: tied embeddings.

    The last stage of a pipeline holds a copy, and both stages sum their gradients.
    """
    graph = step.layers.graph
    units = step.layers.units
    before = {p.name for u in units if u.name == BEFORE for p in u.parameters}
    read = {r for u in units if u.name == AFTER for i in u.forward for r in graph.calls[i].reads}
    return tuple(p for storage, p in enumerate(graph.parameters) if p.name in before and storage in read)


def _wire(step: TrainingStep, options: Options) -> tuple[float, float]:
    """Bytes per element of gathered weights and of reduced gradients."""
    trainable = next((p for u in step.layers.units for p in u.parameters if p.trainable), None)
    weight = max((p.dtype for u in step.layers.units for p in u.parameters), key=lambda d: BYTES_PER_ELEMENT[d])
    gradient = options.communication_dtype or (trainable.grad_dtype if trainable else weight)
    fp8_weights = step.precision.fp8_scaling and options.framework == "megatron-bridge"
    return (1.0 if fp8_weights else float(BYTES_PER_ELEMENT[weight])), float(BYTES_PER_ELEMENT[gradient])


@lru_cache(maxsize=1024)
def _boundary(step: TrainingStep, parts: int) -> int:
    """Activations between two stages: the residual stream of one micro-batch, of which a rank holds one of `parts`."""
    after = next((u for u in step.layers.units if u.name == AFTER), None)
    graph = step.layers.graph
    if after is None or not after.forward:
        return 0
    inside = set(after.forward)
    taken = dict.fromkeys(r for i in after.forward for r in graph.calls[i].reads)
    size = sum(
        graph.storages[r].nbytes for r in taken
        if graph.storages[r].born not in inside and graph.storages[r].category is Category.ACTIVATIONS
    )  # fmt: skip
    return size // parts
