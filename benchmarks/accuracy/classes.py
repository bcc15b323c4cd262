"""Errors and intervals of steps by what is new about the job: its family, GPU, architecture, precision or framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from precision_time.fit.folds import Z90
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.steps import NOVEL, NewRows, is_timm, new_rows
from precision_time.fit.traced import read
from precision_time.measurements.row import Row
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.table import Table
from precision_time.timing.parameters import read_data
from precision_time.timing.step_factors import shipped_openness

FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")
LEAST_ROWS = 30
"""Groups of fewer rows are not shown."""


def judge(tables: Path, progress: Callable[[str], None]) -> dict[str, NewRows]:
    """The rows of all data-parallel tables, each held out by every kind of novelty."""
    kernels = Steps(read(tables))
    base = float(read_data("step_scales.json")["interval"]["log_spread"])
    known = np.hypot(base, kernels.widening(shipped_openness()))
    judged = {}
    for name, fold in NOVEL.items():
        progress(f"new {name}")
        judged[name] = new_rows(kernels, fold, known)
    return judged


def _inside(of: NewRows) -> list[bool]:
    """Whether each row lies in the P10-P90 whose added spread comes from the other folds of its kind.

    Networks of timm have spreads of their own, as `fit.steps.novelty` has it; those of one GPU have no other fold.
    """
    added: dict[tuple[bool, str], float] = {}
    for kind in (True, False):
        run = of.only(lambda row, kind=kind: is_timm(row) == kind)  # type: ignore[misc]
        folds = dict.fromkeys(run.folds)
        added |= {(kind, fold): run.spread(fold if len(folds) > 1 else None) for fold in folds}
    width = np.hypot(of.known, [added[is_timm(row), fold] for row, fold in zip(of.rows, of.folds, strict=True)])
    return [bool(inside) for inside in np.abs(of.errors) <= Z90 * width]


def statistics(of: NewRows, kept: Sequence[bool] | None = None) -> ErrorStatistics:
    """Errors and coverage of the rows, or of some of them."""
    chosen = [True] * len(of.rows) if kept is None else list(kept)
    errors, inside = np.expm1(of.errors), _inside(of)
    return ErrorStatistics.of(
        [float(e) for e, keep in zip(errors, chosen, strict=True) if keep],
        [i for i, keep in zip(inside, chosen, strict=True) if keep],
    )


_PARTS: Mapping[str, Callable[[Row], bool]] = {
    "image networks of timm, NCHW": lambda row: is_timm(row) and not _last(row),
    "image networks of timm, NHWC": lambda row: is_timm(row) and _last(row),
    "networks of torchvision": lambda row: row.model.startswith("torchvision:"),
    "other networks": lambda row: ":" not in row.model,
}


def _last(row: Row) -> bool:
    return row.job is not None and row.job.memory_format == "nhwc"


def summary(judged: Mapping[str, NewRows]) -> Table:
    """Two rows for each kind of novelty: image networks of timm, most rows of which are on one GPU, and others."""
    rows = []
    for name, of in judged.items():
        for kind, title in ((False, "other networks"), (True, "image networks of timm")):
            kept = [is_timm(row) == kind for row in of.rows]
            rows.append([name, title, *statistics(of, kept).cells(FIELDS)])
    return Table(["new is the", "of", *labels(FIELDS)], rows, left=2)


def page(judged: Mapping[str, NewRows]) -> str:
    """unknown.md."""
    new = judged["family"]
    parts = [[name, *statistics(new, [test(row) for row in new.rows]).cells(FIELDS)] for name, test in _PARTS.items()]
    sections = []
    for name, of in judged.items():
        crowd = Counter(of.folds)
        rows = [
            [fold, *statistics(of, [each == fold for each in of.folds]).cells(FIELDS)]
            for fold, count in crowd.most_common()
            if count >= LEAST_ROWS
        ]
        sections.append(f"## By {name}\n\n{Table([name, *labels(FIELDS)], rows).markdown()}\n")
    return f"""# Steps with something new

Written by `python -m benchmarks.accuracy classes`. Rows of trust A and B of all tables of data-parallel steps
(`data/published/`: {len(new.rows):,} rows that say something about kernels), each predicted by factors on kernels that
were fitted without all rows which share its family, GPU, architecture, precision or framework. Anchors and factors of
[accuracy.md](accuracy.md) are not applied. P10-P90 is as wide as the errors of the other folds require.
All image networks of timm ran on one GPU in one precision and framework, so that without their family they have no
other fold: their spread comes from the same rows, and the 80% in P10-P90 is then so by construction.

{summary(judged).markdown()}

## New families by kind

{Table(["rows held out by family", *labels(FIELDS)], parts).markdown()}

{chr(10).join(sections)}"""
