"""Attention within windows in Hugging Face's models (Longformer, LED), with as many tokens that attend to all others.

Which tokens these are decides the shapes, so the model is told: the first ones of every sequence. Sequences fill their
length, which the model pads to a multiple of its windows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precision_time.errors import JobError
from precision_time.zoo.models.hf_batch import Batch, own_loss
from precision_time.zoo.workload import Sizes

_WINDOWS = frozenset(["led", "longformer"])
_QUESTION = 16
"""Tokens of a question: 11 words in the mean of SQuAD, with the marks around them (arXiv:1606.05250)."""
_USUAL = {
    "AutoModelForSequenceClassification": 1,
    "AutoModelForQuestionAnswering": _QUESTION,
    "AutoModelForMultipleChoice": _QUESTION,
}
"""Head -> tokens with global attention that Longformer's own forward finds: the first, or those of the question."""


def within_windows(task: str, config: Any, sizes: Sizes, batch: Batch) -> Batch:
    """The batch with the mask of a model of windows; the same batch for any other model."""
    if config.model_type not in _WINDOWS:
        return batch
    ids = batch.inputs["input_ids"]
    usual = _USUAL.get(task, 0) if config.model_type == "longformer" else 0
    count = int(sizes.get("global_tokens", min(usual, ids.shape[-1])))
    if count > ids.shape[-1]:
        raise JobError(
            f"input global_tokens {count} is above seq_len {ids.shape[-1]}; give how many tokens of a sequence attend "
            "to all others"
        )
    if not count:
        return Batch(batch.inputs, _nowhere, (*batch.notes, "no token attends to all others (global attention)"))
    inputs = {**batch.inputs, "global_attention_mask": torch.zeros_like(ids)}
    some = f"{count} tokens of a sequence attend" if count > 1 else "1 token of a sequence attends"
    loss = partial(_somewhere, _FirstOnes(count, ids.shape[-1]))
    return Batch(inputs, loss, (*batch.notes, f"{some} to all others (global attention, input global_tokens)"))


def _somewhere(mode: TorchFunctionMode, module: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with mode:
        return own_loss(module, inputs)


class _FirstOnes(TorchFunctionMode):
    """Models compare the mask of a batch with zero: above it are tokens with global attention, below it are padded."""

    def __init__(self, count: int, length: int) -> None:
        self._above, self._below = slice(count), slice(length, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        compared = {Tensor.gt: self._above, Tensor.lt: self._below}.get(func)
        if compared is not None and args[0].is_meta and args[0].ndim == 2 and args[0].is_floating_point():
            chosen = torch.zeros(args[0].shape, dtype=torch.bool, device="cpu")
            chosen[:, compared] = True
            return chosen
        return func(*args, **(kwargs or {}))


def _nowhere(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with _NoGlobalAttention():
        return own_loss(module, inputs)


class _NoGlobalAttention(TorchFunctionMode):
    """Models ask whether any token has global attention. Without a mask that names one, none has."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.item and args[0].is_meta and args[0].dtype == torch.bool:
            return False
        return func(*args, **(kwargs or {}))
