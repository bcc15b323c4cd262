"""Errors and intervals of steps by what is new about the job: its family, GPU, architecture, precision or framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill

import numpy as np

from precision_time.estimate.spread import OTHER_FRAMEWORK, TIMM
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.spreads import ALL, Coverage, Mask
from precision_time.fit.steps import NOVEL, JudgedSteps, is_timm, kind_of_row
from precision_time.fit.traced import read
from precision_time.measurements.row import Row
from precision_time.report.errors import labels, percent
from precision_time.report.table import Table
from precision_time.timing.step_factors import shipped_openness

FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")
COLUMNS = (*labels(FIELDS), "from other folds")
LEAST_ROWS = 30
"""Groups of fewer rows are not shown."""


def judge(tables: Path, progress: Callable[[str], None]) -> JudgedSteps:
    """The rows of all data-parallel tables, each held out by every kind of novelty."""
    return JudgedSteps.of(Steps(read(tables)), shipped_openness(), progress)


_PARTS: Mapping[str, Callable[[Row], bool]] = {
    "image networks of timm, published, NCHW": lambda row: is_timm(row) and not _own(row) and not _last(row),
    "image networks of timm, published, NHWC": lambda row: is_timm(row) and not _own(row) and _last(row),
    "frameworks for which PyTorch stands": lambda row: _as_pytorch(row),
    "networks of torchvision": lambda row: row.model.startswith("torchvision:"),
    "other networks, published": lambda row: ":" not in row.model and not _own(row) and not _as_pytorch(row),
    "this project's H100, NCHW": lambda row: _own(row) and not _last(row),
    "this project's H100, NHWC": lambda row: _own(row) and _last(row),
}


def _own(row: Row) -> bool:
    return row.source.startswith("this project")


def _as_pytorch(row: Row) -> bool:
    return kind_of_row(row) == OTHER_FRAMEWORK


def _last(row: Row) -> bool:
    return row.job is not None and row.job.memory_format == "nhwc"


def _cells(coverage: Coverage, rows: Mask) -> list[str]:
    statistics, elsewhere = coverage.statistics(rows)
    return [*statistics.cells(FIELDS), percent(elsewhere, 0)]


def coverages(judged: JudgedSteps) -> dict[str, Coverage]:
    """By what is new about all rows: whether each is in P10-P90. A new model adds nothing."""
    return {name: Coverage.of(judged.spread, judged.errors[name], name != "model") for name in ("model", *NOVEL)}


def summary(judged: JudgedSteps) -> Table:
    """Three rows for each kind of novelty: image networks of timm, most rows of which are on one GPU, steps of
    frameworks for which PyTorch stands, and others."""
    kinds = {
        ALL: "other networks, and our H100",
        TIMM: "networks of timm, RTX 3090",
        OTHER_FRAMEWORK: "TensorFlow, Paddle",
    }
    return _by_kind(judged, kinds)


def readme(judged: JudgedSteps) -> str:
    """What README shows: the summary, and the parts that say most about a GPU or library nobody has looked at."""
    everything = coverages(judged)

    def said(novelty: str, test: Callable[[Row], bool]) -> dict[str, str]:
        rows = np.array([test(row) for row in judged.rows])
        return dict(zip((*FIELDS, "elsewhere"), _cells(everything[novelty], rows), strict=True))

    first, last = (said("family", _PARTS[f"this project's H100, {order}"]) for order in ("NCHW", "NHWC"))
    unseen = said("gpu", lambda row: NOVEL["gpu"](row) == "h100-80gb-sxm" and not _as_pytorch(row))
    others = said("family", _as_pytorch)
    text = (
        f"Newer libraries are the weak spot: our own H100 steps err by {first['mape']} in NCHW and {last['mape']} in "
        f"NHWC where their family is new, and P10-P90 from other folds holds {first['elsewhere']} and "
        f"{last['elsewhere']} of them; without any row of the H100, its {unseen['n']} rows err by {unseen['mape']}, "
        f"and it holds {unseen['elsewhere']}. Steps of TensorFlow and Paddle in a new family have a signed mean error "
        f"of {others['signed_mean']} (below 0: predicted too fast)."
    )
    return f"{summary(judged).markdown()}\n\n{fill(text, 120)}"


def _by_kind(judged: JudgedSteps, kinds: Mapping[str, str]) -> Table:
    rows = [
        [name, title, *_cells(coverage, judged.spread.of_kind(kind))]
        for name, coverage in coverages(judged).items()
        for kind, title in kinds.items()
    ]
    return Table(["new is the", "of", *COLUMNS], rows, left=2)


def page(judged: JudgedSteps) -> str:
    """unknown.md."""
    everything = coverages(judged)
    parts = [
        [name, *_cells(everything["family"], np.array([test(row) for row in judged.rows]))]
        for name, test in _PARTS.items()
    ]
    by_precision = Counter(row.precision for row in judged.rows if _ordinary(row))
    precisions = [
        [name, *_cells(everything["family"], _of(judged, lambda row, name=name: row.precision == name))]  # type: ignore[misc]
        for name, count in by_precision.most_common()
        if count >= LEAST_ROWS
    ]
    sections = []
    for name, fold in NOVEL.items():
        shown = np.array([name == "framework" or not _as_pytorch(row) for row in judged.rows])
        crowd = Counter(fold(row) for row, kept in zip(judged.rows, shown.tolist(), strict=True) if kept)
        rows = [
            [each, *_cells(everything[name], np.array([fold(row) == each for row in judged.rows]) & shown)]
            for each, count in crowd.most_common()
            if count >= LEAST_ROWS
        ]
        sections.append(f"## By {name}\n\n{Table([name, *COLUMNS], rows).markdown()}\n")
    return f"""# Steps with something new

Written by `python -m benchmarks.accuracy classes`. Rows of trust A and B of all tables of data-parallel steps, and
those of TensorFlow and Paddle, for which PyTorch's operators and kernels stand (`data/published/` and `data/measured/`:
{len(judged.rows):,} rows that say something about kernels), each predicted by factors on kernels that were fitted
without all rows which share its model, family, GPU, architecture, precision or framework. Anchors and factors of
[accuracy.md](accuracy.md) are not applied.
Steps in half, pure half, TF32, single and double precision, those of timm's image networks and those of TensorFlow and
Paddle have spreads of their own, for which a model, family or GPU counts as the root of its rows and a spread that few
of them tell is wider for it.
"In P10-P90": at the shipped spreads, which hold at least 80% of most kinds by construction. "From other folds": at
spreads that rows of other folds alone give in the same way. Nearly all of timm's networks ran on one GPU in one
precision and framework, so that other networks settle theirs there.

{summary(judged).markdown()}

## By kind of step

{_by_kind(judged, {kind: kind for kind in judged.spread.names}).markdown()}

## New families by part of the tables

{Table(["rows held out by family", *COLUMNS], parts).markdown()}

## New families by precision, without timm

{Table(["precision", *COLUMNS], precisions).markdown()}

{chr(10).join(sections)}"""


def _of(judged: JudgedSteps, test: Callable[[Row], bool]) -> Mask:
    return np.array([test(row) and _ordinary(row) for row in judged.rows], dtype=np.bool_)


def _ordinary(row: Row) -> bool:
    return not is_timm(row) and not _as_pytorch(row)
