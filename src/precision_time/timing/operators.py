"""The literal table operator -> work. Adding an operator is one small function and one line below.

`works(kind, options)` gives the GPU work of one operator: a list (convolution backward is two products), empty for
operators that cost nothing on the device, or None where no rule is known (reported as unsupported, and priced as the
bytes it touches).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpKind, TensorSpec
from precision_time.timing.work import Work, attention_work, conv_work, matmul_work, memory_work, rnn_works


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What the job decides about kernels: TF32 for float32 products, channels-last storage."""

    tf32: bool = False
    channels_last: bool = False


Rule = Callable[[OpKind, WorkOptions], list[Work]]
REGISTRY: dict[str, Rule] = {}


def register(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators; a second rule for the same name is an error."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in REGISTRY:
                raise ValueError(f"{name} already has a rule")
            REGISTRY[name] = rule
        return rule

    return enter


def works(kind: OpKind, options: WorkOptions) -> list[Work] | None:
    rule = REGISTRY.get(kind.name)
    return None if rule is None else rule(kind, options)


def touched(kind: OpKind) -> Work:
    """An operator without a rule: its tensors once through memory."""
    return memory_work("other", _nbytes(kind.inputs), _nbytes(kind.outputs), dtype=_dtype(kind))


def _nbytes(specs: tuple[TensorSpec, ...]) -> float:
    return float(sum(s.nbytes for s in specs))


def _dtype(kind: OpKind) -> str:
    for spec in (*kind.outputs, *kind.inputs):
        if spec.dtype.startswith(("float", "bfloat")):
            return spec.dtype
    return "float32"


_MATH = {
    "float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def _math(dtype: str, options: WorkOptions) -> str:
    if dtype == "float32":
        return "tf32" if options.tf32 else "fp32"
    return _MATH.get(dtype, "fp32")


def _width(spec: TensorSpec) -> int:
    return BYTES_PER_ELEMENT[spec.dtype]


# --- matrix products --------------------------------------------------------------------------------------------


@register("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.addbmm", "aten._scaled_mm", "pt.scaled_mm")
def _matmul(kind: OpKind, options: WorkOptions) -> list[Work]:
    a, b = [s for s in kind.inputs if len(s.shape) >= 2][-2:]
    if len(kind.inputs) >= 3 and kind.name in ("aten.addmm", "aten.baddbmm", "aten.addbmm"):
        a, b = kind.inputs[1], kind.inputs[2]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    m, k = a.shape[-2:]
    n = b.shape[-1]
    extra = float(kind.inputs[0].nbytes) if kind.name.startswith(("aten.addmm", "aten.badd", "aten.addb")) else 0.0
    out = _width(kind.outputs[0])
    return [matmul_work(batch, m, n, k, _math(a.dtype, options), _width(a), out, extra_bytes=extra)]


@register("aten.mv", "aten.dot", "aten.vdot", "aten.addmv", "aten.addr", "aten.ger")
def _vector_product(kind: OpKind, _options: WorkOptions) -> list[Work]:
    flops = 2.0 * max(s.numel for s in kind.inputs)
    return [memory_work("reduction", _nbytes(kind.inputs), _nbytes(kind.outputs), dtype=_dtype(kind), flops=flops)]


# --- convolutions -----------------------------------------------------------------------------------------------


def _convolution(
    x: TensorSpec, weight: TensorSpec, y: TensorSpec, kind: OpKind, options: WorkOptions, passes: list[str]
) -> list[Work]:
    groups = int(kind.attr("groups", 1) or 1)  # type: ignore[call-overload]
    stride = tuple(kind.attr("stride", ()) or ())  # type: ignore[arg-type]
    transposed = bool(kind.attr("transposed", False))
    kernel = weight.shape[2:]
    stride = stride * len(kernel) if len(stride) == 1 else stride or (1,) * len(kernel)
    if transposed:  # the gradient of the convolution that maps y to x
        x, y = y, x
        swap = {"fwd": "dgrad", "dgrad": "fwd", "wgrad": "wgrad"}
        passes = [swap[p] for p in passes]
    layout = "nhwc" if options.channels_last else "nchw"
    return [
        conv_work(
            x.shape[0], x.shape[1], y.shape[1], x.shape[2:], y.shape[2:], kernel,
            tuple(int(s) for s in stride), groups, _math(weight.dtype, options), _width(weight),  # type: ignore[arg-type]
            direction=direction, layout=layout,
        )
        for direction in passes
    ]  # fmt: skip


@register("aten.convolution", "aten._convolution", "aten.cudnn_convolution")
def _convolution_forward(kind: OpKind, options: WorkOptions) -> list[Work]:
    found = _convolution(kind.inputs[0], kind.inputs[1], kind.outputs[0], kind, options, ["fwd"])
    if len(kind.inputs) > 2:  # cuDNN adds the bias in a kernel of its own
        out = kind.outputs[0]
        found.append(memory_work("pointwise", out.nbytes, out.nbytes, dtype=out.dtype))
    return found


@register("aten.convolution_backward")
def _convolution_backward(kind: OpKind, options: WorkOptions) -> list[Work]:
    grad, x, weight = kind.inputs[:3]
    mask = kind.attr("output_mask", (True, True, False))
    wanted = list(mask) if isinstance(mask, tuple) else [True, True, False]
    passes = [p for p, on in zip(("dgrad", "wgrad"), wanted, strict=False) if on]
    found = _convolution(x, weight, grad, kind, options, passes)
    if len(wanted) > 2 and wanted[2]:
        found.append(memory_work("reduction", grad.nbytes, grad.shape[1] * 4, dtype=grad.dtype))
    return found


# --- attention and recurrent layers -----------------------------------------------------------------------------


def _attention(kind: OpKind, options: WorkOptions, direction: str) -> list[Work]:
    query, key, value = kind.inputs[1:4] if direction == "bwd" else kind.inputs[:3]
    batch, heads, sq, size = query.shape
    math = _math(query.dtype, options)
    return [
        attention_work(
            batch, heads, key.shape[1], sq, key.shape[2], size, math, _width(query),
            causal=bool(kind.attr("is_causal", False)), direction=direction, v_head_dim=value.shape[-1],
        )
    ]  # fmt: skip


@register("pt.attention")
def _attention_forward(kind: OpKind, options: WorkOptions) -> list[Work]:
    return _attention(kind, options, "fwd")


@register("pt.attention_backward")
def _attention_backward(kind: OpKind, options: WorkOptions) -> list[Work]:
    return _attention(kind, options, "bwd")


def _rnn(kind: OpKind, x: TensorSpec, options: WorkOptions, direction: str) -> list[Work]:
    first = bool(kind.attr("batch_first", False))
    batch, steps = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
    hidden, layers = int(kind.attr("hidden", 1) or 1), int(kind.attr("layers", 1) or 1)  # type: ignore[call-overload]
    directions = 2 if kind.attr("bidirectional", False) else 1
    gates = {0: 1, 1: 1, 2: 4, 3: 3}[int(kind.attr("mode", 2) or 0)]  # type: ignore[call-overload]
    found: list[Work] = []
    for layer in range(layers):
        width = x.shape[-1] if layer == 0 else hidden * directions
        found += rnn_works(
            steps, batch, width, hidden, gates, _math(x.dtype, options), _width(x),
            directions=directions, direction=direction,
        )  # fmt: skip
    return found


@register("pt.rnn")
def _rnn_forward(kind: OpKind, options: WorkOptions) -> list[Work]:
    return _rnn(kind, kind.inputs[0], options, "fwd")


@register("pt.rnn_backward")
def _rnn_backward(kind: OpKind, options: WorkOptions) -> list[Work]:
    return _rnn(kind, kind.inputs[1], options, "bwd")


# --- everything that is limited by traffic ----------------------------------------------------------------------


def _memory(family: str, flops_per_element: float = 1.0, in_place: bool = False) -> Rule:
    """Each input read once, each output written once; `in_place` operators write their first input."""

    def rule(kind: OpKind, _options: WorkOptions) -> list[Work]:
        outputs = kind.outputs or kind.inputs[:1] if in_place else kind.outputs
        elements = max((s.numel for s in (*kind.inputs, *outputs)), default=0)
        if not elements:
            return []
        return [
            memory_work(
                family, _nbytes(kind.inputs), _nbytes(outputs), dtype=_dtype(kind), flops=flops_per_element * elements
            )
        ]  # fmt: skip

    return rule


def _table(family: str, names: str, flops_per_element: float = 1.0) -> None:
    rule = _memory(family, flops_per_element)
    for name in names.split():
        register(f"aten.{name}")(rule)


_table(
    "pointwise",
    """add add_ sub sub_ mul mul_ div div_ neg neg_ relu relu_ threshold_backward gelu gelu_backward silu silu_
    silu_backward sigmoid sigmoid_ sigmoid_backward tanh tanh_ tanh_backward leaky_relu leaky_relu_
    leaky_relu_backward elu elu_ elu_backward hardswish hardswish_ hardswish_backward hardsigmoid hardsigmoid_
    hardsigmoid_backward hardtanh hardtanh_ hardtanh_backward softplus softplus_backward mish mish_backward pow pow_
    exp exp_ expm1 log log_ log1p log2 log10 sqrt sqrt_ rsqrt rsqrt_ reciprocal abs abs_ sign sgn sin cos clamp clamp_
    clamp_min clamp_min_ clamp_max clamp_max_ minimum maximum where masked_fill masked_fill_ eq ne lt le gt ge
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_not_ bitwise_xor erf erfc floor ceil round
    remainder fmod addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ rsub atan2 isnan isinf isfinite erfinv logit
    prelu _prelu_kernel _prelu_kernel_backward glu glu_backward log_sigmoid_forward log_sigmoid_backward
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits tril tril_ triu triu_
    polar square floor_divide copysign xlogy nan_to_num""",
)
_table("cast", "_to_copy to")
_table("copy", "clone copy_ copy cat stack split_with_sizes_copy contiguous constant_pad_nd reflection_pad1d "
       "reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d replication_pad2d roll flip "
       "repeat repeat_interleave im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle unfold_copy")  # fmt: skip
_table("fill", "zeros zeros_like zero_ ones ones_like full full_like fill_ new_zeros new_ones new_full arange "
       "scalar_tensor eye linspace", 0.0)  # fmt: skip
_table("reduction", "sum mean amax amin max min argmax argmin prod norm linalg_vector_norm var var_mean std logsumexp any all "
       "cumsum cumprod count_nonzero _foreach_norm median")  # fmt: skip
_table("softmax", "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data", 5.0)
_table("cross_entropy", "nll_loss2d_forward nll_loss2d_backward")
_table("pooling", "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices "
       "max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward "
       "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
       "avg_pool1d _adaptive_avg_pool3d _adaptive_avg_pool3d_backward")  # fmt: skip
_table("upsample", "upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward "
       "upsample_nearest3d upsample_nearest3d_backward upsample_bilinear2d upsample_bilinear2d_backward "
       "upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d upsample_trilinear3d_backward "
       "upsample_linear1d upsample_linear1d_backward grid_sampler_2d grid_sampler_2d_backward "
       "_upsample_nearest_exact2d _upsample_nearest_exact2d_backward", 8.0)  # fmt: skip
_table("dropout", "native_dropout native_dropout_backward", 2.0)
_table(
    "random",
    "bernoulli bernoulli_ rand rand_like randn randn_like uniform_ normal_ randint randperm random_ multinomial",
    10.0,
)
_table("sort", "sort topk argsort msort unique", 20.0)


def _indexed(family: str, moved: Callable[[OpKind], TensorSpec], writes: bool = True) -> Rule:
    """Operators that touch only the selected rows of a table, not the whole of it."""

    def rule(kind: OpKind, _options: WorkOptions) -> list[Work]:
        spec = moved(kind)
        indices = sum(s.nbytes for s in kind.inputs if s.dtype.startswith("int"))
        return [memory_work(family, spec.nbytes + indices, spec.nbytes if writes else 4.0, dtype=spec.dtype)]

    return rule


def _output(kind: OpKind) -> TensorSpec:
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
def _embedding_backward(kind: OpKind, _options: WorkOptions) -> list[Work]:
    # Sort of the indices, then a dense gradient of the whole table is zeroed and the rows are added into it.
    grad, table = kind.inputs[0], kind.outputs[0]
    return [
        memory_work("fill", 0.0, table.nbytes, dtype=table.dtype),
        memory_work("scatter", 2.0 * grad.nbytes, grad.nbytes, launches=4, dtype=grad.dtype, variant="embedding"),
    ]


def _scatter(kind: OpKind, _options: WorkOptions) -> list[Work]:
    target = kind.inputs[0]
    source = min((s for s in kind.inputs[1:] if not s.dtype.startswith("int")), key=lambda s: s.nbytes, default=target)
    found = [memory_work("scatter", 2.0 * source.nbytes, source.nbytes, dtype=target.dtype)]
    if kind.outputs and not kind.name.endswith("_"):  # out of place: the target is copied first
        found.append(memory_work("copy", target.nbytes, target.nbytes, dtype=target.dtype))
    return found


for _name in ["index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_", "index_copy", "index_copy_", "masked_scatter", "masked_scatter_", "slice_scatter", "select_scatter", "scatter_reduce", "index_fill", "index_fill_", "diagonal_backward", "as_strided_scatter"]:  # fmt: skip
    register(f"aten.{_name}")(_scatter)


@register("aten.nll_loss_forward")
def _nll(kind: OpKind, _options: WorkOptions) -> list[Work]:
    rows = kind.inputs[0].shape[0] if kind.inputs[0].shape else 1
    return [memory_work("cross_entropy", rows * 12.0, 8.0, dtype=_dtype(kind))]


@register("aten.nll_loss_backward")
def _nll_backward(kind: OpKind, _options: WorkOptions) -> list[Work]:
    out = kind.outputs[0]  # the gradient is zeroed, then one element per row is set
    return [memory_work("cross_entropy", 12.0, out.nbytes, launches=2, dtype=out.dtype)]


def _norm(family: str, read_passes: float, write_passes: float, launches: int = 1) -> Rule:
    def rule(kind: OpKind, _options: WorkOptions) -> list[Work]:
        x = max(kind.inputs, key=lambda s: s.numel)
        channels = min((s.numel for s in kind.inputs if s.numel > 1), default=1)
        return [
            memory_work(
                family, read_passes * x.nbytes, write_passes * x.nbytes, launches, dtype=x.dtype,
                flops=8.0 * x.numel, rows=x.numel / max(channels, 1), cols=channels,
            )
        ]  # fmt: skip

    return rule


# Passes over the data: statistics need one read before the normalising read, so batch norm moves 3 and 5 tensors;
# a row of layer norm stays on chip between the two. FACTS of the design notes; checked against torch's kernels.
register("aten.native_batch_norm", "aten.cudnn_batch_norm", "aten._native_batch_norm_legit",
         "aten._native_batch_norm_legit_functional", "aten._batch_norm_with_update",
         "aten._native_batch_norm_legit_no_training")(_norm("batch_norm", 2.0, 1.0, 2))  # fmt: skip
register("aten.native_batch_norm_backward", "aten.cudnn_batch_norm_backward", "aten.batch_norm_backward")(
    _norm("batch_norm", 4.0, 1.0, 2)
)
register("aten.native_layer_norm", "aten._fused_rms_norm")(_norm("layer_norm", 1.0, 1.0))
register("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")(_norm("layer_norm", 4.0, 1.0, 2))
register("aten.native_group_norm")(_norm("group_norm", 2.0, 1.0, 2))
register("aten.native_group_norm_backward")(_norm("group_norm", 4.0, 1.0, 3))
register("aten._weight_norm_interface")(_norm("layer_norm", 1.0, 1.0))
register("aten._weight_norm_interface_backward")(_norm("layer_norm", 3.0, 1.0))


@register("aten._local_scalar_dense", "aten.record_stream", "profiler._record_function_enter_new",
          "profiler._record_function_exit", "aten._assert_async", "aten.sym_size", "aten._assert_tensor_metadata")  # fmt: skip
def _no_kernel(_kind: OpKind, _options: WorkOptions) -> list[Work]:
    return []


@register("aten._ctc_loss", "aten._cudnn_ctc_loss", "pt.ctc_loss", "pt.ctc_loss_backward", "aten._ctc_loss_backward")
def _ctc(kind: OpKind, _options: WorkOptions) -> list[Work]:
    # Alpha (forward) or beta (backward) recursion: one step after another along the frames, the data is small.
    return [memory_work("other", 3.0 * _nbytes(kind.inputs), _nbytes(kind.outputs), launches=4, dtype="float32")]


@register("pt.sweep")
def _sweep(kind: OpKind, _options: WorkOptions) -> list[Work]:
    launches = int(kind.attr("launches", 1) or 1)  # type: ignore[call-overload]
    elements = max((s.numel for s in (*kind.inputs, *kind.outputs)), default=0)
    dtype = kind.inputs[0].dtype if kind.inputs else kind.outputs[0].dtype
    return [
        memory_work(
            "optimizer",
            _nbytes(kind.inputs),
            _nbytes(kind.outputs),
            launches,
            dtype=dtype,
            flops=2.0 * elements,
        )
    ]


@register("pt.fused_pointwise")
def _fused_pointwise(kind: OpKind, _options: WorkOptions) -> list[Work]:
    operators = int(kind.attr("operators", 1) or 1)  # type: ignore[call-overload]
    elements = max((s.numel for s in (*kind.inputs, *kind.outputs)), default=0)
    read, written = _nbytes(kind.inputs), _nbytes(kind.outputs)
    return [memory_work("pointwise", read, written, dtype=_dtype(kind), flops=float(operators * elements))]


@register("pt.quantize")
def _quantize(kind: OpKind, _options: WorkOptions) -> list[Work]:
    """Scaled cast to fp8: a maximum over the tensor, then the cast (read twice, written once)."""
    return [memory_work("cast", 2.0 * _nbytes(kind.inputs), _nbytes(kind.outputs), launches=2, dtype="bfloat16")]
