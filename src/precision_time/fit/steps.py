"""Fits the factors between kernels and whole steps to published training steps (`data/published/measurements.csv`).

Writes `timing/data/step_scales.json`: the factors, what the rows leave open of them, and the width of the interval,
which comes from the rows held out by model family. Prints the errors held out by family, GPU and precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.estimate.spread import TIMM, kind_of
from precision_time.evaluation.rows import statistics
from precision_time.fit import kernel_factors
from precision_time.fit.cases import Case, cases, fitted_to
from precision_time.fit.factors import DIFFERENCED, PRIOR, Fitted, fit
from precision_time.fit.folds import (
    FOLDS,
    TRUSTED,
    Array,
    HeldOut,
    cross_validate,
    judge,
    sets_spread,
)
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.provenance import provenance
from precision_time.fit.row_correlation import OWN, SHARED
from precision_time.fit.spreads import Errors, Spread, base_spreads, novelty, with_intervals
from precision_time.fit.traced import read
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.digest import digests_of
from precision_time.measurements.repository import STEPS
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.report.errors import labels
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernel_factors import KernelFactors
from precision_time.timing.step_factors import GROUP_PRIOR, Openness

OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "step_scales.json"


NOVEL: dict[str, Callable[[Row], str]] = {
    "family": lambda row: row.family,
    "gpu": lambda row: row.gpu,
    "architecture": lambda row: default_catalog().gpu(row.gpu).arch,
    "precision": lambda row: row.precision,
    "framework": lambda row: row.framework,
}
"""What may be new about a job (`JobFacts`) -> the folds that tell how far a prediction is off when it is."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSteps:
    """The steps of trust A and B of all tables, and those of frameworks for which PyTorch stands, predicted by
    factors on kernels that were fitted without their model, and without what else they share (`NOVEL`).

    widenings  what each job adds to its spread
    errors     by what was left out
    """

    rows: tuple[Row, ...]
    widenings: Array
    errors: Mapping[str, Errors]

    @classmethod
    def of(cls, kernels: Steps, openness: Openness, progress: Callable[[str], None] = lambda name: None) -> JudgedSteps:
        """`openness`: of the step factors."""
        counts = np.array([sets_spread(row) for row in kernels.rows])
        kept = np.flatnonzero(counts & ~kernels.partial & kernels.usable)
        rows = tuple(kernels.rows[i] for i in kept.tolist())
        errors = {}
        for name, fold in {"model": _model, **NOVEL}.items():
            progress(f"without its {name}")
            seconds = kernel_factors.cross_validate(kernels, fold).seconds[kept]
            errors[name] = Errors.of(np.log(seconds / kernels.measured[kept]), [fold(row) for row in rows])
        return cls(rows, kernels.widening(openness)[kept], errors)

    @property
    def spread(self) -> Spread:
        """The spreads of the rows."""
        kinds = [kind_of_row(row) for row in self.rows]
        everything = np.ones(len(self.rows), dtype=np.bool_)
        return Spread(self.widenings, np.array(kinds), everything, self.errors["model"], self.widenings)

    def novelty(self) -> dict[str, float]:
        """What something new adds to the spread of a job (`spreads.novelty`)."""
        return novelty({name: (self.spread, self.errors[name]) for name in NOVEL})


def _model(row: Row) -> str:
    return row.model


def is_timm(row: Row) -> bool:
    """Whether a row is of the one table of image networks on one GPU, which would outweigh all others."""
    return row.model.startswith("timm:")


def kind_of_row(row: Row) -> str:
    """The kind of a data-parallel step of the tables that was traced."""
    assert row.job is not None
    return kind_of(TIMM if is_timm(row) else row.family, row.precision, row.job, row.job.gpu)


def seen(kernels: Steps) -> dict[str, Any]:
    """What the fitted steps have (`JobFacts`); a forward pass tells little of a step."""
    rows = [row for row, partial in zip(kernels.rows, kernels.partial.tolist(), strict=True) if not partial]
    values = {name: sorted({fold(row) for row in rows}) for name, fold in NOVEL.items()}
    return {**values, "gpus": max(row.gpus for row in rows)}


def document(fitted: Fitted, source: Path, cases: Sequence[Case], interval: Mapping[str, Any]) -> dict[str, Any]:
    """What `step_scales.json` holds: `fitted` to `cases` of the table `source`. `interval`: its part about spreads."""
    parameters, constants, openness = fitted.parameters, fitted.constants, fitted.openness
    scales = constants.scales
    values, vectors = np.linalg.eigh(openness.covariance)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    return {
        "provenance": {
            **provenance("steps", source, len(cases)),
            "row_digests": digests_of(case.row.digest for case in cases),
            "prior_standard_deviations": {**GROUP_PRIOR, **PRIOR},
            "shared_errors": SHARED,
            "own_errors": OWN,
        },
        "parameters": {
            name: round(float(value), 4) for name, value in zip(parameters.names, fitted.theta, strict=True)
        },
        "scales": {key: round(value, 4) for key, value in sorted(scales.items())},
        "execution": {k: round(v, 4) for k, v in constants.execution.items()},
        **{part: {k: round(v, 4) for k, v in getattr(constants, part).items()} for part in DIFFERENCED},
        "interval": interval,
        "openness": {
            "names": list(openness.names),
            "half": [[round(float(v), 4) for v in row] for row in half],
            "width": openness.width,
        },
    }


FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")


def summary(runs: Mapping[str, Sequence[HeldOut]]) -> Table:
    """One row of errors for each run, of the rows of trust A and B."""
    rows = []
    for name, held_out in runs.items():
        judged = [j for j in with_intervals(held_out) if j.row.trust in TRUSTED]
        rows.append([name, *statistics(judged).cells(FIELDS)])
    return Table(["rows of trust A and B", *labels(FIELDS)], rows)


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the published steps below `tables`, print the errors held out, and write the factors unless `judge_only`."""
    source = tables / STEPS
    rows = read_table(source).rows
    traced = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    kernels = Steps(read(tables))
    runs = {f"held out by {name}": cross_validate(traced, fold, kernels=kernels) for name, fold in FOLDS.items()}
    plain = [j for case in traced for j in judge([case], StepConstants(), case.row.family)]
    print(summary({"without factors": plain, **runs}))
    if not judge_only:
        taught = fitted_to(traced)
        fitted = fit(taught, factors=KernelFactors.shipped())
        judged = JudgedSteps.of(kernels, fitted.openness)
        interval = {**base_spreads(judged.spread), "seen": seen(kernels), "novelty": judged.novelty()}
        content = document(fitted, source, taught, interval)
        write_shipped(OUTPUT, compact_json(content) + "\n")
        print(f"{len(fitted.theta)} factors from {len(taught)} rows -> {OUTPUT}", file=sys.stderr)
