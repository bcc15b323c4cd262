"""The judged rows of the steps on disk, so that the pages can be written again without judging."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.facts import Facts
from benchmarks.accuracy.steps import Runs, judged_runs
from precision_time.anchors.anchor import JobDescriptor
from precision_time.errors import DataError
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.folds import HeldOut
from precision_time.measurements.row import Row
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


def read_runs(path: Path, facts: Facts, rows: Sequence[Row]) -> tuple[Facts, Runs]:
    """Facts and runs that `write_runs` wrote. Raises `DataError` where they are of other tables or parameters than
    `facts`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = Facts(**content["facts"])
        stale = next((name for name in ("sha256", "parameters") if getattr(stored, name) != getattr(facts, name)), None)
        if stale:
            reason = {"sha256": "another table", "parameters": "other timing parameters"}[stale]
            raise DataError(f"{path.name} was judged with {reason}; leave out --from and judge again")
        by_line = {row.line: row for row in rows}
        runs = {
            name: [
                HeldOut(
                    by_line[j["line"]],
                    j["fold"],
                    j["predicted_s"],
                    j["widening"],
                    j["breakdown"],
                    j["fits"],
                    JobDescriptor(**{**j["descriptor"], "shares": tuple(j["descriptor"]["shares"])}),
                )
                for j in judged
            ]
            for name, judged in content["runs"].items()
        }
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{str(path)!r} is not a file that --json wrote; leave out --from and judge again") from None
    return stored, runs
