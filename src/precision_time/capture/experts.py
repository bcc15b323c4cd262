"""Operators for kernels of mixtures of experts (grouped products, permutation of tokens), the scan of Mamba layers,
focal loss and the dot products of DLRM.

They are defined as in `fused`. Products with one weight per expert are one operator: one launch of torch's
`_grouped_mm`, and one for each expert in Transformer Engine (`timing.operators`). Routing is assumed balanced, so every
expert has the mean number of rows. Tokens are permuted as by Transformer Engine
(transformer_engine/pytorch/triton/permutation.py): without atomics or a weighted copy.
"""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("precision_time", "FRAGMENT")
_library.define("grouped_mm(Tensor input, Tensor weight, Tensor? bias) -> Tensor")
_library.define("grouped_mm_weight(Tensor grad, Tensor input, int groups) -> Tensor")
_library.define("grouped_sum(Tensor grad, int groups) -> Tensor")
_library.define("combine(Tensor input, Tensor places, Tensor? weights) -> Tensor")
_library.define("combine_backward(Tensor grad, Tensor input, Tensor order, Tensor weights) -> (Tensor, Tensor)")
# As mamba_ssm's mamba_chunk_scan_combined: softplus of the steps inside.
_library.define(
    "state_scan_forward(Tensor values, Tensor steps, Tensor step_bias, Tensor decay, Tensor b, Tensor c, Tensor skip,"
    " int chunk=128) -> Tensor"
)
_library.define(
    "state_scan_backward(Tensor grad, Tensor values, Tensor steps, Tensor step_bias, Tensor decay, Tensor b, Tensor c,"
    " Tensor skip, int chunk=128) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# As apex.contrib.focal_loss: the gradient before its factor is written together with the loss.
_library.define("focal_loss_forward(Tensor logits, Tensor classes) -> (Tensor, Tensor)")
_library.define("focal_loss_backward(Tensor grad, Tensor partial) -> Tensor")
# As dotBasedInteract of NVIDIA's DLRM (DeepLearningExamples): all products of a sample in shared memory.
_library.define("dot_interaction_forward(Tensor vectors, int width) -> Tensor")
_library.define("dot_interaction_backward(Tensor grad, Tensor vectors) -> Tensor")

# As gather_gpu_fused_fwd there: rows of a table, written in the dtype of autocast.
_library.define("gathered_rows(Tensor table, Tensor index, ScalarType dtype) -> Tensor")


def _grouped_mm(x: Any, weight: Any, bias: Any) -> Any:
    return x.new_empty((x.shape[0], weight.shape[-1]))


def _grouped_mm_weight(grad: Any, x: Any, groups: int) -> Any:
    return grad.new_empty((groups, x.shape[-1], grad.shape[-1]))


def _grouped_sum(grad: Any, groups: int) -> Any:
    return grad.new_empty((groups, grad.shape[-1]))


def _combine(y: Any, places: Any, weights: Any) -> Any:
    return y.new_empty((places.shape[0], y.shape[-1]))


def _combine_backward(grad: Any, y: Any, order: Any, weights: Any) -> Any:
    return torch.empty_like(y), torch.empty_like(weights)


def _state_scan_forward(x: Any, *rest: Any) -> Any:
    return x.new_empty(x.shape)


def _state_scan_backward(grad: Any, *saved: Any) -> Any:
    return tuple(y.new_empty(y.shape) for y in saved[:7])


def _focal_loss_forward(logits: Any, classes: Any) -> Any:
    return logits.new_empty(logits.shape[0], dtype=torch.float32), torch.empty_like(logits)


def _focal_loss_backward(grad: Any, partial: Any) -> Any:
    return torch.empty_like(partial)


def _dot_interaction_forward(vectors: Any, width: int) -> Any:
    return vectors.new_empty((vectors.shape[0], width))


def _dot_interaction_backward(grad: Any, vectors: Any) -> Any:
    return torch.empty_like(vectors)


def _gathered_rows(table: Any, index: Any, dtype: torch.dtype) -> Any:
    return table.new_empty((*index.shape, table.shape[-1]), dtype=dtype)


for _shape in (
    _grouped_mm,
    _grouped_mm_weight,
    _grouped_sum,
    _combine,
    _combine_backward,
    _state_scan_forward,
    _state_scan_backward,
    _focal_loss_forward,
    _focal_loss_backward,
    _dot_interaction_forward,
    _dot_interaction_backward,
    _gathered_rows,
):
    _library.impl(_shape.__name__.removeprefix("_"), _shape, "Meta")


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return torch.ops.precision_time.grouped_mm(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        ops, groups, needed = torch.ops.precision_time, weight.shape[0], ctx.needs_input_grad
        return (
            ops.grouped_mm(grad, weight.transpose(1, 2), None) if needed[0] else None,
            ops.grouped_mm_weight(grad, x, groups) if needed[1] else None,
            ops.grouped_sum(grad, groups) if needed[2] else None,
        )


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, order: Any, places: Any) -> Any:
        ctx.save_for_backward(places)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (places,) = ctx.saved_tensors
        return torch.ops.precision_time.combine(grad, places, None), None, None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any, order: Any, places: Any, weights: Any) -> Any:
        ctx.save_for_backward(y, order, weights)
        return torch.ops.precision_time.combine(y, places, weights)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad_y, grad_weights = torch.ops.precision_time.combine_backward(grad, *ctx.saved_tensors)
        return grad_y, None, None, grad_weights


