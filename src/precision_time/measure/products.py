"""Micro-benchmarks limited by arithmetic: matrix products, convolutions and fused attention, in every pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from precision_time.measure.bench import Bench
from precision_time.measure.tensors import random

_STEPS = (0.7548776662, 0.5698402910, 0.8566748838, 0.3247179572, 0.6180339887)
"""Irrational steps: their multiples fill a box evenly at any count, with no random numbers to remember."""


def spread(*ranges: tuple[float, float]) -> Iterator[tuple[float, ...]]:
    """Points that fill a box log-uniformly, endlessly; the same every time."""
    index = 0
    while True:
        index += 1
        yield tuple(
            low * (high / low) ** ((0.5 + index * step) % 1.0)
            for step, (low, high) in zip(_STEPS, ranges, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call may cost: multiply-add FLOP and elements of all its tensors together."""

    flops: float
    elements: float


def _step(value: float, unit: int) -> int:
    return max(unit, int(value) // unit * unit)


def matmul_benches(dtype: torch.dtype, count: int, limits: Limits, tf32: bool = False) -> list[Bench]:
    """Products in the three layouts of a linear layer's passes, `count` of each: with a bias, without, batched."""
    found: list[Bench] = []
    for layout in LAYOUTS:
        for shape in _layer_shapes(count, limits):
            m, n, k = _in_pass(layout, *shape)
            found.append(Bench("aten.mm", f"mm {layout} {m}x{n}x{k}", mm(dtype, m, n, k, layout), tf32))
    for shape in _layer_shapes(count, limits):
        m, n, k = _in_pass("nt", *shape)
        found.append(Bench("aten.addmm", f"addmm nt {m}x{n}x{k}", addmm(dtype, m, n, k), tf32))
    for index, (b, m, n, k) in enumerate(_batched_shapes(count, limits)):
        layout = LAYOUTS[index % len(LAYOUTS)]
        found.append(Bench("aten.bmm", f"bmm {layout} {b}x{m}x{n}x{k}", bmm(dtype, b, m, n, k, layout), tf32))
    return found


LAYOUTS = ("nt", "nn", "tn")
"""x @ W.t() forward, g @ W for the data gradient, g.t() @ x for the weight gradient."""
_SMALLEST_SHARES = (0.03, 0.001)
"""Of the largest product's cost: every other shape is a large one, which a step consists of."""


_POWERS = tuple(1 << shift for shift in range(4, 15))
_THREES = tuple(3 << shift for shift in range(3, 13))
"""16, 32 ... 16384 and 24, 48 ... 12288: what widths, head sizes and token counts are."""


def _usual(size: float, index: int) -> int:
    """A size as models have it. Round numbers are not like their neighbours: rows a power of two apart share cache
    sets, and a plain loop over them runs at a third of the speed. Every fifth shape is only a multiple of eight."""
    return _step(size, 8) if index % 5 == 4 else _near(size, _THREES if index % 5 == 2 else _POWERS)


def _layer_shapes(count: int, limits: Limits) -> list[tuple[int, int, int]]:
    """Tokens, inputs and outputs of linear layers of all costs, up to a vocabulary's."""
    found: list[tuple[int, int, int]] = []
    for index, sizes in enumerate(spread((16, 8192), (64, 4096), (64, 16384))):
        tokens, inputs, outputs = (_usual(size, index) for size in sizes)
        share = 2.0 * tokens * inputs * outputs / limits.flops
        elements = tokens * inputs + inputs * outputs + tokens * outputs
        if _SMALLEST_SHARES[len(found) % 2] <= share <= 1.5 and elements <= limits.elements:
            found.append((tokens, inputs, outputs))
            if len(found) >= count:
                break
    return found


def _in_pass(layout: str, tokens: int, inputs: int, outputs: int) -> tuple[int, int, int]:
    """m, n, k of the product that a linear layer runs in this layout."""
    return {
        "nt": (tokens, outputs, inputs),
        "nn": (tokens, inputs, outputs),
        "tn": (outputs, inputs, tokens),
    }[layout]


def _batched_shapes(count: int, limits: Limits) -> list[tuple[int, int, int, int]]:
    """batch, m, n, k: the products of unfused attention, heads x tokens x tokens x head size and the like."""
    found: list[tuple[int, int, int, int]] = []
    shares = spread((_SMALLEST_SHARES[1], 1.0), (4, 256), (1 / 3, 3.0), (1 / 3, 3.0))
    for index, (share, batch, tall, wide) in enumerate(shares):
        b = round(batch)
        side = (share * limits.flops / 2.0 / b) ** (1 / 3)
        m, n, k = (max(_usual(side * ratio, index), 16) for ratio in (tall, wide, 1.0 / (tall * wide)))
        if 2.0 * b * m * n * k <= 1.5 * limits.flops and b * (m * n + n * k + m * k) <= limits.elements:
            found.append((b, m, n, k))
            if len(found) >= count:
                break
    return found


def mm(dtype: torch.dtype, m: int, n: int, k: int, layout: str) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        a = random(device, dtype, k, m).t() if layout == "tn" else random(device, dtype, m, k)
        b = random(device, dtype, n, k).t() if layout == "nt" else random(device, dtype, k, n)
        return lambda: torch.mm(a, b)

    return make


def addmm(dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        bias, a, b = random(device, dtype, n), random(device, dtype, m, k), random(device, dtype, n, k).t()
        return lambda: torch.addmm(bias, a, b)

    return make


def bmm(dtype: torch.dtype, b: int, m: int, n: int, k: int, layout: str) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        left = random(device, dtype, b, k, m).mT if layout == "tn" else random(device, dtype, b, m, k)
        right = random(device, dtype, b, n, k).mT if layout == "nt" else random(device, dtype, b, k, n)
        return lambda: torch.bmm(left, right)

    return make


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
"""(kernel side, stride), in the proportions that convolutional networks use them."""


_SIDES = (2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112)
_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


def conv_shapes(count: int, limits: Limits) -> list[ConvShape]:
    """Shapes of the bodies of convolutional networks, and a few stems (three channels in, large kernel)."""
    found = [
        shape
        for n, side in ((1, 64), (4, 64), (8, 112), (16, 224))
        for shape in (ConvShape(n, 3, 64, side, 7, 2), ConvShape(n, 3, 32, side, 3, 2))
        if shape.flops <= limits.flops and shape.elements <= limits.elements
    ][-4:]
    for index, (row, width, widening, batch) in enumerate(spread((300, 12000), (2, 112), (0.25, 4.0), (1, 64))):
        # networks widen as their images shrink: channels x side stays within a factor of forty
        kernel, stride = _KERNELS[index % len(_KERNELS)]
        side = _near(width, _SIDES)
        c_in = _near(row / side, _CHANNELS)
        shape = ConvShape(round(batch), c_in, _near(c_in * widening, _CHANNELS), side, kernel, stride)
        if shape.flops <= limits.flops and shape.elements <= limits.elements and shape.flops > limits.flops * 1e-3:
            found.append(shape)
        if len(found) >= count:
            return found
    return found


def _near(value: float, usual: Sequence[int]) -> int:
    return min(usual, key=lambda u: abs(math.log(u / value)))


def conv_benches(dtype: torch.dtype, count: int, limits: Limits, tf32: bool = False, nhwc: bool = False) -> list[Bench]:
    """The three passes of dense, grouped and depthwise convolutions."""
    dense = conv_shapes(count, limits)
    grouped = [
        ConvShape(s.n, c, c, max(s.side, 4), 3, 1 + i % 2, groups)
        for i, s in enumerate(dense[4 : 4 + max(count // 4, 2)])
        for c in (max(s.c_in // 32, 1) * 32,)
        for groups in ((32,) if i % 2 else (c,))
    ]
    found = []
    for shape in (*dense, *grouped):
        for direction in ("fwd", "dgrad", "wgrad"):
            name = "aten.convolution" if direction == "fwd" else "aten.convolution_backward"
            found.append(Bench(name, f"conv {direction} {shape}", _conv(dtype, shape, direction, nhwc), tf32, nhwc))
    return found


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


def attention_benches(dtype: torch.dtype, count: int, limits: Limits) -> list[Bench]:
    """Fused attention forward and backward, causal and not."""
    found: list[Bench] = []
    for index, sizes in enumerate(spread((1, 32), (1, 32), (32, 4096))):
        size = (64, 32, 128)[index % 3]
        batch, heads, length = round(sizes[0]), round(sizes[1]), _step(sizes[2], 32)
        if (
            10.0 * batch * heads * length**2 * size > limits.flops
            or 4 * batch * heads * length * size > limits.elements
        ):
            continue
        shape = (batch, heads, length, size)
        causal = index % 2 == 0
        text = "x".join(map(str, shape))
        found.append(Bench("pt.attention", f"attention {text}", attention(dtype, shape, causal)))
        found.append(
            Bench("pt.attention_backward", f"attention backward {text}", attention_backward(dtype, shape, causal))
        )
        if len(found) >= 2 * count:
            break
    return found


def attention(dtype: torch.dtype, shape: Sequence[int], causal: bool) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        q, k, v = (random(device, dtype, *shape) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return make


def attention_backward(
    dtype: torch.dtype, shape: Sequence[int], causal: bool
) -> Callable[[torch.device], Callable[[], Any]]:
    def make(device: torch.device) -> Callable[[], Any]:
        with torch.enable_grad():
            q, k, v = (random(device, dtype, *shape).requires_grad_() for _ in range(3))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        grad = random(device, dtype, *shape)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    return make
