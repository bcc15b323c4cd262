"""Effects of several busy ranks on one machine: collective times, and the contention factors of kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from precision_time.measure.bench import Bench
from precision_time.measure.clock import summary, timed_for
from precision_time.measure.convolutions import conv_benches
from precision_time.measure.launch import Report, no_report
from precision_time.measure.products import Limits, attention_benches, matmul_benches
from precision_time.measure.suite import interleaved, rate
from precision_time.measure.tensors import taking_turns
from precision_time.measure.traffic import traffic_benches
from precision_time.timing.work import class_of_dtype

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 26_214_400, 1 << 26)
"""Message sizes in bytes; DistributedDataParallel uses buckets of 1 and 25 MiB."""
_REPEATS, _LEAST_REPEATS = 7, 2
_WINDOW_S = 0.15
"""How long each probe is called, on one rank and on all: the scheduler needs some ms to settle a new process."""
_LONGEST_CALL_S = {"cpu": 0.03, "cuda": 0.01}
_TRAFFIC_ELEMENTS = {"cpu": (1 << 16, 1 << 20), "cuda": (1 << 24,)}
_TRAFFIC_OPERATORS = 12


def interference_task(task: dict[str, Any], device: torch.device, _report: Report = no_report) -> dict[str, Any]:
    """Measure collectives and contention among all ranks.

    Returns {"collectives": {name: [[bytes, seconds] ...]}, "contention": {"family class": [factor of each probe]}}. At
    time `end` of the task only the smallest and the largest message, and no probe, are still measured.
    """

    def time_is_left() -> bool:
        return decided_by_rank_0(time.monotonic() < task["end"], device)

    collectives: dict[str, list[list[float]]] = {"all_reduce": [], "broadcast": []}
    for size in (SIZES[0], SIZES[-1], *SIZES[-2:0:-1]):
        repeats = _REPEATS if time_is_left() else _LEAST_REPEATS
        if size in (SIZES[0], SIZES[-1]) or repeats == _REPEATS:
            collectives["all_reduce"].append(_collective_time(lambda x: dist.all_reduce(x), size, repeats, device))
            collectives["broadcast"].append(_collective_time(lambda x: dist.broadcast(x, 0), size, repeats, device))
    factors: dict[str, list[float]] = {}
    with torch.no_grad():
        for bench in interleaved(_probes(device, getattr(torch, name)) for name in task["dtypes"]):
            if not time_is_left():
                break
            work = bench.work(device.type)
            factor = _contention_factor(taking_turns(_builder(bench, device), work.bytes, device), device)
            factors.setdefault(f"{work.family} {class_of_dtype(work.math, work.dtype)}", []).append(factor)
    return {
        "collectives": {name: sorted(points) for name, points in collectives.items()},
        "contention": dict(sorted(factors.items())),
    }


def decided_by_rank_0(flag: bool, device: torch.device) -> bool:
    """The flag of rank 0 on all ranks: clocks differ, and all ranks must stop at the same place."""
    shared = torch.tensor(int(flag), device=device)
    if dist.is_initialized():
        dist.broadcast(shared, 0)
    return bool(shared)


def _builder(bench: Bench, device: torch.device) -> Callable[[], Callable[[], Any]]:
    return lambda: bench.make(device)


def _contention_factor(call: Callable[[], Any], device: torch.device) -> float:
    """Time of the call while all ranks make it, over its time on rank 0 while the others wait.

    The two windows follow each other immediately, so that slow drift of the machine affects both alike.
    """
    dist.barrier()
    alone = timed_for(call, device, _WINDOW_S) if dist.get_rank() == 0 else 0.0  # the others are idle in the barrier
    dist.barrier()
    busy = timed_for(call, device, _WINDOW_S)
    times = torch.tensor([alone, busy / dist.get_world_size()], dtype=torch.float64, device=device)
    dist.all_reduce(times)
    return float(times[1] / times[0])


def _probes(device: torch.device, dtype: torch.dtype) -> Sequence[Bench]:
    """A few benchmarks of every family, the families interleaved; the same on all ranks."""
    speed = torch.tensor(rate(device, dtype), dtype=torch.float64, device=device)
    dist.broadcast(speed, 0)
    limits = Limits.at(float(speed), _LONGEST_CALL_S[device.type], 3e6 if device.type == "cpu" else 1e8)
    sizes = list(_TRAFFIC_ELEMENTS[device.type])
    traffic = traffic_benches(dtype, sizes)
    stride = max(len(traffic) // (_TRAFFIC_OPERATORS * len(sizes)), 1)
    families = (
        matmul_benches(dtype, 2, limits),
        conv_benches(dtype, 8, limits),
        attention_benches(dtype, 2, limits),
        traffic[::stride],
    )
    return list(interleaved(families))


def _collective_time(
    collective: Callable[[torch.Tensor], Any], size: int, repeats: int, device: torch.device
) -> list[float]:
    """[bytes, median seconds of `repeats`] of a message of `size` bytes, after two for warm-up."""
    x = torch.ones(size // 4, device=device)
    samples = []
    for index in range(repeats + 2):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        collective(x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index > 1:
            samples.append(time.perf_counter() - begin)
        x.fill_(1.0)
    return [float(size), summary(samples).seconds]
