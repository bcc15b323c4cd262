"""Operators that run as one kernel on a GPU and that the meta device would decompose.

Each is defined in the namespace `precision_time` with a shape rule and a backward, so that the trace has the operators
of a GPU step: one attention forward, one attention backward, one recurrent layer, one RMS norm.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

_library = torch.library.Library("precision_time", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool is_causal)"
    " -> (Tensor, Tensor)"
)
_library.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor output,"
    " Tensor logsumexp, float dropout_p, bool is_causal) -> (Tensor, Tensor, Tensor)"
)
# The same with the gradient of the mask, of the scores' shape.
_library.define(
    "attention_backward.learned(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor mask, Tensor output,"
    " Tensor logsumexp, float dropout_p, bool is_causal) -> (Tensor, Tensor, Tensor, Tensor)"
)
# Causal attention to the last `window` keys; a sink is one learned logit a head.
_library.define(
    "attention.window(Tensor query, Tensor key, Tensor value, Tensor? sink, float dropout_p, bool is_causal,"
    " int window) -> (Tensor, Tensor)"
)
_library.define(
    "attention_backward.window(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? sink, Tensor output,"
    " Tensor logsumexp, float dropout_p, bool is_causal, int window) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "rnn(Tensor input, Tensor[] weights, int mode, int hidden, int layers, bool bidirectional, bool batch_first)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "rnn_backward(Tensor grad, Tensor input, Tensor[] weights, Tensor output, Tensor reserve, int mode, int hidden,"
    " int layers, bool bidirectional, bool batch_first) -> (Tensor, Tensor[])"
)
# The same with gradients of the initial states, which an encoder hands to its decoder.
_library.define(
    "rnn_backward.states(Tensor grad, Tensor input, Tensor[] weights, Tensor output, Tensor reserve, int mode,"
    " int hidden, int layers, bool bidirectional, bool batch_first, Tensor[] states) -> (Tensor, Tensor[], Tensor[])"
)
# As aten::_fused_rms_norm and its backward, which torch before that kernel does not have.
_library.define("rms_norm(Tensor input, int[] normalized_shape, Tensor? weight) -> (Tensor, Tensor)")
_library.define(
    "rms_norm_backward(Tensor grad, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight,"
    " bool[2] output_mask) -> (Tensor, Tensor)"
)


def _attention_shape(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    # The kernels write their output in the query's memory order, so that the heads join again without a copy.
    if value.shape[-1] == query.shape[-1]:
        out = torch.empty_like(query)
    else:
        batch, heads, length, _ = query.shape
        out = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _attention_backward_shape(grad: Any, query: Any, key: Any, value: Any, *rest: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attention_learned_backward_shape(grad: Any, query: Any, key: Any, value: Any, mask: Any, *rest: Any) -> Any:
    grads = _attention_backward_shape(grad, query, key, value)
    return *grads, mask.new_empty((*query.shape[:-1], key.shape[-2]))


def _attention_window_backward_shape(grad: Any, query: Any, key: Any, value: Any, sink: Any, *rest: Any) -> Any:
    grads = _attention_backward_shape(grad, query, key, value)
    return *grads, query.new_empty(query.shape[1]) if sink is None else torch.empty_like(sink)


def _rnn_gates(mode: int) -> int:
    return {0: 1, 1: 1, 2: 4, 3: 3}[mode]  # relu, tanh, LSTM, GRU: cuDNN's numbering


def _rnn_shape(
    x: Any, weights: Any, mode: int, hidden: int, layers: int, bidirectional: bool, batch_first: bool
) -> Any:
    directions = 2 if bidirectional else 1
    out = x.new_empty((*x.shape[:-1], hidden * directions))
    state = x.new_empty((layers * directions, x.shape[0 if batch_first else 1], hidden))
    # cuDNN keeps the gate activations of every step for the backward pass ("reserve space").
    reserve = x.new_empty((*x.shape[:-1], layers * directions * hidden * (_rnn_gates(mode) + 1)))
    return out, state, reserve


def _rnn_backward_shape(grad: Any, x: Any, weights: Any, *rest: Any) -> Any:
    return torch.empty_like(x), [torch.empty_like(w) for w in weights]


def _rnn_states_backward_shape(grad: Any, x: Any, weights: Any, *rest: Any) -> Any:
    return *_rnn_backward_shape(grad, x, weights), [torch.empty_like(state) for state in rest[-1]]


def _rms_norm_shape(x: Any, normalized_shape: Any, weight: Any) -> Any:
    dims = len(normalized_shape)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty((*x.shape[:-dims], *(1,) * dims), dtype=wide)


def _rms_norm_backward_shape(grad: Any, x: Any, normalized_shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
    return torch.empty_like(x) if mask[0] else None, torch.empty_like(weight) if mask[1] else None


_library.impl("attention", _attention_shape, "Meta")
_library.impl("attention_backward", _attention_backward_shape, "Meta")
_library.impl("attention_backward.learned", _attention_learned_backward_shape, "Meta")
_library.impl("attention.window", _attention_shape, "Meta")
_library.impl("attention_backward.window", _attention_window_backward_shape, "Meta")
_library.impl("rnn", _rnn_shape, "Meta")
_library.impl("rnn_backward", _rnn_backward_shape, "Meta")
_library.impl("rnn_backward.states", _rnn_states_backward_shape, "Meta")
_library.impl("rms_norm", _rms_norm_shape, "Meta")
_library.impl("rms_norm_backward", _rms_norm_backward_shape, "Meta")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool) -> Any:
        out, logsumexp = torch.ops.precision_time.attention(query, key, value, mask, dropout_p, is_causal)
        ctx.save_for_backward(query, key, value, mask, out, logsumexp)
        ctx.options = (dropout_p, is_causal)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        saved = (grad, *ctx.saved_tensors, *ctx.options)
        if not ctx.needs_input_grad[3]:
            return (*torch.ops.precision_time.attention_backward(*saved), None, None, None)
        # Flash refuses masks (sdp_utils.cpp, check_for_attn_mask). The memory-efficient kernel takes one expanded to
        # the scores' shape, which its gradient then has until autograd sums it (transformers/attention.cpp,
        # preprocess_mask; cuda/attention_backward.cu, bias_requires_grad).
        *grads, grad_mask = torch.ops.precision_time.attention_backward.learned(*saved)
        mask = ctx.saved_tensors[3]
        return (*grads, grad_mask.sum_to_size(mask.shape), None, None)


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, sink: Any, window: int, dropout_p: float) -> Any:
        ctx.options = (dropout_p, True, window)
        out, logsumexp = torch.ops.precision_time.attention.window(query, key, value, sink, *ctx.options)
        ctx.save_for_backward(query, key, value, sink, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        saved = (grad, *ctx.saved_tensors, *ctx.options)
        *grads, grad_sink = torch.ops.precision_time.attention_backward.window(*saved)
        return (*grads, grad_sink if ctx.needs_input_grad[3] else None, None, None)


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, setting: tuple[Any, ...], count: int, *states_and_weights: Any) -> Any:
        """`setting`: arguments of `rnn` after the weights; `count` of the tensors after it are initial states."""
        weights = states_and_weights[count:]
        out, state, reserve = torch.ops.precision_time.rnn(x, list(weights), *setting)
        ctx.save_for_backward(x, out, reserve, *states_and_weights)
        ctx.setting, ctx.count = setting, count
        return out, state

    @staticmethod
    def backward(ctx: Any, grad: Any, _state_grad: Any) -> Any:
        x, out, reserve, *states_and_weights = ctx.saved_tensors
        states, weights = states_and_weights[: ctx.count], states_and_weights[ctx.count :]
        saved = (grad, x, weights, out, reserve, *ctx.setting)
        if not any(ctx.needs_input_grad[3 : 3 + ctx.count]):
            grad_x, grads = torch.ops.precision_time.rnn_backward(*saved)
            return (grad_x, None, None, *(None for _ in states), *grads)
        grad_x, grads, grad_states = torch.ops.precision_time.rnn_backward.states(*saved, states)
        return (grad_x, None, None, *grad_states, *grads)


class _RmsNorm(torch.autograd.Function):
    # The CUDA kernels read rows of contiguous memory: what is not gets copied first, forward and back.
    @staticmethod
    def forward(ctx: Any, x: Any, normalized_shape: Any, weight: Any) -> Any:
        out, rstd = torch.ops.precision_time.rms_norm(x.contiguous(), normalized_shape, weight)
        ctx.save_for_backward(x, weight, rstd)
        ctx.normalized_shape = normalized_shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        grad_x, grad_weight = torch.ops.precision_time.rms_norm_backward(
            grad.contiguous(), x.contiguous(), ctx.normalized_shape, rstd, weight, mask
        )
        return grad_x, None, grad_weight


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Any:
    """Fused attention: query (batch, heads, length, head size); one kernel forward, one operator backward."""
    if query.shape[0] == 1 and key.shape[0] > 1:  # learned queries of all samples
        query = query.expand(key.shape[0], -1, -1, -1)
    return _Attention.apply(query, key, value, attn_mask, float(dropout_p), is_causal)


def math_attention(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's own operators for attention that no fused kernel takes; since 2.5 halves are widened to single
    precision (pytorch pull request 128922) and rows of which all is masked get zeros."""
    return torch.ops.aten._scaled_dot_product_attention_math(*args, **kwargs)[0]


