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

from precision_time.evaluation.rows import statistics
from precision_time.fit import kernel_factors
from precision_time.fit.cases import Case, cases
from precision_time.fit.factors import DIFFERENCED, PRIOR, Fitted, fit
from precision_time.fit.folds import (
    FOLDS,
    TRUSTED,
    Array,
    HeldOut,
    cross_validate,
    judge,
    least_spread,
    with_intervals,
)
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.provenance import provenance
from precision_time.fit.row_correlation import OWN, SHARED
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
from precision_time.timing.step_factors import GROUP_PRIOR

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
class NewRows:
    """Rows predicted by factors on kernels that were fitted without their fold.

    errors   log(predicted / measured)
    known    standard deviations of log(step time) without what is new
    """

    rows: tuple[Row, ...]
    folds: tuple[str, ...]
    errors: Array
    known: Array

    def spread(self, without: str | None = None) -> float:
        """What is added to `known` so that P10-P90 holds 80 % of the rows of the other folds than `without`."""
        kept = np.array([fold != without for fold in self.folds])
        return least_spread(self.errors[kept], self.known[kept])

    def only(self, test: Callable[[Row], bool]) -> NewRows:
        """The rows that pass a test."""
        at = np.flatnonzero([test(row) for row in self.rows])
        rows, folds = tuple(self.rows[i] for i in at.tolist()), tuple(self.folds[i] for i in at.tolist())
        return NewRows(rows, folds, self.errors[at], self.known[at])


def new_rows(kernels: Steps, fold: Callable[[Row], str], known: Array) -> NewRows:
    """The steps of trust A and B of all tables, each predicted without its fold. `known`: the spread of every row."""
    seconds = kernel_factors.cross_validate(kernels, fold).seconds
    trusted = np.array([row.trust in TRUSTED for row in kernels.rows])
    kept = np.flatnonzero(trusted & ~kernels.forward & ~np.isnan(seconds))
    rows = tuple(kernels.rows[i] for i in kept.tolist())
    return NewRows(
        rows,
        tuple(fold(row) for row in rows),
        np.log(seconds[kept] / kernels.measured[kept]),
        known[kept],
    )


def is_timm(row: Row) -> bool:
    """Whether a row is of the one table of image networks on one GPU, which would outweigh all others."""
    return row.model.startswith("timm:")


def base_spread(kernels: Steps, widening: Array) -> float:
    """The base spread of a job of a known family: of rows predicted without their model."""
    return new_rows(kernels, lambda row: row.model, widening).only(lambda row: not is_timm(row)).spread()


def novelty(kernels: Steps, known: Array) -> dict[str, float]:
    """What is added to the spread of a job with something that no fitted row has, by what that is.

    Networks of timm have spreads of their own ("family:timm"), from the hundreds of their kind on one GPU.
    """
    found: dict[str, float] = {}
    for name, fold in NOVEL.items():
        run = new_rows(kernels, fold, known)
        found[name] = run.only(lambda row: not is_timm(row)).spread()
        found[f"{name}:timm"] = run.only(is_timm).spread()
    return {name: round(value, 4) for name, value in found.items()}


def seen(kernels: Steps) -> dict[str, Any]:
    """What the fitted steps have (`JobFacts`); a forward pass tells little of a step."""
    rows = [row for row, forward in zip(kernels.rows, kernels.forward.tolist(), strict=True) if not forward]
    values = {name: sorted({fold(row) for row in rows}) for name, fold in NOVEL.items()}
    return {**values, "gpus": max(row.gpus for row in rows)}


def document(
    fitted: Fitted, base: float, source: Path, cases: Sequence[Case], unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """What `step_scales.json` holds: `fitted` to `cases` of the table `source`.

    `base`: the interval's width; `unknown`: what the fitted rows have, and what a job adds that has something else.
    """
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
        "interval": {
            "log_spread": round(base, 4),
            **unknown,
        },
        "openness": {"names": list(openness.names), "half": [[round(float(v), 4) for v in row] for row in half]},
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
        fitted = fit(traced, factors=KernelFactors.shipped())
        widening = kernels.widening(fitted.openness)
        base = base_spread(kernels, widening)
        unknown = {"seen": seen(kernels), "novelty": novelty(kernels, np.hypot(base, widening))}
        content = document(fitted, base, source, traced, unknown)
        write_shipped(OUTPUT, compact_json(content) + "\n")
        print(f"{len(fitted.theta)} factors from {len(traced)} rows -> {OUTPUT}", file=sys.stderr)
