"""How sure an estimate is: the spread of log(step time), from the residuals on published jobs and what the job adds.

The base spread is what held-out published jobs show (`fit.steps` writes it). It is widened, never narrowed: by the
share of time that rests on assumed utilisations, by host-bound time, by exposed communication, by operators without
a model, and for architectures that no whole-step row covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from precision_time.timing.parameters import read_data

_UNFITTED = {"log_spread": 0.25, "architectures": [], "unseen_architecture": 0.15}
"""Until whole steps have been fitted: plain utilisation models were 19-25 % off in the first study (FACTS)."""


@dataclass(frozen=True, slots=True)
class SpreadTerms:
    """Shares of the step time that widen the interval."""

    kernel: float
    """Weighted spread of kernel times from assumed sources, times their share."""
    host_share: float
    host_spread: float
    exposed_share: float
    unsupported_share: float


@cache
def _fitted() -> Mapping[str, float]:
    return {**_UNFITTED, **read_data("step_scales.json").get("interval", {})}


def log_spread(terms: SpreadTerms, arch: str) -> float:
    """Standard deviation of log(step time)."""
    fitted = _fitted()
    known = arch in fitted["architectures"]  # type: ignore[operator]
    parts = (
        float(fitted["log_spread"]),
        0.0 if known else float(fitted["unseen_architecture"]),
        terms.kernel,
        terms.host_share * terms.host_spread,
        terms.exposed_share * 0.35,
        min(terms.unsupported_share, 1.0),
    )
    return math.sqrt(sum(p * p for p in parts))
