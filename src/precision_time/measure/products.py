"""Micro-benchmarks limited by arithmetic: matrix products and fused attention, in every pass."""

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
"""Irrational steps: the fractional parts of their multiples fill a box evenly at any count, without random numbers."""


def spread(*ranges: tuple[float, float]) -> Iterator[tuple[float, ...]]:
    """An endless, deterministic sequence of points that fills a box log-uniformly."""
    index = 0
    while True:
        index += 1
        yield tuple(
            low * (high / low) ** ((0.5 + index * step) % 1.0)
            for step, (low, high) in zip(_STEPS, ranges, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one call: FLOP, and elements of all its tensors."""

    flops: float
    elements: float

    @classmethod
    def at(cls, flops_per_s: float, longest_call_s: float, elements: float) -> Limits:
        """Of a device with this rate of products, within the sizes at which shapes of every family are found."""
        most = min(MOST_FLOPS, 20.0 * (elements / 3.0) ** 1.5)  # ten times the cube of so many elements
        return cls(min(max(flops_per_s * longest_call_s, LEAST_FLOPS), most), elements)


LEAST_FLOPS, MOST_FLOPS = 4e6, 1e13
"""A slow processor, or one that stood still while its rate was measured, takes longer for a call than was meant; the
largest product of `layer_shapes` has 1.1e12."""


def _step(value: float, unit: int) -> int:
    return max(unit, int(value) // unit * unit)


def matmul_benches(dtype: torch.dtype, count: int, limits: Limits, tf32: bool = False) -> list[Bench]:
    """`count` products of each kind: the three passes of a linear layer, with a bias, and batched."""
    benches: list[Bench] = []
    for layout in LAYOUTS:
        for shape in layer_shapes(count, limits):
            m, n, k = in_pass(layout, *shape)
            benches.append(Bench("aten.mm", f"mm {layout} {m}x{n}x{k}", mm(dtype, m, n, k, layout), tf32))
    for shape in layer_shapes(count, limits):
        m, n, k = in_pass("nt", *shape)
        benches.append(Bench("aten.addmm", f"addmm nt {m}x{n}x{k}", addmm(dtype, m, n, k), tf32))
    for index, (b, m, n, k) in enumerate(_batched_shapes(count, limits)):
        layout = LAYOUTS[index % len(LAYOUTS)]
        benches.append(Bench("aten.bmm", f"bmm {layout} {b}x{m}x{n}x{k}", bmm(dtype, b, m, n, k, layout), tf32))
    return benches


LAYOUTS = ("nt", "nn", "tn")
"""x @ W.t() forward, g @ W for the data gradient, g.t() @ x for the weight gradient."""
_SMALLEST_SHARES = (0.03, 0.001)
"""Smallest FLOP as shares of the limit, used alternately: every other shape is large, as in most of a step."""
_POWERS = tuple(1 << shift for shift in range(4, 15))
_THREES = tuple(3 << shift for shift in range(3, 13))
"""16, 32 ... 16384 and 24, 48 ... 12288: usual widths, head sizes and token counts."""


def _usual(size: float, index: int) -> int:
    """A usual size of models; every fifth is only a multiple of eight. Powers of two behave differently from their
    neighbours: rows that far apart share cache sets, and a plain loop over them runs at a third of the speed."""
    return _step(size, 8) if index % 5 == 4 else near(size, _THREES if index % 5 == 2 else _POWERS)


def near(value: float, usual: Sequence[int]) -> int:
    """The usual size whose ratio to `value` is nearest to one."""
    return min(usual, key=lambda u: abs(math.log(u / value)))


def layer_shapes(count: int, limits: Limits) -> list[tuple[int, int, int]]:
    """(tokens, inputs, outputs) of linear layers, up to those of a vocabulary."""
    shapes: list[tuple[int, int, int]] = []
    for index, sizes in enumerate(spread((16, 8192), (64, 4096), (64, 16384))):
        tokens, inputs, outputs = (_usual(size, index) for size in sizes)
        share = 2.0 * tokens * inputs * outputs / limits.flops
        elements = tokens * inputs + inputs * outputs + tokens * outputs
        if _SMALLEST_SHARES[len(shapes) % 2] <= share <= 1.5 and elements <= limits.elements:
            shapes.append((tokens, inputs, outputs))
            if len(shapes) >= count:
                break
    return shapes


def in_pass(layout: str, tokens: int, inputs: int, outputs: int) -> tuple[int, int, int]:
    """m, n, k of the product that a linear layer runs in this layout."""
    return {
        "nt": (tokens, outputs, inputs),
        "nn": (tokens, inputs, outputs),
        "tn": (outputs, inputs, tokens),
    }[layout]


def _batched_shapes(count: int, limits: Limits) -> list[tuple[int, int, int, int]]:
    """(batch, m, n, k) of batched products such as those of unfused attention."""
    shapes: list[tuple[int, int, int, int]] = []
    shares = spread((_SMALLEST_SHARES[1], 1.0), (4, 256), (1 / 3, 3.0), (1 / 3, 3.0))
    for index, (share, batch, tall, wide) in enumerate(shares):
        b = round(batch)
        side = (share * limits.flops / 2.0 / b) ** (1 / 3)
        m, n, k = (max(_usual(side * ratio, index), 16) for ratio in (tall, wide, 1.0 / (tall * wide)))
        if 2.0 * b * m * n * k <= 1.5 * limits.flops and b * (m * n + n * k + m * k) <= limits.elements:
            shapes.append((b, m, n, k))
            if len(shapes) >= count:
                break
    return shapes


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


def attention_benches(dtype: torch.dtype, count: int, limits: Limits) -> list[Bench]:
    """Fused attention forward and backward, causal and not."""
    benches: list[Bench] = []
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
        benches.append(Bench("pt.attention", f"attention {text}", attention(dtype, shape, causal)))
        benches.append(
            Bench("pt.attention_backward", f"attention backward {text}", attention_backward(dtype, shape, causal))
        )
        if len(benches) >= 2 * count:
            break
    return benches


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
