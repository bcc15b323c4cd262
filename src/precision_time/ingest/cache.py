"""Share of samples found in a cache, by its size and policy. Every epoch reads each sample once, in random order."""

from __future__ import annotations

import math


def lru_hit_share(capacity: float) -> float:
    """Steady epochs over a cache that drops what was used longest ago; `capacity` as a share of the data set.

    A sample at place x of one epoch and y of the next is still there if the misses between them fit: for a random order
    that share is c + (1 - c) ln(1 - c) (SYSTEMS.md, section 5).
    """
    if capacity >= 1.0:
        return 1.0
    return max(0.0, capacity + (1.0 - capacity) * math.log1p(-capacity)) if capacity > 0.0 else 0.0


def kept_hit_share(capacity: float) -> float:
    """Steady epochs over a cache that stays as it is when full (CoorDL's no-eviction cache)."""
    return min(max(capacity, 0.0), 1.0)


def first_hit_share(capacity: float, cached: float) -> float:
    """The first epoch over a least-recently-used cache that holds a share `cached` of the samples at its start.

    Until the cache is full a read finds its sample with probability `cached`; from then on every miss drops one that is
    still to be read, since these are the oldest. With g the share of unread samples that are cached, x the share read:
    d(1 - g)/dx = (1 - g)/(1 - x), so 1 - g = (1 - c)/(1 - x), until none is left at x = c.
    """
    start = min(cached, capacity)
    if capacity >= 1.0 or start <= 0.0:
        return min(max(start, 0.0), 1.0)
    full = (capacity - start) / (1.0 - start)  # share read when the cache is full
    return start * full + (capacity - full) + (1.0 - capacity) * math.log((1.0 - capacity) / (1.0 - full))
