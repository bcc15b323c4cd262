"""The plan of measurements on a device: which operators run in which dtypes, the most informative first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.errors import MeasureError
from precision_time.job.job import Job
from precision_time.measure.bench import Bench, tf32_allowed
from precision_time.measure.clock import timed
from precision_time.measure.convolutions import conv_benches
from precision_time.measure.journal import Record
from precision_time.measure.point import Point
from precision_time.measure.products import Limits, attention_benches, matmul_benches
from precision_time.measure.replay import replay_benches
from precision_time.measure.scaled import SCALINGS, cast_benches, fp8_rate, refused, scaled_benches
from precision_time.measure.traffic import traffic_benches
from precision_time.measure.updates import CHAINS, chain_times, sweep_of, tensor_sizes
from precision_time.timing.operators import WorkOptions


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement of a plan: its label, and the record it gives in about so many seconds."""

    label: str
    run: Callable[[float], Record]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the benchmarks may be on a kind of device, and how many points each family gets: products in each of
    their five kinds, convolutions in each pass, attention in each direction, traffic at these numbers of elements."""

    longest_call_s: float
    elements: float
    products: int
    convolutions: int
    attentions: int
    traffic: tuple[int, ...]


SCALES = {
    "cpu": Scale(0.3, 3e7, 22, 44, 10, (1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22)),
    "cuda": Scale(0.02, 1e9, 24, 40, 16, (1 << 14, 1 << 18, 1 << 21, 1 << 24, 1 << 26)),
}


def points(*found: Point) -> Record:
    """The record of a task that measured operators."""
    return {"points": [point.to_json() for point in found]}


def rate(device: torch.device, dtype: torch.dtype, side: int = 256) -> float:
    """FLOP/s of a modest square product: what a call of a known size will roughly take."""
    a = torch.randn(side, side, device=device).to(dtype)
    return 2.0 * side**3 / timed(lambda: a @ a, device, 0.05).seconds


def job_tasks(device: torch.device, jobs: Sequence[Job]) -> list[Task]:
    """The operators of given jobs in their own shapes, those that take most of a step first."""
    return [bench_task(bench, device) for bench in replay_benches(jobs, device)]


def family_tasks(device: torch.device, dtypes: Sequence[torch.dtype], fp8: bool = False) -> list[Task]:
    """Every family over its sizes, interleaved so that an early stop leaves all of them covered; `fp8`: scaled products
    and their casts too."""
    scale = SCALES[device.type]
    families: list[list[Task]] = []
    for dtype, tf32 in modes(device, dtypes):
        limits = limits_of(device, dtype, tf32)
        lists: list[list[Bench]] = [
            matmul_benches(dtype, scale.products, limits, tf32),
            conv_benches(dtype, scale.convolutions, limits, tf32),
        ]
        if device.type == "cuda":
            lists.append(conv_benches(dtype, scale.convolutions // 2, limits, tf32, nhwc=True))
        if not tf32:
            lists += [attention_benches(dtype, scale.attentions, limits), traffic_benches(dtype, list(scale.traffic))]
        families += [[_mode_task(bench, dtype, device) for bench in benches] for benches in lists]
    if fp8:
        families += _fp8_families(device, scale)
    if device.type == "cpu":  # a GPU's optimizers sweep many tensors in one kernel, at the rate of a pointwise one
        families.append([_chain_task(chain, size, device) for chain in CHAINS for size in scale.traffic])
    return list(interleaved(families))


def modes(device: torch.device, dtypes: Sequence[torch.dtype]) -> list[tuple[torch.dtype, bool]]:
    """Every dtype, and float32 once more with TF32 allowed where a GPU has it (compute capability 8)."""
    found = [(dtype, False) for dtype in dtypes]
    if device.type == "cuda" and torch.float32 in dtypes and torch.cuda.get_device_capability(device)[0] >= 8:
        found.append((torch.float32, True))
    return found


def limits_of(device: torch.device, dtype: torch.dtype, tf32: bool = False) -> Limits:
    """How large a call may be that takes no longer than the device's scale allows."""
    scale = SCALES[device.type]
    with tf32_allowed(device, tf32):
        return Limits(rate(device, dtype) * scale.longest_call_s, scale.elements)


def bench_task(bench: Bench, device: torch.device) -> Task:
    return Task(bench.label, lambda budget_s: points(bench.measured(device, budget_s)))


def _mode_task(bench: Bench, dtype: torch.dtype, device: torch.device) -> Task:
    """The task of a benchmark that other modes have in the same sizes: a label names one measurement."""
    name = str(dtype).removeprefix("torch.")
    words = [bench.label, name, "tf32" if bench.tf32 else "", "nhwc" if bench.channels_last else ""]
    return Task(" ".join(word for word in words if word), bench_task(bench, device).run)


def _fp8_families(device: torch.device, scale: Scale) -> list[list[Task]]:
    """Products and casts under each scaling; where the device has none, a task that says why."""
    families: list[list[Task]] = []
    for scaling in SCALINGS:
        if why := refused(device, scaling):
            families.append([_refusal(f"fp8 {scaling}", why)])
            continue
        limits = Limits(fp8_rate(device) * scale.longest_call_s, scale.elements)
        lists = (scaled_benches(scale.products, limits, scaling), cast_benches(scale.traffic, scaling))
        families += [[bench_task(bench, device) for bench in benches] for benches in lists]
    return families


def _refusal(label: str, why: str) -> Task:
    def run(_budget_s: float) -> Record:
        raise MeasureError(why)

    return Task(label, run)


def _chain_task(chain: str, elements: int, device: torch.device) -> Task:
    sizes = tensor_sizes(elements)

    def run(_budget_s: float) -> Record:
        found = chain_times(chain, sizes, device)
        return points(*(Point(sweep_of(label, sizes), WorkOptions(), time) for label, time in found.items()))

    return Task(f"sweeps of {chain} over {elements}", run)


def interleaved(families: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """All members, each family spread evenly over the whole."""
    placed = [
        ((i + 0.5) / len(family), order, member)
        for order, family in enumerate(families)
        for i, member in enumerate(family)
    ]
    for _, _, member in sorted(placed, key=lambda item: item[:2]):
        yield member
