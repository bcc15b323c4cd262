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
from precision_time.measure.suite import rate
from precision_time.measure.tensors import taking_turns
from precision_time.measure.traffic import traffic_benches
from precision_time.timing.work import class_of_dtype

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 26_214_400, 1 << 26)
"""Message sizes in bytes; DistributedDataParallel uses buckets of 1 and 25 MiB."""
_REPEATS = 7
_WINDOW_S = 0.15
"""How long each probe is called, on one rank and on all: the scheduler needs some ms to settle a new process."""
_LONGEST_CALL_S = {"cpu": 0.03, "cuda": 0.01}
_TRAFFIC_ELEMENTS = {"cpu": (1 << 16, 1 << 20), "cuda": (1 << 24,)}
_TRAFFIC_OPERATORS = 12


def interference_task(task: dict[str, Any], device: torch.device, _report: Report = no_report) -> dict[str, Any]:
    """Measure collectives and contention among all ranks.

    Returns {"collectives": {name: [[bytes, seconds] ...]}, "contention": {"family class": [factor of each probe]}}.
    """
    factors: dict[str, list[float]] = {}
    with torch.no_grad():
        for name in task["dtypes"]:
            for bench in _probes(device, getattr(torch, name)):
                work = bench.work(device.type)
                factor = _contention_factor(taking_turns(_builder(bench, device), work.bytes, device), device)
                factors.setdefault(f"{work.family} {class_of_dtype(work.math, work.dtype)}", []).append(factor)
    return {
        "collectives": {
            "all_reduce": _collective_times(lambda x: dist.all_reduce(x), device),
            "broadcast": _collective_times(lambda x: dist.broadcast(x, 0), device),
        },
        "contention": dict(sorted(factors.items())),
    }


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
    """A few benchmarks of every family; the same on all ranks."""
    speed = torch.tensor(rate(device, dtype), dtype=torch.float64, device=device)
    dist.broadcast(speed, 0)
    limits = Limits(float(speed) * _LONGEST_CALL_S[device.type], 3e6 if device.type == "cpu" else 1e8)
    sizes = list(_TRAFFIC_ELEMENTS[device.type])
    traffic = traffic_benches(dtype, sizes)
    stride = max(len(traffic) // (_TRAFFIC_OPERATORS * len(sizes)), 1)
    return [
        *matmul_benches(dtype, 2, limits),
        *conv_benches(dtype, 8, limits),
        *attention_benches(dtype, 2, limits),
        *traffic[::stride],
    ]


def _collective_times(collective: Callable[[torch.Tensor], Any], device: torch.device) -> list[list[float]]:
    """[bytes, median seconds] for each of `SIZES`."""
    points = []
    for size in SIZES:
        x = torch.ones(size // 4, device=device)
        samples = []
        for index in range(_REPEATS + 2):
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
        points.append([float(size), summary(samples).seconds])
    return points
