"""The weights of a module wrapped in `FullyShardedDataParallel` (FSDP1), which ranks hold as shards of flat tensors.

Each wrapper has a flat tensor that remembers the shape and place of every weight in it
(torch/distributed/fsdp/_flat_param.py, `FlatParameter`), so that the plain module can be made again without any data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from precision_time.errors import CaptureError

FLAT = "FullyShardedDataParallel"
FLAT_PARAMETER = "_flat_param"
"""Name of the flat tensor as a weight of the wrapped module, where `use_orig_params` is off."""
_INNER = "_fsdp_wrapped_module"


class FlatWeight(NamedTuple):
    """A weight of a flat tensor: the module that has it and its name there; `tied` to another one by both."""

    module: torch.nn.Module
    name: str
    parameter: torch.nn.Parameter | None
    tied: tuple[int, str] | None


def is_flat(module: torch.nn.Module) -> bool:
    """Whether a module is such a wrapper."""
    return type(module).__name__ == FLAT


def inner_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module in a wrapper."""
    inner = module._modules.get(_INNER)
    if inner is None:
        raise _unknown(module)
    return inner


def flat_weights(wrapper: torch.nn.Module) -> Iterator[FlatWeight]:
    """The weights of a wrapper's flat tensor, whole, on the meta device.

    Raises `CaptureError` for a version of PyTorch whose flat tensors do not say what they hold.
    """
    handle = getattr(wrapper, "_handle", None)
    if handle is None:  # a wrapper around nothing but other wrappers
        return
    flat: Any = handle.flat_param
    try:
        infos, shapes, shared = flat._param_infos, flat._shapes, flat._shared_param_infos
    except AttributeError as error:
        raise _unknown(wrapper) from error
    originals = getattr(flat, "_params", None) or [flat] * len(infos)
    for info, shape, original in zip(infos, shapes, originals, strict=True):
        whole = torch.empty(tuple(shape), dtype=flat.dtype, device="meta")
        made = torch.nn.Parameter(whole, requires_grad=original.requires_grad)
        yield FlatWeight(info.module, info.param_name, made, None)
    for info in shared:
        yield FlatWeight(info.module, info.param_name, None, (id(info.prim_module), info.prim_param_name))


def _unknown(module: torch.nn.Module) -> CaptureError:
    return CaptureError(
        f"model {type(module).__name__} is wrapped in {FLAT} of a PyTorch whose flat shards do not say what they hold; "
        "give the module before it is wrapped, with layout='fsdp'"
    )
