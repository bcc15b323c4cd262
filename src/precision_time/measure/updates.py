"""Micro-benchmarks of sweeps over parameters: passes of optimizers, clipping, gradient buckets.

A sweep is a loop of small kernels over the tensors of a list. The passes of an optimizer run one after another on the
same tensor, so all but the first find it in the cache; passes are therefore timed in the order in which they run. The
Python cost per tensor is a host cost (`hosts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precision_time.capture.graph import OpSignature
from precision_time.capture.optimizer import Sweep, sweep_kind
from precision_time.measure.clock import Timed, summary
from precision_time.measure.tensors import FOOTPRINT_BYTES, random

LARGEST_TENSOR = 1 << 18
"""Elements of one tensor in a sweep: weights of a megabyte."""
_REPEATS = 7
Operation = Callable[[Sequence[torch.Tensor]], Any]

PASSES: dict[str, tuple[int, int, Operation]] = {
    "mul_": (1, 1, lambda t: t[0].mul_(0.9999)),
    "mul": (1, 1, lambda t: t[0].mul(0.9999)),
    "add_": (2, 1, lambda t: t[0].add_(t[1], alpha=1e-6)),
    "add": (2, 1, lambda t: t[0].add(t[1], alpha=1e-6)),
    "sqrt": (1, 1, lambda t: t[0].sqrt()),
    "div_": (1, 1, lambda t: t[0].div_(1.0001)),
    "lerp_": (2, 1, lambda t: t[0].lerp_(t[1], 1e-4)),
    "addcmul_": (2, 1, lambda t: t[0].addcmul_(t[1], t[1], value=1e-6)),
    "addcdiv_": (3, 1, lambda t: t[0].addcdiv_(t[1], t[2], value=1e-6)),
    "grad_norm": (1, 0, lambda t: torch.linalg.vector_norm(t[0])),
    "clip": (1, 1, lambda t: t[0].mul_(1.0)),
    "unscale": (1, 1, lambda t: t[0].mul_(1.0)),
    "into_buckets": (1, 1, lambda t: torch.mul(t[0], 0.5, out=t[1])),
    "out_of_buckets": (1, 1, lambda t: t[1].copy_(t[0])),
    "accumulate": (2, 1, lambda t: t[0].add_(t[1])),
}
"""Label of the sweep -> tensors read and written per element, and one tensor's operation."""

CHAINS: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "adam": (
        ("lerp_", (2, 1)), ("mul_", (3,)), ("addcmul_", (3, 1)), ("sqrt", (3,)), ("div_", (4,)),
        ("addcdiv_", (0, 2, 4)),
    ),
    "sgd": (("add", (1, 0)), ("mul_", (2,)), ("add_", (2, 1)), ("add_", (0, 2))),
    "adagrad": (("addcmul_", (2, 1)), ("sqrt", (2,)), ("mul", (1,)), ("addcdiv_", (0, 1, 2))),
    "clip": (("grad_norm", (1,)), ("clip", (1,))),
    "unscale": (("unscale", (1,)),),
    "reduce": (("into_buckets", (1, 3)), ("out_of_buckets", (3, 1))),
    "accumulate": (("accumulate", (1, 0)),),
}  # fmt: skip
"""Passes in the order in which they run on one tensor, with the indices of their operands: 0 weight, 1 gradient,
2 and 3 optimizer state, 4 temporary."""


def sweep_of(label: str, numels: Sequence[int]) -> OpSignature:
    """The signature of the sweep in the graph of a step."""
    reads, writes, _ = PASSES[label]
    return sweep_kind(label, Sweep(tuple(numels)), ["float32"] * reads, ["float32"] * writes, "single")


def chain_times(chain: str, numels: Sequence[int], device: torch.device) -> dict[str, Timed]:
    """Seconds of each pass of a chain over tensors of these sizes, by label; the mean if a label occurs twice."""
    passes = CHAINS[chain]
    nbytes = 5 * 4 * sum(numels)
    lists = int(min(max(FOOTPRINT_BYTES[device.type] / nbytes, 1), 24))
    groups = [[[random(device, torch.float32, n).abs_() for _ in range(5)] for n in numels] for _ in range(lists)]
    with torch.no_grad():
        samples: dict[str, list[float]] = {label: [] for label, _ in passes}
        for repeat in range(_REPEATS + 1):
            spent = [0.0] * len(passes)
            for group in groups:
                _chained(passes, group, spent)
            if repeat:
                for label in samples:
                    seconds = [s for s, (name, _) in zip(spent, passes, strict=True) if name == label]
                    samples[label].append(sum(seconds) / len(seconds) / lists)
    return {label: summary(seconds) for label, seconds in samples.items()}


def _chained(
    passes: Sequence[tuple[str, tuple[int, ...]]], group: list[list[torch.Tensor]], spent: list[float]
) -> None:
    clock = time.perf_counter
    for tensors in group:
        begin = clock()
        for index, (label, at) in enumerate(passes):
            result = PASSES[label][2]([tensors[i] for i in at])
            if label == "sqrt":
                tensors[4] = result  # a new tensor, like the denominator of Adam
            end = clock()
            spent[index] += end - begin
            begin = end


def tensor_sizes(elements: int) -> list[int]:
    """Sizes of tensors with `elements` elements in all, each of at most a megabyte."""
    whole, rest = divmod(elements, LARGEST_TENSOR)
    return [LARGEST_TENSOR] * whole + ([rest] if rest else [])
