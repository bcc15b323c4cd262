"""The memory format "nhwc": images stored channels last, as training code sets it and as CUDA's operators keep it.

The meta device runs PyTorch's rules of shapes and strides, so copies appear in the trace where a real step makes them.
It departs from CUDA in two ways, which are corrected here: some results are laid out otherwise (`RESULTS`), and the
copies that an operator makes itself of operands that lie otherwise, before its kernel, are not seen (`COPIES`, which
hold in rows, too: a convolution copies a part of the channels in either format).
tests/test_channels_last.py compares operators and strides with real execution on a CPU, where copies inside CUDA's
operators cannot be seen: `COPIES` follows PyTorch's sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

FORMATS: Mapping[int, torch.memory_format] = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The format of tensors with as many dimensions; others have one only."""


def converted(value: Any) -> Any:
    """An input of the model, with images and volumes channels last."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dim() not in FORMATS:
        return value
    return value.to(memory_format=FORMATS[value.dim()])


def convert(module: torch.nn.Module) -> None:
    """Store weights and buffers channels last, as `module.to(memory_format=torch.channels_last)` does, which refuses
    weights of three-dimensional convolutions; these become `channels_last_3d`."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() in FORMATS:
            tensor.data = tensor.data.to(memory_format=FORMATS[tensor.dim()])


def is_last(value: Any) -> bool:
    """Whether PyTorch takes a tensor to be channels last by its strides; a part of its channels is so, too."""
    if not isinstance(value, torch.Tensor) or value.dim() not in FORMATS:
        return False
    return suggest_memory_format(value) is FORMATS[value.dim()]


@dataclass(frozen=True, slots=True)
class Copies:
    """Operands that an operator copies into the order of its kernel before it runs.

    deciding    positions of the arguments of which one channels last suffices for the kernel to be one for that format
    operands    positions of those that are copied if they lie otherwise, or are a part of the channels of a tensor
    """

    deciding: tuple[int, ...]
    operands: tuple[int, ...]

    def last(self, args: Sequence[Any]) -> bool:
        """Whether the kernel is one for channels last."""
        return any(is_last(args[i]) for i in self.deciding)

    def of(self, args: Sequence[Any]) -> dict[int, torch.Tensor]:
        """The copies, by position."""
        last = self.last(args)
        formats = {i: FORMATS[args[i].dim()] if last else torch.contiguous_format for i in self.operands}
        return {
            i: torch.empty_like(args[i], memory_format=wanted)
            for i, wanted in formats.items()
            if not args[i].is_contiguous(memory_format=wanted)
        }


def _convolved(args: Sequence[Any], out: Any) -> Any:
    """Channels last where input or weight are (ConvUtils.h, cudnn_conv_suggest_memory_format)."""
    return converted(out) if is_last(args[0]) or is_last(args[1]) else out


def _convolved_back(args: Sequence[Any], out: Any) -> Any:
    """The gradients of input and weight likewise; torch before 2.13 has them in rows on the meta device."""
    if not is_last(args[1]) and not is_last(args[2]):
        return out
    return (*(converted(gradient) for gradient in out[:2]), *out[2:])


def _by_gradient(position: int) -> Callable[[Sequence[Any], Any], Any]:
    """A pointwise gradient, which on the meta device is composed of operators in another order of operands. CUDA's
    kernel iterates as a sum of the gradient and the argument at `position` does."""

    def iterated(args: Sequence[Any], out: Any) -> Any:
        strides = torch.add(args[0], args[position]).stride()
        return torch.empty_strided(out.shape, strides, dtype=out.dtype, device="meta")

    return iterated


_aten = torch.ops.aten
RESULTS: Mapping[Callable[..., Any], Callable[[Sequence[Any], Any], Any]] = {
    # operator: its result on CUDA from its arguments and its result on the meta device
    _aten.convolution.default: _convolved,
    _aten.convolution_backward.default: _convolved_back,
    _aten.hardtanh_backward.default: _by_gradient(1),
    _aten.hardswish_backward.default: _by_gradient(1),
    _aten.hardsigmoid_backward.default: _by_gradient(1),
    _aten.softplus_backward.default: _by_gradient(1),
    _aten.elu_backward.default: _by_gradient(5),
}
COPIES: Mapping[Callable[..., Any], Copies] = {
    # cudnn/ConvShared.cpp. Arguments: input, weight; gradient, input, weight.
    _aten.convolution.default: Copies((0, 1), (0, 1)),
    _aten.convolution_backward.default: Copies((1, 2), (0, 1, 2)),
    _aten.native_batch_norm.default: Copies((0,), ()),
    # The gradient in the format of the input: cudnn/BatchNorm.cpp, cuda/DilatedMaxPool2d.cu, cuda/AveragePool2d.cu.
    _aten.native_batch_norm_backward.default: Copies((1,), (0,)),
    _aten.max_pool2d_with_indices_backward.default: Copies((1,), (0,)),
    _aten.avg_pool2d_backward.default: Copies((1,), (0,)),
    _aten.upsample_bilinear2d.default: Copies((0,), ()),
    # Always in rows: cuda/layer_norm_kernel.cu.
    _aten.native_layer_norm.default: Copies((), (0,)),
    _aten.native_layer_norm_backward.default: Copies((), (0, 1)),
}
_TIMED_BY_FORMAT = frozenset(
    {
        _aten.convolution.default, _aten.convolution_backward.default,
        _aten.native_batch_norm.default, _aten.native_batch_norm_backward.default,
        _aten.upsample_bilinear2d.default,
    }
)  # fmt: skip


def runs_last(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether an operator whose kernels are timed by format runs one for channels last, by its operands' strides."""
    return func in _TIMED_BY_FORMAT and COPIES[func].last(args)


def runs_first(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether an interpolation among images stored channels last is one of a tensor that is not."""
    return func is _aten.upsample_bilinear2d.default and not is_last(args[0])
