"""Rules for operators limited by memory traffic: mostly one line in a table of families."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, TensorSpec
from precision_time.timing.by_element import (
    BY_ELEMENT,
    STEPS_OF_JOINED,
    STEPS_OF_ONE_OPERAND,
    sectors_again,
    steps_apart,
)
from precision_time.timing.recording import log2
from precision_time.timing.registry import REGISTRY, Rule, WorkOptions, float_dtype, nbytes, register
from precision_time.timing.work import Work, column_sum_work, memory_work, reduction_work


def _direction(kind: OpSignature) -> str:
    return "bwd" if "backward" in kind.name else "fwd"


def _memory(family: str, flops_per_element: float = 1.0, in_place: bool = False, alone: bool = False) -> Rule:
    """Each input read once, each output written once; `in_place` operators write their first input. `alone`: kernels
    load each element alone, however their operands lie."""

    def rule(kind: OpSignature, _options: WorkOptions) -> list[Work]:
        outputs = kind.outputs or kind.inputs[:1] if in_place else kind.outputs
        elements = max((s.numel for s in (*kind.inputs, *outputs)), default=0)
        if not elements:
            return []
        by_element = alone or kind.attr("strided")
        variant = f"{_direction(kind)}.{BY_ELEMENT}" if by_element else _direction(kind)
        read, written, steps = nbytes(kind.inputs), nbytes(outputs), flops_per_element * elements
        return [_apart(kind, memory_work(family, read, written, dtype=float_dtype(kind), flops=steps, variant=variant))]

    return rule


def _table(family: str, names: str, flops_per_element: float = 1.0) -> None:
    _enter(_memory(family, flops_per_element), names)


def _enter(rule: Rule, names: str) -> None:
    for name in names.split():
        register(f"aten.{name}")(rule)


def _pointwise(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # Operands of one shape, order and dtype are loaded in vectors; of others a thread computes where each element lies
    # and loads it alone (aten/src/ATen/native/cuda/CUDALoops.cuh).
    tensors = (*kind.inputs, *kind.outputs)
    elements = max((s.numel for s in tensors), default=0)
    if not elements:
        return []
    floats = {(s.numel, s.dtype) for s in tensors if s.dtype.startswith(("float", "bfloat"))}
    alike = floats <= {(elements, float_dtype(kind))} and not kind.attr("strided")
    variant = _direction(kind) if alike else f"{_direction(kind)}.{BY_ELEMENT}"
    steps = elements * (STEPS_OF_ONE_OPERAND if len(kind.inputs) == 1 else 1.0)
    read, written = nbytes(kind.inputs), nbytes(kind.outputs)
    return [
        _apart(kind, memory_work("pointwise", read, written, dtype=float_dtype(kind), flops=steps, variant=variant))
    ]


def _apart(kind: OpSignature, work: Work) -> Work:
    """The work with what it costs that neighbours in memory of an operand are not computed together."""
    apart = kind.int_attr("strided", 1)
    if apart <= 1:
        return work
    largest = max(kind.inputs, key=lambda spec: spec.numel)
    again = sectors_again(largest.numel, BYTES_PER_ELEMENT[largest.dtype], apart)
    return replace(work, flops=work.flops + steps_apart(apart) * largest.numel, serial_bytes=again)


_enter(
    _pointwise,
    """
    add add_ sub sub_ mul mul_ div div_ neg neg_ relu relu_ threshold_backward gelu gelu_backward silu silu_
    silu_backward sigmoid sigmoid_ sigmoid_backward tanh tanh_ tanh_backward leaky_relu leaky_relu_
    leaky_relu_backward elu elu_ elu_backward hardswish hardswish_ hardswish_backward hardsigmoid hardsigmoid_
    hardsigmoid_backward hardtanh hardtanh_ hardtanh_backward softplus softplus_backward mish mish_backward pow
    pow_ exp exp_ expm1 log log_ log1p log2 log10 sqrt sqrt_ rsqrt rsqrt_ reciprocal abs abs_ sign sgn sin cos
    clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ minimum maximum where masked_fill_ eq ne
    lt le gt ge logical_and logical_and_ logical_or logical_or_ logical_not logical_not_ logical_xor bitwise_and
    bitwise_and_ bitwise_or bitwise_or_ bitwise_not bitwise_not_ bitwise_xor erf erfc floor ceil round floor_ ceil_
    round_ remainder fmod addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ rsub atan2
    isnan isinf isfinite erfinv logit prelu _prelu_kernel _prelu_kernel_backward glu glu_backward
    log_sigmoid_forward log_sigmoid_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward
    huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits tril tril_ triu triu_ polar square floor_divide copysign xlogy nan_to_num
    """,
)


@register("aten.masked_fill")
def _masked_fill(kind: OpSignature, options: WorkOptions) -> list[Work]:
    # A copy, filled in place (aten/src/ATen/native/TensorAdvancedIndexing.cpp).
    filled = replace(kind, inputs=(*kind.outputs, *kind.inputs[1:]))
    return [*_COPY(replace(kind, inputs=kind.outputs), options), *_pointwise(filled, options)]


_table(
    "cast",
    """
    _to_copy to
    """,
)
_COPY = _memory("copy")
_enter(_COPY, "clone diagonal_copy copy_ copy contiguous")


# Kernels that compute where each element comes from (aten/src/ATen/native/cuda/Shape.cu).
_enter(_memory("copy", STEPS_OF_JOINED, alone=True), "cat stack")
_enter(
    _memory("copy", alone=True),
    """
    split_with_sizes_copy constant_pad_nd reflection_pad1d reflection_pad1d_backward reflection_pad2d
    reflection_pad2d_backward replication_pad1d replication_pad2d roll flip repeat repeat_interleave col2im
    pixel_shuffle pixel_unshuffle channel_shuffle unfold_copy
    """,
)


@register("aten.im2col")
def _im2col(kind: OpSignature, options: WorkOptions) -> list[Work]:
    # A kernel for each sample (aten/src/ATen/native/cuda/Im2Col.cu); col2im has one for all.
    samples = kind.inputs[0].shape[0] if len(kind.inputs[0].shape) > 3 else 1
    return [replace(work, launches=samples) for work in _memory("copy", alone=True)(kind, options)]


_table(
    "fill",
    """
    zeros zeros_like zero_ ones ones_like full full_like fill_ new_zeros new_ones new_full arange scalar_tensor
    eye linspace
    """,
    0.0,
)


@register("pt.grouped_sum")
def _reduction(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    elements = sum(s.numel for s in kind.inputs)
    return [reduction_work(elements, nbytes(kind.inputs), nbytes(kind.outputs), float_dtype(kind))]


@register("aten.sum")
def _sum(kind: OpSignature, options: WorkOptions) -> list[Work]:
    x = kind.inputs[0]
    of_rows = len(x.shape) == 2 and kind.attr("dim") == (0,)
    of_images = len(x.shape) == 4 and kind.attr("dim") == (0, 2, 3) and options.channels_last
    if not (of_rows or of_images) or not x.numel:
        return _reduction(kind, options)
    columns = x.shape[1]
    return [column_sum_work(x.numel // columns, columns, x.nbytes, nbytes(kind.outputs), float_dtype(kind))]


_enter(
    _reduction,
    """
    mean amax amin max min argmax argmin prod norm linalg_vector_norm var var_mean std logsumexp any all
    cumsum cumprod count_nonzero _foreach_norm median histc bincount
    """,
)
_SOFTMAX_STEPS = 5.0
"""Arithmetic operations for each element of a softmax or of its gradient."""
_table(
    "softmax",
    """
    _softmax _log_softmax _log_softmax_backward_data
    """,
    _SOFTMAX_STEPS,
)


@register("aten._softmax_backward_data")
def _softmax_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    # The product of gradient and result is a kernel and a tensor of its own, which the next one reads beside the result
    # (aten/src/ATen/native/cuda/SoftMax.cu). The gradient of the logarithm needs no product.
    rest = _memory("softmax", _SOFTMAX_STEPS)(kind, options)
    if options.composes or kind.attr("fused"):
        return rest
    return [*_pointwise(OpSignature("aten.mul", kind.inputs[:2], kind.inputs[:1]), options), *rest]


@register("aten._safe_softmax")
def _safe_softmax(kind: OpSignature, options: WorkOptions) -> list[Work]:
    # Rows of nothing but -inf are found and get zeros (aten/src/ATen/native/transformers/attention.cpp).
    (scores, *_), (weights, *_) = kind.inputs, kind.outputs
    masked, rows = TensorSpec(scores.shape, "bool"), TensorSpec((*scores.shape[:-1], 1), "bool")
    steps = (
        ("aten._softmax", (scores,), weights), ("aten.eq", (scores,), masked), ("aten.all", (masked,), rows),
        ("aten.where", (rows, weights), weights),
    )  # fmt: skip
    found = (REGISTRY[name](OpSignature(name, read, (written,)), options) or [] for name, read, written in steps)
    return [work for works in found for work in works]


_table(
    "cross_entropy",
    """
    nll_loss2d_forward nll_loss2d_backward
    """,
)
_POOLING_STEPS = {"fwd.max": 1.4, "bwd.max": 3.0, "fwd.avg": 3.0, "bwd.avg": 4.5}
"""Steps of a thread for each element of the larger side, of which `by_element.ELEMENTS_PER_SM_S` are done: read off
profiled steps of an H100 (`data/measured`), in which no pooling runs at the rate of memory."""


def _pooling(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    elements = max(s.numel for s in (*kind.inputs, *kind.outputs))
    variant = f"{_direction(kind)}.{'avg' if 'avg' in kind.name else 'max'}"
    steps = _POOLING_STEPS[variant] * elements
    read, written = nbytes(kind.inputs), nbytes(kind.outputs)
    return [memory_work("pooling", read, written, dtype=float_dtype(kind), flops=steps, variant=variant)]


_enter(
    _pooling,
    """
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
    avg_pool1d _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    """,
)
_table(
    "upsample",
    """
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_bilinear2d_backward grid_sampler_2d
    grid_sampler_2d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    """,
    _INTERPOLATION_STEPS := 8.0,
)
_PLANE_S = 297e-9
"""Seconds of a thread for each plane of `_interpolation`: read off EfficientFormerV2 in `data/published`, whose four
sizes say 283 to 292 ns on an RTX 3090, 235 to 244 on an RTX 4090 and 374 to 376 on an RTX PRO 6000."""
_ENOUGH_POSITIONS = 2**16
"""Positions, each of which is a thread, from which on such kernels run at the rate of memory (chosen)."""
_LAST_CHANNELS = 16
"""Channels from which on two-dimensional linear interpolation has a kernel for channels last."""


def _interpolation(kind: OpSignature, options: WorkOptions) -> list[Work]:
    # A thread has a position and takes all planes of it, one after another (aten/src/ATen/native/cuda/
    # UpSampleBilinear2d.cu, UpSampleBicubic2d.cu, UpSampleTrilinear3d.cu, UpSampleLinear1d.cu); with channels last,
    # an element. Backward, planes are those of the gradient.
    works = _memory("upsample", _INTERPOLATION_STEPS)(kind, options)
    result = kind.inputs[0] if "backward" in kind.name else kind.outputs[0]
    planes, positions = math.prod(result.shape[:2]), math.prod(result.shape[2:])
    given = kind.attr("channels_last", options.channels_last)
    if "bilinear2d" in kind.name and given and result.shape[1] >= _LAST_CHANNELS:
        return works
    waiting = max(1.0 - positions / _ENOUGH_POSITIONS, 0.0)
    latency_s = planes * _PLANE_S * waiting
    return [replace(work, variant=f"{work.variant}.planes", latency_s=latency_s) for work in works]


_enter(
    _interpolation,
    """
    upsample_bilinear2d upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d
    upsample_trilinear3d_backward upsample_linear1d upsample_linear1d_backward
    """,
)
_table("dropout", "native_dropout_backward", 2.0)


@register("aten.native_dropout")
def _dropout(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return [] if options.evaluates else _memory("dropout", 2.0)(kind, options)


_table(
    "random",
    """
    bernoulli bernoulli_ rand rand_like randn randn_like uniform_ normal_ exponential_ randint randperm random_
    multinomial
    """,
    10.0,
)
_table(
    "sort",
    """
    sort topk argsort msort unique
    """,
    20.0,
)


def _indexed(family: str, moved: Callable[[OpSignature], TensorSpec], writes: bool = True) -> Rule:
    """Operators that touch only the selected rows of a table, not the whole of it."""

    def rule(kind: OpSignature, _options: WorkOptions) -> list[Work]:
        spec = moved(kind)
        indices = sum(s.nbytes for s in kind.inputs if s.dtype.startswith("int"))
        return [memory_work(family, spec.nbytes + indices, spec.nbytes if writes else 4.0, dtype=spec.dtype)]

    return rule


def _output(kind: OpSignature) -> TensorSpec:
    return kind.outputs[0]


for _name in (
    "embedding",
    "index",
    "index_select",
    "gather",
    "_embedding_bag",
    "select_backward",
    "slice_backward",
):
    register(f"aten.{_name}")(_indexed("embedding" if "embedding" in _name else "gather", _output))


@register("aten.embedding_dense_backward", "aten._embedding_bag_dense_backward")
def _embedding_backward(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # The indices are sorted, a dense gradient of the whole table is zeroed, and equal rows are summed into it
    # (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu): every gradient row is read once.
    grad, table = kind.inputs[0], kind.outputs[0]
    indices = kind.inputs[1].numel if len(kind.inputs) > 1 else grad.numel // max(grad.shape[-1], 1)
    return [
        memory_work("fill", 0.0, table.nbytes, dtype=table.dtype),
        memory_work("sort", indices * 8.0, indices * 8.0, launches=3, dtype=grad.dtype),
        memory_work("scatter", grad.nbytes, min(grad.nbytes, table.nbytes), dtype=grad.dtype, variant="embedding"),
    ]


def _scatter(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    target = kind.inputs[0]
    source = min((s for s in kind.inputs[1:] if not s.dtype.startswith("int")), key=lambda s: s.nbytes, default=target)
    passes = [memory_work("scatter", 2.0 * source.nbytes, source.nbytes, dtype=target.dtype)]
    if kind.outputs and not kind.name.endswith("_"):  # out of place: the target is copied first
        passes.append(memory_work("copy", target.nbytes, target.nbytes, dtype=target.dtype))
    return passes


@register("pt.gathered_rows")
def _gathered_rows(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    (table, index), rows = kind.inputs, kind.outputs[0]
    read = index.nbytes + TensorSpec(rows.shape, table.dtype).nbytes
    return [memory_work("embedding", read, rows.nbytes, dtype=rows.dtype)]


@register("pt.combine")
def _combine(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # A token gathers its rows, weights them on chip and writes once.
    return [memory_work("gather", nbytes(kind.inputs), nbytes(kind.outputs), dtype=kind.outputs[0].dtype)]


@register("pt.combine_backward")
def _combine_backward(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # A token's gradient goes to each of its rows, times the weight; the weights' own are products with those rows.
    read, written = nbytes(kind.inputs), nbytes(kind.outputs)
    return [memory_work("gather", read, written, dtype=kind.outputs[0].dtype, variant="bwd")]


@register(
    "pt.focal_loss_forward", "pt.focal_loss_backward", "pt.dot_interaction_forward", "pt.dot_interaction_backward"
)
def _each_element_once(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    variant = "bwd" if kind.name.endswith("backward") else "fwd"
    read, written = nbytes(kind.inputs), nbytes(kind.outputs)
    return [memory_work("pointwise", read, written, dtype=kind.outputs[-1].dtype, variant=variant)]


_SCATTERS = """
    index_put index_put_ _index_put_impl_ scatter scatter_ scatter_add scatter_add_ index_add index_add_
    index_copy index_copy_ masked_scatter masked_scatter_ slice_scatter select_scatter scatter_reduce index_fill
    index_fill_ diagonal_backward as_strided_scatter
