"""A model of what fusing compilers (torch.compile, nvFuser under TorchScript, XLA) do to pointwise chains.

Runs of neighbouring pointwise operators, casts, dropout, softmax and norms of one size become one kernel that
reads its inputs from other kernels and writes what is needed afterwards. It is a model: compilers also fuse reductions
into producers and choose by heuristics. The estimate lists this among its assumptions.
"""

from __future__ import annotations

from collections.abc import Callable

from precision_time.capture.graph import AttrValue, Call, OpGraph, OpSignature, Phase, TensorSpec
from precision_time.capture.replace_calls import Signatures, replace_calls

_POINTWISE = frozenset(
    """
    add sub mul div neg relu threshold_backward gelu gelu_backward silu silu_backward sigmoid sigmoid_backward
    tanh tanh_backward leaky_relu leaky_relu_backward hardswish hardswish_backward hardsigmoid
    hardsigmoid_backward elu pow sqrt rsqrt exp log clamp where masked_fill eq ne lt le gt ge addcmul _to_copy
    native_dropout native_dropout_backward _softmax _softmax_backward_data native_layer_norm square reciprocal
    abs minimum maximum bitwise_not logical_not rsub ones_like zeros_like full_like pt.rms_norm
    """.split()
)
_TWO_PASSES = frozenset({"native_batch_norm", "native_batch_norm_backward"})
"""Statistics over the batch need all of a channel first, so whatever they fuse with is read twice."""
_SEVERAL_KERNELS = "aten._softmax_backward_data"
"""In PyTorch two kernels, of which a compiler makes one."""


def _fusable(kind: OpSignature) -> bool:
    name = kind.name.removeprefix("aten.")
    return name in _POINTWISE or name.rstrip("_") in _POINTWISE or name in _TWO_PASSES


def fuse_pointwise(graph: OpGraph) -> OpGraph:
    """The step with chains of pointwise operators joined."""
    last_read = {storage: i for i, call in enumerate(graph.calls) for storage in call.reads}
    signatures = Signatures()
    calls: list[Call] = []
    new_positions: list[int] = []

    group: list[int] = []

    def flush() -> None:
        if not group:
            return
        position = len(calls)
        new_positions.extend([position] * len(group))
        members = [graph.calls[i] for i in group]
        if len(members) == 1 and graph.kinds[members[0].kind].name != _SEVERAL_KERNELS:
            calls.append(_renumbered(members[0], signatures(graph.kinds[members[0].kind])))
        else:
            calls.append(fused_call(graph, group, last_read, signatures))
        group.clear()

    for i, call in enumerate(graph.calls):
        kind = graph.kinds[call.kind]
        if _fusable(kind) and (not group or _joins(graph, group, call, kind)):
            group.append(i)
            continue
        flush()
        if _fusable(kind):
            group.append(i)
        else:
            new_positions.append(len(calls))
            calls.append(_renumbered(call, signatures(kind)))
    flush()
    return replace_calls(graph, signatures, calls, new_positions)


def _renumbered(call: Call, kind: int) -> Call:
    return Call(kind, call.phase, call.module, call.views, call.reads, call.writes)


def _size(kind: OpSignature) -> int:
    return max((s.numel for s in (*kind.inputs, *kind.outputs)), default=0)


def _joins(graph: OpGraph, group: list[int], call: Call, kind: OpSignature) -> bool:
    first = graph.calls[group[0]]
    if call.phase != first.phase or _size(kind) != _size(graph.kinds[first.kind]):
        return False
    touched = {s for i in group for s in (*graph.calls[i].writes, *graph.calls[i].reads)}
    return bool(touched.intersection(call.reads))


def fused_call(
    graph: OpGraph, group: list[int], last_read: dict[int, int], enter: Callable[[OpSignature], int]
) -> Call:
    """A group of calls as one call, which reads the group's inputs and writes what is needed after it."""
    reads: dict[int, list[TensorSpec]] = {}
    writes: dict[int, TensorSpec] = {}
    for i in group:
        call, kind = graph.calls[i], graph.kinds[graph.calls[i].kind]
        for storage, spec in zip(call.reads, kind.inputs, strict=False):
            if storage in writes:
                continue
            seen = reads.setdefault(storage, [])
            # A tensor is read once; reads that fit into its storage together are of different parts of it.
            if not seen or sum(s.nbytes for s in seen) + spec.nbytes <= graph.storages[storage].nbytes:
                seen.append(spec)
        writes.update(zip(call.writes, kind.outputs, strict=False))
    kept = {
        s: spec
        for s, spec in writes.items()
        if last_read.get(s, 0) > group[-1] or graph.storages[s].dies >= len(graph.calls)
    }
    inputs = tuple(spec for seen in reads.values() for spec in seen)
    first = graph.calls[group[0]]
    members = [graph.kinds[graph.calls[i].kind].name.removeprefix("aten.") for i in group]
    attrs: tuple[tuple[str, AttrValue], ...] = (("operators", len(group)),)
    if _TWO_PASSES.intersection(members):
        attrs += (("passes", 2), ("backward", first.phase is Phase.BACKWARD))
    kind = OpSignature("pt.fused_pointwise", inputs, tuple(kept.values()), attrs)
    sources = tuple(storage for storage, seen in reads.items() for _ in seen)
    return Call(enter(kind), first.phase, first.module, 0, sources, tuple(kept))
