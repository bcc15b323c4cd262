"""Replay published rows as the outcomes of clusters: `python -m benchmarks.replay` (about five minutes on one core).

Reads `data/replay/held_out.csv` (`python -m benchmarks.replay.held_out` makes it), and writes replay.json, replay.md
and replay.png in benchmarks/results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.replay import page
from benchmarks.replay.held_out import OUTPUT, HeldOutRow, read_held_out
from benchmarks.replay.replay import Step, replay
from benchmarks.replay.results import by_source, chosen_rates, curve, injection, mean_ratio, summary
from benchmarks.replay.variances import Fit
from benchmarks.speed import RESULTS
from precision_time.fit.provenance import sha256
from precision_time.measurements.repository import required_data_folder
from precision_time.report.write import compact_json, write_whole

ORDERS, SHUFFLED_ROWS, INJECTIONS = (1, 2, 3), 400, (1, 2)
"""Seeds of random orders, rows of a source in each of them, and seeds of injections."""


def _shuffled(seed: int) -> Callable[[Sequence[HeldOutRow]], Sequence[HeldOutRow]]:
    def order(rows: Sequence[HeldOutRow]) -> Sequence[HeldOutRow]:
        chosen = np.random.default_rng(seed).permutation(len(rows))[:SHUFFLED_ROWS]
        return [rows[i] for i in chosen.tolist()]

    return order


def _first(rows: Sequence[HeldOutRow]) -> Sequence[HeldOutRow]:
    return rows[:SHUFFLED_ROWS]


def results() -> dict[str, Any]:
    """All figures of the page."""
    table = required_data_folder() / OUTPUT
    rows = read_held_out(table)
    fit = Fit(rows)
    steps = replay(rows, fit)
    shuffled: list[Step] = [step for seed in ORDERS for step in replay(rows, fit, _shuffled(seed))]
    clean = replay(rows, fit, _first)
    broken = [replay(rows, fit, _first, injected=seed) for seed in INJECTIONS]
    sources, mixed = by_source(steps), by_source(shuffled)
    took = [1e3 * step.learn_s for step in steps]
    return {
        "held_out_sha256": sha256(table),
        "all": summary(steps),
        "sources": sources,
        "mean_ratio": mean_ratio(sources, "after_others", "others"),
        "curve": curve(steps),
        "rates": chosen_rates(steps),
        "shuffled": {
            "all": summary(shuffled),
            "sources": mixed,
            "mean_ratio": mean_ratio(mixed, "after_others", "others"),
        },
        "injection": injection(clean, broken),
        "learn_ms": {"mean": round(float(np.mean(took)), 2), "p99": round(float(np.quantile(took, 0.99)), 2)},
    }


def main() -> int:
    found = results()
    write_whole(RESULTS / "replay.json", compact_json(json.loads(json.dumps(found))) + "\n")
    write_whole(RESULTS / "replay.md", page.page(found))
    write_whole(RESULTS / "replay.png", page.picture(found))
    print(json.dumps(found["all"], indent=1), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
