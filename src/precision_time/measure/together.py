"""What ranks on one machine do to each other: collective times, and how much slower kernels run when all are busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from precision_time.measure.clock import summary, timed

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 26_214_400, 1 << 26)
"""Bytes; DDP's buckets are 1 and 25 MiB."""
_REPEATS = 7


def together_task(task: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """{"collectives": {name: [[bytes, seconds] ...]}, "alone": {...}, "busy": {...}} of all ranks."""
    probes = _probes(device)
    alone: dict[str, float] = {}
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if dist.get_rank() == rank:  # the others wait in the barrier, idle
            alone = {name: timed(probe, device, 0.4).seconds for name, probe in probes.items()}
    busy = {}
    for name, probe in probes.items():
        dist.barrier()
        busy[name] = timed(probe, device, 0.8).seconds
    dist.barrier()
    return {
        "collectives": {
            "all_reduce": _times(lambda x: dist.all_reduce(x), device),
            "broadcast": _times(lambda x: dist.broadcast(x, 0), device),
        },
        "alone": _mean(alone, device),
        "busy": _mean(busy, device),
    }


def _probes(device: torch.device) -> dict[str, Callable[[], Any]]:
    side = 384 if device.type == "cpu" else 4096
    a = torch.randn(side, side, device=device)
    stream = torch.randn((1 << 22) if device.type == "cpu" else (1 << 27), device=device)
    target = torch.empty_like(stream)
    return {"compute": lambda: a @ a, "memory": lambda: torch.add(stream, 1.0, out=target)}


def _mean(values: dict[str, float], device: torch.device) -> dict[str, float]:
    found = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64, device=device)
    dist.all_reduce(found)
    return dict(zip(sorted(values), (found / dist.get_world_size()).tolist(), strict=True))


def _times(collective: Callable[[torch.Tensor], Any], device: torch.device) -> list[list[float]]:
    import time

    found = []
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
        found.append([float(size), summary(samples).seconds])
    return found
