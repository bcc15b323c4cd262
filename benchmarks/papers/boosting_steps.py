"""Boosting on all published steps, held out by job, family and GPU: `python -m benchmarks.papers.boosting_steps`.

Beside the predictor stand two ablations: the same trees on log(seconds / initial) in one model without the hierarchy
(`flat`), and the initial seconds alone. Folds are drawn anew for every seed, where there are seeds; an interval is the
range over them. Writes benchmarks/results/boosting.json and boosting.md, and precision_table.md: seconds by precision,
model, GPU and count, cell by cell. Folds that were judged are kept in out/boosting-steps.jsonl, from which a later
call goes on.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.precision_table import precision_table
from benchmarks.speed import RESULTS, machine
from precision_time.journal import Journal
from precision_time.measurements.repository import required_data_folder
from precision_time.predictors.boosting import Boosting
from precision_time.predictors.features import FEATURES, matrix, names
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.published import TABLES, all_published, grouped_folds, job_group
from precision_time.predictors.rows import Rows, merged
from precision_time.predictors.trees import Setting, Trees
from precision_time.processes import cores, pooled
from precision_time.report.errors import ErrorStatistics
from precision_time.report.page import fill_markers
from precision_time.report.table import Table
from precision_time.report.write import write_whole

Array = NDArray[np.float64]

PAGE = RESULTS.parents[1] / "docs" / "boosting.md"
"""Page with `page_table` between its markers."""
JOURNAL = Path("out/boosting-steps.jsonl")
SETTING = Setting(seeds=1)
"""One ensemble instead of two, since every fold grows some twenty."""
SEEDS = {"job": (0, 1), "family": (0, 1), "gpu": (0,)}
"""What is held out -> seeds of the folds: 5 folds of jobs, 10 of families, one of each GPU type."""
KINDS = ("boosting", "flat", "initial")


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to judge; all others train."""

    by: str
    seed: int
    number: int
    judged: NDArray[np.intp]

    @property
    def key(self) -> str:
        return f"{self.by} {self.seed} {self.number}"


def folds(rows: Rows) -> list[Fold]:
    """All folds of all seeds."""
    gpus = np.array([facts.cluster.gpu.name for facts in rows.facts])
    found = []
    for by, seeds in SEEDS.items():
        for seed in seeds:
            if by == "job":
                of = np.array(grouped_folds(rows.measured, job_group, 5, seed))
            elif by == "family":
                of = np.array(grouped_folds(rows.measured, lambda each: each.family, 10, seed))
            else:
                of = np.unique(gpus, return_inverse=True)[1]
            found += [Fold(by, seed, number, np.flatnonzero(of == number)) for number in np.unique(of).tolist()]
    return found


def judge(rows: Rows, fold: Fold) -> dict[str, list[float]]:
    """Predicted over measured of the judged rows by each of KINDS, and P10 and P90 of boosting over measured."""
    judged, training = rows.pick(fold.judged), rows.pick(np.setdiff1d(np.arange(len(rows)), fold.judged))
    predictor = Boosting(SETTING, fold.seed)
    predictor.fit(training.measured)
    forecasts = [predictor.predict_facts(m.job, f) for m, f in zip(judged.measured, judged.facts, strict=True)]
    initial = np.log([facts.initial_s for facts in rows.facts])
    at = np.setdiff1d(np.arange(len(rows)), fold.judged)
    flat = Trees.fit(
        FEATURES, matrix(training.facts), (rows.log_s - initial)[at], training.weights, SETTING, fold.seed
    ).predict(matrix(judged.facts))
    measured_s = np.exp(judged.log_s)
    return {
        "boosting": list(np.array([f.seconds for f in forecasts]) / measured_s),
        "p10": list(np.array([f.p10_s for f in forecasts]) / measured_s),
        "p90": list(np.array([f.p90_s for f in forecasts]) / measured_s),
        "flat": list(np.exp(initial[fold.judged] + flat - judged.log_s)),
        "initial": list(np.exp(initial[fold.judged] - judged.log_s)),
    }


def mape(judged: Mapping[str, Sequence[float]]) -> float:
    """Mean error of boosting on the rows of a fold; `judged` as `judge` gives it."""
    return float(np.abs(np.array(judged["boosting"]) - 1.0).mean())


def statistics(ratios: Mapping[str, Array], kind: str, mine: NDArray[np.bool_]) -> ErrorStatistics:
    inside = (ratios["p10"] <= 1.0) & (ratios["p90"] >= 1.0)
    return ErrorStatistics.of(ratios[kind][mine] - 1.0, inside[mine] if kind == "boosting" else None)


@functools.cache
def published_rows() -> Rows:
    """All published rows, read once in each process."""
    return Rows.of(merged(all_published(required_data_folder())), lambda job: job, "boosting")


def judge_number(number: int) -> dict[str, list[float]]:
    """`judge` of one of `folds`, in whatever process."""
    rows = published_rows()
    return judge(rows, folds(rows)[number])


