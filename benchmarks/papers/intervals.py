"""Intervals of a figure over the groups that it is made of: networks, families or jobs, drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

Group = TypeVar("Group")
DRAWS, INSIDE = 1000, 0.8
"""Draws of the groups, and the share of them inside the interval."""


def over_groups(
    groups: Sequence[Group], figure: Callable[[Sequence[Group]], float], seed: int = 0
) -> tuple[float, float]:
    """P10 and P90 of `figure` over draws of as many groups, with replacement. Raises `ValueError` for none."""
    if not groups:
        raise ValueError("an interval needs a group")
    draws = np.random.default_rng(seed).integers(len(groups), size=(DRAWS, len(groups)))
    values = [figure([groups[i] for i in draw]) for draw in draws]
    low, high = np.quantile(values, ((1.0 - INSIDE) / 2.0, (1.0 + INSIDE) / 2.0))
    return float(low), float(high)
