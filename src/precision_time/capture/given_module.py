"""A module given in Python with a sample batch: a job names it `module:CLASS-N` while the `GivenModule` lives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch

from precision_time.capture.meta_copy import meta_module, meta_tensors, tensors_of, unwrapped, with_tensors
from precision_time.errors import CaptureError, JobError
from precision_time.job.code import MODULE
from precision_time.zoo.workload import Workload

Call = Callable[[torch.nn.Module, Any], Any]
"""Forward pass and loss of a module and a batch: returns the loss, or an object or a mapping that holds it."""

_given: WeakValueDictionary[str, GivenModule] = WeakValueDictionary()
_numbers = itertools.count(1)


class GivenModule:
    """A module and a batch on the meta device; they hold no weights and no data.

    name        the model of a job: `Job(given.name)`
    module      the copy that is traced
    batch_size  samples of the sample batch: the first dimension of its first tensor
    notes       what was taken off the module, one sentence each
    """

    def __init__(self, module: object, batch: Any, call: Call) -> None:
        """`module`: an instance, in any wrapper, or a class or function that makes one without arguments.

        Raises `CaptureError` for anything else, and for a batch without tensors.
        """
        instance = module if isinstance(module, torch.nn.Module) else _made(module)
        plain, self.notes = unwrapped(instance)
        self.module = meta_module(plain)
        self._batch, self._call = meta_tensors(batch), call
        self.batch_size = next((int(each.shape[0]) for each in tensors_of(self._batch) if each.ndim), 0)
        if not self.batch_size:
            raise CaptureError(
                f"batch {type(batch).__name__} of model {type(plain).__name__} holds no tensor with a first dimension, "
                "so the batch size is unknown; give a batch as the data loader returns it"
            )
        self.name = f"{MODULE}{type(plain).__name__}-{next(_numbers)}"
        _given[self.name] = self

    def workload(self, batch_size: int | None = None) -> Workload:
        """A fresh copy to trace, with the batch at another size where one is given."""
        tensors = [self._sized(each, batch_size) for each in tensors_of(self._batch)]

        def loss(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Any:
            return _loss(self._call(module, with_tensors(self._batch, iter(inputs.values()))), self.name)

        named = {f"tensor {index}": tensor for index, tensor in enumerate(tensors)}
        return Workload(meta_module(self.module), named, loss)

    def _sized(self, tensor: torch.Tensor, batch_size: int | None) -> torch.Tensor:
        if batch_size in (None, self.batch_size) or not tensor.ndim or tensor.shape[0] != self.batch_size:
            return tensor.detach().clone()
        return torch.empty((batch_size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def given_module(name: str) -> GivenModule:
    """The module that a job names. Raises `JobError` where it is of another process or no longer alive."""
    found = _given.get(name)
    if found is None:
        raise JobError(
            f"model {name!r} was a module of a running program, which is gone; name FILE.py:FUNCTION, a zoo model, or "
            "predict the module again"
        )
    return found


def _made(module: object) -> torch.nn.Module:
    """The module that a class or function makes on the meta device."""
    if not callable(module):
        raise CaptureError(f"model is {type(module).__name__}, not a torch.nn.Module; give the module itself")
    name = getattr(module, "__name__", type(module).__name__)
    try:
        with torch.device("meta"):
            made = module()
    except Exception as error:
        raise CaptureError(
            f"model {name} could not be made without arguments ({type(error).__name__}: {error}); give an instance"
        ) from error
    if not isinstance(made, torch.nn.Module):
        raise CaptureError(f"model {name} made {type(made).__name__}, not a torch.nn.Module; give the module itself")
    return made


def _loss(output: Any, name: str) -> torch.Tensor:
    """The loss in what a forward pass returns, as Trainer classes find it."""
    found = output
    if hasattr(output, "loss"):
        found = output.loss
    elif isinstance(output, dict) and "loss" in output:
        found = output["loss"]
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, torch.Tensor):
        raise CaptureError(
            f"{name} returned no loss but {type(output).__name__}; give loss, a function of (output, targets), or a "
            "batch with labels"
        )
    return found if found.ndim == 0 or found.numel() != 1 else found.reshape(())
