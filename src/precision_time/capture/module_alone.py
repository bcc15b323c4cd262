"""What a module without example inputs and a loss is traced with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from precision_time.errors import CaptureError, JobError
from precision_time.job.job import Job


def sample_of(job: Job, shape: Any) -> torch.Tensor:
    """One tensor: a batch of samples of the shape that `input` gives. Raises `JobError` without shape or batch."""
    if shape is None or not job.batch_size:
        raise JobError(
            f"model {job.model!r} is a module alone; give the shape of one sample and the batch, as in "
            "--input 3x224x224 --batch-size 32, or return a dict with model, inputs, loss and optimizer"
        )
    sizes = (shape,) if isinstance(shape, int) else shape
    return torch.zeros(job.batch_size, *map(int, sizes))


def some_loss(model: str) -> Callable[[Any], Any]:
    """The mean of the first tensor that a module returns."""

    def loss(output: Any) -> Any:
        values: Any = list(output.values()) if isinstance(output, Mapping) else output
        several = values if isinstance(values, (list, tuple)) else [values]
        tensor = next((each for each in several if isinstance(each, torch.Tensor)), None)
        if tensor is None:
            raise CaptureError(f"{model} returned {type(output).__name__}, which holds no tensor; give a loss")
        return tensor.float().mean()

    return loss
