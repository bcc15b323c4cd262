"""The kernels of which published tables and open families say least, as benchmarks: the first tasks of `gpu_day`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.measure.bench import Bench
from precision_time.measure.convolutions import ConvShape, conv_benches, shape_benches
from precision_time.measure.products import LAYOUTS, Limits, bmm
from precision_time.measure.scaled import SCALINGS, cast_benches, fp8_rate, refused, scaled_benches
from precision_time.measure.suite import SCALES, Task, bench_task, limits_of, mode_task, refusal_task
from precision_time.measure.tensors import random

ATEN = torch.ops.aten
BATCH = 32
SMALL = Limits(2e7, 2e6)
"""Of one call of a miniature run, which has one benchmark of each list."""


def large_depthwise(batch: int = BATCH) -> list[ConvShape]:
    """Depthwise convolutions with 5x5 to 31x31 weights, as in ConvNeXt, EfficientNet and RepLKNet."""
    return [
        ConvShape(batch, width, width, side, kernel, stride, width)
        for kernel in (7, 5, 9, 13, 31)
        for width, side in ((96, 56), (192, 28), (384, 14), (768, 7), (144, 112))
        for stride in ((1, 2) if kernel <= 7 else (1,))
    ]


def odd_groups(batch: int = BATCH) -> list[ConvShape]:
    """Grouped 3x3 convolutions whose groups are 1 to 112 channels wide, in NCHW efficient at other widths than NHWC."""
    return [
        ConvShape(batch, groups * width, groups * width, side, 3, stride, groups)
        for width in (4, 8, 16, 24, 40, 48, 56, 64, 112, 2, 12, 20)
        for groups, side in ((32, 28), (8, 56), (16, 14))
        for stride in (1, 2)
    ]


def few_channels(batch: int = BATCH) -> list[ConvShape]:
    """First layers of 1 to 4 channels, and layers of 8 to 24, at large sides."""
    first = [
        ConvShape(batch, c_in, c_out, side, kernel, 2)
        for c_in in (3, 1, 4)
        for c_out, side, kernel in ((64, 224, 7), (32, 224, 3), (24, 288, 3), (96, 224, 5))
    ]
    inner = [ConvShape(batch, c, c, 112, kernel, 1) for c in (8, 16, 24, 12) for kernel in (3, 1)]
    return first + inner


def squeezed(batch: int = BATCH) -> list[ConvShape]:
    """The two 1x1 convolutions of squeeze-and-excitation, on one position."""
    return [
        shape
        for wide, narrow in ((64, 16), (256, 16), (672, 28), (1152, 48), (2048, 128))
        for shape in (ConvShape(batch, wide, narrow, 1, 1, 1), ConvShape(batch, narrow, wide, 1, 1, 1))
    ]


def within(shapes: Iterable[ConvShape], limits: Limits) -> list[ConvShape]:
    """Shapes that one call can run within the limits."""
    return [s for s in shapes if s.flops <= limits.flops and s.elements <= limits.elements]


def norm_benches(dtype: torch.dtype, limits: Limits) -> list[Bench]:
    """Layer norm and its gradient over rows of 48 to 8192."""
    benches = []
    for width in (768, 96, 384, 1024, 4096, 192, 48, 8192):
        for rows in (12544, 1568, 100352):
            if 4 * rows * width > limits.elements:
                continue
            for backward in (False, True):
                name = "aten.native_layer_norm_backward" if backward else "aten.native_layer_norm"
                benches.append(Bench(name, f"{name} {rows}x{width}", _layer_norm(dtype, rows, width, backward)))
    return benches


def _layer_norm(dtype: torch.dtype, rows: int, width: int, backward: bool) -> Callable[[torch.device], Any]:
    def make(device: torch.device) -> Callable[[], Any]:
        x, w, b = (random(device, dtype, *shape) for shape in ((rows, width), (width,), (width,)))
        if not backward:
            return lambda: ATEN.native_layer_norm(x, [width], w, b, 1e-6)
        _, mean, rstd = ATEN.native_layer_norm(x, [width], w, b, 1e-6)
        grad = random(device, dtype, rows, width)
        return lambda: ATEN.native_layer_norm_backward(grad, x, [width], mean, rstd, w, b, [True] * 3)

    return make


def cat_benches(dtype: torch.dtype, limits: Limits, nhwc: bool) -> list[Bench]:
    """Images joined along their channels: a wide and a narrow one as in DenseNet, four equal ones as in Inception."""
    benches = []
    for side in (56, 28, 14, 7, 112):
        for channels in ((256, 32), (64, 32), (128,) * 4, (512, 32), (96, 96)):
            if 2 * BATCH * sum(channels) * side**2 <= limits.elements:
                name = f"cat {'+'.join(map(str, channels))}x{side}"
                benches.append(Bench("aten.cat", name, _cat(dtype, channels, side, nhwc), False, nhwc))
    return benches


def _cat(dtype: torch.dtype, channels: Sequence[int], side: int, nhwc: bool) -> Callable[[torch.device], Any]:
    def make(device: torch.device) -> Callable[[], Any]:
        order = torch.channels_last if nhwc else torch.contiguous_format
        parts = [random(device, dtype, BATCH, c, side, side).to(memory_format=order) for c in channels]
        return lambda: torch.cat(parts, 1)

    return make


def attention_benches(dtype: torch.dtype, limits: Limits) -> list[Bench]:
    """The products and softmaxes of attention without a fused kernel, with windows and with whole images."""
    low = dtype in (torch.float16, torch.bfloat16)
    benches = []
    for heads, length, size in (
        (384, 197, 64),
        (1536, 49, 32),
        (96, 577, 64),
        (64, 1024, 128),
        (768, 197, 64),
        (64, 49, 32),
    ):
        if 4 * heads * length**2 > limits.elements or 2 * heads * length**2 * size > limits.flops:
            continue
        for layout in LAYOUTS:
            m, n, k = (length, length, size) if layout == "nt" else (length, size, length)
            label = f"bmm {layout} {heads}x{m}x{n}x{k}"
            benches.append(Bench("aten.bmm", label, bmm(dtype, heads, m, n, k, layout)))
        for backward in (False, True):
            name = "aten._softmax_backward_data" if backward else "aten._softmax"
            benches.append(Bench(name, f"{name} {heads}x{length}", _softmax(dtype, heads, length, backward, low)))
    return benches


def _softmax(dtype: torch.dtype, heads: int, length: int, backward: bool, low: bool) -> Callable[[torch.device], Any]:
    """As autocast runs it on a GPU: half in and float out, in one kernel."""

    def make(device: torch.device) -> Callable[[], Any]:
        widens = low and device.type != "cpu"
        x = random(device, dtype, heads, length, length)
        if not backward:
            return lambda: ATEN._softmax(x, -1, widens)
        y = random(device, torch.float32 if widens else dtype, heads, length, length)
        return lambda: ATEN._softmax_backward_data(y, y, -1, dtype)

    return make


def grouped_benches(limits: Limits) -> list[Bench]:
    """Products of experts with torch's grouped kernel, in bfloat16: the forward pass and the input's gradient."""
    benches = []
    for experts, tokens, inner, outer in (
        (8, 8192, 4096, 14336), (64, 16384, 2048, 1408), (8, 8192, 14336, 4096), (128, 16384, 2048, 768),
        (16, 4096, 7168, 2048), (8, 512, 4096, 14336), (4, 64, 64, 128),
    ):  # fmt: skip
        if 2.0 * tokens * inner * outer > limits.flops or experts * inner * outer > limits.elements:
            continue
        specs = tuple(TensorSpec(shape, "bfloat16") for shape in ((tokens, inner), (experts, inner, outer)))
        kind = OpSignature("pt.grouped_mm", specs, (TensorSpec((tokens, outer), "bfloat16"),))
        label = f"grouped_mm {experts}x{tokens}x{inner}x{outer}"
        benches.append(Bench(kind.name, label, _grouped(experts, tokens, inner, outer), written=kind))
    return benches


def _grouped(experts: int, tokens: int, inner: int, outer: int) -> Callable[[torch.device], Any]:
    def make(device: torch.device) -> Callable[[], Any]:
        x = random(device, torch.bfloat16, tokens, inner)
        w = random(device, torch.bfloat16, experts, outer, inner).mT  # columns together, as the kernel requires
        ends = torch.arange(1, experts + 1, device=device, dtype=torch.int32) * (tokens // experts)
        return lambda: torch._grouped_mm(x, w, offs=ends)

    return make


def kernel_tasks(device: torch.device, small: bool = False) -> list[Task]:
    """All of them, those that the largest errors wait for first. `small`: one of each list, for a test."""
    kernels = _Kernels(device, small)
    return [task for tasks in kernels.lists() for task in (tasks[:1] if small else tasks)]


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The lists of tasks on a device."""

    device: torch.device
    small: bool

    def lists(self) -> Iterator[list[Task]]:
        """In the order in which they run."""
        low = torch.bfloat16 if self.device.type == "cpu" else torch.float16
        count = 4 if self.small else SCALES[self.device.type].convolutions
        for nhwc in (True, False):
            yield from self._convolutions((odd_groups, large_depthwise, few_channels, squeezed), low, nhwc)
        for nhwc in (True, False):
            yield self._tasks(conv_benches(low, count, self._limits(low), nhwc=nhwc), low)
        yield from self._fp8()
        yield [bench_task(bench, self.device) for bench in grouped_benches(self._limits(torch.bfloat16))]
        for dtype in (torch.float32, low):
            limits = self._limits(dtype)
            yield self._tasks(norm_benches(dtype, limits), dtype)
            yield self._tasks(attention_benches(dtype, limits), dtype)
            for nhwc in (True, False):
                yield self._tasks(cat_benches(dtype, limits, nhwc), dtype)
        double = torch.float64
        yield self._tasks(conv_benches(double, count, self._limits(double)), double)
        yield from self._convolutions((odd_groups, large_depthwise, few_channels), torch.float32, False)

    def _convolutions(
        self, families: Iterable[Callable[[int], list[ConvShape]]], dtype: torch.dtype, nhwc: bool
    ) -> Iterator[list[Task]]:
        for family in families:
            shapes = within(family(1 if self.small else BATCH), self._limits(dtype))
            yield self._tasks(shape_benches(shapes, dtype, nhwc=nhwc), dtype)

    def _limits(self, dtype: torch.dtype) -> Limits:
        return SMALL if self.small else limits_of(self.device, dtype)

    def _tasks(self, benches: Iterable[Bench], dtype: torch.dtype) -> list[Task]:
        return [mode_task(bench, dtype, self.device) for bench in benches]

    def _fp8(self) -> Iterator[list[Task]]:
        """Products and casts with each scaling; where the device has no fp8, one task that records the reason."""
        for scaling in SCALINGS:
            if reason := refused(self.device, scaling):
                yield [refusal_task(f"fp8 {scaling}", reason)]
                continue
            scale = SCALES[self.device.type]
            limits = SMALL if self.small else Limits.at(fp8_rate(self.device), scale.longest_call_s, scale.elements)
            count, sizes = (1, scale.traffic[:1]) if self.small else (scale.products, scale.traffic)
            for benches in (scaled_benches(count, limits, scaling), cast_benches(sizes, scaling)):
                yield [bench_task(bench, self.device) for bench in benches]
