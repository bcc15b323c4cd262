"""Steady hit shares of one job with a cache that holds a share of its data."""

from __future__ import annotations

import math

from precision_time.errors import IngestError


def no_eviction_hits(share: float) -> float:
    """Hit share of a cache that fills once and keeps its content (CoorDL, Mohan et al., VLDB 2021): the share it
    holds."""
    return _checked(share)


def lru_hits(share: float) -> float:
    """Hit share of an LRU cache when every epoch has a new random order: c + (1 - c) ln(1 - c), less than c.

    A sample read at x of one epoch and at y of the next is read again after the last 1 - x of the one and the first y
    of the other; two independent orders touch a share 1 - x (1 - y) of the data in this. It is a hit if that is at most
    c, that is x >= (1 - c) / (1 - y). For one y the share of hits is 1 - (1 - c) / (1 - y) while y <= c, else 0; the
    mean over y is the formula.
    """
    share = _checked(share)
    return 1.0 if share == 1.0 else share + (1.0 - share) * math.log1p(-share)


def _checked(share: float) -> float:
    if not share >= 0.0:  # nan too
        raise IngestError(f"The cache holds a share {share} of the data: give a number from 0 on.")
    return min(share, 1.0)
