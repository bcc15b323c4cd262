"""Tensors to measure with: random numbers at the price of a copy, and enough of them that caches stay cold.

A benchmark that runs over one set of tensors again and again finds them in the cache, where a training step does not:
between two uses of a tensor lie the rest of the step. So calls take turns over sets that together exceed the cache,
and keep their results until the turn comes round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_POOL = 1 << 21
FOOTPRINT_BYTES = {"cpu": 96e6, "cuda": 256e6, "meta": 0.0}
"""Beyond the last cache of most servers' share for one core (32 MB), and of GPUs (H100: 50 MB)."""
_MOST_SETS = 48
_TRAFFIC_BYTES_PER_S = {"cpu": 5e9, "cuda": 1e12}
_SLOW = 8.0
"""A call that takes so many times its traffic at a modest rate is limited by arithmetic."""


@cache
def _pool(device: torch.device) -> torch.Tensor:
    return torch.randn(_POOL, generator=torch.Generator(device).manual_seed(0), device=device)


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Standard normal numbers, the same pool repeated: drawing them anew would take longer than most measurements."""
    count = 1
    for size in shape:
        count *= size
    if device.type == "meta":
        return torch.empty(shape, device=device, dtype=dtype)
    pool = _pool(device)
    if count <= _POOL:
        return pool[:count].to(dtype, copy=True).view(shape)
    found = torch.empty(count, device=device, dtype=dtype)
    for start in range(0, count, _POOL):
        found[start : start + _POOL] = pool[: min(_POOL, count - start)]
    return found.view(shape)


def taking_turns(make: Callable[[], Callable[[], Any]], nbytes: float, device: torch.device) -> Callable[[], Any]:
    """One call over sets of tensors in turn; `make` allocates a set, `nbytes` is what a call reads and writes.

    A call much slower than its traffic gains nothing from fresh tensors and gets only two sets.
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
