"""From a rank's units and a layout to the program of all distinct ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil

from precision_time.capture.graph import BYTES_PER_ELEMENT, Category, OpGraph, OpKind, Parameter, Phase, TensorSpec
from precision_time.capture.layered_step import LayeredStep
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.optimizer import Sweep, Tail, sweep_kind, tail
from precision_time.errors import JobError
from precision_time.job.layout import Layout
from precision_time.layout import tensor_parallel
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
from precision_time.layout.rank_program import Kinds, Segment

REPLICAS, EXPERT_DATA, TIED = "replicas", "expert_data", "tied"
_EXPERTS = ".experts."
_ACCUMULATES_IN_PRODUCTS = frozenset({"megatron", "megatron-bridge"})
"""Frameworks whose weight-gradient products add to the gradient they find (gradient_accumulation_fusion)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else decides the program: micro-batches, recomputation, dtypes on the wire."""

    micro_batches: int
    recompute: str = "none"
    recompute_layers: int | None = None
    communication_dtype: str | None = None
    framework: str = "pytorch"
    loss_scale: str = "dynamic"
    no_sync: bool = True


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


@lru_cache(maxsize=256)
def layered_program(step: LayeredStep, layout: Layout, options: Options) -> LayeredProgram:
    """The program of one optimizer step."""
    kinds = _KindTable()
    units = tuple(_unit(step, unit, layout, options, kinds) for unit in step.layers.units)
    cut = cut_layers(step.layers.order, step.layers.units, layout)
    tied = shared_weights(step) if layout.pp > 1 else ()
    stages: list[Stage] = []
    known: dict[tuple[tuple[int, ...], ...], Stage] = {}
    for parts in cut:
        if parts not in known:
            known[parts] = _stage(step, units, parts, tied if parts is cut[-1] else (), layout, options, kinds)
        stages.append(known[parts])
    weight, gradient = _wire(step, layout, options)
    return LayeredProgram(
        kinds=Kinds(kinds.found),
        units=units,
        stages=tuple(stages),
        layout=layout,
        micro_batches=options.micro_batches,
        weight_bytes=weight,
        gradient_bytes=gradient,
        boundary_bytes=_boundary(step, layout),
        tied_bytes=int(sum(p.numel for p in tied) * gradient),
        groups=groups(layout),
        framework=options.framework,
        reduces_always=not options.no_sync,
        sync_after_tail=step.precision.loss_scaling and options.loss_scale == "dynamic",
    )


@dataclass(slots=True)
class _KindTable:
    found: dict[OpKind, int] = field(default_factory=dict)

    def __call__(self, kind: OpKind) -> int:
        return self.found.setdefault(kind, len(self.found))


def cut_layers(order: Sequence[int], units: Sequence[Unit], layout: Layout) -> list[tuple[tuple[int, ...], ...]]:
    """The units of every chunk of every stage.

    Blocks are shared out evenly. Where they do not divide, what stands before the first and after the last block counts
    as one more each (Megatron's account-for-embedding-in-pipeline-split and -loss-), else the first parts hold fewer.
    """
    parts = layout.pp * layout.vpp
    before = [i for i in order if units[i].name == BEFORE]
    after = [i for i in order if units[i].name == AFTER]
    blocks = [i for i in order if units[i].name not in (BEFORE, AFTER)]
    if len(blocks) < parts:
        raise JobError(
            f"layout pp={layout.pp} x vpp={layout.vpp} cuts the model into {parts} parts, but it has {len(blocks)} "
            "blocks; lower pp or vpp"
        )
    sizes = _shares(len(blocks), parts)
    found: list[list[int]] = []
    start = 0
    for size in sizes:
        found.append(blocks[start : start + size])
        start += size
    found[0] = before + found[0]
    found[-1] = found[-1] + after
    return [tuple(tuple(found[c * layout.pp + s]) for c in range(layout.vpp)) for s in range(layout.pp)]


def _shares(blocks: int, parts: int) -> list[int]:
    if parts == 1 or blocks % parts == 0:
        return [blocks // parts] * parts
    if parts > 1 and (blocks + 2) % parts == 0 and (blocks + 2) // parts > 1:
        each = (blocks + 2) // parts
        return [each - 1, *[each] * (parts - 2), each - 1]
    each, more = divmod(blocks, parts)
    # The last part holds the head, the first the embedding: the longer parts stand before the end.
    sizes = [each] * parts
    for k in range(more):
        sizes[parts - 2 - k if parts - 2 - k >= 0 else parts - 1] += 1
    return sizes


def _unit(step: LayeredStep, unit: Unit, layout: Layout, options: Options, kinds: _KindTable) -> UnitProgram:
    graph = step.layers.graph
    found = tensor_parallel.exchanges(graph, unit, step.split, layout, int(step.config.get("topk") or 0))
    block = unit.name not in (BEFORE, AFTER)
    again = _recomputed(graph, unit, options.recompute) if block else ()
    experts = sum(p.numel for p in unit.parameters if _EXPERTS in f".{p.name}.")
    trainable = [p for p in unit.parameters if p.trainable and p.ready >= 0]
    expert_trainable = sum(p.numel for p in trainable if _EXPERTS in f".{p.name}.")
    total = sum(p.numel for p in unit.parameters)
    attention = {i for i in unit.forward if graph.kinds[graph.calls[i].kind].name.startswith("pt.attention")}
    return UnitProgram(
        name=unit.name,
        forward=_segment(step, unit, unit.forward, layout, kinds),
        backward=_segment(step, unit, unit.backward, layout, kinds, _gradient_copies(step, trainable, layout, options)),
        recompute=_segment(step, unit, again, layout, kinds),
        forward_exchanges=found.forward,
        backward_exchanges=found.backward,
        recompute_exchanges=_exchanged_again(found.forward, options.recompute) if block else (),
        dense_elements=total - experts,
        expert_elements=experts,
        dense_trainable=sum(p.numel for p in trainable) - expert_trainable,
        expert_trainable=expert_trainable,
        tensors=len(trainable),
        attention=tuple(sorted({kinds(_local_kind(step, unit, i, layout)) for i in attention})),
    )


def _recomputed(graph: OpGraph, unit: Unit, mode: str) -> tuple[int, ...]:
    """Forward calls that run again in the backward pass.

    Selective recomputation runs what lies between the projections of attention again: scores, softmax, dropout and
    their product with the values (arXiv:2205.05198), or the fused kernel that stands for them.
    """
    if mode == "full":
        return unit.forward
    if mode == "selective":
        return core_attention(graph, unit)
    return ()


def _exchanged_again(forward: tuple[Exchange, ...], mode: str) -> tuple[Exchange, ...]:
    """Attention that runs again asks for the keys and values of the other ranks again."""
    if mode == "full":
        return forward
    return tuple(e for e in forward if e.group == CONTEXT) if mode == "selective" else ()


def core_attention(graph: OpGraph, unit: Unit) -> tuple[int, ...]:
    """Forward calls from the scores to the context of every attention in the unit."""
    found: list[int] = []
    inside = False
    for i in unit.forward:
        name = graph.kinds[graph.calls[i].kind].name
        own = graph.modules[graph.calls[i].module].endswith("attention")
        inside = own and (inside or name in ("aten.bmm", "pt.attention"))
        if inside:
            found.append(i)
    return tuple(found)


def _local_kind(step: LayeredStep, unit: Unit, index: int, layout: Layout) -> OpKind:
    sharded = step.sharded.graph if step.sharded else None
    call, graph = tensor_parallel.local_call(step.layers.graph, sharded, unit, index, step.split)
    kind = graph.kinds[call.kind]
    if layout.expert_imbalance > 1 and kind.name.startswith("pt.grouped"):
        return _busiest(kind, layout.expert_imbalance)
    return kind


def _busiest(kind: OpKind, imbalance: float) -> OpKind:
    """Grouped products of the rank whose experts got the most tokens."""

    def more(spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != 2:
            return spec
        return TensorSpec((ceil(spec.shape[0] * imbalance), spec.shape[1]), spec.dtype)

    return replace(kind, inputs=tuple(map(more, kind.inputs)), outputs=tuple(map(more, kind.outputs)))


def _gradient_copies(
    step: LayeredStep, trainable: Sequence[Parameter], layout: Layout, options: Options
) -> tuple[OpKind, ...]:
    """What is done to a unit's whole gradient before FSDP reduces it, after every micro-batch: a cast to the dtype on
    the wire and a division (torch/distributed/fsdp/_runtime_utils.py, _reduce_grad)."""
    if layout.zero < 2 or layout.data_ranks == 1 or not trainable:
        return ()
    sweep = Sweep((sum(p.numel for p in trainable),))
    own = trainable[0].grad_dtype
    wire = options.communication_dtype or own
    cast = () if wire == own else (sweep_kind("to_wire", sweep, [own], [wire], "fused"),)
    return (*cast, sweep_kind("average", sweep, [wire], [wire], "fused"))


def _segment(
    step: LayeredStep, unit: Unit, calls: Sequence[int], layout: Layout, kinds: _KindTable,
    more: Sequence[OpKind] = (),
) -> Segment:  # fmt: skip
    rows: list[tuple[int, Phase, int, int]] = []
    for index in calls:
        call = step.layers.graph.calls[index]
        kind = _local_kind(step, unit, index, layout)
        row = (kinds(kind), call.phase, call.views, call.module)
        rows += [row] * tensor_parallel.attention_parts(kind, layout)
    rows += [(kinds(kind), Phase.BACKWARD, 0, 0) for kind in more]
    return Segment.of(rows)


def _stage(
    step: LayeredStep, units: Sequence[UnitProgram], parts: tuple[tuple[int, ...], ...], copies: Sequence[Parameter],
    layout: Layout, options: Options, kinds: _KindTable,
) -> Stage:  # fmt: skip
    """One stage's chunks and its optimizer; `copies` are weights of another stage that it holds, too."""
    chunks = []
    for place, part in enumerate(parts):
        left = _recomputed_layers(options, place, len(parts))
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
        chunks.append(Chunk(tuple((u, n, r) for u, n, r in runs)))
    held = [units[i] for part in parts for i in part]
    own = [p for part in parts for i in part for p in step.layers.units[i].parameters]
    after = _tail(step, [*own, *copies], layout, options)
    copied = sum(p.numel for p in copies)

    def enter(operators: Sequence[tuple[Phase, OpKind]]) -> Segment:
        return Segment.of([(kinds(kind), phase, 0, 0) for phase, kind in operators])

    adds = options.micro_batches > 1 and options.framework not in _ACCUMULATES_IN_PRODUCTS
    accumulate = [(Phase.BACKWARD, after.accumulate)] if adds and after.accumulate is not None else []
    return Stage(
        chunks=tuple(chunks),
        tail=enter((*_average([*own, *copies], layout, options), *after.operators)),
        copies=enter(_bucket_copies([*own, *copies], layout, options)),
        accumulate=enter(accumulate),
        dense_trainable=sum(u.dense_trainable for u in held) + copied,
        expert_trainable=sum(u.expert_trainable for u in held),
        dense_elements=sum(u.dense_elements for u in held) + copied,
        expert_elements=sum(u.expert_elements for u in held),
    )


def _average(
    parameters: Sequence[Parameter], layout: Layout, options: Options
) -> tuple[tuple[Phase, OpKind], ...]:  # fmt: skip
    """The division of all gradients by the number of replicas, where they are reduced once in one buffer."""
    trainable = [p for p in parameters if p.trainable and p.ready >= 0]
    by_bucket = options.framework == "pytorch" and not layout.zero  # DDP divides as it copies (`_bucket_copies`)
    if layout.zero >= 2 or layout.data_ranks == 1 or by_bucket or not trainable:
        return ()
    wire = options.communication_dtype or trainable[0].grad_dtype
    kind = sweep_kind("average", Sweep((sum(p.numel for p in trainable),)), [wire], [wire], "fused")
    return ((Phase.BACKWARD, kind),)


def _bucket_copies(
    parameters: Sequence[Parameter], layout: Layout, options: Options
) -> tuple[tuple[Phase, OpKind], ...]:
    """PyTorch's DDP copies every gradient into its bucket and back; frameworks with buffers of their own do not."""
    trainable = [p for p in parameters if p.trainable and p.ready >= 0]
    if options.framework != "pytorch" or layout.zero or layout.data_ranks == 1 or not trainable:
        return ()
    sweep, dtype = Sweep(tuple(p.numel for p in trainable)), trainable[0].grad_dtype
    wire = options.communication_dtype or dtype
    return (
        (Phase.BACKWARD, sweep_kind("into_buckets", sweep, [dtype], [wire], "single")),
        (Phase.BACKWARD, sweep_kind("out_of_buckets", sweep, [wire], [dtype], "single")),
    )


def _recomputed_layers(options: Options, chunk: int, chunks: int) -> int | None:
    """Blocks of a chunk that recompute (None: all): those of the stage are shared out, as Megatron says them."""
    if options.recompute == "none":
        return 0
    if options.recompute_layers is None:
        return None
    each, more = divmod(options.recompute_layers, chunks)
    return each + (chunk < more)


def shared_weights(step: LayeredStep) -> tuple[Parameter, ...]:
    """Weights that stand before the blocks and are read after them as well: the embedding that is the head, too.

    The last stage of a pipeline holds a copy, and both stages sum their gradients.
    """
    graph = step.layers.graph
    units = step.layers.units
    before = {p.name for u in units if u.name == BEFORE for p in u.parameters}
    read = {r for u in units if u.name == AFTER for i in u.forward for r in graph.calls[i].reads}
    return tuple(p for storage, p in enumerate(graph.parameters) if p.name in before and storage in read)


def _tail(step: LayeredStep, parameters: Sequence[Parameter], layout: Layout, options: Options) -> Tail:
    """The optimizer over this rank's shard of the stage's parameters."""
    found: list[Parameter] = []
    for p in parameters:
        over = layout.shard_ranks if layout.zero else 1
        if layout.zero and _EXPERTS in f".{p.name}.":
            over = layout.expert_ranks
        found.append(replace(p, shape=(ceil(p.numel / over),)))
    return tail(
        found, step.precision, step.optimizer, step.implementation, step.clip_norm, loss_scale=options.loss_scale
    )


def _wire(step: LayeredStep, layout: Layout, options: Options) -> tuple[float, float]:
    """Bytes per element of gathered weights and of reduced gradients."""
    trainable = next((p for u in step.layers.units for p in u.parameters if p.trainable), None)
    weight = max((p.dtype for u in step.layers.units for p in u.parameters), key=lambda d: BYTES_PER_ELEMENT[d])
    gradient = options.communication_dtype or (trainable.grad_dtype if trainable else weight)
    fp8_weights = step.precision.fp8_scaling and options.framework == "megatron-bridge"
    return (1.0 if fp8_weights else float(BYTES_PER_ELEMENT[weight])), float(BYTES_PER_ELEMENT[gradient])


def _boundary(step: LayeredStep, layout: Layout) -> int:
    """Activations between two stages: the residual stream of one micro-batch on one rank."""
    if layout.pp == 1:
        return 0
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
    return size // (layout.tp if layout.sp else 1)
