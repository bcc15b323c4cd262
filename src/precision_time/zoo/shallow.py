"""A model of few layers that has every kind of block of the deep one, and which of its blocks stands for which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LAYERS = 3
"""A first, a middle and a last block: what is between them is like the middle one."""


@dataclass(frozen=True, slots=True)
class Shallow:
    """`dense` blocks come first in some mixtures of experts; blocks alternate with period `period` (a sliding window in
    every second layer). Traced are one dense block, then two periods, or a first, a middle and a last block. Hybrids
    (a `pattern` of letters) are traced whole.

    `few` layers of a stack are traced; `words` of `model_config` make the deep model that shallow, none where it is
    traced as it is.
    """

    dense: int
    period: int
    few: int
    words: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any], depth_word: str = "layers") -> Shallow:
        depth = int(config[depth_word])
        if config.get("pattern"):
            return cls(0, 0, depth, {})
        dense = min(int(config.get("dense_layers") or 0), depth) if config.get("experts") else 0
        period = 2 if "every_second" in str(config.get("sliding_window", "")) else 1
        traced = LAYERS if period == 1 else 2 * period
        few = min(depth, min(dense, 1) + traced)
        if few >= depth:
            return cls(0, 0, depth, {})
        changes: dict[str, Any] = {depth_word: few}
        if dense:
            changes["dense_layers"] = 1
        return cls(dense, period, few, changes)

    def stands_for(self, layer: int, depth: int) -> int:
        """Which of the traced blocks of a stack a layer of `depth` is like."""
        if not self.words:
            return layer
        if layer < self.dense:
            return 0
        first = min(self.dense, 1)
        inner, count = layer - self.dense, depth - self.dense
        traced = self.few - first
        if inner == 0:
            return first
        if inner == count - 1 and (count - traced) % self.period == 0:
            return first + traced - 1
        return first + (inner % self.period or self.period)
