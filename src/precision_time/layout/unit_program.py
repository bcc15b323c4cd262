"""From a unit of a training step to its `UnitProgram`: a rank's operators at local shapes, and collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import OpGraph, OpSignature, Phase, Skeleton, TensorSpec
from precision_time.capture.layers import Unit, as_traced
from precision_time.capture.optimizer import Sweep, sweep_kind
from precision_time.capture.training_step import TrainingStep
from precision_time.job.layout import Layout
from precision_time.layout import tensor_parallel
from precision_time.layout.program import UnitProgram
from precision_time.layout.recomputation import SECOND_PRODUCTS, exchanged_again, is_block, modules_of, recomputed
from precision_time.layout.segment import Indices, Segment
from precision_time.layout.sweeps import sizes_of


class SignatureTable:
    """Numbers of a program's operators: those of its graphs by their place, further ones (`index`) after them."""

    def __init__(self, before: int, index: Mapping[OpSignature, int] | None = None) -> None:
        self.before, self.index = before, dict(index or {})

    def __call__(self, kind: OpSignature) -> int:
        return self.index.setdefault(kind, self.before + len(self.index))


def unit_program(
    step: TrainingStep, unit: Unit, layout: Layout, recompute: str, copies: Sequence[OpSignature], kinds: SignatureTable
) -> UnitProgram:
    """The unit on one rank of a layout. `copies`: operators on its gradients after its backward pass."""
    graph = step.layers.graph
    collectives = tensor_parallel.exchanges(graph, unit, step.split, layout, step.config)
    plain = plain_unit(graph.skeleton, unit, recompute, ())
    sorting = tuple(map(kinds, _sorting(graph, unit, layout))) if step.split is not None else ()
    copied = tuple(map(kinds, copies))
    forward, backward, again, attention = plain.forward, plain.backward, plain.recompute, plain.attention
    if step.sharded is not None or layout.expert_load != 1.0 or layout.cp > 1:
        forward, backward, again = (
            _segment(step, unit, calls, views, layout, kinds)
            for calls, views in (_calls(graph.skeleton, unit, name) for name in ("forward", "backward", recompute))
        )
        calls = _attention_calls(graph.skeleton, unit)
        attention = tuple(sorted({_number(step, unit, call, layout, kinds) for call in calls}))
    return replace(
        plain,
        forward=forward.then(sorting, Phase.FORWARD),
        backward=backward.then((*copied, *sorting), Phase.BACKWARD),
        recompute=again,
        forward_collectives=collectives.forward,
        backward_collectives=collectives.backward,
        recompute_collectives=exchanged_again(collectives.forward, recompute) if is_block(unit) else (),
        attention=attention,
    )


def plain_unit(graph: Skeleton, unit: Unit, recompute: str, copies: tuple[int, ...]) -> UnitProgram:
    """The unit on a rank that runs the graph's own operators and exchanges nothing within units: the same at all input
    sizes and in all dtypes of a regime. `copies`: numbers of the operators on its gradients after its backward pass."""
    return _plain_unit(*as_traced(graph, unit), recompute, copies)


@bounded(Segment, budget=STRUCTURES)
def _plain_unit(graph: Skeleton, unit: Unit, recompute: str, copies: tuple[int, ...]) -> UnitProgram:
    sizes = sizes_of(unit)
    return UnitProgram(
        name=unit.name,
        forward=_own_segment(graph, unit, "forward"),
        backward=_own_segment(graph, unit, "backward").then(copies, Phase.BACKWARD),
        recompute=_own_segment(graph, unit, "forward" if recompute == "full" and is_block(unit) else recompute),
        forward_collectives=(),
        backward_collectives=(),
        recompute_collectives=(),
        dense_elements=sizes.dense,
        expert_elements=sizes.expert,
        dense_trainable=sizes.trainable(expert=False),
        expert_trainable=sizes.trainable(expert=True),
        attention=_attention_kinds(graph, unit),
        packed_dense=sizes.packed_dense,
        packed_expert=sizes.packed_expert,
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


def _attention_calls(graph: Skeleton, unit: Unit) -> list[int]:
    """One forward call of each distinct fused attention of the unit's modules."""
    fused = {kind for kind, name in enumerate(graph.names) if name.startswith("pt.attention")}
    if not fused:
        return []
    calls, at = graph.calls, np.array(unit.forward, dtype=np.intp)
    distinct = zip(calls.kind[at].tolist(), calls.module[at].tolist(), unit.forward, strict=True)
    return list({(kind, module): i for kind, module, i in distinct if kind in fused}.values())


@bounded(budget=STRUCTURES)
def _attention_kinds(graph: Skeleton, unit: Unit) -> tuple[int, ...]:
    """The distinct fused attentions of the unit."""
    return tuple(sorted({int(graph.calls.kind[call]) for call in _attention_calls(graph, unit)}))


def _number(step: TrainingStep, unit: Unit, index: int, layout: Layout, kinds: SignatureTable) -> int:
    """Number of the operator that a call runs on this rank."""
    graph, before = step.layers.graph, 0
    number = int(graph.skeleton.calls.kind[index])
    if step.sharded is not None:
        call, local = tensor_parallel.local_call(graph, step.sharded.graph, unit, index, step.split)
        number, before = call.kind, 0 if local is graph else len(graph.kinds)
        graph = local
    if layout.expert_load != 1.0 and graph.skeleton.names[number].startswith("pt.grouped"):
        return kinds(_busiest(graph.kinds[number], layout.expert_load))
    return before + number


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
    step: TrainingStep, unit: Unit, calls: Sequence[int], views: Indices, layout: Layout, kinds: SignatureTable
) -> Segment:
    rows: list[tuple[int, Phase, int, int]] = []
    names = step.layers.graph.skeleton.names
    for index, before in zip(calls, views.tolist(), strict=True):
        call = step.layers.graph.calls[index]
        row = (_number(step, unit, index, layout, kinds), call.phase, before, call.module)
        rows += [row] * tensor_parallel.attention_parts(names[call.kind], layout)
    return Segment.of(rows)


@bounded(budget=STRUCTURES)
def _own_segment(graph: Skeleton, unit: Unit, name: str) -> Segment:
    """Calls of the graph as they are: "forward" or "backward" ones, or those that a mode of recomputation repeats."""
    calls, views = _calls(graph, unit, name)
    of, at = graph.calls, np.array(calls, dtype=np.intp)
    return Segment(of.kind[at].astype(np.intp), of.phase[at], views, of.module[at])


def _calls(graph: Skeleton, unit: Unit, name: str) -> tuple[Sequence[int], Indices]:
    """The calls of `_own_segment`, and the views before each.

    Views before the first of repeated calls in a row are not repeated: they shape results that are kept. With a batch
    of one they stand for copies, which are not repeated either.
    """
    calls: Sequence[int] = getattr(unit, name) if name in ("forward", "backward") else recomputed(graph, unit, name)
    at = np.array(calls, dtype=np.intp)
    views = graph.calls.views[at]
    return calls, views * (np.diff(at, prepend=-2) == 1) if name == SECOND_PRODUCTS or modules_of(name) else views
