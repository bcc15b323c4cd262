"""CTC loss for tracing: PyTorch's own has no kernel on the meta device. Shapes only; nothing is computed.

precision_time::ctc_loss(log_probs [T, B, C], targets [B, L], input_lengths [B], target_lengths [B])
    -> loss [B], log_alpha [B, T, 2 L + 1]
precision_time::ctc_loss_backward(grad [B], the four inputs, loss, log_alpha) -> gradient of log_probs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _no_kernel(*_: Tensor) -> Any:
    raise NotImplementedError("a stand-in for tracing on the meta device; it has shapes but computes nothing")


def _operator(name: str, schema: str, fake: Any) -> Any:
    op = torch.library.custom_op(f"precision_time::{name}", _no_kernel, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


def _ctc_shape(log_probs: Tensor, targets: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    steps, batch, _classes = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[1] + 1)


ctc_loss = _operator(
    "ctc_loss",
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths) -> (Tensor, Tensor)",
    _ctc_shape,
)
ctc_loss_backward = _operator(
    "ctc_loss_backward",
    "(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,"
    " Tensor loss, Tensor log_alpha) -> Tensor",
    lambda grad, log_probs, *_: torch.empty_like(log_probs),
)


def _ctc_save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _ctc_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return ctc_loss_backward(grad, *ctx.saved_tensors), None, None, None


ctc_loss.register_autograd(_ctc_gradient, setup_context=_ctc_save)
