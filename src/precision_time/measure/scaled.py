"""Benchmarks of scaled fp8: products in the three passes of a linear layer, and the casts of their operands.

Capture inserts these operators without tracing them (`capture.fp8`), so each benchmark carries the signature of its
operator in a captured step. fp8 units take the first operand by rows and the second by columns in every pass; a
framework transposes operands while it casts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precision_time.capture.fp8 import cast_kind, product_kind
from precision_time.capture.graph import TensorSpec
from precision_time.measure.bench import Bench
from precision_time.measure.clock import timed
from precision_time.measure.products import LAYOUTS, Limits, in_pass, layer_shapes
from precision_time.measure.tensors import random

SCALINGS = ("tensorwise", "rowwise")
_GRID = 16
"""Sizes are multiples of this: fp8 units require it, and capture runs only such layers in fp8."""
_ROW = 1024
_CAPABILITY = (8, 9)
"""Compute capability from which NVIDIA's GPUs have fp8 (Ada, Hopper)."""
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def refused(device: torch.device, scaling: str) -> str | None:
    """The reason why the device has no fp8 products with this scaling; None if it has."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _CAPABILITY:
            need, have = (".".join(map(str, version)) for version in (_CAPABILITY, capability))
            return f"no fp8: its products need compute capability {need}, this GPU has {have}"
    try:
        scaled_mm(64, 64, 64, scaling, False)(device)()
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return f"no fp8 with {scaling} scaling: {first}"
    return None


def fp8_rate(device: torch.device, side: int = 256) -> float:
    """FLOP/s of an fp8 product with sides of `side`."""
    return 2.0 * side**3 / timed(scaled_mm(side, side, side, "tensorwise", False)(device), device, 0.05).seconds


def scaled_benches(count: int, limits: Limits, scaling: str) -> list[Bench]:
    """`count` products in each pass: e4m3 by e4m3 forward, e5m2 gradients by e4m3 backward, results in bfloat16."""
    benches: dict[str, Bench] = {}
    for layout in LAYOUTS:
        gradient = layout != "nt"
        for shape in layer_shapes(count, limits):
            m, n, k = (max(_GRID, size // _GRID * _GRID) for size in in_pass(layout, *shape))
            casts = (
                cast_kind(TensorSpec((m, k), "bfloat16"), scaling, gradient),
                cast_kind(TensorSpec((k, n), "bfloat16"), scaling, False),
            )
            kind = product_kind([cast.outputs[0] for cast in casts], TensorSpec((m, n), "bfloat16"), scaling)
            label = f"scaled_mm {scaling} {layout} {m}x{n}x{k}"
            benches[label] = Bench(kind.name, label, scaled_mm(m, n, k, scaling, gradient), written=kind)
    return list(benches.values())


def cast_benches(sizes: Sequence[int], scaling: str) -> list[Bench]:
    """Casts of about these numbers of elements, alternately to e4m3 and to e5m2."""
    benches: list[Bench] = []
    for index, elements in enumerate(sizes):
        rows, gradient = max(elements // _ROW, 1), index % 2 == 1
        kind = cast_kind(TensorSpec((rows, _ROW), "bfloat16"), scaling, gradient)
        label = f"quantize {scaling} {kind.outputs[0].dtype} {rows}x{_ROW}"
        benches.append(Bench(kind.name, label, scaled_cast(rows, _ROW, scaling, gradient), written=kind))
    return benches


def scaled_mm(
    m: int, n: int, k: int, scaling: str, gradient: bool
) -> Callable[[torch.device], Callable[[], torch.Tensor]]:
    """`torch._scaled_mm` as linear layers call it; only the forward pass may accumulate in fewer bits, as it does in
    Transformer Engine and torchao."""

    def make(device: torch.device) -> Callable[[], torch.Tensor]:
        a = random(device, _low(gradient), m, k)
        b = random(device, _low(False), n, k).t()
        shapes = ((m, 1), (1, n)) if scaling == "rowwise" else ((), ())
        left, right = (torch.ones(shape, device=device) for shape in shapes)
        return lambda: torch._scaled_mm(a, b, left, right, out_dtype=torch.bfloat16, use_fast_accum=not gradient)

    return make


def scaled_cast(m: int, k: int, scaling: str, gradient: bool) -> Callable[[torch.device], Callable[[], Any]]:
    """Maximum magnitude (per row if rowwise), scale, scaled cast: two passes over the operand and small kernels."""

    def make(device: torch.device) -> Callable[[], Any]:
        x, low = random(device, torch.bfloat16, m, k), torch.empty(m, k, dtype=_low(gradient), device=device)
        largest = _LARGEST[low.dtype]
        rows = {"dim": -1, "keepdim": True} if scaling == "rowwise" else {}

        def call() -> tuple[torch.Tensor, torch.Tensor]:
            scale = largest / torch.linalg.vector_norm(x, float("inf"), **rows).float()
            return torch.mul(x, scale, out=low), scale

        return call

    return make


def _low(gradient: bool) -> torch.dtype:
    return torch.float8_e5m2 if gradient else torch.float8_e4m3fn