def main() -> None:
    """Judge every fold that the journal lacks, on all cores, then write the results."""
    rows = published_rows()
    tables = _tables_of(rows.measured, required_data_folder())
    JOURNAL.parent.mkdir(exist_ok=True)
    journal = Journal(JOURNAL, {"rows": len(rows), "setting": asdict(SETTING), "features": names(FEATURES)})
    asked = folds(rows)
    left = [number for number, fold in enumerate(asked) if journal.get(fold.key) is None]
    for done, (at, found) in enumerate(pooled(judge_number, left, cores()), 1):
        journal.add(asked[left[at]].key, found)
        print(f"\rfold {done}/{len(left)}", end="", file=sys.stderr, flush=True)
    for number in left:
        if journal.get(asked[number].key) is None:  # of a pool that broke
            journal.add(asked[number].key, judge_number(number))
    print(file=sys.stderr)
    runs: dict[tuple[str, int], dict[str, Array]] = {}
    for fold in asked:
        run = runs.setdefault((fold.by, fold.seed), {k: np.full(len(rows), np.nan) for k in (*KINDS, "p10", "p90")})
        found = journal.get(fold.key) or {}
        for kind, ratios in run.items():
            ratios[fold.judged] = found[kind]
    content = _content(rows, tables, runs)
    content["folds"] = {fold.key: mape(journal.get(fold.key) or {}) for fold in asked}
    write_whole(RESULTS / "boosting.json", json.dumps(content, indent=1) + "\n")
    write_whole(RESULTS / "boosting.md", _markdown(content))
    write_whole(PAGE, fill_markers(PAGE.read_text(encoding="utf-8"), "boosting", page_table(content), PAGE.name))
    by_family = runs["family", SEEDS["family"][0]]["boosting"]
    write_whole(RESULTS / "precision_table.md", precision_table(rows.measured, by_family - 1.0))


def _tables_of(measured: Sequence[MeasuredJob], data: Path) -> NDArray[np.str_]:
    """The table that each row is in."""
    from precision_time.measurements.table import read_table

    of = {row.id: table.name for table in reversed(TABLES) for row in read_table(data / table).rows}
    return np.array([of[each.id] for each in measured])


def _content(
    rows: Rows, tables: NDArray[np.str_], runs: Mapping[tuple[str, int], Mapping[str, Array]]
) -> dict[str, Any]:
    every = np.ones(len(rows), dtype=np.bool_)
    gpus = np.array([facts.cluster.gpu.name for facts in rows.facts])
    precisions = np.array([each.precision for each in rows.measured])
    groups = {"all": {"all": every}}
    groups |= {"table": {name: tables == name for name in np.unique(tables).tolist()}}
    groups |= {"precision": {name: precisions == name for name in np.unique(precisions).tolist()}}
    groups |= {"GPU": {name: gpus == name for name in np.unique(gpus).tolist()}}
    content: dict[str, Any] = {"machine": machine(), "rows": len(rows), "setting": asdict(SETTING), "held_out": {}}
    for by, seeds in SEEDS.items():
        content["held_out"][by] = {
            f"{kind} | {group}": {
                name: _over_seeds([statistics(runs[by, seed], kind, mine) for seed in seeds])
                for name, mine in members.items()
            }
            for kind in KINDS
            for group, members in groups.items()
            if group in ("all", "table") or kind == "boosting"
        }
    return content


def _over_seeds(found: Sequence[ErrorStatistics]) -> dict[str, float | int | None]:
    """Means over seeds, and the range of the mean error."""
    mapes = [each.mape or 0.0 for each in found]
    inside = [each.coverage_p10_p90 for each in found if each.coverage_p10_p90 is not None]
    return {
        "rows": found[0].n,
        "mape": float(np.mean(mapes)),
        "least": min(mapes),
        "most": max(mapes),
        "median": float(np.mean([each.median_ape or 0.0 for each in found])),
        "p90": float(np.mean([each.p90_ape or 0.0 for each in found])),
        "signed": float(np.mean([each.signed_mean or 0.0 for each in found])),
        "in_p10_p90": float(np.mean(inside)) if inside else None,
    }


def page_table(content: Mapping[str, Any]) -> str:
    """The errors over all rows and by table, as docs/boosting.md has them."""
    lines = []
    for by, found in content["held_out"].items():
        lines += [(by, *_line(kind, "all", found[f"{kind} | all"]["all"])) for kind in KINDS[:2]]
        lines += [(by, *_line("boosting", name, each)) for name, each in found["boosting | table"].items()]
    initial = content["held_out"]["job"]["initial | all"]["all"]
    header = ("held out by", "predictor", "rows of", "n", "MAPE", "range", "median", "P90", "signed", "in P10-P90")
    return Table(header, [*lines, ("-", *_line("initial", "all", initial))], left=3).markdown()


def _markdown(content: dict[str, Any]) -> str:
    parts = [
        "# Boosting on all published steps",
        f"{content['rows']:,} rows of trust A and B; {content['machine']}. Written by "
        "`python -m benchmarks.papers.boosting_steps`. Every figure is of rows that the predictor was not fitted to; "
        "the range is over seeds of the folds. `flat` is one model of the same trees and features without hierarchy, "
        "`initial` the longer of kernels (by the curves of kernel tables) and launches, from which both start.",
    ]
    for by, found in content["held_out"].items():
        lines = []
        for key, members in found.items():
            kind, _, group = key.partition(" | ")
            lines += [_line(kind, name if group != "all" else "all", each) for name, each in members.items()]
        header = ("predictor", "rows of", "n", "MAPE", "range", "median", "P90", "signed", "in P10-P90")
        parts += [f"## Held out by {by}", Table(header, lines, left=2).markdown()]
    return "\n\n".join(parts) + "\n"


def _line(kind: str, name: str, each: Mapping[str, float]) -> tuple[str, ...]:
    inside = each["in_p10_p90"]
    return (
        kind,
        name,
        f"{each['rows']:,}",
        f"{each['mape']:.1%}",
        f"{each['least']:.1%} - {each['most']:.1%}",
        f"{each['median']:.1%}",
        f"{each['p90']:.1%}",
        f"{each['signed']:+.1%}",
        "-" if inside is None else f"{inside:.0%}",
    )


if __name__ == "__main__":
    main()
