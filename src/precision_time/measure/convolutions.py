"""Micro-benchmarks of convolutions: dense, grouped and depthwise, forward and both gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.measure.bench import Bench
from precision_time.measure.products import Limits, near, spread
from precision_time.measure.tensors import random


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A 2-d convolution: batch, channels, input side, kernel side, stride, groups."""

    n: int
    c_in: int
    c_out: int
    side: int
    kernel: int
    stride: int
    groups: int = 1

    def __str__(self) -> str:
        size = f"{self.n}x{self.c_in}x{self.side}"
        return f"{size} to {self.c_out} k{self.kernel}s{self.stride}g{self.groups}"

    @property
    def out_side(self) -> int:
        return (self.side + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> float:
        return 2.0 * self.n * self.out_side**2 * self.c_out * self.c_in / self.groups * self.kernel**2

    @property
    def elements(self) -> float:
        return float(self.n * (self.c_in * self.side**2 + self.c_out * self.out_side**2))


_KERNELS = ((3, 1), (1, 1), (3, 1), (3, 2), (1, 1), (1, 2), (3, 1), (5, 1))
"""(kernel side, stride), in proportions typical of convolutional networks."""
_SIDES = (2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112)
_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


def conv_shapes(count: int, limits: Limits) -> list[ConvShape]:
    """Shapes of layers inside convolutional networks, and up to four of their first layers (3 input channels)."""
    shapes = [
        shape
        for n, side in ((1, 64), (4, 64), (8, 112), (16, 224))
        for shape in (ConvShape(n, 3, 64, side, 7, 2), ConvShape(n, 3, 32, side, 3, 2))
        if shape.flops <= limits.flops and shape.elements <= limits.elements
    ][-4:]
    for index, (row, width, widening, batch) in enumerate(spread((300, 12000), (2, 112), (0.25, 4.0), (1, 64))):
        # networks widen as images shrink: channels x side varies by a factor of forty
        kernel, stride = _KERNELS[index % len(_KERNELS)]
        side = near(width, _SIDES)
        c_in = near(row / side, _CHANNELS)
        shape = ConvShape(round(batch), c_in, near(c_in * widening, _CHANNELS), side, kernel, stride)
        if shape.flops <= limits.flops and shape.elements <= limits.elements and shape.flops > limits.flops * 1e-3:
            shapes.append(shape)
        if len(shapes) >= count:
            return shapes
    return shapes


def conv_benches(dtype: torch.dtype, count: int, limits: Limits, tf32: bool = False, nhwc: bool = False) -> list[Bench]:
    """The three passes of dense, grouped and depthwise convolutions."""
    dense = conv_shapes(count, limits)
    grouped = [
        ConvShape(s.n, c, c, max(s.side, 4), 3, 1 + i % 2, groups)
        for i, s in enumerate(dense[4 : 4 + max(count // 4, 2)])
        for c in (max(s.c_in // 32, 1) * 32,)
        for groups in ((32,) if i % 2 else (c,))
    ]
    return shape_benches([*dense, *grouped], dtype, tf32, nhwc)


def shape_benches(
    shapes: Sequence[ConvShape], dtype: torch.dtype, tf32: bool = False, nhwc: bool = False
) -> list[Bench]:
    """The three passes of these convolutions."""
    benches = []
    for shape in shapes:
        for direction in ("fwd", "dgrad", "wgrad"):
            name = "aten.convolution" if direction == "fwd" else "aten.convolution_backward"
            benches.append(Bench(name, f"conv {direction} {shape}", _conv(dtype, shape, direction, nhwc), tf32, nhwc))
    return benches


def _conv(dtype: torch.dtype, s: ConvShape, direction: str, nhwc: bool) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        order = torch.channels_last if nhwc else torch.contiguous_format
        x = random(device, dtype, s.n, s.c_in, s.side, s.side).to(memory_format=order)
        w = random(device, dtype, s.c_out, s.c_in // s.groups, s.kernel, s.kernel).to(memory_format=order)
        setting = ([s.stride] * 2, [s.kernel // 2] * 2, [1, 1], False, [0, 0], s.groups)
        if direction == "fwd":
            return lambda: torch.ops.aten.convolution(x, w, None, *setting)
        grad = random(device, dtype, s.n, s.c_out, s.out_side, s.out_side).to(memory_format=order)
        mask = [direction == "dgrad", direction == "wgrad", False]
        return lambda: torch.ops.aten.convolution_backward(grad, x, w, None, *setting, mask)

    return make