class _StateScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunk: int, *args: Any) -> Any:
        ctx.save_for_backward(*args)
        ctx.chunk = chunk
        return torch.ops.precision_time.state_scan_forward(*args, chunk)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, *torch.ops.precision_time.state_scan_backward(grad, *ctx.saved_tensors, ctx.chunk)


class _FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, classes: Any) -> Any:
        loss, partial = torch.ops.precision_time.focal_loss_forward(logits, classes)
        ctx.save_for_backward(partial)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.ops.precision_time.focal_loss_backward(grad, *ctx.saved_tensors), None


class _DotInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Any, width: int) -> Any:
        ctx.save_for_backward(vectors)
        return torch.ops.precision_time.dot_interaction_forward(vectors, width)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.ops.precision_time.dot_interaction_backward(grad, *ctx.saved_tensors), None


def grouped_linear(x: Any, weight: Any, bias: Any, _ends: Any) -> Any:
    return _GroupedLinear.apply(x, weight, bias)


def torch_grouped_mm(x: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """torch's grouped product: of rows in groups by a matrix of the group's own as above, other forms as they are."""
    if x.dim() == 2 and weight.dim() == 3 and bias is None and out_dtype is None:
        return _GroupedLinear.apply(x, weight, None)
    return torch.ops.aten._grouped_mm.default(x, weight, offs=offs, bias=bias, out_dtype=out_dtype)


def permute(x: Any, order: Any, places: Any) -> Any:
    return _Permute.apply(x, order, places)


def unpermute(y: Any, order: Any, places: Any, weights: Any) -> Any:
    return _Unpermute.apply(y, order, places, weights)


def state_scan(x: Any, steps: Any, bias: Any, decay: Any, b: Any, c: Any, skip: Any, chunk: int = 128) -> Any:
    return _StateScan.apply(chunk, x, steps, bias, decay, b, c, skip)


def focal_loss(logits: Any, classes: Any) -> Any:
    return _FocalLoss.apply(logits, classes)


def dot_interaction(vectors: Any, pairs: Any, padding: int) -> Any:
    return _DotInteraction.apply(vectors, vectors.shape[-1] + pairs.shape[0] + padding)


def gather_rows(table: Any, index: Any, dtype: torch.dtype) -> Any:
    """Rows of a frozen table: its caller applies their gradients to it."""
    return torch.ops.precision_time.gathered_rows(table.detach(), index, dtype)


REPLACEMENTS: dict[str, tuple[Any, bool]] = {
    "grouped_linear": (grouped_linear, True),
    "permute": (permute, False),
    "unpermute": (unpermute, False),
    "state_scan": (state_scan, False),
    "focal_loss": (focal_loss, False),
    "dot_interaction": (dot_interaction, False),
    "gather_rows": (gather_rows, False),
}
"""As `fused.REPLACEMENTS`, of the operators in `zoo.models.operators`."""
