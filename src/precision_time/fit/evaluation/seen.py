"""Which measured rows the shipped step factors were fitted to: a judgement on those is no held-out one.

The fit stores a short digest of each of its rows, not the rows themselves.
"""

from __future__ import annotations

from functools import cache

from precision_time.timing.parameters import read_data

HELD_OUT = "python -m precision_time.fit.steps --shared DIR --report, docs/accuracy.md"


@cache
def fitted() -> frozenset[str]:
    """Digests of the rows behind the shipped step factors."""
    provenance = read_data("step_scales.json").get("provenance", {})
    return frozenset(str(provenance.get("row_digests", "")).split())
