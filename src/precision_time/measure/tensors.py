"""Random tensors for measurements, and calls that alternate between sets of tensors so that caches stay cold.

A benchmark that reuses one set of tensors finds them in the cache; in a training step the rest of the step lies between
two uses of a tensor. Calls therefore alternate between sets that together exceed the cache, and keep their results
until the set is used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_POOL = 1 << 21
FOOTPRINT_BYTES = {"cpu": 96e6, "cuda": 256e6, "meta": 0.0}
"""Larger than the last-level cache that one core can use (32 MB on AMD EPYC) and than that of GPUs (H100: 50 MB)."""
_MOST_SETS = 48
_TRAFFIC_BYTES_PER_S = {"cpu": 5e9, "cuda": 1e12}
_SLOW = 8.0
"""A call slower than this multiple of its memory traffic at `_TRAFFIC_BYTES_PER_S` is limited by arithmetic."""


@cache
def _pool(device: torch.device) -> torch.Tensor:
    return torch.randn(_POOL, generator=torch.Generator(device).manual_seed(0), device=device)


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Standard normal values, copied from one pool: drawing them would take longer than most measurements."""
    count = 1
    for size in shape:
        count *= size
    if device.type == "meta":
        return torch.empty(shape, device=device, dtype=dtype)
    pool = _pool(device)
    if count <= _POOL:
        return pool[:count].to(dtype, copy=True).view(shape)
    tensor = torch.empty(count, device=device, dtype=dtype)
    for start in range(0, count, _POOL):
        tensor[start : start + _POOL] = pool[: min(_POOL, count - start)]
    return tensor.view(shape)


def taking_turns(make: Callable[[], Callable[[], Any]], nbytes: float, device: torch.device) -> Callable[[], Any]:
    """A warm call that alternates between sets of tensors; `make` allocates a set and returns its call.

    `nbytes` is what one call reads and writes. A call that is limited by arithmetic gets two sets only.
    """
    first, second = make(), make()
    begin = time.perf_counter()
    first()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    slow = time.perf_counter() - begin > _SLOW * nbytes / _TRAFFIC_BYTES_PER_S[device.type]
    sets = 2 if slow else int(min(max(FOOTPRINT_BYTES[device.type] / max(nbytes, 1.0), 2), _MOST_SETS))
    calls = [first, second, *(make() for _ in range(sets - 2))]
    results: list[Any] = [None] * sets
    turn = 0

    def call() -> None:
        nonlocal turn
        results[turn] = calls[turn]()
        turn = (turn + 1) % sets

    for _ in range(0 if slow else sets):
        call()
    return call
