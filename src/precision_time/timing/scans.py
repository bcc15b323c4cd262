"""Rules for scans along a sequence: state space models, the delta rule, RWKV and short causal convolutions.

Scans by chunks are products of matrices (Mamba-2, delta rule); the others are arithmetic on vectors and traffic.
"""

from __future__ import annotations

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, TensorSpec
from precision_time.timing.registry import WorkOptions, nbytes, product_math, register
from precision_time.timing.work import Work, matmul_work, memory_work

_CHUNK = 128
"""Positions in a chunk of Mamba-2's scan where the operator names none: chunk_size of Nemotron-H."""
_DELTA_CHUNK = 64
"""Positions in a chunk of the delta rule: that of flash-linear-attention's kernels."""


@register("pt.state_scan_forward")
def _state_scan_forward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _state_scan(kind, options, backward=False)


@register("pt.state_scan_backward")
def _state_scan_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _state_scan(kind, options, backward=True)


def _state_scan(kind: OpSignature, options: WorkOptions, backward: bool) -> list[Work]:
    # arXiv:2405.21060, section 6: scores inside chunks, the chunks' states, then both times the values. The states, one
    # for each chunk and head in fp32, are written, passed on from chunk to chunk and read.
    values, *_, b, _c, _skip = kind.inputs[1:] if backward else kind.inputs
    batch, length, heads, size = values.shape
    groups, state = b.shape[2:]
    chunk = min(kind.int_attr("chunk", _CHUNK), length) if kind.attr("chunk") else _CHUNK
    chunks = batch * length / chunk
    math, width = product_math(values.dtype, options), BYTES_PER_ELEMENT[values.dtype]
    scores = matmul_work((chunks * groups, chunk, chunk, state), math, width)
    states = matmul_work((chunks * heads, size, state, chunk), math, width, 4.0)
    inside = matmul_work((chunks * heads, chunk, size, chunk), math, width)
    before = matmul_work((chunks * heads, chunk, size, state), math, width)
    trips = memory_work("other", states.bytes_written, states.bytes_written, dtype="float32")
    forward = [scores, states, inside, before, trips]
    # Back, each product has two gradients, and scores and states are computed again.
    return [*forward, *forward, scores, states, trips] if backward else forward


@register("pt.delta_rule")
def _delta_rule_forward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _delta_rule(kind, options, backward=False)


@register("pt.delta_rule_backward")
def _delta_rule_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _delta_rule(kind, options, backward=True)


def _delta_rule(kind: OpSignature, options: WorkOptions, backward: bool) -> list[Work]:
    # arXiv:2406.06484, section 3.2 (UT transform) and arXiv:2412.06464, section 3.3: products of keys, their inverse
    # (forward substitution, a third of a product), corrected keys and values, products of queries and keys, their sums
    # of values; with the chunk's state: what keys and queries find there, and what is added. States are in fp32.
    value, _query, key = kind.inputs[1:4] if backward else kind.inputs[:3]
    batch, length, heads, size = value.shape
    width_k = key.shape[-1]
    chunk = min(_DELTA_CHUNK, length)
    of_all = batch * heads * length / chunk
    math, width = product_math(value.dtype, options), BYTES_PER_ELEMENT[value.dtype]
    pairs = matmul_work((of_all, chunk, chunk, width_k), math, width)
    inverse = matmul_work((of_all, chunk, chunk, chunk / 3), math, 4.0)
    keys = matmul_work((of_all, chunk, width_k, chunk), math, width)
    values = matmul_work((of_all, chunk, size, chunk), math, width)
    read = matmul_work((of_all, chunk, size, width_k), math, width)
    added = matmul_work((of_all, width_k, size, chunk), math, width, 4.0)
    trips = memory_work("other", added.bytes_written, added.bytes_written, dtype="float32")
    again = [pairs, inverse, keys, values, read, added, trips]
    forward = [*again, pairs, values, read]
    # Back, each product has two gradients; states, corrected keys and values are computed again.
    return [*forward, *forward, *again] if backward else forward


