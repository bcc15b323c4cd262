"""Code of the user that names a device (`.cuda()`, `device="cuda"`) runs on the meta device, on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META = torch.device("meta")


class WithoutDevices(TorchFunctionMode):
    """Tensors that are made on a GPU or moved to one are on the meta device, and moved meta tensors stay there.

    Tensors that are made on the CPU on purpose stay, since a model may read their values (rates of stochastic depth).
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        moved = args[0] if func in _MOVES else None
        if func is torch.Tensor.cuda or (moved is not None and moved.is_meta and func is not torch.Tensor.to):
            return args[0].to(META)
        if named.get("device") is not None and _away(moved, named["device"]):
            named["device"] = META
        if func is torch.Tensor.to:
            args = (moved, *(META if _is_place(each) and _away(moved, each) else each for each in args[1:]))
        return func(*args, **named)


_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory})


def _is_place(value: Any) -> bool:
    return isinstance(value, (torch.device, str)) or type(value) is int


def _away(moved: Any, device: Any) -> bool:
    """Whether a device is a GPU, or where a meta tensor would be moved to."""
    return (moved is not None and moved.is_meta) or type(device) is int or torch.device(device).type in _GPUS


_GPUS = ("cuda", "xpu", "mps", "hpu")
