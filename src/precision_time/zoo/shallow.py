"""A model of few layers with every kind of block of the deep model, traced in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOWED = {"every_second_layer": 2, "five_of_six": 6}
"""Word of `sliding_window` -> layers after which it repeats; the last of them has no window."""
LAYERS = 3
"""A first, a middle and a last block; all blocks between the first and the last equal the middle one."""


@dataclass(frozen=True, slots=True)
class Shallow:
    """The layers that are traced for a deep model.

    dense    number of dense blocks, which come first in some mixtures of experts
    period   blocks repeat with this period: 2 with a sliding window in every second layer, 6 with one in five of six
    few      layers traced of each stack: one dense block, then two periods, or a first, a middle and a last block.
             Hybrids (a `pattern` of letters) are traced whole.
    changes  keys of `model_config` that make the deep model that shallow; empty where it is traced whole
    """

    dense: int
    period: int
    few: int
    changes: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any], depth_word: str = "layers") -> Shallow:
        depth = int(config[depth_word])
        if config.get("pattern"):
            return cls(0, 0, depth, {})
        stored = cls.stored(config, depth_word)
        return stored if stored.few < depth else cls(0, 0, depth, {})

    @classmethod
    def stored(cls, config: Mapping[str, Any], depth_word: str = "layers") -> Shallow:
        """The layers of a template, which stand for models of any depth, shallower ones too."""
        dense = int(config.get("dense_layers") or 0) if config.get("experts") else 0
        period = WINDOWED.get(str(config.get("sliding_window", "")).partition("_")[2], 1)
        few = min(dense, 1) + (LAYERS if period == 1 else 2 * period)
        return cls(dense, period, few, {depth_word: few, **({"dense_layers": 1} if dense else {})})

    def stands_for(self, layer: int, depth: int) -> int:
        """Index of the traced block that equals block `layer` of a stack of `depth`."""
        if not self.changes:
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
