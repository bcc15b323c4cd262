"""The products, convolutions and attentions of given jobs as benchmarks: their very shapes, each measured alone.

A surface through a few dozen points cannot know every shape; a job that is to be predicted here brings the shapes that
matter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from precision_time.capture.graph import OpGraph, OpKind
from precision_time.capture.training_step import training_step
from precision_time.job.job import Job
from precision_time.measure.bench import Bench
from precision_time.measure.products import LAYOUTS, addmm, attention, attention_backward, bmm, mm
from precision_time.measure.tensors import random
from precision_time.timing.operators import WorkOptions, works


def replay_benches(jobs: Iterable[Job], device: torch.device) -> list[Bench]:
    """Every distinct operator limited by arithmetic of the jobs, those with the most operations in a step first."""
    found: dict[str, tuple[float, Bench]] = {}
    for job in jobs:
        step = training_step(job, None, device.type)
        tf32 = step.precision.tf32 and device.type == "cuda"
        nhwc = job.memory_format == "nhwc"
        options = WorkOptions(tf32, nhwc)
        for kind, calls in _calls(step.graph):
            flops = calls * sum(work.flops for work in works(kind, options) or ())
            for bench in _benches(kind, tf32, nhwc):
                found.setdefault(bench.label, (flops, bench))
    return [bench for _, bench in sorted(found.values(), key=lambda each: -each[0])]


def _calls(graph: OpGraph) -> Iterator[tuple[OpKind, int]]:
    counts: dict[int, int] = {}
    for call in graph.calls:
        counts[call.kind] = counts.get(call.kind, 0) + 1
    for index, count in counts.items():
        yield graph.kinds[index], count


def _benches(kind: OpKind, tf32: bool, nhwc: bool) -> Iterator[Bench]:
    """The operator as benchmarks; none for what is not limited by arithmetic, or has operands not built here."""
    operands = "x".join(str(tuple(spec.shape)) for spec in kind.inputs)
    label = f"{kind.name} {operands} {kind.attrs}"
    dtype = getattr(torch, kind.inputs[0].dtype) if kind.inputs else torch.float32
    label = f"{label} {dtype}{' tf32' if tf32 else ''}{' nhwc' if nhwc else ''}"
    if kind.name in ("aten.mm", "aten.addmm", "aten.bmm"):
        layout = str(kind.attr("layout") or "nt")
        left, right = (spec.shape for spec in kind.inputs[-2:])
        if layout in LAYOUTS:
            sizes = (*left[:-1], right[-1], left[-1])
            yield Bench(kind.name, label, _product(kind.name, dtype, sizes, layout), tf32)
    elif kind.name == "aten.convolution":
        yield Bench(kind.name, label, _convolution(kind, dtype, None, nhwc), tf32, nhwc)
    elif kind.name == "aten.convolution_backward":
        mask = kind.attr("output_mask")
        for index, name in enumerate(("dgrad", "wgrad")):
            if isinstance(mask, tuple) and mask[index]:
                yield Bench(kind.name, f"{label} {name}", _convolution(kind, dtype, index, nhwc), tf32, nhwc)
    elif kind.name in ("pt.attention", "pt.attention_backward"):
        q, k, v = (spec.shape for spec in (kind.inputs[-6:-3] if len(kind.inputs) == 6 else kind.inputs[:3]))
        alike = q == k == v and not kind.attr("dropout_p") and len(kind.inputs) in (3, 6)
        if alike:
            make = attention if kind.name == "pt.attention" else attention_backward
            yield Bench(kind.name, label, make(dtype, q, bool(kind.attr("is_causal"))))


def _product(
    name: str, dtype: torch.dtype, sizes: tuple[int, ...], layout: str
) -> Callable[[torch.device], Callable[[], Any]]:
    if name == "aten.bmm":
        b, m, n, k = sizes[0], sizes[1], sizes[2], sizes[3]
        return bmm(dtype, b, m, n, k, layout)
    m, n, k = sizes
    return addmm(dtype, m, n, k) if name == "aten.addmm" else mm(dtype, m, n, k, layout)


def _convolution(
    kind: OpKind, dtype: torch.dtype, gradient: int | None, nhwc: bool
) -> Callable[[torch.device], Callable[[], Any]]:
    """Forward, or with a `gradient` that of the input (0) or of the weight (1)."""
    grad = None if gradient is None else kind.inputs[0].shape
    x, w = (spec.shape for spec in (kind.inputs[:2] if gradient is None else kind.inputs[1:3]))
    dimensions = len(x) - 2
    setting = [list(_sizes(kind, name)) for name in ("stride", "padding", "dilation")]
    arguments = (*setting, bool(kind.attr("transposed")), [0] * dimensions, kind.int_attr("groups", 1))

    def tensor(device: torch.device, shape: tuple[int, ...]) -> torch.Tensor:
        made = random(device, dtype, *shape)
        return made.to(memory_format=torch.channels_last) if nhwc and made.dim() == 4 else made

    def make(device: torch.device) -> Callable[[], Any]:
        first, second = tensor(device, x), tensor(device, w)
        if grad is None:
            return lambda: torch.ops.aten.convolution(first, second, None, *arguments)
        third = tensor(device, grad)
        mask = [gradient == 0, gradient == 1, False]
        return lambda: torch.ops.aten.convolution_backward(third, first, second, None, *arguments, mask)

    return make


def _sizes(kind: OpKind, name: str) -> tuple[int, ...]:
    value = kind.attr(name)
    return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
