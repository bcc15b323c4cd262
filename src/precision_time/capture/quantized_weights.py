"""Frozen weights that are stored in fewer bits, as bitsandbytes does: what runs around their products.

With `nf4` (QLoRA, arXiv:2305.14314) the linear layers of all blocks hold 4-bit weights, whose 8-bit constants are
quantized once more. They are dequantized to the dtype of the product before each, forward and backward
(bitsandbytes/autograd/_functions.py, MatMul4Bit): the constants, the addition of their mean, then the weights. `fp4` is
another code of the same size.

With `int8` (LLM.int8(), arXiv:2208.07339) they hold 8 bits. The forward product is one of 8-bit integers after the
activations are searched for outliers and quantized, with a pass that scales its result and one that adds the product of
outliers. It is taken to last as long as the 16-bit product, since no 8-bit product is measured here. The backward pass
dequantizes the weights (MatMul8bitLt), and needs the layer's input to be kept.
"""

from __future__ import annotations

from dataclasses import replace

from precision_time.capture.graph import Call, OpGraph, OpSignature, TensorSpec
from precision_time.capture.graph_edit import GraphEdit
from precision_time.capture.linear_layers import OPERANDS, LinearLayer

NF4_BLOCK, NF4_CONSTANTS = 64, 256
"""Weights that share a constant, and constants that share one of fp32 (bitsandbytes' defaults; QLoRA, section 3)."""
NF4_BYTES = 0.5 + 1.0 / NF4_BLOCK + 4.0 / (NF4_BLOCK * NF4_CONSTANTS)
"""Bytes of a weight in NF4 with double quantization: 4 bits and 0.127 bits of constants (QLoRA, section 3)."""

STORED_BYTES = {"nf4": NF4_BYTES, "fp4": NF4_BYTES, "int8": 1.0}
"""Bytes of a weight by format; of int8 without the scale of each row."""


def quantize(edit: GraphEdit, layer: LinearLayer, kind: str) -> None:
    """Store the layer's weight in a format of `STORED_BYTES`."""
    (_product_of_8_bits if kind == "int8" else _dequantize)(edit, layer)
    edit.parameters[layer.parameter] = replace(edit.parameters[layer.parameter], packed=kind)


def whole_weight(
    edit: GraphEdit, layer: LinearLayer, kind: str
) -> tuple[TensorSpec, list[tuple[OpSignature, Call]], int]:
    """The layer's weight dequantized for something else than its products: its shape, the calls and the storage."""
    spec, of = _weight_spec(edit.graph, layer), edit.graph.calls[layer.forward]
    wide = edit.storage(spec)
    if kind != "int8":
        return spec, _dequantized(edit, layer.parameter, wide, spec, of), wide
    stored = replace(spec, dtype="int8")
    weights = OpSignature("pt.dequantize", (stored,), (spec,), (("format", "int8"),))
    calls = [
        (weights, Call(0, of.phase, of.module, 1, (layer.parameter,), (wide,))),
        (OpSignature("aten.mul_", (spec,), (spec,)), Call(0, of.phase, of.module, 1, (wide,), (wide,))),
    ]
    return spec, calls, wide


def _dequantize(edit: GraphEdit, layer: LinearLayer) -> None:
    """Dequantization of a layer's weight before its products, in place of its cast."""
    graph = edit.graph
    spec = _weight_spec(graph, layer)
    if layer.cast is not None:
        edit.remove(layer.cast)
    for product in (layer.forward, layer.backward):
        if product is None:
            continue
        wide = edit.storage(spec)
        call = edit.at(product).call
        edit.before(product, _dequantized(edit, layer.parameter, wide, spec, call))
        edit.change(product, call=replace(call, reads=tuple([wide if s == layer.weight else s for s in call.reads])))


def _weight_spec(graph: OpGraph, layer: LinearLayer) -> TensorSpec:
    """The weight in the dtype of its products."""
    kind = graph.kinds[graph.calls[layer.forward].kind]
    return kind.inputs[OPERANDS[kind.name] + 1]


def _dequantized(
    edit: GraphEdit, parameter: int, wide: int, spec: TensorSpec, of: Call
) -> list[tuple[OpSignature, Call]]:
    blocks = -(-spec.numel // NF4_BLOCK)
    constants, packed = TensorSpec((blocks,), "float32"), TensorSpec((-(-spec.numel // 2),), "uint8")
    held = edit.storage(constants)
    narrow = OpSignature("pt.dequantize", (TensorSpec((blocks,), "uint8"),), (constants,))
    mean = OpSignature("aten.add_", (constants,), (constants,))
    weights = OpSignature("pt.dequantize", (packed, constants), (spec,), (("format", "nf4"),))
    return [
        (narrow, Call(0, of.phase, of.module, 1, (parameter,), (held,))),
        (mean, Call(0, of.phase, of.module, 0, (held,), (held,))),
        (weights, Call(0, of.phase, of.module, 1, (parameter, held), (wide,))),
    ]


def _product_of_8_bits(edit: GraphEdit, layer: LinearLayer) -> None:
    """LLM.int8() in place of a layer's product: what quantizes its input and scales its result, and the dequantization
    of its weight in the backward pass."""
    graph = edit.graph
    kind, call = graph.kinds[graph.calls[layer.forward].kind], edit.at(layer.forward).call
    at = OPERANDS[kind.name]
    x, out, spec = kind.inputs[at], kind.outputs[0], _weight_spec(graph, layer)
    source, result = call.reads[at], call.writes[0]
    if layer.cast is not None:
        edit.remove(layer.cast)
    half, low, marks = replace(x, dtype="float16"), replace(x, dtype="int8"), replace(x, dtype="bool")
    narrow, size, large, packed, raw = (edit.storage(s) for s in (half, half, marks, low, out))

    def made(name: str, before: TensorSpec, after: TensorSpec, reads: int, writes: int) -> tuple[OpSignature, Call]:
        return OpSignature(name, (before,), (after,)), Call(0, call.phase, call.module, 0, (reads,), (writes,))

    casts = [] if x.dtype == "float16" else [made("aten._to_copy", x, half, source, narrow)]
    halved = narrow if casts else source
    outliers = [made("aten.abs", half, half, halved, size), made("aten.ge", half, marks, size, large)]
    edit.before(layer.forward, [*casts, *outliers, made("pt.quantize", half, low, halved, packed)])
    reads = tuple([layer.parameter if s == layer.weight else s for s in call.reads])
    edit.change(layer.forward, call=replace(call, reads=(*reads, packed), writes=(raw,)))
    integers = replace(out, dtype="int32")
    edit.after(
        layer.forward,
        [made("pt.dequantize", integers, out, raw, raw), made("aten.add", out, out, raw, result)],
    )
    if layer.backward is None:
        return
    wide, backward = edit.storage(spec), edit.at(layer.backward).call
    stored = replace(spec, dtype="int8")
    weights = OpSignature("pt.dequantize", (stored,), (spec,), (("format", "int8"),))
    scaled = OpSignature("aten.mul_", (spec,), (spec,))
    edit.before(
        layer.backward,
        [
            (weights, Call(0, backward.phase, backward.module, 1, (layer.parameter,), (wide,))),
            (scaled, Call(0, backward.phase, backward.module, 1, (wide, source), (wide,))),
        ],
    )
    edit.change(
        layer.backward, call=replace(backward, reads=tuple([wide if s == layer.weight else s for s in backward.reads]))
    )
