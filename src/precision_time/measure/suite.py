"""The calibration suite: which benchmarks run on a device in which dtypes, in a time budget, and the rows they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.job.job import Job
from precision_time.measure.bench import Bench, tf32_allowed
from precision_time.measure.clock import Timed, timed
from precision_time.measure.products import Limits, attention_benches, conv_benches, matmul_benches
from precision_time.measure.replay import replay_benches
from precision_time.measure.traffic import traffic_benches
from precision_time.measure.updates import CHAINS, chain_times, sweep_work, tensor_sizes
from precision_time.timing.work import CONVOLUTION_FEATURES, Work

COLUMNS = (
    "operator", "family", "variant", "math", "dtype", "batch", "m", "n", "k", *CONVOLUTION_FEATURES, "flops", "bytes",
    "launches", "seconds", "spread",
)  # fmt: skip
Report = Callable[[int, int], None]


Point = tuple[str, Work, Timed]
"""Operator, the work it stands for, its time."""


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement of the suite: its label, and what it gives in so many seconds."""

    label: str
    run: Callable[[float], list[Point]]


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


def row(operator: str, work: Work, time: Timed) -> list[Any]:
    """A point as the device file keeps it."""
    features = dict(work.features)
    return [
        operator, work.family, work.variant, work.math, work.dtype, *work.shape,
        *(float(features.get(name, 1.0)) for name in CONVOLUTION_FEATURES), work.flops, work.bytes,
        work.launches, float(f"{time.seconds:.5g}"), round(time.spread, 4),
    ]  # fmt: skip


def rate(device: torch.device, dtype: torch.dtype, side: int = 256) -> float:
    """FLOP/s of a modest square product: what a call of a known size will roughly take."""
    a = torch.randn(side, side, device=device).to(dtype)
    return 2.0 * side**3 / timed(lambda: a @ a, device, 0.05).seconds


def tasks(device: torch.device, dtypes: Sequence[torch.dtype], jobs: Sequence[Job] = ()) -> list[Task]:
    """Every point of the suite, families interleaved so that an early stop leaves all of them covered.

    The operators of the given jobs come first: they are what will be asked for.
    """
    own = [_task(bench, device) for bench in replay_benches(jobs, device)]
    scale = SCALES[device.type]
    families: list[list[Task]] = []
    for dtype, tf32 in _modes(device, dtypes):
        with tf32_allowed(device, tf32):
            limits = Limits(rate(device, dtype) * scale.longest_call_s, scale.elements)
        lists: list[list[Bench]] = [
            matmul_benches(dtype, scale.products, limits, tf32),
            conv_benches(dtype, scale.convolutions, limits, tf32),
        ]
        if device.type == "cuda":
            lists.append(conv_benches(dtype, scale.convolutions // 2, limits, tf32, nhwc=True))
        if not tf32:
            lists += [attention_benches(dtype, scale.attentions, limits), traffic_benches(dtype, list(scale.traffic))]
        families += [[_task(bench, device) for bench in benches] for benches in lists]
    if (
        device.type == "cpu"
    ):  # a GPU's optimizers sweep many tensors in one kernel, at the rate of a large pointwise one
        families.append([_chain_task(chain, size, device) for chain in CHAINS for size in scale.traffic])
    return [*own, *_interleaved(families)]


def _modes(device: torch.device, dtypes: Sequence[torch.dtype]) -> list[tuple[torch.dtype, bool]]:
    """Every dtype, and float32 once more with TF32 allowed where a GPU has it (compute capability 8)."""
    modes = [(dtype, False) for dtype in dtypes]
    if device.type == "cuda" and torch.float32 in dtypes and torch.cuda.get_device_capability(device)[0] >= 8:
        modes.append((torch.float32, True))
    return modes


def _task(bench: Bench, device: torch.device) -> Task:
    return Task(bench.label, lambda budget_s: [(bench.operator, bench.work(device.type), bench.time(device, budget_s))])


def _chain_task(chain: str, elements: int, device: torch.device) -> Task:
    sizes = tensor_sizes(elements)
    return Task(
        f"sweeps of {chain} over {elements}",
        lambda _: [
            (f"pt.sweep:{label}", sweep_work(label, sizes), found)
            for label, found in chain_times(chain, sizes, device).items()
        ],
    )


def _interleaved(families: Sequence[Sequence[Task]]) -> Iterator[Task]:
    """All tasks, each family spread evenly over the whole."""
    placed = [
        ((i + 0.5) / len(family), order, task) for order, family in enumerate(families) for i, task in enumerate(family)
    ]
    for _, _, task in sorted(placed, key=lambda item: item[:2]):
        yield task


def run(
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    budget_s: float,
    report: Report = lambda done, total: None,
    jobs: Sequence[Job] = (),
) -> tuple[list[list[Any]], list[str]]:
    """Rows of all points that fit into `budget_s`, and the labels of those that did not or that the device refused."""
    wanted = tasks(device, dtypes, jobs)
    rows: list[list[Any]] = []
    left_out: list[str] = []
    end = time.monotonic() + budget_s
    for index, task in enumerate(wanted):
        left = end - time.monotonic()
        if left <= 0:
            left_out += [f"{t.label}: no time left" for t in wanted[index:]]
            break
        try:
            rows += [row(*point) for point in task.run(min(0.1, left / (len(wanted) - index)))]
        except (RuntimeError, NotImplementedError) as error:  # a kernel the device lacks in this dtype
            left_out.append(f"{task.label}: {next(iter(str(error).splitlines()), type(error).__name__)}")
        report(index + 1, len(wanted))
    return rows, left_out


def kernels_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """The suite, the host's costs and the noise, as `worker` runs them."""
    from precision_time.measure.hosts import host_costs

    side = 384 if device.type == "cpu" else 4096
    a = torch.randn(side, side, device=device)
    equal: list[float] = []

    def probe_too(done: int, total: int) -> None:
        if done % _PROBE_EVERY == 1:
            equal.append(timed(lambda: a @ a, device, 0.02).seconds)
        report(done, total)

    dtypes = [getattr(torch, name) for name in task["dtypes"]]
    jobs = [Job.from_dict(words) for words in task.get("jobs", ())]
    rows, left_out = run(device, dtypes, task["budget_s"], probe_too, jobs)
    return {"rows": rows, "left_out": left_out, "host": host_costs(device), "noise": _noise(equal)}


_PROBE_EVERY = 10
"""Tasks between two times of one fixed product: what the machine does to equal work while it is measured."""


def _noise(times: list[float]) -> float:
    """Half the distance between the 10th and 90th percentile, relative to the median."""
    ordered = sorted(times)
    low, middle, high = (ordered[int(q * (len(ordered) - 1))] for q in (0.1, 0.5, 0.9))
    return (high - low) / (2.0 * middle)
