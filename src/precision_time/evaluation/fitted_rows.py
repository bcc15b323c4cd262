"""Which measured rows the shipped factors were fitted to; errors of those rows are not held out.

The fits store a short digest of each of their rows, not the rows.
"""

from __future__ import annotations

from functools import cache

from precision_time.timing.parameters import read_data

HELD_OUT = "precision-time fit steps --report, benchmarks/results/accuracy.md"
HELD_OUT_LAYOUTS = "precision-time fit layouts --report, benchmarks/results/large-models.md"

HELD_OUT_KERNELS = "benchmarks/results/unknown.md"

STEPS, LAYOUTS, KERNELS = "step_scales.json", "layout_scales.json", "kernel_factors.json"


@cache
def fitted(parameters: str) -> frozenset[str]:
    """Digests of the rows behind the shipped step factors (`STEPS`), the factors of layouts or on kernels."""
    provenance = read_data(parameters).get("provenance", {})
    return frozenset(str(provenance.get("row_digests", "")).split())


def seen_by(digest: str) -> str:
    """The file of parameters that were fitted to the row of this digest; "" where none were."""
    return next((name for name in (STEPS, LAYOUTS, KERNELS) if digest in fitted(name)), "")
