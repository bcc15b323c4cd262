"""What the settings of a training loop mean as job fields: precision, optimizer, memory format, layout."""

from __future__ import annotations

from typing import Any

import torch

from precision_time.capture.user_model import optimizer_of
from precision_time.errors import CaptureError

_MASTER = ("fsdp", "zero1", "zero2", "zero3")
"""Layouts whose mixed precision stores and gathers half weights beside fp32 ones, in place of autocast copies."""
_PURE = {torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}


def precision_name(mixed: str | None, model: torch.nn.Module, layout: str, device_type: str) -> str:
    """The precision of a run. `mixed`: "bf16" or "fp16" where the framework trains in mixed precision, else None."""
    pure = _PURE.get(_dtype(model))
    if pure is not None:
        return pure
    if mixed:
        return f"{mixed}-master" if layout in _MASTER else f"amp-{mixed}"
    if device_type == "cpu":
        return "torch-fp32"
    if torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "torch-fp32" if torch.backends.cudnn.allow_tf32 else "fp32"


def _dtype(model: torch.nn.Module) -> torch.dtype:
    """The dtype of most of the weights that are trained."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else torch.float32


def optimizer_fields(optimizer: Any, device_type: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The job fields of an optimizer, inside of whatever wraps it, and a note where its class is not known."""
    while not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__name__.startswith(
        ("Accelerated", "Lightning")
    ):
        inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "_optimizer", None)
        if inner is None:
            break
        optimizer = inner
    if optimizer is None:
        return {}, ()
    try:
        name, implementation = optimizer_of(optimizer, device_type)
    except CaptureError as error:
        return {"optimizer": "adamw"}, (f"taken as adamw: {error}",)
    return {"optimizer": name, **({"optimizer_impl": implementation} if implementation else {})}, ()


def memory_format(model: torch.nn.Module) -> str:
    """ "nhwc" where the weights of convolutions are stored channels last, else "nchw"."""
    for parameter in model.parameters():
        if parameter.ndim == 4 and min(parameter.shape[1:3]) > 1:
            last = parameter.is_contiguous(memory_format=torch.channels_last)
            return "nhwc" if last and not parameter.is_contiguous() else "nchw"
    return "nchw"


def device_type_of(model: torch.nn.Module) -> str:
    """torch's word for the device of the weights: cuda, cpu, mps ..."""
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type