def window_attention(query: Any, key: Any, value: Any, sink: Any, window: int, dropout_p: float) -> Any:
    return _WindowAttention.apply(query, key, value, sink, int(window), float(dropout_p))


def capped_attention(query: Any, key: Any, value: Any, window: int, softcap: float, dropout_p: float) -> Any:
    """One kernel, as FlashAttention's and FlexAttention's; the tanh of its scores is not priced."""
    return _WindowAttention.apply(query, key, value, None, int(window), float(dropout_p))


def alibi_attention(query: Any, key: Any, value: Any, slopes: Any, dropout_p: float) -> Any:
    """One kernel, as FlashAttention's with slopes, of which there is one number for each head."""
    return _Attention.apply(query, key, value, None, float(dropout_p), True)


def scaled_query_attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, dropout_p: float) -> Any:
    return attention(query, key, value, mask, dropout_p, causal)


def unfused_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as model code writes it without a fused kernel: matmul, scale, mask, softmax, dropout, matmul."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(repeats, -3)
        value = value.repeat_interleave(repeats, -3)
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores * (scale if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    if is_causal:  # Megatron-LM, llm-foundry
        scores = scores.masked_fill(query.new_empty((query.shape[-2], key.shape[-2]), dtype=torch.bool), -1e4)
    elif attn_mask is not None:  # transformers, NVIDIA's BERT: numbers that are added to the scores, made once
        scores = scores + (
            torch.empty_like(attn_mask, dtype=scores.dtype) if attn_mask.dtype == torch.bool else attn_mask
        )
    weights = F.softmax(scores, dim=-1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return torch.matmul(weights, value)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Channels last, one kernel each way, timed as batch norm of the same tensor; in rows, torch's."""
    if x.is_contiguous():
        return F.instance_norm(x, None, None, weight, bias, True, 0.1, eps)
    return F.batch_norm(x, None, None, weight, bias, True, 0.1, eps)


def dropout(x: Any, p: float, train: bool) -> Any:
    """`aten.dropout` as CUDA runs it: one kernel that also stores the mask."""
    if not train or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """RMS norm as CUDA runs it today: one kernel forward, one operator backward (`aten::_fused_rms_norm`).

    It is composed of small operators where weight and input differ in dtype and for complex or channels-last input
    (`rms_norm_symint` of aten/src/ATen/native/layer_norm.cpp, after pull request 153666); before that, always.
    """
    mixed = weight is not None and weight.dtype != x.dtype
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    channels_last = last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    if mixed or x.is_complex() or channels_last:
        return torch.rms_norm(x, normalized_shape, weight, eps)
    return _RmsNorm.apply(x, list(normalized_shape), weight)


def softmax_to_float(op: Any, name: str, x: Any, dim: int) -> Any:
    """Softmax of a low-precision tensor with fp32 result: one CUDA kernel for float16, a cast first for bfloat16.

    (aten/src/ATen/native/SoftMax.cpp: `half_to_float` is taken for Half only.)
    """
    if x.dtype != torch.float16:
        return op(x.to(torch.float32), dim)
    function = torch._softmax if name == "softmax.int" else torch._log_softmax
    return function(x, dim, True)


def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    return torch._weight_norm_interface(v, g, dim)[0]


def _rnn(mode: int) -> Any:
    def run(x: Any, hx: Any, params: Any, *options: Any) -> Any:
        _has_biases, layers, _dropout, _train, bidirectional, batch_first = options
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        setting = (mode, states[0].shape[-1], layers, bidirectional, batch_first)
        out, state = _Rnn.apply(x, setting, len(states), *states, *params)
        return (out, state, state) if mode == 2 else (out, state)

    return run


SOFTMAXES = ("softmax.int", "log_softmax.int")

REPLACEMENTS: dict[str, tuple[Any, bool]] = {
    # operator: (what runs instead, whether autocast casts to low precision what is inside, where no list names it)
    "scaled_dot_product_attention": (attention, True),
    "rms_norm": (rms_norm, False),
    "dropout": (dropout, False),
    "_weight_norm": (weight_norm, False),
    "lstm.input": (_rnn(2), True),
    "gru.input": (_rnn(3), True),
    "rnn_tanh.input": (_rnn(1), True),
    "rnn_relu.input": (_rnn(0), True),
}
