"""Fits the published anchors: what a measured job says about similar jobs.

Reads `data/published/measurements.csv`, writes `anchors/data/published.json`: the rows with what this version predicts
for them, and the standard deviations of the errors that similar jobs share. These are fitted to errors held out by
model family. Prints what anchors are worth, every row judged by a covariance fitted without its family.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.anchors.base import COLUMNS, row_of_anchor
from precision_time.anchors.covariance import EFFECTS, TRUSTS, Array, Covariance, JobColumns, effect_matrices
from precision_time.anchors.posterior import Anchors
from precision_time.fit.cases import cases
from precision_time.fit.folds import FOLDS, TRUSTED, Z90, HeldOut, cross_validate, judge
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.provenance import parameters_digest, provenance
from precision_time.fit.traced import read
from precision_time.measurements.repository import STEPS
from precision_time.measurements.table import read_table
from precision_time.report.errors import ErrorStatistics, labels, percent
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import shipped
from precision_time.timing.parameters import read_data
from precision_time.timing.scaled import Factors

OUTPUT = Path(__file__).parent.parent / "anchors" / "data" / "published.json"
LIKELY_EFFECT = 0.05
LIKELY_NOISE = {"A": 0.02, "B": 0.03, "C": 0.06}
"""Medians of the log-normal priors: with ten effects and nine families, data alone would put some at zero."""
PRIOR_WIDTH, NOISE_WIDTH = 1.0, 0.1
"""Standard deviations of the logs of effects and of rows' own errors in these priors. A wider prior of the latter gives
way to effects until intervals are too narrow (benchmarks/accuracy/README.md)."""
_LARGEST = {"host": 0.1, "communication": 0.2}
"""Upper bound of an effect's standard deviation, 0.6 for any other: host and collective costs are known that well, and
anchors that wait must not slow the kernels of a job that does not."""


def fit_covariance(anchors: Sequence[Anchor]) -> Covariance:
    """The standard deviations under which the residuals are most likely (with the priors above)."""
    blocks = []
    for family in sorted({a.job.family for a in anchors}):
        members = [a for a in anchors if a.job.family == family]
        jobs = JobColumns.of(members)
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


@dataclass(frozen=True, slots=True)
class CorrectedRow:
    """A held-out row that measured rows correct: seconds of its step by term, and the spread of log(step time)."""

    held_out: HeldOut
    terms: Mapping[str, float]
    spread: float

    @property
    def seconds(self) -> float:
        return sum(self.terms.values())

    @property
    def log_error(self) -> float:
        """log(predicted / measured)."""
        return math.log(self.seconds / self.held_out.row.measured_s)


def judge_anchored(
    judged: Sequence[HeldOut], spreads: Sequence[float], covariances: Mapping[str, Covariance], without: Sequence[str]
) -> list[CorrectedRow]:
    """Every row once the others have corrected it.

    `spreads` are those without anchors, `covariances` those fitted without each family; no row that agrees with the
    judged one in all fields of `without` corrects it.
    """
    anchors = [each.anchor for each in judged]
    by_family = {family: Anchors(anchors, covariance) for family, covariance in covariances.items()}
    return [
        _corrected(each, by_family[each.descriptor.family], spread, without)
        for each, spread in zip(judged, spreads, strict=True)
    ]


ONE: dict[str, Callable[[JobDescriptor, JobDescriptor], bool]] = {
    "another size, batch or count": lambda one, other: one.precision == other.precision,
    "another precision": lambda one, other: one.precision != other.precision,
    "any of these": lambda one, other: True,
}
"""In what a single measured row of the same model on the same GPU differs from the job that is asked for."""


def judge_one(
    judged: Sequence[HeldOut],
    spreads: Sequence[float],
    covariances: Mapping[str, Covariance],
    differs: Callable[[JobDescriptor, JobDescriptor], bool] = ONE["any of these"],
) -> list[tuple[float, CorrectedRow]]:
    """The rows of trust A and B when one other row of their model on their GPU corrects them.

    For each row: the mean absolute error over all such other rows, and the row with the one that leaves the narrowest
    interval. Rows without any such other row are left out.
    """
    result = []
    trusted = [(j, spread) for j, spread in zip(judged, spreads, strict=True) if j.row.trust in TRUSTED]
    for each, spread in trusted:
        job = each.descriptor
        rows = [
            _corrected(each, Anchors([other.anchor], covariances[job.family]), spread)
            for other, _ in trusted
            if _of_one_model(other.descriptor, job) and differs(job, other.descriptor)
        ]
        if rows:
            mean = float(np.mean([abs(math.expm1(row.log_error)) for row in rows]))
            result.append((mean, min(rows, key=lambda row: row.spread)))
    return result


def _of_one_model(one: JobDescriptor, other: JobDescriptor) -> bool:
    """Whether two jobs are of one model on one GPU, and not the same."""
    return all(getattr(one, n) == getattr(other, n) for n in ("model", "gpu", "framework")) and one.key != other.key


def _corrected(held_out: HeldOut, anchors: Anchors, spread: float, without: Sequence[str] = ()) -> CorrectedRow:
    def step_s(factors: Factors) -> float:
        return sum(held_out.scaled(factors).values())

    correction = anchors.correction(held_out.descriptor, step_s, without)
    return CorrectedRow(held_out, held_out.scaled(correction.factors), correction.narrowed(spread))


FIELDS = ("n", "mape", "median_ape", "p90_ape", "signed_mean", "coverage_p10_p90")


def statistics(rows: Sequence[CorrectedRow]) -> ErrorStatistics:
    """Statistics of corrected rows."""
    return ErrorStatistics.of(
        [math.expm1(row.log_error) for row in rows], [abs(row.log_error) <= Z90 * row.spread for row in rows]
    )


def table_of_one(judged: Sequence[HeldOut], spreads: Sequence[float], covariances: Mapping[str, Covariance]) -> Table:
    """Errors where one measured row is all that is known of a family: over all such rows, and with the nearest."""
    rows = []
    for name, differs in ONE.items():
        corrected = judge_one(judged, spreads, covariances, differs)
        nearest = statistics([row for _, row in corrected])
        mean = float(np.mean([error for error, _ in corrected])) if corrected else None
        rows.append([name, percent(mean), *nearest.cells(FIELDS)])
    return Table(["one row, differing in", "MAPE, mean of all", *labels(FIELDS)], rows)


def table(judged: Sequence[HeldOut], spreads: Sequence[float], covariances: Mapping[str, Covariance]) -> Table:
    """Errors on the rows of trust A and B, by the fields that no anchor may share with them."""
    rows = []
    for name, without in LEFT_OUT.items():
        corrected = judge_anchored(judged, spreads, covariances, without)
        trusted = [row for row in corrected if row.held_out.row.trust in TRUSTED]
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
    spreads, covariances = usual_spreads(judged), covariances_without([j.anchor for j in judged])
    return table(judged, spreads, covariances), table_of_one(judged, spreads, covariances)


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the anchors to the steps below `tables`, print their worth held out, and write them unless `judge_only`."""
    source = tables / STEPS
    rows = read_table(source).rows
    traced = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    judged = cross_validate(traced, FOLDS["model family"], kernels=Steps(read(tables)))
    print(*worth(judged), sep="\n\n")
    if not judge_only:
        shipped_anchors = [j.anchor for j in judge(traced, shipped(), "none")]
        content = document(shipped_anchors, fit_covariance([j.anchor for j in judged]), source)
        write_shipped(OUTPUT, compact_json(content) + "\n")
        print(f"{len(shipped_anchors)} anchors -> {OUTPUT}", file=sys.stderr)
