"""Hit share of the first epoch with a cache that holds some of the data at the start."""

from __future__ import annotations

import math


def first_lru_hits(capacity: float, cached: float) -> float:
    """Hits of an LRU cache for a share `capacity` of the data that holds a share `cached` at the start.

    Until the cache is full a read finds its sample with probability `cached`; from then on every miss drops one that is
    still to be read, since these are the oldest. With g the share of unread samples that are cached, x the share read:
    d(1 - g)/dx = (1 - g)/(1 - x), so 1 - g = (1 - c)/(1 - x), until none is left at x = c. A full cache finds the
    c + (1 - c) ln(1 - c) of every later epoch (cache.py).
    """
    start = min(cached, capacity)
    if capacity >= 1.0 or start <= 0.0:
        return min(max(start, 0.0), 1.0)
    full = (capacity - start) / (1.0 - start)  # share read when the cache is full
    return start * full + (capacity - full) + (1.0 - capacity) * math.log((1.0 - capacity) / (1.0 - full))
