"""Operators that PyTorch cannot run on the meta device, as shapes only: CTC loss and a one-layer LSTM.

`torch.nn.functional.ctc_loss` has no meta kernel, and `nn.LSTM` falls apart there into several operators per time step
where a GPU runs one cuDNN call. Each operator below has a shape function and a backward operator; none computes
anything.

    precision_time::ctc_loss(log_probs [T, B, C], targets [B, L], input_lengths, target_lengths)
        -> loss [B], log_alpha [B, T, 2 L + 1]
    precision_time::ctc_loss_backward(..., log_alpha) -> gradient of log_probs
    precision_time::lstm(x [B, T, I], h, c [B, H], w_ih [4 H, I], w_hh [4 H, H], b_ih, b_hh [4 H])
        -> y [B, T, H], h, c [B, H], reserve [B, T, 5 H]    (four gates and the cell state, kept for backward)
    precision_time::lstm_backward(...) -> gradients of x, h, c and the four weights
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


def _lstm_shape(x: Tensor, h: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, steps, _inputs = x.shape
    hidden = h.shape[1]
    y, reserve = x.new_empty(batch, steps, hidden), x.new_empty(batch, steps, 5 * hidden)
    return y, torch.empty_like(h), torch.empty_like(c), reserve


def _lstm_backward_shape(grad_y: Tensor, grad_h: Tensor, grad_c: Tensor, *saved: Tensor) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in saved[:7]]


_WEIGHTS = "Tensor x, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh"
lstm = _operator("lstm", f"({_WEIGHTS}) -> (Tensor, Tensor, Tensor, Tensor)", _lstm_shape)
lstm_backward = _operator(
    "lstm_backward",
    f"(Tensor grad_y, Tensor grad_h, Tensor grad_c, {_WEIGHTS}, Tensor y, Tensor reserve) -> Tensor[]",
    _lstm_backward_shape,
)


def _lstm_save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[0], output[3])


def _lstm_gradient(ctx: Any, grad_y: Tensor, grad_h: Tensor, grad_c: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return tuple(lstm_backward(grad_y, grad_h, grad_c, *ctx.saved_tensors))


lstm.register_autograd(_lstm_gradient, setup_context=_lstm_save)
