"""Rules for operators limited by arithmetic: matrix products, convolutions, attention, recurrent layers.

`works(kind, options)` gives the works of an operator of the registry: a list (convolution backward is two products),
empty for operators without device time, or None without a rule (reported as unsupported and timed by the bytes it
touches). To add an operator, write one small function and register it, here or in `traffic`.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, TensorSpec
from precision_time.timing import scans as _scans  # noqa: F401  (enters its rules)
from precision_time.timing import traffic as _traffic_rules  # noqa: F401  (enters the rules of traffic)
from precision_time.timing.registry import REGISTRY, WorkOptions, float_dtype, nbytes, product_math, register
from precision_time.timing.work import (
    ALIGN,
    CONV_DIRECT,
    CONV_GROUPED,
    CONV_UNEVEN,
    EFFICIENT,
    NATIVE,
    NATIVE_BF16,
    Attention,
    Convolution,
    Recurrent,
    Work,
    attention_work,
    column_sum_work,
    conv_work,
    matmul_work,
    memory_work,
    reduction_work,
    rnn_works,
)

__all__ = ["REGISTRY", "WorkOptions", "main_work", "operator_key", "touched", "works"]


COMPOSED = frozenset({"dropout", "softmax", "layer_norm"})
"""Families of kernels that TensorFlow composes of several: a layer norm of moments, differences and products, dropout
of random numbers, a comparison, a cast and two products, the gradient of softmax of two products, a sum and a
difference. XLA fuses some of them, and computes norms and softmax in single precision."""
_COMPOSED_TRAFFIC, _COMPOSED_LAUNCHES = 3.5, 4
"""Times the traffic and the launches of PyTorch's kernels. Counted by operator, tensors move 2.4 to 5 times as often;
published steps of TensorFlow say 3.2 to 3.6 without any one of their seven families, and err alike from 3 to 4.5."""


def works(kind: OpSignature, options: WorkOptions) -> list[Work] | None:
    rule = REGISTRY.get(kind.name)
    if rule is None:
        return None
    found = rule(kind, options)
    return [_composed(work) for work in found] if options.composes else found


def _composed(work: Work) -> Work:
    if work.family not in COMPOSED:
        return work
    return replace(
        work,
        bytes_read=_COMPOSED_TRAFFIC * work.bytes_read,
        bytes_written=_COMPOSED_TRAFFIC * work.bytes_written,
        latency_s=_COMPOSED_TRAFFIC * work.latency_s,
        launches=_COMPOSED_LAUNCHES * work.launches,
    )


def touched(kind: OpSignature) -> Work:
    """An operator without a rule: its tensors once through memory."""
    return memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype=float_dtype(kind))


def operator_key(kind: OpSignature) -> str:
    """The name an operator is measured under: one for in place and not, one per label of a sweep."""
    label = kind.attr("label") if kind.name == "pt.sweep" else None
    return (f"pt.sweep:{label}" if label else kind.name).rstrip("_")


def main_work(of_operator: list[Work]) -> int:
    """Position of the work that represents an operator timed as a whole: the largest."""
    return max(range(len(of_operator)), key=lambda i: (of_operator[i].flops, of_operator[i].bytes))


def _cudnn_math(dtype: str, options: WorkOptions) -> str:
    """Of convolutions and recurrent layers, which have a switch of their own for TF32."""
    return "tf32" if dtype == "float32" and options.tf32_convolutions else product_math(dtype, options)


_FP8_GRID = 16
"""Multiple of which the sides of an fp8 product are."""


def _width(spec: TensorSpec) -> int:
    return BYTES_PER_ELEMENT[spec.dtype]


# --- matrix products --------------------------------------------------------------------------------------------


@register("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.addbmm", "aten._scaled_mm", "pt.scaled_mm")
def _matmul(kind: OpSignature, options: WorkOptions) -> list[Work]:
    a, b = kind.inputs[:2]  # scales of an fp8 product come after its operands
    if len(kind.inputs) >= 3 and kind.name in ("aten.addmm", "aten.baddbmm", "aten.addbmm"):
        a, b = kind.inputs[1], kind.inputs[2]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    m, k = a.shape[-2:]
    n = b.shape[-1]
    extra = kind.inputs[0].nbytes if kind.name.startswith(("aten.addmm", "aten.badd", "aten.addb")) else 0
    out = _width(kind.outputs[0])
    if kind.name == "pt.scaled_mm":  # rows of samples are padded to the units' grid
        m, k = (-(-side // _FP8_GRID) * _FP8_GRID for side in (m, k))
    math = product_math(a.dtype, options)
    if kind.attr("shared"):  # Twins (`data/published`): as long as all rows by the one matrix, in three versions
        batch, m = 1, batch * m
    work = matmul_work((batch, m, n, k), math, _width(a), out, extra_bytes=extra)
    variant = kind.attr("layout", kind.attr("scaling", ""))
    rows = m if kind.attr("transposed") else k
    return [replace(work, variant=str(variant or alignment(n, rows, math)))]


def alignment(n: int, k: int, math: str) -> str:
    """The variant of a product in half precision whose rows are no multiples of 16 bytes, else an empty text.

    Kernels of tensor cores load and store 16 bytes at once; others serve rows of 8 and 4 bytes, and of one number. On
    an H100 the three products of a head of 50,257 words ran at 85 to 147 TFLOP/s, all others of GPT-2 at 400 to 740
    (`data/measured/h100`). Rows of results have n numbers, those of operands n or k; for k stands m where the first
    operand is transposed, in gradients of weights.
    """
    if math not in ("fp16", "bf16"):
        return ""
    whole = gcd(n, k, 8)
    return "" if whole == 8 else f"{ALIGN}{whole}"


@register("pt.grouped_mm", "pt.scaled_grouped_mm")
def _grouped(kind: OpSignature, options: WorkOptions) -> list[Work]:
    """Rows of several groups (experts), as many of each, by a matrix of the group's own.

    Transformer Engine loops over the groups, on streams that share the device (`multi_stream_cublas_gemm` in
    common/gemm/cublaslt_gemm.cu, `split_quantize` in pytorch/csrc/extensions/cast.cpp): a product of each, and in fp8
    the kernels that quantise its rows: largest value, scale and cast, or cast and two rearrangements of scales.
    """
    x, weight = kind.inputs[:2]
    groups = min(weight.shape[0], x.shape[0])  # fewer rows than groups leave weights unread
    bias = kind.inputs[2].nbytes if len(kind.inputs) > 2 else 0
    work = matmul_work(
        (groups, x.shape[0] / groups, weight.shape[2], weight.shape[1]),
        product_math(x.dtype, options),
        _width(x),
        _width(kind.outputs[0]),
        extra_bytes=bias,
    )
    return [_by_group(work, kind, groups, 4 if "scaled" in kind.name else 1, options)]


def _by_group(work: Work, kind: OpSignature, groups: int, kernels: int, options: WorkOptions) -> Work:
    """The product in one kernel, or with this many for each of its groups."""
    launches = groups * kernels if options.separate_experts else work.launches
    return replace(work, variant=str(kind.attr("scaling", "")), launches=launches)


@register("aten._grouped_mm")
def _torch_grouped(kind: OpSignature, options: WorkOptions) -> list[Work]:
    """torch's grouped product in its other forms: two of three dimensions are products of as many matrices; a matrix
    is divided along the summed side (two matrices), or else along the rows or columns of the result."""
    a, b = kind.inputs[:2]
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    groups = next((spec.shape[0] for spec in (a, b, kind.outputs[0]) if len(spec.shape) == 3), 1)
    rows = m / groups if len(a.shape) < len(b.shape) else m
    columns = n / groups if len(a.shape) > len(b.shape) else n
    depth = k / groups if len(a.shape) == len(b.shape) == 2 else k
    shape = (groups, rows, columns, depth)
    return [matmul_work(shape, product_math(a.dtype, options), _width(a), _width(kind.outputs[0]))]


@register("pt.grouped_mm_weight", "pt.scaled_grouped_mm_weight")
def _grouped_weight(kind: OpSignature, options: WorkOptions) -> list[Work]:
    """The gradient of every group's matrix: a product over the group's rows, which are quantised already."""
    grad, out = kind.inputs[0], kind.outputs[0]
    groups, m, n = out.shape
    work = matmul_work(
        (groups, m, n, grad.shape[0] / groups), product_math(grad.dtype, options), _width(grad), _width(out)
    )
    return [_by_group(work, kind, groups, 1, options)]


@register("aten.mv", "aten.dot", "aten.vdot", "aten.addmv", "aten.addr", "aten.ger")
def _vector_product(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    flops = 2.0 * max(s.numel for s in kind.inputs)
    return [memory_work("reduction", nbytes(kind.inputs), nbytes(kind.outputs), dtype=float_dtype(kind), flops=flops)]


@register("aten.linalg_qr", "aten._linalg_eigh")
def _decomposition(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    """Of a square matrix, by cuSOLVER: kernels one after another along the columns, one for QR and three for
    eigenvectors, and 8/3 and 9 x side^3 FLOP without matrix units.

    QR of side 512, 1,024 and 4,096 takes 1.8, 4.5 and 32 ms (FlagGems, pull request 5586), 2,048 on an A100 16 ms
    (pytorch, issue 151066); eigenvectors of 512, 1,024 and 2,048 on an A100 6, 13 and 34 ms (rocm-jax, issue 278).
    """
    side, share = kind.inputs[0].shape[-1], float(str(kind.attr("share", 1.0)))
    kernels, flops = (1, 8.0 / 3.0) if kind.name == "aten.linalg_qr" else (3, 9.0)
    moved = 2.0 * nbytes(kind.inputs) * share
    launches = max(1, round(kernels * side * share))
    return [memory_work("other", moved, moved, launches, dtype=float_dtype(kind), flops=flops * side**3 * share)]


_MAGMA_S = 3e-3
"""Seconds of a routine of MAGMA for one small matrix, which copies it to the host and makes streams and handles of its
own: a log-determinant of side 300 takes 3.7 ms (pytorch, issue 32048), QR of side 16, two routines, 2.6 to 3.0 (pull
request 173788), least squares 3 (issue 22578) and 6 (pull request 54725). Chosen among these with WaveGlow's
steps in view."""


@register("aten._linalg_slogdet", "aten._linalg_det", "aten.linalg_lu_factor_ex", "aten.linalg_inv_ex")
def _lu(kind: OpSignature, options: WorkOptions) -> list[Work]:
    """LU of square matrices, with an inverse its solution besides: 2/3 and 2 x side^3 FLOP.

    cuSOLVER runs three kernels for each column: side 4,096 takes 40 ms on a V100 (jax, issue 9694).
    """
    side, matrices = kind.inputs[0].shape[-1], kind.inputs[0].numel // max(kind.inputs[0].shape[-1], 1) ** 2
    inverted = kind.name == "aten.linalg_inv_ex"
    flops = (2.0 if inverted else 2.0 / 3.0) * side**3 * matrices
    moved = nbytes(kind.inputs)
    if options.magma and matrices == 1:
        return [_by_magma(kind, 2 if inverted else 1)]
    launches = 3 * max(side, 1) + (3 if inverted else 0)
    return [memory_work("other", moved, moved, launches, dtype=float_dtype(kind), flops=flops)]


@register("aten.linalg_lu_solve")
def _lu_solve(kind: OpSignature, options: WorkOptions) -> list[Work]:
    """Rows exchanged and two triangular systems. Where PyTorch had MAGMA, the gradient of a determinant was an inverse:
    an LU and its solution."""
    factors, solution = kind.inputs[0], kind.outputs[0]
    if options.magma and len(factors.shape) == 2:
        return [_by_magma(kind, 2)]
    flops = 2.0 * factors.shape[-1] * solution.numel
    return [memory_work("other", nbytes(kind.inputs), solution.nbytes, 3, dtype=float_dtype(kind), flops=flops)]


def _by_magma(kind: OpSignature, routines: int) -> Work:
    moved = nbytes(kind.inputs)
    return replace(memory_work("other", moved, moved, dtype=float_dtype(kind)), latency_s=routines * _MAGMA_S)


@register("aten.linalg_solve_triangular")
def _triangular(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    """Small triangular systems of a chunk of linear attention: side FLOP for each element of the solution."""
    flops = float(kind.inputs[0].shape[-1]) * kind.outputs[0].numel
    return [memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype=float_dtype(kind), flops=flops)]


# --- convolutions -----------------------------------------------------------------------------------------------


def _convolution(
    x: TensorSpec, weight: TensorSpec, y: TensorSpec, kind: OpSignature, options: WorkOptions, passes: list[str]
) -> list[Work]:
    groups = kind.int_attr("groups", 1)
    stride = kind.ints_attr("stride")
    transposed = bool(kind.attr("transposed", False))
    kernel = weight.shape[2:]
    stride = stride * len(kernel) if len(stride) == 1 else stride or (1,) * len(kernel)
    if transposed:  # the gradient of the convolution that maps y to x
        x, y = y, x
        swap = {"fwd": "dgrad", "dgrad": "fwd", "wgrad": "wgrad"}
        passes = [swap[p] for p in passes]
    permuted = kind.attr("channels_last") is True and weight.dtype != "float64"  # in which cuDNN knows rows alone
    last = options.channels_last or permuted
    dilated = any(d > 1 for d in kind.ints_attr("dilation"))
    math = _cudnn_math(weight.dtype, options)
    conv = Convolution(x.shape[0], x.shape[1], y.shape[1], x.shape[2:], y.shape[2:], kernel, stride, groups, dilated)
    layout = "nhwc" if last else "nchw"
    if 1 < conv.groups == conv.c_in and not last and not transposed:
        layout = _depthwise_layout(conv, math, options)
    return [
        conv_work(
            conv,
            math,
            _width(weight),
            direction=direction,
            layout=layout,
            grouped=_grouped_family(conv, math, direction, options.grouped_kernels) if last else CONV_GROUPED,
        )
        for direction in passes
    ]


_DEPTHWISE_WIDTH, _DEPTHWISE_CHANNELS = 7, 32
_DEPTHWISE_FILTERS, _DEPTHWISE_FILTERS_BEFORE_1_11 = (1, 3, 5), (3,)


def _depthwise_layout(conv: Convolution, math: str, options: WorkOptions) -> str:
    """The layout of a depthwise convolution in NCHW: that of cuDNN's kernels in float16, NATIVE of PyTorch's own.

    In bfloat16 it says of which cuDNN would run the same in float16 (NATIVE_BF16): works of one are made of the other's
    (`kind_works`).
    """
    if math not in ("fp16", "bf16") or not _cudnn_depthwise(conv, options):
        return NATIVE
    return "nchw" if math == "fp16" else NATIVE_BF16


def _cudnn_depthwise(conv: Convolution, options: WorkOptions) -> bool:
    """Whether cuDNN runs a depthwise convolution in NCHW in float16.

    Of images and square filters: of 1, 3 and 5 taps a side, before 1.11 of 3 (pytorch pull requests 22302 and 58749),
    with stride 2 where there are many channels; along a line at stride 1, which is not known of before 1.11. 5 x 5
    filters at stride 1 took PyTorch 1.10 on an RTX 3090 1.6 (forward) to 3.4 times as long (weights); 7 x 7 ones on an
    H100 do a seventh of their bytes a second.
    """
    filters = _DEPTHWISE_FILTERS_BEFORE_1_11 if options.torch < (1, 11) else _DEPTHWISE_FILTERS
    square = len(set(conv.kernel)) == 1 and conv.kernel[0] in filters and len(set(conv.stride)) == 1
    if conv.dilated or conv.c_in < _DEPTHWISE_CHANNELS or len(conv.kernel) > 2:
        return False
    if len(conv.kernel) == 1:
        return conv.stride[0] == 1
    width = conv.in_spatial[-1]
    many = conv.c_in >= 512 or (conv.c_in >= 256 and width >= 28)
    return square and width >= _DEPTHWISE_WIDTH and (conv.stride[0] == 1 or (conv.stride[0] == 2 and many))


def _grouped_family(conv: Convolution, math: str, direction: str, grouped_kernels: int) -> str:
    """Which kernels a grouped convolution in NHWC runs on: their family.

    In half precision there are three. What no kernel of the tensor cores takes was read off steps and forward
    passes of 70 networks on an RTX 3090 under PyTorch 1.10 to 1.13, and is sharp there: 1 to 5 TFLOP/s on one side, 10
    to 100 on the other. From 1.12 on forward passes of 4 or a multiple of 8 channels a group are taken; backward ones
    where both sides of a group have equally many, at most 48, and all groups together 192 or more. Before 1.12 all
    passes of 4, 8 and 16 channels where there are 320 or a multiple of 128 from 256 on: others take 3 (400, 800) to 30
    times as long. Filters of one tap are products.

    From 2.4 on (cuDNN 9) all run on tensor cores. On an H100 under 2.11 (`data/measured/h100`) groups of 4, 8, 16 and
    64 channels do 10 to 390 TFLOP/s, those of 12, 20, 24, 40, 48 and 112 a fifth to a half of their neighbours.
    """
    if conv.groups == 1 or math not in ("fp16", "bf16"):
        return CONV_GROUPED
    inputs, outputs = conv.c_in // conv.groups, conv.c_out // conv.groups
    if inputs == 1:  # several outputs a channel, for which there is no depthwise kernel (PiT)
        return CONV_UNEVEN
    product, whole = prod(conv.kernel) == 1, all(side == 4 or side % 8 == 0 for side in (inputs, outputs))
    if grouped_kernels >= 2:
        return CONV_GROUPED if product or all(side & (side - 1) == 0 for side in (inputs, outputs)) else CONV_UNEVEN
    if grouped_kernels == 0:
        even = conv.c_in >= 256 and (conv.c_in % 128 == 0 or conv.c_in == 320)
        taken = product or (inputs == outputs in (4, 8, 16) and even)
    elif direction == "fwd":
        taken = whole
    else:
        taken = product or (whole and inputs == outputs <= 48 and conv.c_in >= 192)
    pair = conv.groups == 2 and direction != "dgrad"  # ResNeSt
    return CONV_GROUPED if taken or pair else CONV_DIRECT


@register("aten.convolution", "aten._convolution", "aten.cudnn_convolution")
def _convolution_forward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    kernels = _convolution(kind.inputs[0], kind.inputs[1], kind.outputs[0], kind, options, ["fwd"])
    if len(kind.inputs) > 2 and NATIVE not in kernels[0].variant:  # PyTorch's own depthwise kernel adds its bias itself
        kernels += REGISTRY["aten.add_"](_bias_added(kind.outputs[0], kind.inputs[2]), options)
    return kernels


def _bias_added(result: TensorSpec, bias: TensorSpec) -> OpSignature:
    """After cuDNN's kernel. Numbers of one channel do not lie together with those of the bias, so that each is loaded
    alone: 310 to 350 billion a second on an H100, in either memory format, of 2 or 4 bytes (`data/measured`)."""
    return OpSignature("aten.add_", (result, bias), (result,))


@register("aten.convolution_backward")
def _convolution_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    grad, x, weight = kind.inputs[:3]
    mask = kind.attr("output_mask", (True, True, False))
    wanted = list(mask) if isinstance(mask, tuple) else [True, True, False]
    passes = [p for p, on in zip(("dgrad", "wgrad"), wanted, strict=False) if on]
    kernels = _convolution(x, weight, grad, kind, options, passes)
    if kind.attr("add_to") and wanted[0]:
        kernels[0] = replace(kernels[0], bytes_read=kernels[0].bytes_read + x.nbytes)
    if len(wanted) > 2 and wanted[2]:
        columns = grad.shape[1]
        size = (grad.nbytes, columns * 4, grad.dtype)
        if options.channels_last:
            kernels.append(column_sum_work(grad.numel // max(columns, 1), columns, *size))
        else:
            kernels.append(reduction_work(grad.numel, *size))
    return kernels


# --- attention and recurrent layers -----------------------------------------------------------------------------


def _attention(kind: OpSignature, options: WorkOptions, direction: str) -> list[Work]:
    # Forward: query, key, value and a mask where there is one; backward: between the gradient and output, logsumexp.
    query, key, value, *mask = kind.inputs[1:-2] if direction == "bwd" else kind.inputs
    batch, heads, sq, size = query.shape
    if not query.nbytes or not key.nbytes:  # as a configuration with no heads has it
        return [memory_work("pointwise", 0.0, 0.0, dtype=query.dtype)]
    math = product_math(query.dtype, options)
    work = attention_work(
        Attention(
            batch,
            heads,
            key.shape[1],
            sq,
            key.shape[2],
            size,
            causal=bool(kind.attr("is_causal", False)),
            window=kind.int_attr("window", 0),
            v_head_dim=value.shape[-1],
        ),
        math,
        _width(query),
        direction=direction,
    )
    if kind.attr("kernel") == "triton":
        work = replace(work, variant=f"{work.variant}.triton{64 if size <= 64 else 128}")
    elif mask and math in ("fp16", "bf16") and _is_efficient(kind, mask[0], options):
        drops = ".dropout" if kind.attr("dropout_p") and not options.evaluates else ""
        work = replace(work, variant=f"{work.variant}.{EFFICIENT}{drops}")
    elif kind.attr("kernel") == "flash2":
        work = replace(work, variant=f"{work.variant}.flash2")
    # A mask that is learned has a gradient as large as the scores.
    read, written = nbytes(tuple(mask)), nbytes(kind.outputs[3:])
    return [replace(work, bytes_read=work.bytes_read + read, bytes_written=work.bytes_written + written)]


def _is_efficient(kind: OpSignature, mask: TensorSpec, options: WorkOptions) -> bool:
    """Whether attention with this mask is PyTorch's memory-efficient kernel: flash takes no mask and cuDNN none that
    needs a gradient (sdp_utils.cpp). The backward pass has that gradient; forward, numbers for each query are taken for
    learned ones while a model trains."""
    if len(mask.shape) < 2:  # a sink: one logit for each head
        return False
    if options.efficient_masks != "learned":
        return options.efficient_masks == "all"
    if kind.name.endswith("_backward"):
        return len(kind.outputs) > 3
    return mask.dtype != "bool" and mask.shape[-2] > 1 and not options.evaluates


@register("pt.attention")
def _attention_forward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _attention(kind, options, "fwd")


@register("pt.attention_backward")
def _attention_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _attention(kind, options, "bwd")


def _rnn(kind: OpSignature, x: TensorSpec, options: WorkOptions, direction: str) -> list[Work]:
    first = bool(kind.attr("batch_first", False))
    batch, steps = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
    hidden, layers = kind.int_attr("hidden", 1), kind.int_attr("layers", 1)
    directions = 2 if kind.attr("bidirectional", False) else 1
    gates = {0: 1, 1: 1, 2: 4, 3: 3}[kind.int_attr("mode", 2)]
    kernels: list[Work] = []
    for layer in range(layers):
        width = x.shape[-1] if layer == 0 else hidden * directions
        kernels += rnn_works(
            Recurrent(steps, batch, width, hidden, gates, directions=directions),
            _cudnn_math(x.dtype, options),
            _width(x),
            direction=direction,
        )
    return kernels


@register("pt.rnn")
def _rnn_forward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _rnn(kind, kind.inputs[0], options, "fwd")


@register("pt.rnn_backward")
def _rnn_backward(kind: OpSignature, options: WorkOptions) -> list[Work]:
    return _rnn(kind, kind.inputs[1], options, "bwd")


@register("aten._cdist_forward", "aten._cdist_backward")
def _cdist(kind: OpSignature, _options: WorkOptions) -> list[Work]:
    # A difference, its size and a sum for each coordinate of each pair; back the same with the gradient.
    backward = kind.name.endswith("_backward")
    first, second = kind.inputs[1:3] if backward else kind.inputs[:2]
    flops = 3.0 * first.numel * second.shape[-2]
    return [memory_work("other", nbytes(kind.inputs), nbytes(kind.outputs), dtype="float32", flops=flops)]
