"""The network of a job as the encoder sees it: layers with types and sizes, joined by the data that flows.

An `OpGraph` keeps data flow as storages: every call reads some and writes some. Forward calls are walked in order and
remember, for every storage, the nodes whose result it holds; a call that is no layer (cast, copy, view, dropout) hands
on what it read. Parameters and constants come from no node. In-place operators write the storage they read, so the last
writer counts. Nothing has to be traced a second time, and graphs that ship with the package serve as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Phase
from precision_time.errors import PredictorError
from precision_time.predictors.predictddl.primitives import (
    BATCHED_PRODUCTS,
    CONVOLUTIONS,
    GATES,
    OF_OPERATOR,
    POOLS,
    PRODUCTS,
    TWO_SIDED,
    Primitive,
)
from precision_time.timing.operators import WorkOptions, touched, works

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph of layers in the order they run, which is a topological order.

    `types` are `Primitive`s, `shapes` has in channels, out channels, kernel height and width of every node (0: none),
    `edges` producers over consumers, `flops` and `bytes` what the forward pass of one sample does in every node, its
    weights not counted, since they are read once for a whole batch; `parameters` counts the weights of all.
    """

    name: str
    types: Ints
    shapes: Ints
    edges: Ints
    flops: Floats
    bytes: Floats
    parameters: int = 0

    @property
    def nodes(self) -> int:
        return len(self.types)


@dataclass(slots=True)
class _Node:
    kind: Primitive
    shape: tuple[int, int, int, int]
    inputs: frozenset[int]
    flops: float
    bytes: float


def network_of(graph: OpGraph, batch_size: int = 1) -> Network:
    """The layers of a captured step at some batch size. Raises a `PredictorError` where it has none."""
    nodes: list[_Node] = []
    holds: dict[int, frozenset[int]] = {}  # storage -> nodes whose result it holds
    sources = _Sources(graph)
    for call in graph.calls:
        if call.phase > Phase.LOSS:
            continue
        _walk(call, graph.kinds[call.kind], nodes, holds, sources, batch_size)
    if not any(node.kind is not Primitive.INPUT for node in nodes):
        raise PredictorError(
            f"model {graph.name!r} runs no known layer (convolution, linear, attention, norm ...); "
            "predict it with another predictor, such as simulator"
        )
    nodes = _joined(nodes)
    edges = [(source, target) for target, node in enumerate(nodes) for source in sorted(node.inputs)]
    return Network(
        graph.name,
        np.array([node.kind for node in nodes], dtype=np.int64),
        np.array([node.shape for node in nodes], dtype=np.int64).reshape(-1, 4),
        np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy(),
        np.array([node.flops for node in nodes]),
        np.array([node.bytes for node in nodes]),
        graph.parameter_count,
    )


def _joined(nodes: list[_Node]) -> list[_Node]:
    """Without isolated nodes, such as labels that only the loss reads."""
    used = frozenset().union(*(node.inputs for node in nodes))
    kept = [i for i, node in enumerate(nodes) if i in used or node.inputs]
    number = {old: new for new, old in enumerate(kept)}
    for i in kept:
        nodes[i].inputs = frozenset(number[source] for source in nodes[i].inputs)
    return [nodes[i] for i in kept]


@dataclass(slots=True, eq=False)
class _Sources:
    """Categories of storages: reading an input of the job makes an input node."""

    graph: OpGraph

    def is_input(self, storage: int) -> bool:
        return self.graph.storages[storage].category is Category.INPUTS

    def is_weight(self, storage: int) -> bool:
        return self.graph.storages[storage].category is Category.WEIGHTS


def _walk(
    call: Call,
    kind: OpSignature,
    nodes: list[_Node],
    holds: dict[int, frozenset[int]],
    sources: _Sources,
    batch_size: int,
) -> None:
    for position, storage in enumerate(call.reads):
        if storage not in holds and sources.is_input(storage):
            spec = kind.inputs[position] if position < len(kind.inputs) else kind.inputs[0]
            nodes.append(_Node(Primitive.INPUT, _input_shape(spec.shape), frozenset(), 0.0, 0.0))
            holds[storage] = frozenset((len(nodes) - 1,))
    read = [holds.get(storage, frozenset()) for storage in call.reads]
    inputs = frozenset().union(*read)
    primitive = _primitive(kind, [each for each in read if each], batch_size)
    if primitive is Primitive.ACT and len(inputs) == 1:
        last = nodes[next(iter(inputs))]
        if last.kind is Primitive.ACT:  # a chain of pointwise operators is one activation
            flops, size = _per_sample(call, kind, sources, batch_size)
            last.flops += flops
            last.bytes += size
            primitive = None
    if primitive is not None and inputs:
        flops, size = _per_sample(call, kind, sources, batch_size)
        before = [nodes[i].shape[1] for i in sorted(inputs)]
        nodes.append(_Node(primitive, _shape(kind, primitive, before), inputs, flops, size))
        inputs = frozenset((len(nodes) - 1,))
    for storage in call.writes:
        holds[storage] = inputs