_SCAN_FLOPS = 9
"""FLOP for each element of the state and position: two exponents and products that discretise, a product and a sum that
update, a product and a sum that read out (VMamba's flops_selective_scan_fn counts 9)."""


@register("pt.selective_scan", "pt.selective_scan_backward")
def _selective_scan(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # arXiv:2312.00752, section 3.3.2: one kernel reads its operands and writes the result, the state stays on the chip;
    # the backward kernel computes the states again, and gradients of each operation twice.
    backward = kind.name.endswith("_backward")
    values, _steps, decay = kind.inputs[1:4] if backward else kind.inputs[:3]
    flops = float(_SCAN_FLOPS * values.numel * decay.shape[-1]) * (3 if backward else 1)
    return [memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype="float32", flops=flops)]


@register("pt.causal_conv1d", "pt.causal_conv1d_backward")
def _causal_conv1d(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    backward = kind.name.endswith("_backward")
    x, weight = kind.inputs[1:3] if backward else kind.inputs[:2]
    flops = 2.0 * x.numel * weight.shape[-1] * (3 if backward else 1)  # back: again, and two gradients
    return [memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype="float32", flops=flops)]


@register("pt.wkv", "pt.wkv_backward")
def _wkv(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # arXiv:2305.13048, appendix: about 20 operations for each element, one position after another in each channel.
    backward = kind.name.endswith("_backward")
    flops = 20.0 * kind.inputs[0].numel * (3 if backward else 1)
    return [memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype="float32", flops=flops)]


@register("pt.position_loop", "pt.position_loop_backward")
def _position_loop(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # RecurrentGemma's `_rnn_scan` and what autograd makes of it, kernel by kernel, as in a trace of the loop itself. At
    # each position the state, in fp32, is multiplied, added to and written into the result. Back, each write copies the
    # gradient of the whole result, and each read of a position zeroes a tensor of the whole length, which is then added
    # to those of the positions before: traffic grows with the square of the length.
    backward = kind.name.endswith("_backward")
    hidden, gate = kind.inputs[1:3] if backward else kind.inputs[:2]
    batch, length, width = hidden.shape
    state = float(length * batch * width)  # elements of a state, at all positions

    def small(family: str, reads: float, writes: float, dtype: str = "float32", kernels: int = 1) -> Work:
        return memory_work(family, kernels * reads * state, kernels * writes * state, kernels * length, dtype=dtype)

    def whole(family: str, passes: tuple[int, int], tensor: TensorSpec, kernels: int = 1) -> Work:
        read, written = (float(each * kernels * length * tensor.nbytes) for each in passes)
        return memory_work(family, read, written, kernels * length, dtype=tensor.dtype)

    width_h, width_g = (BYTES_PER_ELEMENT[each.dtype] for each in (hidden, gate))
    casts = [
        (each.dtype, float(size)) for each, size in ((hidden, width_h), (gate, width_g)) if each.dtype != "float32"
    ]
    if not backward:
        works = [small("cast", size, 4.0, dtype) for dtype, size in casts]
        works += [small("pointwise", 8.0, 4.0, kernels=2), small("copy", width_h, width_h, hidden.dtype)]
        return [*works, small("cast", 4.0, width_h, hidden.dtype)] if hidden.dtype != "float32" else works
    works = [
        whole("copy", (1, 1), hidden), small("copy", width_h, width_h, hidden.dtype, kernels=2),
        small("fill", 0.0, width_h, hidden.dtype), small("pointwise", 8.0, 4.0, kernels=3),
    ]  # fmt: skip
    works += [small("cast", 4.0, size, dtype) for dtype, size in casts]
    if hidden.dtype != "float32":
        works.append(small("cast", width_h, 4.0, hidden.dtype))
    for each in (hidden, gate):
        works += [whole("fill", (0, 1), each), whole("pointwise", (2, 1), each)]
    return works
