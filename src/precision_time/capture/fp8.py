"""Matrix multiplies in scaled fp8: what Transformer Engine and torchao do to a bf16 step.

Every product of two matrices whose weight has dimensions in multiples of 16 (the tensor cores' requirement) runs in
fp8, the grouped products of experts as well; both operands are scaled and cast first. One scale for a tensor serves all
its products, and blocks are cast along both sides at once, so they are cast once per tensor and micro-step. A scale for
each row holds along one side: the tensor is cast again where products sum over the other (input and gradient for the
weight's gradient, the weight for the input's). Rows of samples are padded to a multiple of 16, so a model runs in fp8
at every batch or at none. Activations and weights become e4m3, gradients e5m2; results stay bf16. Attention's own
products stay bf16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Phase, TensorSpec
from precision_time.capture.replace_calls import Signatures, replace_calls

_PRODUCTS = {"aten.mm": (0, 1), "aten.addmm": (1, 2), "pt.grouped_mm": (0, 1), "pt.grouped_mm_weight": (0, 1)}
_SCALED = {"pt.grouped_mm": "pt.scaled_grouped_mm", "pt.grouped_mm_weight": "pt.scaled_grouped_mm_weight"}


def to_fp8(graph: OpGraph, scaling: str, fitting: Callable[[OpSignature], bool] | None = None) -> OpGraph:
    """The same step with its large products in fp8 and the casts they need. `fitting`: `fits`, where sizes are known
    beforehand."""
    if fitting is None:
        operands_of = zip(graph.kinds, weight_operands(graph), strict=True)
        fitting = {kind for kind, positions in operands_of if fits(kind, positions)}.__contains__
    signatures = Signatures(graph.kinds)

    calls: list[Call] = []
    new_positions: list[int] = []  # new position of each old call
    quantised: set[tuple[int, ...]] = set()  # storages, and the side that rows are scaled along
    weights = weight_operands(graph)
    for call in graph.calls:
        kind = graph.kinds[call.kind]
        operand_positions = _PRODUCTS.get(kind.name)
        if operand_positions is None or not fitting(kind):
            new_positions.append(len(calls))
            calls.append(call)
            continue
        operands = []
        for position in operand_positions:
            spec = kind.inputs[position]
            storage = call.reads[position]
            cast = cast_kind(spec, scaling, call.phase is Phase.BACKWARD and position == operand_positions[0])
            operands.append(cast.outputs[0])
            key = (storage, *(_side(call, weights[call.kind]) if scaling == "rowwise" else ()))
            if key not in quantised:
                quantised.add(key)
                calls.append(Call(signatures(cast), call.phase, call.module, 0, (storage,), ()))
        new_positions.append(len(calls))
        product = product_kind(operands, kind.outputs[0], scaling, _SCALED.get(kind.name, "pt.scaled_mm"))
        calls.append(dataclasses.replace(call, kind=signatures(product)))
    return replace_calls(graph, signatures, calls, new_positions)


def _side(call: Call, weights: Sequence[int]) -> tuple[int, int]:
    """Tells apart products that sum over different sides of an operand; `weights`: the positions of weights."""
    backward = call.phase is Phase.BACKWARD
    return int(backward), int(backward and not weights)


def cast_kind(spec: TensorSpec, scaling: str, gradient: bool) -> OpSignature:
    """The scaled cast of an operand."""
    low = TensorSpec(spec.shape, "float8_e5m2" if gradient else "float8_e4m3fn")
    return OpSignature("pt.quantize", (spec,), (low,), (("scaling", scaling),))


def product_kind(
    operands: Sequence[TensorSpec], result: TensorSpec, scaling: str, name: str = "pt.scaled_mm"
) -> OpSignature:
    """The product of two fp8 matrices. Scaling other than tensorwise runs another kernel, so it is an attribute."""
    attributes = () if scaling == "tensorwise" else (("scaling", scaling),)
    return OpSignature(name, tuple(operands), (result,), attributes)


def weight_operands(graph: OpGraph) -> list[tuple[int, ...]]:
    """Of each kind the positions of those operands of its product that are weights."""
    weights = {i for i, storage in enumerate(graph.storages) if storage.category is Category.WEIGHTS}
    found: list[tuple[int, ...]] = [()] * len(graph.kinds)
    for call in graph.calls:
        operands = _PRODUCTS.get(graph.kinds[call.kind].name, ())
        found[call.kind] = tuple(p for p in operands if call.reads[p] in weights)
    return found


def fits(kind: OpSignature, weights: Sequence[int]) -> bool:
    """Whether an operator is a product that runs in fp8: its weight, or its result (a weight's gradient), fits.

    `weights`: its operands that are weights.
    """
    operand_positions = _PRODUCTS.get(kind.name)
    if operand_positions is None:
        return False
    a, b = (kind.inputs[p] for p in operand_positions)
    matrices = kind.name in _SCALED or len(b.shape) == 2
    half = a.dtype in ("bfloat16", "float16") and len(a.shape) == 2 and matrices
    own = [kind.inputs[p] for p in weights] or kind.outputs[:1]
    return half and all(side % 16 == 0 and side > 0 for spec in own for side in spec.shape[-2:])
