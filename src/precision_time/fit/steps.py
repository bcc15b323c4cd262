"""Fits the factors between kernels and whole steps to published training steps (`data/published/measurements.csv`).

Writes `timing/data/step_scales.json`: the factors, what the rows leave open of them, and the width of the interval,
which comes from the rows held out by model family. Prints the errors held out by family, GPU and precision.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.evaluation.rows import statistics
from precision_time.fit.cases import Case, cases
from precision_time.fit.factors import DIFFERENCED, PRIOR, Fitted, fit
from precision_time.fit.folds import (
    FOLDS,
    TRUSTED,
    UNSEEN_ARCHITECTURE,
    HeldOut,
    cross_validate,
    judge,
    spread_for,
    with_intervals,
)
from precision_time.fit.provenance import provenance
from precision_time.fit.row_correlation import OWN, SHARED
from precision_time.measurements.digest import digests_of
from precision_time.measurements.repository import STEPS
from precision_time.measurements.table import read_table
from precision_time.report.errors import labels
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import StepConstants
from precision_time.timing.step_factors import GROUP_PRIOR

OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "step_scales.json"


def document(fitted: Fitted, judged: Sequence[HeldOut], source: Path, cases: Sequence[Case]) -> dict[str, Any]:
    """What `step_scales.json` holds: `fitted` to `cases` of the table `source`; `judged` sets the interval's width."""
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
            "log_spread": round(spread_for(judged), 4),
            "architectures": parameters.architectures,
            "unseen_architecture": UNSEEN_ARCHITECTURE,
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
    runs = {f"held out by {name}": cross_validate(traced, fold) for name, fold in FOLDS.items()}
    plain = [j for case in traced for j in judge([case], StepConstants(), case.row.family)]
    print(summary({"without factors": plain, **runs}))
    if not judge_only:
        fitted = fit(traced)
        content = document(fitted, runs["held out by model family"], source, traced)
        write_shipped(OUTPUT, compact_json(content) + "\n")
        print(f"{len(fitted.theta)} factors from {len(traced)} rows -> {OUTPUT}", file=sys.stderr)
