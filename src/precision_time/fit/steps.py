"""A few factors between kernels and whole steps, fitted to published training steps.

    python -m precision_time.fit.steps --shared DIR             fit, write timing/data/step_scales.json, print the table
    python -m precision_time.fit.steps --shared DIR --report    only judge: every row held out by family, GPU, precision

The board (`precision_time.fit.board`) makes docs/accuracy.md of the same folds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.evaluation.rows import statistics
from precision_time.fit.cases import Case, cases
from precision_time.fit.evaluation.text import percent
from precision_time.fit.factors import BENT, PRIOR, Fitted, fit
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
from precision_time.job.file import compact_json
from precision_time.measurements.digest import digests_of
from precision_time.measurements.table import read_table
from precision_time.text_table import format_table
from precision_time.timing.constants import StepConstants
from precision_time.timing.step_factors import GROUP_PRIOR

TABLE = Path("data") / "published" / "measurements.csv"
"""The measured steps, below the shared folder."""
OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "step_scales.json"


def document(found: Fitted, judged: Sequence[HeldOut], source: Path, fitted: Sequence[Case]) -> dict[str, Any]:
    parameters, constants, openness = found.parameters, found.constants, found.openness
    scales = constants.scales
    values, vectors = np.linalg.eigh(openness.covariance)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    return {
        "provenance": {
            **provenance("steps", source, len(fitted)),
            "row_digests": digests_of(case.row.digest for case in fitted),
            "prior_standard_deviations": {**GROUP_PRIOR, **PRIOR},
            "shared_errors": SHARED,
            "own_errors": OWN,
        },
        "parameters": {name: round(float(value), 4) for name, value in zip(parameters.names, found.theta, strict=True)},
        "scales": {key: round(value, 4) for key, value in sorted(scales.items())},
        "execution": {k: round(v, 4) for k, v in constants.execution.items()},
        **{part: {k: round(v, 4) for k, v in getattr(constants, part).items()} for part in BENT},
        "interval": {
            "log_spread": round(spread_for(judged), 4),
            "architectures": parameters.architectures,
            "unseen_architecture": UNSEEN_ARCHITECTURE,
        },
        "openness": {"names": list(openness.names), "half": [[round(float(v), 4) for v in row] for row in half]},
    }


def summary(runs: Mapping[str, Sequence[HeldOut]]) -> str:
    """One line of errors on the rows of trust A and B for each run."""
    lines = []
    for name, held_out in runs.items():
        found = statistics([j for j in with_intervals(held_out) if j.row.trust in TRUSTED])
        sizes = [percent(v) for v in (found.mape, found.median_ape)]
        sizes += [percent(found.signed_mean, sign="+"), percent(found.p90_ape), percent(found.coverage_p10_p90, 0)]
        lines.append([name, f"{found.n:,}", *sizes])
    return format_table(["rows of trust A and B", "rows", "MAPE", "median", "signed", "P90", "in P10-P90"], lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit.steps", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help=f"folder with {TABLE.as_posix()}")
    parser.add_argument("--report", action="store_true", help="judge only, write nothing")
    given = parser.parse_args(arguments)
    rows = read_table(given.shared / TABLE).rows
    everything = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    runs = {f"held out by {name}": cross_validate(everything, fold) for name, fold in FOLDS.items()}
    plain = [j for c in everything for j in judge([c], StepConstants(), c.row.family)]
    print(summary({"without factors": plain, **runs}))
    if not given.report:
        found = fit(everything)
        content = document(found, runs["held out by model family"], given.shared / TABLE, everything)
        OUTPUT.write_text(compact_json(content) + "\n", encoding="utf-8")
        print(f"written: {OUTPUT.name}, {len(found.theta)} factors from {len(everything)} rows", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
