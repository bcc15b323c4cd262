"""Fits the variances of what the jobs of a cluster share: `python -m benchmarks.replay.variances` (some seconds).

Reads published rows as predicted without their source (`benchmarks.replay.held_out`) and writes
`serve/learning/data/variances.json`. Every source is one cluster; the standard deviations are those under which its
log(measured / predicted) are most likely, with a weak prior, and a source of many rows counts as a root of them. For a
replay they are fitted without the source that is judged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from benchmarks.replay.held_out import OUTPUT, HeldOutRow, read_held_out
from precision_time.fit.provenance import sha256
from precision_time.measurements.repository import required_data_folder
from precision_time.report.write import compact_json
from precision_time.serve.learning.effects import EFFECTS, FILE, Array, Coded, Variances
from precision_time.shipped import ROOT, write_shipped

USUAL, WIDTH = 0.05, 1.5
"""Prior of a standard deviation: log-normal around this, with this standard deviation of its log: chosen."""
LARGEST = 0.3
"""Larger errors count as this large: chosen."""
MOST_ROWS = 400
"""Rows of a source; of larger ones whole models are drawn until there are as many."""
POWER = 0.6
"""A source counts as many rows as it has to this power: chosen."""
SEED = 0
_LEAST, _MOST, _LEAST_NOISE = 0.002, 0.6, 0.015


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """Rows of a source: what each pair shares by effect (effects x rows x rows), which are one job, and log errors."""

    shared: Array
    same: Array
    ratios: Array


def by_source(rows: Iterable[HeldOutRow]) -> dict[str, list[HeldOutRow]]:
    sources: dict[str, list[HeldOutRow]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(row)
    return sources


def _drawn(rows: Sequence[HeldOutRow]) -> list[HeldOutRow]:
    if len(rows) <= MOST_ROWS:
        return list(rows)
    models = sorted({row.model for row in rows})
    order = np.random.default_rng(SEED).permutation(len(models))
    drawn: set[str] = set()
    chosen = 0
    for place in order.tolist():
        count = sum(row.model == models[place] for row in rows)
        if chosen and chosen + count > MOST_ROWS:
            continue
        drawn.add(models[place])
        chosen += count
    kept = [row for row in rows if row.model in drawn]
    return [kept[i] for i in np.linspace(0, len(kept) - 1, MOST_ROWS).astype(int)] if len(kept) > MOST_ROWS else kept


def _prepared(rows: Sequence[HeldOutRow]) -> _Source:
    drawn = _drawn(rows)
    clusters = np.array([row.cluster for row in drawn])
    coded = Coded([row.facets for row in drawn])
    one = clusters[:, None] == clusters[None, :]
    shared = np.stack([one * coded.shared(unit) for unit in np.eye(len(EFFECTS))])
    jobs = np.array([row.job for row in drawn])
    same = one * (jobs[:, None] == jobs[None, :]).astype(np.float64)
    return _Source(shared, same, np.clip([row.residual for row in drawn], -LARGEST, LARGEST))


def _loss(logs: Array, sources: Sequence[_Source]) -> tuple[float, Array]:
    """Minus the log likelihood, and its gradient over the logs of the standard deviations (effects, job, noise)."""
    squares = np.exp(2.0 * logs)
    total, gradient = 0.0, np.zeros_like(logs)
    for source in sources:
        count = len(source.ratios)
        weight = count ** (POWER - 1.0)
        covariance = np.tensordot(squares[:-2], source.shared, 1) + squares[-2] * source.same
        covariance += squares[-1] * np.eye(count)
        inverse = np.linalg.inv(covariance)
        pull = inverse @ source.ratios
        total += weight * 0.5 * (float(source.ratios @ pull) + float(np.linalg.slogdet(covariance)[1]))
        slope = 0.5 * (inverse - np.outer(pull, pull))
        parts = [*(float((slope * each).sum()) for each in source.shared), float((slope * source.same).sum())]
        gradient += weight * np.array([*parts, float(np.trace(slope))]) * 2.0 * squares
    off = (logs - math.log(USUAL)) / WIDTH
    return total + 0.5 * float(off @ off), gradient + off / WIDTH


class Fit:
    """The rows of all sources, prepared once for fits without some of them."""

    def __init__(self, rows: Iterable[HeldOutRow]) -> None:
        self.sources = {name: _prepared(each) for name, each in by_source(rows).items()}

    def variances(self, without: str | None = None) -> Variances:
        """The most likely standard deviations given all sources but one."""
        kept = [source for name, source in self.sources.items() if name != without]
        start = np.full(len(EFFECTS) + 2, math.log(USUAL))
        bounds = [(math.log(_LEAST), math.log(_MOST))] * (len(EFFECTS) + 1) + [
            (math.log(_LEAST_NOISE), math.log(_MOST))
        ]
        found = minimize(_loss, start, (kept,), "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 200})
        values = np.exp(found.x).tolist()
        effects = dict(zip(EFFECTS, (round(value, 4) for value in values), strict=False))
        return Variances(effects, round(values[-2], 4), round(values[-1], 4))


def document(fitted: Variances, table: Path, rows: Sequence[HeldOutRow]) -> dict[str, Any]:
    """What `variances.json` holds."""
    counts: Mapping[str, int] = {name: len(each) for name, each in by_source(rows).items()}
    return {
        "provenance": {
            "command": "python -m benchmarks.replay.variances",
            "table": table.name,
            "sha256": sha256(table),
            "rows": counts,
        },
        "effects": dict(fitted.effects),
        "job": fitted.job,
        "noise": fitted.noise,
    }


def main() -> int:
    table = required_data_folder() / OUTPUT
    rows = read_held_out(table)
    fitted = Fit(rows).variances()
    write_shipped(ROOT / FILE, compact_json(document(fitted, table, rows)) + "\n")
    print(*(f"{name:24} {size:.3f}" for name, size in fitted.effects.items()), sep="\n", file=sys.stderr)
    print(f"{'job':24} {fitted.job:.3f}\n{'noise':24} {fitted.noise:.3f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
