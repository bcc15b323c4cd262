"""Words of the reports that assert an order or a size: each is chosen by the numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping

SAME = 0.05
"""Two figures that differ by less than this share count as equal: about the spread of these errors between seeds."""


def order(value: float, other: float, less: str, same: str, more: str, within: float = SAME) -> str:
    """`less`, `same` or `more`, by `value` beside `other` (both positive)."""
    if abs(value - other) <= within * other:
        return same
    return less if value < other else more


def target(value: float, least: float) -> str:
    """Whether a target that is a least value is met."""
    return "met" if value >= least else "missed"


def unless(met: bool, reason: str) -> str:
    """The reason for a miss; nothing where there is none."""
    return "" if met else reason


def portion(part: float, whole: float) -> str:
    """A part of a whole in words."""
    share = part / whole
    if share >= 0.9:
        return "nearly all"
    if share > 0.55:
        return "most"
    return "about half" if share >= 0.45 else "less than half"


def nearest_to(value: float, figures: Mapping[str, float]) -> str:
    """The name of the figure whose ratio to `value` is nearest to one (all positive)."""
    return min(figures, key=lambda name: abs(math.log(figures[name] / value)))
