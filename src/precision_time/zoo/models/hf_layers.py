"""Layers of transformers' models whose work depends on data, or on the name of the device, as a trace runs them.

Experts are those of `hf_experts`. BLT: its patcher ends a patch of bytes where the next byte surprises it
(arXiv:2412.09871); here patches have `patch_size` bytes. Nemotron: its norms ask which dtype autocast has on the device
of their input, and run in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.hf_experts import EVEN


@contextmanager
def replaced_layers(module: nn.Module) -> Iterator[None]:
    """While a model runs: its layers of `_REPLACED` run without data."""
    layers = [(each, made) for each in module.modules() if (made := _REPLACED.get(_name(each)))]
    for each, made in layers:
        each.forward = made(each)
    try:
        yield
    finally:
        for each, _ in layers:
            del each.forward


def assumed_patches(config: Any) -> tuple[str, ...]:
    """What is assumed of the patches of a model of bytes; nothing for other models and where their number is known."""
    if getattr(config, "model_type", "") != "blt" or not config.patch_in_forward or config.patching_mode != "entropy":
        return ()
    size = _of_patch(config.patch_size, config.max_patch_length)
    return (f"patches have {size} bytes (patch_size), where the patcher ends them by what it reads",)


def _of_patch(size: int, most: int | None) -> int:
    return min(size, most or size)


def _name(layer: nn.Module) -> str:
    return f"{type(layer).__module__.removeprefix('transformers.models.')}.{type(layer).__name__}"


_LENGTHS = "patch_lengths_from_entropies"
"""The patcher's function that makes patches of what surprises it."""


def _in_patches(patcher: Any) -> Any:
    usual = patcher.forward

    def forward(*given: Any, patch_size: int, max_patch_length: int | None = None, **options: Any) -> Any:
        size = _of_patch(patch_size, max_patch_length)

        def lengths(entropies: Tensor, sequence_length: int, **_: Any) -> Tensor:
            patches = 2 + -(-(sequence_length - 1) // size)  # the first two bytes start patches of their own
            return torch.zeros(entropies.shape[0], patches, dtype=torch.long)

        setattr(patcher, _LENGTHS, lengths)
        try:
            return usual(*given, patch_size=size, **options)
        finally:
            delattr(patcher, _LENGTHS)

    return forward


def _in_autocast_dtype(norm: Any) -> Any:
    def forward(input: Tensor) -> Tensor:
        weight, bias = norm.weight + 1.0, norm.bias
        if torch.is_autocast_enabled():
            dtype = torch.get_autocast_dtype("cuda")
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast("cuda", enabled=False):
            return F.layer_norm(input, norm.normalized_shape, weight, bias, norm.eps)

    return forward


_REPLACED: dict[str, Callable[[Any], Any]] = {
    **EVEN,
    "blt.modeling_blt.BltPatcher": _in_patches,
    "nemotron.modeling_nemotron.NemotronLayerNorm1P": _in_autocast_dtype,
}
"""Layers of transformers' models -> what makes their forward."""
