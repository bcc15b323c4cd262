"""The judged rows of the steps as a JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.facts import Facts
from benchmarks.accuracy.steps import Runs, judged_runs
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.folds import HeldOut
from precision_time.report.write import write_whole


def write_runs(path: Path, facts: Facts, runs: Runs) -> None:
    """Every row of every run: id, line, fold, seconds with P10 and P90, error, terms."""
    judged = judged_runs(runs)
    content = {
        "facts": dataclasses.asdict(facts),
        "runs": {name: _rows(held_out, judged[name]) for name, held_out in runs.items()},
    }
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def _rows(held_out: Sequence[HeldOut], judged: Sequence[JudgedRow]) -> list[dict[str, object]]:
    steps = {j.row.line: j.step for j in judged}
    return [
        {
            "id": h.row.id,
            "line": h.row.line,
            "fold": h.fold,
            "predicted_s": h.predicted_s,
            "p10_s": steps[h.row.line].p10,
            "p90_s": steps[h.row.line].p90,
            "error": h.predicted_s / h.row.measured_s - 1.0,
            "widening": h.widening,
            "breakdown": h.breakdown,
            "fits": h.fits,
            "descriptor": dataclasses.asdict(h.descriptor),
        }
        for h in held_out
    ]
