"""The plan of measurements on a device: which operators run, in which dtypes and sizes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from precision_time.errors import MeasureError
from precision_time.job.job import Job
from precision_time.journal import Journal, Record
from precision_time.measure.bench import Bench, tf32_allowed
from precision_time.measure.clock import timed
from precision_time.measure.convolutions import conv_benches
from precision_time.measure.point import Point
from precision_time.measure.products import Limits, attention_benches, matmul_benches
from precision_time.measure.replay import replay_benches
from precision_time.measure.scaled import SCALINGS, cast_benches, fp8_rate, refused, scaled_benches
from precision_time.measure.traffic import nhwc_benches, traffic_benches
from precision_time.measure.updates import CHAINS, chain_times, sweep_of, tensor_sizes
from precision_time.timing.operators import WorkOptions


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement of a plan: its unique label, and the function from a budget in seconds to its record."""

    label: str
    run: Callable[[float], Record]
    required: bool = False
    """Whether it runs even when the budget of the plan is spent."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of benchmarks on a type of device, and the number of points of each family."""

    longest_call_s: float
    """Upper bound of the seconds of one call."""
    elements: float
    """Upper bound of the elements of all tensors of a call."""
    products: int
    """Matrix products of each of the five kinds."""
    convolutions: int
    """Convolutions in each pass."""
    attentions: int
    """Attention in each direction."""
    traffic: tuple[int, ...]
    """Numbers of elements at which each memory-bound operator runs."""


SCALES = {
    "cpu": Scale(0.3, 3e7, 22, 44, 10, (1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22)),
    "cuda": Scale(0.02, 1e9, 24, 40, 16, (1 << 14, 1 << 18, 1 << 21, 1 << 24, 1 << 26)),
}


def record_of(*points: Point) -> Record:
    """The record of a task that measured operators."""
    return {"points": [point.to_json() for point in points]}


def rate(device: torch.device, dtype: torch.dtype, side: int = 256) -> float:
    """FLOP/s of a square product with sides of `side`, from which the time of larger calls is estimated."""
    a = torch.randn(side, side, device=device).to(dtype)
    return 2.0 * side**3 / timed(lambda: a @ a, device, 0.05).seconds


def job_tasks(device: torch.device, jobs: Sequence[Job]) -> list[Task]:
    """The operators of the jobs in their own shapes, those that take the largest share of a step first."""
    return [bench_task(bench, device) for bench in replay_benches(jobs, device)]


