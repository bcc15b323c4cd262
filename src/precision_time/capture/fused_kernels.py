"""Kernels that training frameworks fuse by hand, put in place of the operators that plain PyTorch runs.

Megatron: scaled, masked softmax as one kernel (megatron/legacy/fused_kernels), bias + dropout + add, SwiGLU, rotary
embedding and cross-entropy by Transformer Engine or its own fused functions (megatron/core/fusions). llm-foundry: fused
cross-entropy (flash-attn's). What is fused moves the bytes that come in and go out, and nothing between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precision_time.capture.fusion import fused_call
from precision_time.capture.graph import Call, OpGraph, OpKind, Phase
from precision_time.capture.moves import moved_graph

SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY = "softmax", "dropout_add", "swiglu", "rope", "cross_entropy"
FUSED: Mapping[str, frozenset[str]] = {
    "megatron": frozenset({SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY}),
    "megatron-deepspeed": frozenset({SOFTMAX, DROPOUT_ADD}),
    "megatron-bridge": frozenset({SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY}),
    "llm-foundry": frozenset({CROSS_ENTROPY}),
}
"""What each framework fuses; other frameworks run PyTorch's own operators."""

_CHAINS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (SOFTMAX, ("mul", "masked_fill", "_softmax")),
    (SOFTMAX, ("_softmax_backward_data", "masked_fill", "mul")),
    (ROPE, ("mul", "neg", "cat", "mul", "add")),
    (ROPE, ("mul", "neg", "mul", "cat", "add")),
    (DROPOUT_ADD, ("native_dropout", "add")),
    (CROSS_ENTROPY, ("_log_softmax", "_to_copy", "nll_loss_forward")),
    (CROSS_ENTROPY, ("_log_softmax", "nll_loss_forward")),
    (CROSS_ENTROPY, ("nll_loss_backward", "_to_copy", "_log_softmax_backward_data")),
    (CROSS_ENTROPY, ("nll_loss_backward", "_log_softmax_backward_data")),
)
"""Neighbouring operators that become one."""


def framework_kernels(graph: OpGraph, framework: str, attention: str = "flash") -> OpGraph:
    """The graph with the framework's fused kernels."""
    fused = FUSED.get(framework, frozenset())
    if not fused:
        return graph
    chains = [(what, names) for what, names in _CHAINS if what in fused]
    names = [graph.kinds[c.kind].name.removeprefix("aten.") for c in graph.calls]
    last_read = {storage: i for i, call in enumerate(graph.calls) for storage in call.reads}
    entering = _Kinds()
    calls: list[Call] = []
    moved: list[int] = []
    instead: dict[int, int] = {}
    i = 0
    while i < len(names):
        length, what = _match(names, i, chains, graph)
        position = len(calls)
        if length > 1:
            group = list(range(i, i + length))
            calls.append(_one(graph, group, what, last_read, entering))
            moved.extend([position] * length)
            i += length
            continue
        kind = graph.kinds[graph.calls[i].kind]
        swapped = _gate(graph, i, names) if SWIGLU in fused else kind
        call = graph.calls[i]
        if swapped is not None:
            reads = tuple(instead.get(r, r) for r in call.reads)
            calls.append(Call(entering(swapped), call.phase, call.module, call.views, reads, call.writes))
        elif names[i] == "silu":  # never stored: whoever reads it reads the gate
            instead[call.writes[0]] = call.reads[0]
        moved.append(max(len(calls) - 1, 0))
        i += 1
    return moved_graph(graph, list(entering.found), calls, moved)


class _Kinds:
    """Kinds numbered in order of first use."""

    def __init__(self) -> None:
        self.found: dict[OpKind, int] = {}

    def __call__(self, kind: OpKind) -> int:
        return self.found.setdefault(kind, len(self.found))


def _match(
    names: Sequence[str], at: int, chains: Sequence[tuple[str, tuple[str, ...]]], graph: OpGraph
) -> tuple[int, str]:
    phase = graph.calls[at].phase
    for what, chain in chains:
        here = tuple(names[at : at + len(chain)])
        if here == chain and (phase is not Phase.BACKWARD) == (
            graph.calls[at + len(chain) - 1].phase is not Phase.BACKWARD
        ):
            return len(chain), what
    return 1, ""


def _one(graph: OpGraph, group: list[int], what: str, last_read: dict[int, int], entering: _Kinds) -> Call:
    call = fused_call(graph, group, last_read, entering)
    if what != SOFTMAX:
        return call
    # The fused softmax is a softmax still: a row is read, reduced twice and written.
    first, last = graph.calls[group[0]], graph.calls[group[-1]]
    softmax = next(
        graph.kinds[graph.calls[i].kind] for i in group if "softmax" in graph.kinds[graph.calls[i].kind].name
    )
    kind = OpKind(softmax.name, softmax.inputs, softmax.outputs, softmax.attrs)
    return Call(entering(kind), first.phase, first.module, first.views, first.reads, last.writes)


def _gate(graph: OpGraph, i: int, names: Sequence[str]) -> OpKind | None:
    """An operator of SiLU(gate) x up under fusion; None where it vanishes into another.

    Forward: the product reads gate and up. Backward: one kernel reads the gradient, gate and up and writes both
    gradients; traced are two products and the backward of SiLU.
    """
    kind = graph.kinds[graph.calls[i].kind]
    backward = graph.calls[i].phase is Phase.BACKWARD
    if names[i] in ("silu", "silu_backward"):
        return None
    if backward and names[i] == "mul" and _silu_after(graph, i, names):
        if names[i - 1] == "mul" and graph.calls[i - 1].phase is Phase.BACKWARD:
            return None
        wide = kind.outputs[0]
        return OpKind("pt.fused_pointwise", (wide, wide, wide), (wide, wide), (("operators", 3),))
    return kind


def _silu_after(graph: OpGraph, i: int, names: Sequence[str]) -> bool:
    """Whether SiLU's backward on tensors of this size follows within the block."""
    size = graph.kinds[graph.calls[i].kind].outputs[0].shape
    for j in range(i + 1, min(i + 10, len(names))):
        if names[j] == "silu_backward":
            return graph.kinds[graph.calls[j].kind].outputs[0].shape == size
    return False
