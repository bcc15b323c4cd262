"""How sure an estimate is: the spread of log(step time), from the residuals on published jobs and what the job adds.

The base spread is what held-out published jobs show (`fit.steps` writes it), or for a calibrated device a chosen one
with the machine's noise. It is widened, never narrowed: by the
share of time that rests on assumed utilisations, by host-bound time, by exposed communication, by operators without
a model, and for architectures that no whole-step row covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.timing.parameters import read_data
from precision_time.zoo.catalog import ENTRIES

_UNFITTED = {"log_spread": 0.25, "architectures": [], "unseen_architecture": 0.15}
"""Until whole steps have been fitted: plain utilisation models were 19-25 % off in the first study (FACTS)."""


EXPOSED_SPREAD = 0.35
"""Spread of communication that compute does not hide: collectives on networks nobody measured (see collectives)."""
MEASURED_EXPOSED_SPREAD = 0.15
"""The same where `calibrate` timed the collective among these very ranks, without a job around it: chosen."""
CALIBRATED_SPREAD = 0.10
"""What whole steps on a calibrated device differ by besides its kernels and its noise: chosen, not fitted."""


@dataclass(frozen=True, slots=True)
class SpreadTerms:
    """Shares of the step time that widen the interval."""

    kernel: float
    """Spread of the step that follows from the spreads of its kernel models."""
    factors: float
    """The same from what whole steps left open of the factors on its kernels (timing.step_factors)."""
    host_share: float
    host_spread: float
    exposed_share: float
    unsupported_share: float
    exposed_spread: float = EXPOSED_SPREAD


STEPS, LAYOUTS = "step_scales.json", "layout_scales.json"
"""Whose held-out errors set the base spread: data-parallel steps, or those of decoders in any layout."""


@cache
def _fitted(source: str) -> Mapping[str, Any]:
    return {**_UNFITTED, **read_data(source).get("interval", {})}


KERNEL_SHARE = 0.5
"""How much of the kernel models' spread is left once whole steps have scaled them: chosen, not fitted."""


def widening(terms: SpreadTerms) -> float:
    """What the job itself adds to the spread."""
    return _widening(terms, KERNEL_SHARE * terms.kernel, terms.factors)


def _widening(terms: SpreadTerms, *kernels: float) -> float:
    parts = (
        *kernels,
        terms.host_share * terms.host_spread,
        terms.exposed_share * terms.exposed_spread,
        min(terms.unsupported_share, 1.0),
    )
    return math.sqrt(sum(p * p for p in parts))


def calibrated_log_spread(terms: SpreadTerms, noise: float) -> float:
    """The same on a calibrated device: its own kernels in full, since no whole step has scaled them, and its noise."""
    return math.sqrt(CALIBRATED_SPREAD**2 + noise**2 + _widening(terms, terms.kernel) ** 2)


@cache
def _decoder_families() -> frozenset[str]:
    """Families of the models that were judged in all layouts, which the zoo builds as one decoder."""
    return frozenset(entry.family for entry in ENTRIES.values() if entry.builder.startswith("models.decoder"))


def log_spread(terms: SpreadTerms, arch: str, family: str) -> float:
    """Standard deviation of log(step time) of a model of this family on a GPU of this architecture."""
    fitted = _fitted(LAYOUTS if family in _decoder_families() else STEPS)
    known = arch in fitted["architectures"]
    unseen = 0.0 if known else float(fitted["unseen_architecture"])
    return math.sqrt(float(fitted["log_spread"]) ** 2 + unseen**2 + widening(terms) ** 2)
