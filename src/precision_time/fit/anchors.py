"""Fits the published anchors: what a measured job says about similar jobs.

Reads `data/published/measurements.csv`, writes `anchors/data/published.json`: the rows with what this version predicts
for them, and the standard deviations of the errors that similar jobs share. These are fitted to errors held out by
model family. Prints what anchors are worth, every row judged by a covariance fitted without its family.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.anchors.base import COLUMNS, row_of_anchor
from precision_time.anchors.covariance import EFFECTS, TRUSTS, Array, Covariance, JobColumns, effect_matrices
from precision_time.anchors.posterior import Anchors
from precision_time.estimate.correction import INFORMED, Correction
from precision_time.fit.cases import cases
from precision_time.fit.folds import FOLDS, TRUSTED, Z90, HeldOut, cross_validate, judge
from precision_time.fit.provenance import parameters_digest, provenance
from precision_time.measurements.repository import STEPS
from precision_time.measurements.table import read_table
from precision_time.report.errors import ErrorStatistics, labels, percent
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import shipped
from precision_time.timing.parameters import read_data

OUTPUT = Path(__file__).parent.parent / "anchors" / "data" / "published.json"
LIKELY_EFFECT = 0.05
LIKELY_NOISE = {"A": 0.02, "B": 0.03, "C": 0.06}
"""Medians of the log-normal priors: with ten effects and nine families, data alone would put some at zero."""
PRIOR_WIDTH, NOISE_WIDTH = 1.0, 0.5
_LARGEST = {"host": 0.1}
"""Upper bound of an effect's standard deviation, 0.6 for any other: host costs are known that well, and anchors that
wait for their host must not slow the kernels of a job that does not."""


def fit_covariance(anchors: Sequence[Anchor]) -> Covariance:
    """The standard deviations under which the residuals are most likely (with the priors above)."""
    blocks = []
    for family in sorted({a.job.family for a in anchors}):
        members = [a for a in anchors if a.job.family == family]
        jobs = JobColumns([a.job for a in members])
        matrices = effect_matrices(jobs, jobs)
        trusts = np.array([[a.trust == trust for a in members] for trust in TRUSTS], dtype=np.float64)
        blocks.append((np.array([matrices[e] for e in EFFECTS]), trusts, np.array([a.residual for a in members])))
    likely = np.log([*([LIKELY_EFFECT] * len(EFFECTS)), *(LIKELY_NOISE[t] for t in TRUSTS)])
    width = np.array([*([PRIOR_WIDTH] * len(EFFECTS)), *([NOISE_WIDTH] * len(TRUSTS))])

    def negative_log_posterior(theta: Array) -> float:
        variance = np.exp(2.0 * theta)
        total = 0.5 * float((((theta - likely) / width) ** 2).sum())
        for matrices, trusts, residual in blocks:
            within = np.tensordot(variance[: len(EFFECTS)], matrices, 1) + np.diag(variance[len(EFFECTS) :] @ trusts)
            root = np.linalg.cholesky(within + 1e-9 * np.eye(len(residual)))
            total += float(np.log(np.diag(root)).sum() + 0.5 * (np.linalg.solve(root, residual) ** 2).sum())
        return total

    bounds = [(np.log(1e-3), np.log(_LARGEST.get(name, 0.6))) for name in (*EFFECTS, *TRUSTS)]
    deviations = np.exp(minimize(negative_log_posterior, likely, method="L-BFGS-B", bounds=bounds).x).tolist()
    return Covariance(
        {e: round(v, 4) for e, v in zip(EFFECTS, deviations, strict=False)},
        {t: round(v, 4) for t, v in zip(TRUSTS, deviations[len(EFFECTS) :], strict=True)},
    )


def covariances_without(anchors: Sequence[Anchor]) -> dict[str, Covariance]:
    """For every model family the covariance fitted to the other families."""
    families = sorted({a.job.family for a in anchors})
    return {name: fit_covariance([a for a in anchors if a.job.family != name]) for name in families}


LEFT_OUT: dict[str, tuple[str, ...]] = {
    "the job itself": ("key",),
    "its model on its GPU in its precision": ("model", "gpu", "precision"),
    "its model in its precision": ("model", "precision"),
    "its model on its architecture": ("model", "arch"),
    "its family": ("family",),
}
"""Fields that no anchor of a judged row may share with it, from the job itself to a new family."""


def usual_spreads(judged: Sequence[HeldOut]) -> list[float]:
    """The spread of each held-out row without any anchor."""
    base = float(read_data("step_scales.json")["interval"]["log_spread"])
    return [math.hypot(base, j.widening) for j in judged]


def judge_anchored(
    anchors: Sequence[Anchor], spreads: Sequence[float], covariances: Mapping[str, Covariance], without: Sequence[str]
) -> list[tuple[float, float]]:
    """Log error and spread of every anchor once the others have corrected it.

    `spreads` are those without anchors, `covariances` those fitted without each family; no anchor that agrees with the
    row in all fields of `without` corrects it.
    """
    by_family = {family: Anchors(anchors, covariance) for family, covariance in covariances.items()}
    judged = []
    for anchor, spread in zip(anchors, spreads, strict=True):
        correction = by_family[anchor.job.family].correction(anchor.job, without)
        judged.append((corrected(anchor.job, correction) - anchor.residual, correction.narrowed(spread)))
    return judged


ONE: dict[str, Callable[[JobDescriptor, JobDescriptor], bool]] = {
    "another count or batch": lambda one, other: one.precision == other.precision,
    "another precision": lambda one, other: one.precision != other.precision,
    "any of these": lambda one, other: True,
}
"""In what a single measured row of the same model on the same GPU differs from the job that is asked for."""


def judge_one(
    anchors: Sequence[Anchor],
    spreads: Sequence[float],
    covariances: Mapping[str, Covariance],
    differs: Callable[[JobDescriptor, JobDescriptor], bool],
) -> list[tuple[float, float, float]]:
    """Errors of the rows of trust A and B when one other row of their model on their GPU corrects them.

    For each row: the mean absolute error over all such other rows, and the log error and spread with the one that
    leaves the narrowest interval. Rows without any such other row are left out.
    """
    judged = []
    trusted = [(anchor, spread) for anchor, spread in zip(anchors, spreads, strict=True) if anchor.trust in TRUSTED]
    for anchor, spread in trusted:
        job = anchor.job
        by_one = []
        for other, _ in trusted:
            same_model = (other.job.model, other.job.gpu, other.job.framework) == (job.model, job.gpu, job.framework)
            if same_model and other.job.key != job.key and differs(job, other.job):
                correction = Anchors([other], covariances[job.family]).correction(job)
                by_one.append((correction.narrowed(spread), corrected(job, correction) - anchor.residual))
        if by_one:
            narrowest, log_error = min(by_one)
            judged.append((float(np.mean([abs(math.expm1(each)) for _, each in by_one])), log_error, narrowest))
    return judged


FIELDS = ("n", "mape", "median_ape", "p90_ape", "signed_mean", "coverage_p10_p90")


def statistics(judged: Sequence[tuple[float, float]]) -> ErrorStatistics:
    """Statistics of (log error, spread) pairs."""
    return ErrorStatistics.of(
        [math.expm1(log_error) for log_error, _ in judged], [abs(error) <= Z90 * spread for error, spread in judged]
    )


def table_of_one(anchors: Sequence[Anchor], spreads: Sequence[float], covariances: Mapping[str, Covariance]) -> Table:
    """Errors where one measured row is all that is known of a family: over all such rows, and with the nearest."""
    rows = []
    for name, differs in ONE.items():
        judged = judge_one(anchors, spreads, covariances, differs)
        nearest = statistics([(log_error, spread) for _, log_error, spread in judged])
        mean = float(np.mean([error for error, _, _ in judged])) if judged else None
        rows.append([name, percent(mean), *nearest.cells(FIELDS)])
    return Table(["one row, differing in", "MAPE, mean of all", *labels(FIELDS)], rows)


def corrected(job: JobDescriptor, correction: Correction) -> float:
    """Log factor on the whole step."""
    factors = [correction.factors.get(name, 1.0) for name in INFORMED]
    return math.log(sum(share * factor for share, factor in zip(job.shares, factors, strict=True)))


def table(anchors: Sequence[Anchor], spreads: Sequence[float], covariances: Mapping[str, Covariance]) -> Table:
    """Errors on the rows of trust A and B, by the fields that no anchor may share with them."""
    rows = []
    for name, without in LEFT_OUT.items():
        judged = judge_anchored(anchors, spreads, covariances, without)
        trusted = [pair for anchor, pair in zip(anchors, judged, strict=True) if anchor.trust in TRUSTED]
        rows.append([name, *statistics(trusted).cells(FIELDS)])
    return Table(["no anchor shares with the row", *labels(FIELDS)], rows)


def document(anchors: Sequence[Anchor], covariance: Covariance, source: Path) -> dict[str, Any]:
    """What `anchors/data/published.json` holds."""
    return {
        "provenance": {**provenance("anchors", source, len(anchors)), "parameters": parameters_digest()},
        "covariance": {"effects": dict(covariance.effects), "noise": dict(covariance.noise)},
        "columns": list(COLUMNS),
        "rows": [row_of_anchor(a) for a in anchors],
    }


def worth(judged: Sequence[HeldOut]) -> tuple[Table, Table]:
    """Errors of the rows held out by model family once other rows correct them: all other rows, and one row alone."""
    anchors, spreads = [j.anchor for j in judged], usual_spreads(judged)
    covariances = covariances_without(anchors)
    return table(anchors, spreads, covariances), table_of_one(anchors, spreads, covariances)


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the anchors to the steps below `tables`, print their worth held out, and write them unless `judge_only`."""
    source = tables / STEPS
    rows = read_table(source).rows
    traced = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    judged = cross_validate(traced, FOLDS["model family"])
    print(*worth(judged), sep="\n\n")
    if not judge_only:
        shipped_anchors = [j.anchor for j in judge(traced, shipped(), "none")]
        content = document(shipped_anchors, fit_covariance([j.anchor for j in judged]), source)
        write_shipped(OUTPUT, compact_json(content) + "\n")
        print(f"{len(shipped_anchors)} anchors -> {OUTPUT}", file=sys.stderr)
