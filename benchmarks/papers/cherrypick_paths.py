"""Searches as paths: what each run cost and found, and the expected improvement before it, so that rules to stop can be
compared without searching again.

A search that stops by a rule is the beginning of the search that does not, so one path serves every rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.papers.cherrypick_searches import Gaps
from precision_time.predictors.cherrypick import CherryPick, Setting
from precision_time.predictors.cloud_search import Configurations


@dataclass(frozen=True, slots=True)
class Path:
    """Of the runs made: share of the exhaustive cost, gap of its own cost to the lowest, largest expected improvement
    beforehand (None while starting)."""

    share: tuple[float, ...]
    gap: tuple[float, ...]
    expected: tuple[float | None, ...]

    def to_dict(self) -> dict[str, list[float | None]]:
        return {"share": list(self.share), "gap": list(self.gap), "expected": list(self.expected)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Path:
        return cls(tuple(content["share"]), tuple(content["gap"]), tuple(content["expected"]))

    def runs(self, stop_below: float, least: int) -> int:
        """Runs of the search that stops below this expected improvement after so many runs, or as the path does."""
        for made in range(least, len(self.gap)):
            expected = self.expected[made]
            if expected is not None and expected < stop_below:
                return made
        return len(self.gap)


def search_path(table: Configurations, setting: Setting, seed: int) -> Path:
    """The path of a search over known times until `setting` stops it."""
    seconds = table.known()
    costs = np.array([seconds(i) for i in range(len(table))]) * table.price_per_s
    search = CherryPick(table, seed=seed, setting=setting)
    expected: list[float | None] = []
    while ranked := search.ranked():
        improvements = [each.improvement for each in ranked if each.improvement is not None]
        expected.append(max(improvements) if improvements else None)
        search.tell(ranked[0].index, seconds(ranked[0].index))
    made = [trial.cost for trial in search.trials.done.values()]
    return Path(
        tuple(float(cost / costs.sum()) for cost in made),
        tuple(float(cost / costs.min() - 1.0) for cost in made),
        tuple(expected),
    )


def gaps_of(paths: Sequence[Path], stop_below: float, least: int) -> Gaps:
    """The searches of these paths that stop by this rule."""
    made = [path.runs(stop_below, least) for path in paths]
    return Gaps(
        np.array([min(path.gap[:runs]) for path, runs in zip(paths, made, strict=True)]),
        np.array(made, dtype=float),
        np.array([sum(path.share[:runs]) for path, runs in zip(paths, made, strict=True)]),
    )
