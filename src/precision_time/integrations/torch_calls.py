"""How a module is called with a batch: the forward pass and loss that a training loop would run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from precision_time.capture.given_module import Call
from precision_time.capture.meta_copy import meta_module
from precision_time.errors import JobError


def call_of(model: Any, batch: Any, loss: Any = None) -> Call:
    """The call of a plain loop: `loss(model(inputs), targets)`, or the model's own loss.

    batch   with `loss`: (inputs, targets), or a mapping of keyword arguments; else what the model takes: a mapping of
            keyword arguments, a tuple of positional ones, or one tensor. Inputs likewise.

    A LightningModule runs its `training_step`. Raises `JobError` for a loss that is not callable, or a batch without
    targets.
    """
    if loss is None and hasattr(model, "training_step") and hasattr(model, "configure_optimizers"):
        return training_step_call
    if loss is None:
        return _forward
    if not callable(loss):
        raise JobError(f"loss is {type(loss).__name__}; give a function of (output, targets)")
    if isinstance(loss, torch.nn.Module):
        loss = meta_module(loss)  # it may hold weights of classes
    if isinstance(batch, Mapping):
        return lambda module, given: loss(_forward(module, given))
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise JobError(
            f"batch is {type(batch).__name__}, but with loss it must be (inputs, targets), or a mapping of keyword "
            "arguments whose output loss takes"
        )
    return lambda module, given: loss(_forward(module, given[0]), given[1])


def _forward(module: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def training_step_call(module: Any, batch: Any) -> Any:
    """Forward pass and loss of a LightningModule, without its trainer and on the meta device."""
    for each in module.modules():
        if hasattr(each, "_trainer"):
            each._trainer = None
        if hasattr(each, "_device"):  # of modules that ask `self.device`
            each._device = torch.device("meta")
        if hasattr(each, "validate_args"):  # metrics that look at values
            each.validate_args = False
    if getattr(module, "automatic_optimization", True) is False:
        raise RuntimeError("its training_step runs the optimizers itself (automatic_optimization = False)")
    step = module.training_step
    count = step.__code__.co_argcount - 1 if hasattr(step, "__code__") else 2
    return step(batch, 0) if count >= 2 else step(batch)
