"""Micro-benchmarks limited by memory: pointwise operators, norms, softmax, casts, copies, pooling, lookups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from precision_time.measure.bench import Bench
from precision_time.measure.tensors import random

Call = Callable[[], Any]
Build = Callable[[torch.device, torch.dtype, int], Call]
"""(device, dtype, number of elements) -> the call to time."""

ATEN = torch.ops.aten


def _flat(device: torch.device, dtype: torch.dtype, elements: int) -> torch.Tensor:
    return random(device, dtype, elements)


def _rows(device: torch.device, dtype: torch.dtype, elements: int, width: int = 512) -> torch.Tensor:
    return random(device, dtype, max(elements // width, 2), width)


def _image(device: torch.device, dtype: torch.dtype, elements: int, channels: int = 64) -> torch.Tensor:
    side = max(4, round((elements / (4 * channels)) ** 0.5) // 2 * 2)
    return random(device, dtype, 4, channels, side, side)


def _one(function: Callable[..., Any], in_place: bool = False) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        x = _flat(device, dtype, elements)
        return lambda: function(x)

    return build


def _two(function: Callable[..., Any]) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        x, y = _flat(device, dtype, elements), _flat(device, dtype, elements)
        return lambda: function(x, y)

    return build


def _layer_norm(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x, w, b = _rows(device, dtype, elements), _flat(device, dtype, 512), _flat(device, dtype, 512)
    return lambda: ATEN.native_layer_norm(x, [512], w, b, 1e-5)


def _layer_norm_backward(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x, w, b = _rows(device, dtype, elements), _flat(device, dtype, 512), _flat(device, dtype, 512)
    _, mean, rstd = ATEN.native_layer_norm(x, [512], w, b, 1e-5)
    g = _rows(device, dtype, elements)
    return lambda: ATEN.native_layer_norm_backward(g, x, [512], mean, rstd, w, b, [True] * 3)


def _statistics(device: torch.device, channels: int) -> tuple[torch.Tensor, ...]:
    """Weight, bias, running mean and variance in float32, their dtype under autocast."""
    one, zero = torch.ones(channels, device=device), torch.zeros(channels, device=device)
    return one, zero, zero.clone(), one.clone()


def _batch_norm(
    device: torch.device, dtype: torch.dtype, elements: int, order: torch.memory_format = torch.contiguous_format
) -> Call:
    x = _image(device, dtype, elements).to(memory_format=order)
    w, b, mean, var = _statistics(device, x.shape[1])
    return lambda: ATEN.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)


def _batch_norm_backward(
    device: torch.device, dtype: torch.dtype, elements: int, order: torch.memory_format = torch.contiguous_format
) -> Call:
    x = _image(device, dtype, elements).to(memory_format=order)
    g = torch.randn_like(x)
    w, b, mean, var = _statistics(device, x.shape[1])
    _, saved_mean, saved_rstd = ATEN.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)
    return lambda: ATEN.native_batch_norm_backward(g, x, w, mean, var, saved_mean, saved_rstd, True, 1e-5, [True] * 3)


def _group_norm(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _image(device, dtype, elements)
    n, c, h, w = x.shape
    weight, bias = _flat(device, dtype, c), _flat(device, dtype, c)
    return lambda: ATEN.native_group_norm(x, weight, bias, n, c, h * w, 32, 1e-5)


def _group_norm_backward(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _image(device, dtype, elements)
    g = torch.randn_like(x)
    n, c, h, w = x.shape
    weight, bias = _flat(device, dtype, c), _flat(device, dtype, c)
    _, mean, rstd = ATEN.native_group_norm(x, weight, bias, n, c, h * w, 32, 1e-5)
    return lambda: ATEN.native_group_norm_backward(g, x, mean, rstd, weight, n, c, h * w, 32, [True] * 3)


def _resample(name: str, *corners: bool) -> Build:
    """An image to twice its height and width; `elements` counts the larger one."""

    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        x = _image(device, dtype, max(elements // 4, 1))
        size = [2 * x.shape[2], 2 * x.shape[3]]
        return lambda: getattr(ATEN, name)(x, size, *corners)

    return build


def _resample_backward(name: str, *corners: bool) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        small = list(_image(device, dtype, max(elements // 4, 1)).shape)
        size = [2 * small[2], 2 * small[3]]
        g = random(device, dtype, *small[:2], *size)
        return lambda: getattr(ATEN, name)(g, size, small, *corners)

    return build


def _softmax_of(function: Any, width: int) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        x = _rows(device, dtype, elements, width)
        return lambda: function(x, -1, False)

    return build


def _softmax_backward_of(function: Any, forward: Any, width: int) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        g = _rows(device, dtype, elements, width)
        y = forward(g, -1, False)
        return lambda: function(g, y, -1, dtype)

    return build


def _dropout(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _flat(device, dtype, elements)
    return lambda: F.dropout(x, 0.1, training=True)


def _max_pool(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _image(device, dtype, elements)
    return lambda: ATEN.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])


def _max_pool_backward(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _image(device, dtype, elements)
    y, at = ATEN.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    g = torch.randn_like(y)
    return lambda: ATEN.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)


def _lookup(device: torch.device, elements: int, width: int = 256) -> tuple[torch.Tensor, int]:
    """Row indices and the number of rows of a table; the table has twice as many rows as are looked up."""
    count = max(elements // width, 1)
    vocabulary = 2 * count
    if device.type == "meta":
        return torch.zeros(count, dtype=torch.int64, device=device), vocabulary
    return torch.randint(0, vocabulary, (count,), device=device), vocabulary


def _embedding(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    at, vocabulary = _lookup(device, elements)
    table = random(device, dtype, vocabulary, 256)
    return lambda: ATEN.embedding(table, at)


def _embedding_backward(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    at, vocabulary = _lookup(device, elements)
    g = random(device, dtype, at.shape[0], 256)
    return lambda: ATEN.embedding_dense_backward(g, at, vocabulary, -1, False)


def _nll_loss(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _rows(device, dtype, elements, 1024)
    label = torch.zeros(x.shape[0], dtype=torch.int64, device=device)
    return lambda: ATEN.nll_loss_forward(x, label, None, 1, -100)


def _nll_loss_backward(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _rows(device, dtype, elements, 1024)
    label = torch.zeros(x.shape[0], dtype=torch.int64, device=device)
    one, weight = torch.ones((), device=device, dtype=dtype), torch.tensor(float(x.shape[0]), device=device).to(dtype)
    return lambda: ATEN.nll_loss_backward(one, x, label, None, 1, -100, weight)


def _transposed_copy(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = random(device, dtype, 4, max(elements // 1024, 2), 4, 64).transpose(1, 2)
    return lambda: x.contiguous()


def _concatenate(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    parts = [_rows(device, dtype, elements // 3, 256) for _ in range(3)]
    return lambda: torch.cat(parts, -1)


def _cast_from(source: torch.dtype) -> Build:
    def build(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
        x = _flat(device, source, elements)
        return lambda: ATEN._to_copy(x, dtype=dtype)

    return build


def _column_sum(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _rows(device, dtype, elements)
    return lambda: torch.sum(x, 0, keepdim=True)


def _mean_of_images(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _image(device, dtype, elements)
    return lambda: torch.mean(x, (2, 3))


def _masked_fill(device: torch.device, dtype: torch.dtype, elements: int) -> Call:
    x = _flat(device, dtype, elements)
    mask = torch.zeros(elements, dtype=torch.bool, device=device)
    return lambda: x.masked_fill(mask, -1.0)


OPERATORS: dict[str, Build] = {
    "aten.add": _two(torch.add),
    "aten.add_": _two(lambda x, y: x.add_(y, alpha=1e-6)),
    "aten.mul": _two(torch.mul),
    "aten.div": _one(lambda x: x / 3.0),
    "aten.relu": _one(torch.relu),
    "aten.relu_": _one(torch.relu_),
    "aten.threshold_backward": _two(lambda x, y: ATEN.threshold_backward(x, y, 0)),
    "aten.gelu": _one(F.gelu),
    "aten.gelu_backward": _two(ATEN.gelu_backward),
    "aten.silu": _one(F.silu),
    "aten.silu_backward": _two(ATEN.silu_backward),
    "aten.sigmoid": _one(torch.sigmoid),
    "aten.tanh": _one(torch.tanh),
    "aten.tanh_backward": _two(ATEN.tanh_backward),
    "aten.exp": _one(torch.exp),
    "aten.masked_fill": _masked_fill,
    "aten.native_dropout": _dropout,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten.upsample_nearest2d": _resample("upsample_nearest2d"),
    "aten.upsample_nearest2d_backward": _resample_backward("upsample_nearest2d_backward"),
    "aten.upsample_bilinear2d": _resample("upsample_bilinear2d", False),
    "aten.upsample_bilinear2d_backward": _resample_backward("upsample_bilinear2d_backward", False),
    "aten._softmax": _softmax_of(ATEN._softmax, 256),
    "aten._softmax_backward_data": _softmax_backward_of(ATEN._softmax_backward_data, ATEN._softmax, 256),
    "aten._log_softmax": _softmax_of(ATEN._log_softmax, 1024),
    "aten._log_softmax_backward_data": _softmax_backward_of(ATEN._log_softmax_backward_data, ATEN._log_softmax, 1024),
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_backward,
    "aten.max_pool2d_with_indices": _max_pool,
    "aten.max_pool2d_with_indices_backward": _max_pool_backward,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.clone": _transposed_copy,
    "aten.cat": _concatenate,
    "aten.sum": _column_sum,
    "aten.mean": _mean_of_images,
    "aten.zeros_like": _one(torch.zeros_like),
}
"""Operator of the graph -> builder of its call. Other operators take the times of similar ones (timing.calibrated)."""

ONLY_FULL = frozenset({"aten.embedding", "aten.embedding_dense_backward", "aten.exp", "aten.nll_loss_forward",
                       "aten.nll_loss_backward", "aten._log_softmax", "aten._log_softmax_backward_data",
                       "aten.upsample_nearest2d", "aten.upsample_nearest2d_backward", "aten.upsample_bilinear2d",
                       "aten.upsample_bilinear2d_backward"})  # fmt: skip
"""Operators that autocast runs in float32."""


def traffic_benches(dtype: torch.dtype, elements: list[int]) -> list[Bench]:
    """Every operator at every size, in one dtype."""
    low = dtype in (torch.float16, torch.bfloat16)
    benches = [
        Bench(name, f"{name} {size}", _bound(build, dtype, size))
        for name, build in OPERATORS.items()
        for size in elements
        if not (low and name in ONLY_FULL)
    ]
    if low:
        for size in elements:
            for name, source, target in (("to low", torch.float32, dtype), ("to float32", dtype, torch.float32)):
                benches.append(Bench("aten._to_copy", f"cast {name} {size}", _bound(_cast_from(source), target, size)))
    return benches


def nhwc_benches(dtype: torch.dtype, elements: list[int]) -> list[Bench]:
    """The operators whose kernels differ by memory format, in NHWC."""
    return [
        Bench(
            name, f"{name} {size}", _bound(partial(build, order=torch.channels_last), dtype, size), channels_last=True
        )
        for name, build in (
            ("aten.native_batch_norm", _batch_norm),
            ("aten.native_batch_norm_backward", _batch_norm_backward),
        )
        for size in elements
    ]


def _bound(build: Build, dtype: torch.dtype, elements: int) -> Callable[[torch.device], Call]:
    return lambda device: build(device, dtype, elements)