def family_tasks(
    device: torch.device, dtypes: Sequence[torch.dtype], fp8: bool = False, journal: Journal | None = None
) -> list[Task]:
    """Every family over its sizes, interleaved so that a plan that stops early covers all of them.

    A product and a large addition in each dtype come first and are required: without them a device has no peaks. With
    `fp8`, scaled products and their casts are included. Sizes follow the rates of products: a `journal` keeps these, so
    that a plan that is continued has the same tasks.
    """
    scale = SCALES[device.type]
    families: list[list[Task]] = []
    required: list[Task] = []
    for dtype, tf32 in modes(device, dtypes):
        limits = limits_of(device, dtype, tf32, journal)
        products = matmul_benches(dtype, scale.products, limits, tf32)
        required.append(mode_task(products.pop(0), dtype, device))
        lists = [products, conv_benches(dtype, scale.convolutions, limits, tf32)]
        if device.type == "cuda":
            lists.append(conv_benches(dtype, scale.convolutions // 2, limits, tf32, nhwc=True))
        if not tf32:
            traffic = traffic_benches(dtype, list(scale.traffic))
            required.append(mode_task(traffic.pop(len(scale.traffic) - 1), dtype, device))  # the largest addition
            lists += [attention_benches(dtype, scale.attentions, limits), traffic]
            if device.type == "cuda":
                lists.append(nhwc_benches(dtype, list(scale.traffic)))
        families += [[mode_task(bench, dtype, device) for bench in benches] for benches in lists]
    if fp8:
        families += _fp8_families(device, scale, journal)
    if device.type == "cpu":  # a GPU's optimizers sweep many tensors in one kernel, at the rate of a pointwise one
        families.append([_chain_task(chain, size, device) for chain in CHAINS for size in scale.traffic])
    return [*(replace(task, required=True) for task in required), *interleaved(families)]


def modes(device: torch.device, dtypes: Sequence[torch.dtype]) -> list[tuple[torch.dtype, bool]]:
    """(dtype, TF32 allowed) for every dtype; float32 also with TF32 on GPUs that have it (compute capability 8)."""
    pairs = [(dtype, False) for dtype in dtypes]
    if device.type == "cuda" and torch.float32 in dtypes and torch.cuda.get_device_capability(device)[0] >= 8:
        pairs.append((torch.float32, True))
    return pairs


def limits_of(device: torch.device, dtype: torch.dtype, tf32: bool = False, journal: Journal | None = None) -> Limits:
    """Size limits of a call, from the speed of a product on this device and the longest call of its `Scale`.

    The speed is that of the `journal`, where it holds one, and is kept there.
    """
    scale = SCALES[device.type]
    name = " ".join(["rate", str(dtype).removeprefix("torch."), *(["tf32"] if tf32 else [])])
    with tf32_allowed(device, tf32):
        speed = _kept(journal, name, lambda: rate(device, dtype))
    return Limits.at(speed, scale.longest_call_s, scale.elements)


def _kept(journal: Journal | None, label: str, measured: Callable[[], float]) -> float:
    """The rate of the journal's record, or else the measured one, which is then kept there."""
    if journal is None:
        return measured()
    record = journal.get(label) or journal.add(label, {"flops_per_s": measured()})
    return float(record["flops_per_s"])


def bench_task(bench: Bench, device: torch.device) -> Task:
    return Task(bench.label, lambda budget_s: record_of(bench.measured(device, budget_s)))


def mode_task(bench: Bench, dtype: torch.dtype, device: torch.device) -> Task:
    """The task of a benchmark, labelled with dtype, TF32 and memory format: other modes may use equal sizes."""
    name = str(dtype).removeprefix("torch.")
    parts = [bench.label, name, "tf32" if bench.tf32 else "", "nhwc" if bench.channels_last else ""]
    return Task(" ".join(part for part in parts if part), bench_task(bench, device).run)


def _fp8_families(device: torch.device, scale: Scale, journal: Journal | None) -> list[list[Task]]:
    """Products and casts with each scaling; where the device has no fp8, one task that records the reason."""
    families: list[list[Task]] = []
    for scaling in SCALINGS:
        if reason := refused(device, scaling):
            families.append([refusal_task(f"fp8 {scaling}", reason)])
            continue
        speed = _kept(journal, "rate fp8", lambda: fp8_rate(device))
        limits = Limits.at(speed, scale.longest_call_s, scale.elements)
        lists = (scaled_benches(scale.products, limits, scaling), cast_benches(scale.traffic, scaling))
        families += [[bench_task(bench, device) for bench in benches] for benches in lists]
    return families


def refusal_task(label: str, reason: str) -> Task:
    def run(_budget_s: float) -> Record:
        raise MeasureError(reason)

    return Task(label, run)


def _chain_task(chain: str, elements: int, device: torch.device) -> Task:
    sizes = tensor_sizes(elements)

    def run(_budget_s: float) -> Record:
        times = chain_times(chain, sizes, device)
        return record_of(*(Point(sweep_of(label, sizes), WorkOptions(), time) for label, time in times.items()))

    return Task(f"sweeps of {chain} over {elements}", run)


def interleaved(families: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """All members of all families, each family spread evenly over the sequence."""
    placed = [
        ((i + 0.5) / len(family), order, member)
        for order, family in enumerate(families)
        for i, member in enumerate(family)
    ]
    for _, _, member in sorted(placed, key=lambda item: item[:2]):
        yield member
