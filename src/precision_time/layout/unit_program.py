"""From a unit of a training step to its `UnitProgram`: a rank's operators at local shapes, and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import OpGraph, OpSignature, Phase, Skeleton, TensorSpec
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.optimizer import Sweep, sweep_kind
from precision_time.capture.training_step import TrainingStep
from precision_time.job.layout import Layout
from precision_time.layout import tensor_parallel
from precision_time.layout.program import CONTEXT, CollectiveOp, UnitProgram
from precision_time.layout.segment import Segment
from precision_time.layout.sweeps import EXPERTS, sizes_of


@dataclass(slots=True)
class SignatureTable:
    index: dict[OpSignature, int] = field(default_factory=dict)

    def __call__(self, kind: OpSignature) -> int:
        return self.index.setdefault(kind, len(self.index))


def unit_program(
    step: TrainingStep,
    unit: Unit,
    layout: Layout,
    recompute: str,
    copies: Sequence[OpSignature],
    kinds: SignatureTable,
) -> UnitProgram:
    graph = step.layers.graph
    collectives = tensor_parallel.exchanges(graph, unit, step.split, layout, int(step.config.get("topk") or 0))
    block = unit.name not in (BEFORE, AFTER)
    again = _recomputed(graph, unit, recompute) if block else ()
    experts = sum(p.numel for p in unit.parameters if EXPERTS in f".{p.name}.")
    trainable = [p for p in unit.parameters if p.trainable and p.ready >= 0]
    expert_trainable = sum(p.numel for p in trainable if EXPERTS in f".{p.name}.")
    total = sum(p.numel for p in unit.parameters)
    sorting = _sorting(graph, unit, layout) if step.split is not None else ()
    attention = {_local_kind(step, unit, i, layout) for i in _attention_calls(graph, unit)}
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
        attention=tuple(sorted(map(kinds, attention))),
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
    return _core_attention(graph.skeleton, unit)


@bounded()
def _core_attention(graph: Skeleton, unit: Unit) -> tuple[int, ...]:
    calls: list[int] = []
    inside = False
    kinds, modules = graph.calls.kind.tolist(), graph.calls.module.tolist()
    for i in unit.forward:
        name = graph.names[kinds[i]]
        own = graph.modules[modules[i]].endswith("attention")
        inside = own and (inside or name in ("aten.bmm", "pt.attention"))
        if inside:
            calls.append(i)
    return tuple(calls)


def _attention_calls(graph: OpGraph, unit: Unit) -> list[int]:
    """One forward call of each distinct fused attention of the unit's modules."""
    fused = {kind for kind, signature in enumerate(graph.kinds) if signature.name.startswith("pt.attention")}
    if not fused:
        return []
    calls, at = graph.skeleton.calls, np.array(unit.forward, dtype=np.intp)
    distinct = zip(calls.kind[at].tolist(), calls.module[at].tolist(), unit.forward, strict=True)
    return list({(kind, module): i for kind, module, i in distinct if kind in fused}.values())


def _local_kind(step: TrainingStep, unit: Unit, index: int, layout: Layout) -> OpSignature:
    graph = step.layers.graph
    if step.sharded is None:
        kind: OpSignature = graph.kinds[graph.skeleton.calls.kind[index]]
    else:
        call, graph = tensor_parallel.local_call(graph, step.sharded.graph, unit, index, step.split)
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


def gradient_copies(unit: Unit, wire: str | None) -> tuple[OpSignature, ...]:
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
    step: TrainingStep,
    unit: Unit,
    calls: Sequence[int],
    layout: Layout,
    kinds: SignatureTable,
    more: Sequence[OpSignature] = (),
    phase: Phase = Phase.BACKWARD,
) -> Segment:
    if step.sharded is None and layout.expert_load == 1.0 and layout.cp == 1:
        return _traced_segment(step.layers.graph, calls, kinds, more, phase)
    rows: list[tuple[int, Phase, int, int]] = []
    for index in calls:
        call = step.layers.graph.calls[index]
        kind = _local_kind(step, unit, index, layout)
        row = (kinds(kind), call.phase, call.views, call.module)
        rows += [row] * tensor_parallel.attention_parts(kind, layout)
    rows += [(kinds(kind), phase, 0, 0) for kind in more]
    return Segment.of(rows)


def _traced_segment(
    graph: OpGraph, calls: Sequence[int], kinds: SignatureTable, more: Sequence[OpSignature], phase: Phase
) -> Segment:
    """`_segment` of a rank that runs the graph's own operators: all calls of an operator are numbered at once."""
    columns, at = graph.skeleton.calls, np.array(calls, dtype=np.intp)
    own = columns.kind[at]
    distinct, first = np.unique(own, return_index=True)
    numbers = np.zeros(len(graph.kinds), dtype=np.intp)
    for kind in distinct[np.argsort(first)].tolist():
        numbers[kind] = kinds(graph.kinds[kind])
    rows = np.zeros((4, len(at) + len(more)), dtype=np.intp)
    rows[:, : len(at)] = numbers[own], columns.phase[at], columns.views[at], columns.module[at]
    for place, added in enumerate(more, len(at)):
        rows[:2, place] = kinds(added), phase
    return Segment(*rows)
