"""How CherryPick's searches are judged: gaps to the best cost and runs made, beside searches at random and by axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.papers.search_baselines import coordinate_descent, random_search
from benchmarks.papers.study import Claim, Context, Figure, Table
from precision_time.predictors.cherrypick import AUTHORS, IMPROVED, PUBLISHED, Setting, cherrypick
from precision_time.predictors.cloud_search import Configurations, FloatArray, Search
from precision_time.predictors.surrogate import Averaged, Likelihood

SEEDS = 10
NO_RESULT = float("inf")
"""Gap of a search that found nothing within the deadline."""
AVERAGED = replace(PUBLISHED, surrogate=Averaged())
LADDER: tuple[tuple[str, str, Setting], ...] = (
    ("as published", "authors", PUBLISHED),
    ("hyperparameters of greatest likelihood", "authors", replace(PUBLISHED, surrogate=Likelihood())),
    ("as the authors' code (2 starts, 6 %)", "authors", AUTHORS),
    ("averaged hyperparameters (ours)", "authors", AVERAGED),
    ("averaged + totals of the cluster", "totals", AVERAGED),
    ("+ improvement for each unit of cost", "totals", replace(AVERAGED, per_cost=True)),
    (f"improved: + stop below {100 * IMPROVED.stop_below:g} % after {IMPROVED.least_runs} runs", "totals", IMPROVED),
)
"""(label, encoding, setting), one mechanism after the other."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Searches of one table, one a seed: gaps to the best cost (0 is exact), runs, share of exhaustive cost."""

    gap: FloatArray
    runs: FloatArray
    cost: FloatArray

    @property
    def exact(self) -> float:
        return float(np.mean(self.gap < 1e-9))


def judge(table: Configurations, searches: Sequence[Search], deadline_s: float | None = None) -> Gaps:
    """Beside the cheapest of the whole table that keeps the deadline."""
    times = np.array([table.known()(i) for i in range(len(table))])
    costs = times * table.price_per_s
    index = table.best(deadline_s)
    best = float(costs[index]) if index is not None else float("nan")
    gaps = [NO_RESULT if s.best is None else s.best.cost / best - 1.0 for s in searches]
    return Gaps(
        np.array(gaps),
        np.array([len(s.history) for s in searches], dtype=float),
        np.array([s.cost for s in searches]) / float(costs.sum()),
    )


def joined(parts: Sequence[Gaps]) -> Gaps:
    """All searches of several tables."""
    return Gaps(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("gap", "runs", "cost")))


def all_ways(
    table: Configurations, setting: Setting, seeds: int, deadline_s: float | None = None, first: int = 0
) -> dict[str, Gaps]:
    """CherryPick, and random search and coordinate descent with as many runs, seed by seed."""
    picked = [cherrypick(table, deadline_s=deadline_s, seed=first + s, setting=setting) for s in range(seeds)]
    searches_of = {"CherryPick": picked, "random": [], "coordinate descent": []}
    for seed, search in enumerate(picked, first):
        runs = len(search.history)
        searches_of["random"].append(random_search(table, runs=runs, deadline_s=deadline_s, seed=seed))
        searches_of["coordinate descent"].append(coordinate_descent(table, runs=runs, deadline_s=deadline_s, seed=seed))
    return {way: judge(table, searches, deadline_s) for way, searches in searches_of.items()}


HEADER = (
    "table",
    "configurations",
    "way",
    "median gap %",
    "P90 gap %",
    "exact %",
    "runs",
    "cost of exhaustive %",
)


def per_cent(gaps: FloatArray, share: float) -> str:
    """A quantile of gaps; "none" where so many searches found nothing within the deadline."""
    # no interpolation between a gap and none
    value = float(np.quantile(gaps, share, method="inverted_cdf" if np.isinf(gaps).any() else "linear"))
    return f"{100 * value:.1f}" if np.isfinite(value) else "none"


def rows_of(name: str, size: int, ways: Mapping[str, Gaps]) -> list[tuple[str, ...]]:
    """Lines of a table, one for each way of searching."""
    return [
        (
            name,
            str(size),
            way,
            per_cent(j.gap, 0.5),
            per_cent(j.gap, 0.9),
            f"{100 * j.exact:.0f}",
            f"{j.runs.mean():.1f}",
            f"{100 * j.cost.mean():.1f}",
        )
        for way, j in ways.items()
    ]


@dataclass
class Gathered:
    """What the parts of the study add to."""

    text: list[str]
    claims: list[Claim]
    tables: list[Table]
    figures: list[Figure]
    data: dict[str, object]

    def table(self, key: str, caption: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        self.tables.append(Table(caption, header, tuple(rows)))
        self.data[key] = [dict(zip(header, line, strict=True)) for line in rows]


def seeds_of(context: Context) -> int:
    """Searches of each table, one a seed."""
    return 2 if context.quick else SEEDS