def _primitive(kind: OpSignature, read: list[frozenset[int]], batch_size: int) -> Primitive | None:
    name = kind.name
    if name in CONVOLUTIONS:
        if kind.attr("transposed") or any(d > 1 for d in kind.ints_attr("dilation")):
            return Primitive.DIL_CONV
        return Primitive.SEP_CONV if kind.int_attr("groups", 1) > 1 else Primitive.CONV
    if name in PRODUCTS:
        return Primitive.LINEAR
    primitive = OF_OPERATOR.get(name)
    if primitive is None or not kind.outputs or kind.outputs[0].numel < batch_size:  # a count, a scale, a flag
        return None
    if name in BATCHED_PRODUCTS and len(read) < 2:
        return Primitive.LINEAR  # by a weight
    if primitive in TWO_SIDED and name != "aten.glu" and len(read) < 2:
        return None
    if primitive is Primitive.AVG_POOL and kind.outputs[0].shape[2:] == (1, 1):
        return Primitive.GLOB_AVG
    return primitive


def _input_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Channels twice, then height and width of images (or length and 1 of sequences)."""
    if len(shape) >= 4:
        return shape[1], shape[1], shape[-2], shape[-1]
    if len(shape) == 3:
        return shape[2], shape[2], shape[1], 1
    return 1, 1, (shape[1] if len(shape) == 2 else 1), 1


def _shape(kind: OpSignature, primitive: Primitive, before: list[int]) -> tuple[int, int, int, int]:
    """In channels, out channels, kernel height and width. `before` has the out channels of the producers.

    Layers with a weight say their channels; the others keep those of the layer before, since a tensor alone does not
    tell which of its dimensions are channels (NCHW, NHWC, sequences).
    """
    name, out = kind.name, kind.outputs[0].shape
    if name in CONVOLUTIONS:
        kernel = (1, 1, *kind.inputs[1].shape[2:])[-2:]
        return (kind.inputs[0].shape[1], out[1], kernel[0], kernel[1])
    if primitive is Primitive.LINEAR:
        left = kind.inputs[1] if name.startswith(("aten.add", "aten.badd")) else kind.inputs[0]
        return (left.shape[-1], out[-1], 1, 1)
    if primitive is Primitive.MSA:  # as many keys as the sequence is long stand for its kernel
        keys = kind.inputs[min(1, len(kind.inputs) - 1)].shape[-2] if name.startswith("pt.") else out[-1]
        return (before[0], before[0], keys, 1)
    if primitive is Primitive.EMBEDDING:
        table = max(kind.inputs, key=lambda spec: spec.numel).shape
        return (table[0] if table else 1, out[-1] if out else 1, 0, 0)
    if primitive is Primitive.RNN:
        # Sequential steps and gates (LSTM 4, GRU 3) stand for its kernel: what runs one after the other.
        data, mode = kind.inputs[0].shape, kind.attr("mode")
        length = data[1 if kind.attr("batch_first") else 0] if len(data) == 3 else 1
        return (before[0], kind.int_attr("hidden", 0) or out[-1], length, GATES.get(mode, 1))
    if primitive is Primitive.CONCAT:
        return (before[0], sum(before), 0, 0)
    return (before[0], before[0], *(_window(kind) if primitive in POOLS else (0, 0)))


def _window(kind: OpSignature) -> tuple[int, int]:
    """Kernel of a pooling, or the size of what it reduces."""
    kernel = kind.ints_attr("kernel_size")
    if kernel:
        return (kernel * 2)[-2], kernel[-1]
    before, after = kind.inputs[0].shape, kind.outputs[0].shape
    if len(before) >= 4 and (len(after) <= 2 or after[-1] < before[-1]):
        return before[-2], before[-1]
    return max(1, round(kind.inputs[0].numel / max(1, kind.outputs[0].numel))), 1


def _per_sample(call: Call, kind: OpSignature, sources: _Sources, batch_size: int) -> tuple[float, float]:
    """FLOPs, and bytes but those of weights, of one call."""
    flops, size = _cost(kind)
    weights = sum(
        spec.nbytes for spec, storage in zip(kind.inputs, call.reads, strict=False) if sources.is_weight(storage)
    )
    return flops / batch_size, max(0.0, size - weights) / batch_size


@bounded()
def _cost(kind: OpSignature) -> tuple[float, float]:
    known = works(kind, WorkOptions())
    parts = [touched(kind)] if known is None else known
    return sum(w.flops for w in parts), sum(w.bytes for w in parts)