"""
for _name in _SCATTERS.split():
    register(f"aten.{_name}")(_scatter)


@register("aten.nll_loss_forward")
def _nll(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    rows = kind.inputs[0].shape[0] if kind.inputs[0].shape else 1
    return [memory_work("cross_entropy", rows * 12.0, 8.0, dtype=float_dtype(kind))]


@register("aten.nll_loss_backward")
def _nll_backward(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    out = kind.outputs[0]  # the gradient is zeroed, then one element per row is set
    return [memory_work("cross_entropy", 12.0, out.nbytes, launches=2, dtype=out.dtype)]


_BLOCK_ELEMENTS_PER_S = 4.5e9
"""What one thread block reads and writes in a second. cuDNN's batch norms in NCHW on an H100 (`data/measured`) do 67 to
710 billion at 16 to 256 channels, each of which is a block."""
_ENOUGH_BLOCKS = 512
"""Channels from which on these norms run at the rate of memory."""
_ROW_S = 1.45e-9
"""Seconds for each row of a layer norm, which is a block, beside those of its traffic: read off widths of 64 to 1,536
on an H100 (`data/measured`), all within a quarter."""

_OLD_BACKWARD, _MANY_ROWS, _ROW_BACKWARD_S = "aten.native_layer_norm_backward", 512, 28e-9
"""The same of the backward pass before PyTorch 1.11, from so many rows on: a block took 32 columns of all rows, one
after another (pytorch pull request 68238). 63 transformers of 64 to 1,280 columns on an RTX 3090 take PyTorch 1.10 27
to 42 ns a row longer than 1.11, half of them 28 to 32."""


def _norm(family: str, read_passes: float, write_passes: float, launches: int = 1, images: bool = False) -> Rule:
    """`images`: its kernels differ by memory format."""

    def rule(kind: OpSignature, options: WorkOptions) -> list[Work]:
        x = max(kind.inputs, key=lambda s: s.numel)
        known = options.evaluates and images and x.shape[0] > 1  # those of one sample are an instance norm's
        if known or kind.attr("training") is False:  # the statistics are known: a scale and a shift
            return [memory_work("pointwise", x.nbytes, x.nbytes, dtype=x.dtype, flops=4.0 * x.numel)]
        least = min((s.numel for s in kind.inputs if s.numel > 1), default=1)
        channels = max(x.shape[1] if images and len(x.shape) > 1 else least, 1)
        variant, latency_s = _direction(kind), 0.0
        if images:
            # In NCHW a block has a channel; in bfloat16 PyTorch takes its own kernels, else those of cuDNN.
            # An instance norm is a batch norm of one sample, which is in either format.
            last = (options.channels_last or kind.attr("channels_last") is True) and x.shape[0] > 1
            kernels, order = "native" if x.dtype == "bfloat16" else "cudnn", "nhwc" if last else "nchw"
            variant = f"{variant}.{kernels}.{order}"
            if not last:
                waiting = max(1.0 / channels - 1.0 / _ENOUGH_BLOCKS, 0.0)
                latency_s = (read_passes + write_passes) * x.numel * waiting / _BLOCK_ELEMENTS_PER_S
        elif family == "layer_norm" and not variant.startswith("bwd"):
            latency_s = _ROW_S * x.numel / channels
        elif kind.name == _OLD_BACKWARD and options.torch < (1, 11) and x.numel / channels >= _MANY_ROWS:
            latency_s = _ROW_BACKWARD_S * x.numel / channels
        work = memory_work(
            family,
            read_passes * x.nbytes,
            write_passes * x.nbytes,
            launches,
            dtype=x.dtype,
            flops=8.0 * x.numel,
            variant=variant,
            shape=(x.numel / channels, channels),
        )
        return [replace(work, latency_s=latency_s)]

    return rule


# Passes over the data: statistics need one read before the normalising read, so batch norm moves 3 and 5 tensors;
# a row of layer norm stays on chip between the two (aten/src/ATen/native/cuda/Normalization.cuh, layer_norm_kernel.cu).
register(
    "aten.native_batch_norm",
    "aten.cudnn_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_functional",
    "aten._batch_norm_with_update",
    "aten._native_batch_norm_legit_no_training",
)(_norm("batch_norm", 2.0, 1.0, 2, images=True))
register("aten.native_batch_norm_backward", "aten.cudnn_batch_norm_backward", "aten.batch_norm_backward")(
    _norm("batch_norm", 4.0, 1.0, 2, images=True)
)
register("aten.native_layer_norm", "aten._fused_rms_norm")(_norm("layer_norm", 1.0, 1.0))
register("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")(_norm("layer_norm", 4.0, 1.0, 2))
register("aten.native_group_norm")(_norm("group_norm", 2.0, 1.0, 2))
register("aten.native_group_norm_backward")(_norm("group_norm", 4.0, 1.0, 3))


def _rms_norm(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # Forward: input and weight in, result and the rows' 1 / rms out. Backward: gradient, input, weight and 1 / rms in;
    # the gradients of input and weight are kernels of their own, each of which reads gradient and input.
    backward = "backward" in kind.name
    passes = len(kind.outputs) if backward else 1
    x = kind.inputs[int(backward)]
    rows = (kind.inputs[2] if backward else kind.outputs[1]).numel
    again = 2.0 * x.nbytes * (passes - 1)
    return [
        memory_work(
            "layer_norm",
            nbytes(kind.inputs) + again,
            nbytes(kind.outputs),
            passes,
            dtype=x.dtype,
            flops=8.0 * x.numel,
            variant=_direction(kind),
            shape=(rows, x.numel / max(rows, 1)),
        )
    ]


register("pt.rms_norm", "pt.rms_norm_backward")(_rms_norm)
register("aten._weight_norm_interface")(_norm("layer_norm", 1.0, 1.0))
register("aten._weight_norm_interface_backward")(_norm("layer_norm", 3.0, 1.0))


@register(
    "aten._local_scalar_dense",
    "aten.as_strided_",
    "aten.transpose_",
    "aten.record_stream",
    "profiler._record_function_enter_new",
    "profiler._record_function_exit",
    "aten._assert_async",
    "aten.sym_size",
    "aten._assert_tensor_metadata",
)
def _no_kernel(_kind: OpSignature, _options: WorkOptions) -> list[Work]:
    return []


@register("aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c")
def _fft(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # cuFFT sweeps the data about twice for the lengths of audio frames; 5 n log2 n operations.
    size = max(s.numel for s in (*kind.inputs, *kind.outputs))
    flops = 5.0 * size * log2(max(size, 2))
    read, written = 2.0 * nbytes(kind.inputs), 2.0 * nbytes(kind.outputs)
    return [memory_work("other", read, written, launches=2, dtype="float32", flops=flops)]


@register("aten._ctc_loss", "aten._cudnn_ctc_loss", "pt.ctc_loss", "pt.ctc_loss_backward", "aten._ctc_loss_backward")
def _ctc(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # Alpha (forward) or beta (backward) recursion: one step after another along the frames, the data is small.
    return [memory_work("other", 3.0 * nbytes(kind.inputs), nbytes(kind.outputs), launches=4, dtype="float32")]


@register("pt.sweep")
def _sweep(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    launches = kind.int_attr("launches", 1)
    elements = max((s.numel for s in (*kind.inputs, *kind.outputs)), default=0)
    dtype = kind.inputs[0].dtype if kind.inputs else kind.outputs[0].dtype
    return [
        memory_work(
            "optimizer",
            nbytes(kind.inputs),
            nbytes(kind.outputs),
            launches,
            dtype=dtype,
            flops=2.0 * elements,
        )
    ]


@register("pt.fused_pointwise")
def _fused_pointwise(kind: OpSignature, options: WorkOptions) -> list[Work]:
    operators, passes = kind.int_attr("operators", 1), kind.int_attr("passes", 1)
    if options.evaluates:
        passes = 1
    elif kind.attr("of_batch") and (options.separate_statistics or not kind.attr("backward")):
        passes = 2
    elements = max((s.numel for s in (*kind.inputs, *kind.outputs)), default=0)
    family = "pointwise" if passes == 1 else "batch_norm"
    return [
        memory_work(
            family,
            passes * nbytes(kind.inputs),
            nbytes(kind.outputs),
            launches=passes,
            dtype=float_dtype(kind),
            flops=operators * elements,
            variant="bwd.fused" if kind.attr("backward") else "fwd.fused",  # written for what it fuses, or generated
        )
    ]


@register("pt.quantize")
def _quantize(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    """Scaled cast to fp8: a maximum over tensor, rows or blocks, then the cast (read twice, written once). MXFP8
    reads once and writes both sides, but rearranges its scales besides: published steps are as long as with this."""
    return [memory_work("cast", 2.0 * nbytes(kind.inputs), nbytes(kind.outputs), launches=2, dtype="bfloat16")]


@register("pt.dequantize")
def _dequantize(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    """4-bit or 8-bit values looked up and scaled: each tensor once through memory."""
    read, written = nbytes(kind.inputs), nbytes(kind.outputs)
    return [memory_work("cast", read, written, dtype=kind.outputs[0].dtype)]
