"""Published rows as anchors: the base that ships, how far errors of similar jobs go together, what anchors are worth.

    python -m precision_time.fit.anchors --shared DIR            fit, write anchors/data/, print the table
    python -m precision_time.fit.anchors --shared DIR --report   only judge

The covariance is fitted to errors that are held out by model family, and judged by families it was not fitted to.
"""

from __future__ import annotations

import argparse
import math
import shutil
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
from precision_time.fit.board.facts import parameters_digest
from precision_time.fit.cases import cases
from precision_time.fit.evaluation.text import percent
from precision_time.fit.folds import FOLDS, TRUSTED, Z90, HeldOut, cross_validate, judge
from precision_time.fit.provenance import provenance
from precision_time.fit.steps import TABLE
from precision_time.job.file import compact_json
from precision_time.measurements.table import read_table
from precision_time.text_table import format_table
from precision_time.timing.constants import shipped
from precision_time.timing.parameters import read_data

OUTPUT = Path(__file__).parent.parent / "anchors" / "data"
LIKELY_EFFECT = 0.05
LIKELY_NOISE = {"A": 0.02, "B": 0.03, "C": 0.06}
"""Medians of the log-normal priors: with ten effects and nine families, data alone would settle some at zero."""
PRIOR_WIDTH, NOISE_WIDTH = 1.0, 0.5
_LARGEST = {"host": 0.1}
"""Of an effect, 0.6 for any other: host costs are known that well, and a job that hardly waits for its host must not
learn from those that do that its kernels are slow."""


def fit_covariance(anchors: Sequence[Anchor]) -> Covariance:
    """The standard deviations under which the residuals are most likely (with the priors above)."""
    blocks = []
    for family in sorted({a.job.family for a in anchors}):
        members = [a for a in anchors if a.job.family == family]
        jobs = JobColumns([a.job for a in members])
        matrices = effect_matrices(jobs, jobs)
        own = np.array([[a.trust == trust for a in members] for trust in TRUSTS], dtype=np.float64)
        blocks.append((np.array([matrices[e] for e in EFFECTS]), own, np.array([a.residual for a in members])))
    likely = np.log([*([LIKELY_EFFECT] * len(EFFECTS)), *(LIKELY_NOISE[t] for t in TRUSTS)])
    width = np.array([*([PRIOR_WIDTH] * len(EFFECTS)), *([NOISE_WIDTH] * len(TRUSTS))])

    def unlikely(theta: Array) -> float:
        variance = np.exp(2.0 * theta)
        total = 0.5 * float((((theta - likely) / width) ** 2).sum())
        for matrices, own, residual in blocks:
            within = np.tensordot(variance[: len(EFFECTS)], matrices, 1) + np.diag(variance[len(EFFECTS) :] @ own)
            root = np.linalg.cholesky(within + 1e-9 * np.eye(len(residual)))
            total += float(np.log(np.diag(root)).sum() + 0.5 * (np.linalg.solve(root, residual) ** 2).sum())
        return total

    bounds = [(np.log(1e-3), np.log(_LARGEST.get(name, 0.6))) for name in (*EFFECTS, *TRUSTS)]
    found = np.exp(minimize(unlikely, likely, method="L-BFGS-B", bounds=bounds).x)
    return Covariance(
        {e: round(float(v), 4) for e, v in zip(EFFECTS, found, strict=False)},
        {t: round(float(v), 4) for t, v in zip(TRUSTS, found[len(EFFECTS) :], strict=True)},
    )


def covariances(anchors: Sequence[Anchor]) -> dict[str, Covariance]:
    """For every family the covariance that the other families give."""
    families = sorted({a.job.family for a in anchors})
    return {name: fit_covariance([a for a in anchors if a.job.family != name]) for name in families}


LEFT_OUT: dict[str, tuple[str, ...]] = {
    "the job itself": ("key",),
    "its model on its GPU in its precision": ("model", "gpu", "precision"),
    "its model in its precision": ("model", "precision"),
    "its model on its architecture": ("model", "arch"),
    "its family": ("family",),
}
"""What the anchors of a judged row may not have in common with it: from a job one has run before to a new family."""


def usual_spreads(judged: Sequence[HeldOut]) -> list[float]:
    """The spread of each held-out row without any anchor."""
    base = float(read_data("step_scales.json")["interval"]["log_spread"])
    return [math.hypot(base, j.widening) for j in judged]


def judge_anchored(
    anchors: Sequence[Anchor], usual: Sequence[float], found: Mapping[str, Covariance], without: Sequence[str]
) -> list[tuple[float, float]]:
    """Of every anchor: the log error that is left when the others correct it, and the spread that it then has."""
    by_family = {family: Anchors(anchors, covariance) for family, covariance in found.items()}
    judged = []
    for anchor, bare in zip(anchors, usual, strict=True):
        correction = by_family[anchor.job.family].correction(anchor.job, without)
        spread = correction.narrowed(bare)
        judged.append((corrected(anchor.job, correction) - anchor.residual, spread))
    return judged


ONE: dict[str, Callable[[JobDescriptor, JobDescriptor], bool]] = {
    "another count or batch": lambda one, other: one.precision == other.precision,
    "another precision": lambda one, other: one.precision != other.precision,
    "any of these": lambda one, other: True,
}
"""In what a single measured row of the same model on the same GPU differs from the job that is asked for."""


def judge_one(
    anchors: Sequence[Anchor],
    usual: Sequence[float],
    found: Mapping[str, Covariance],
    differs: Callable[[JobDescriptor, JobDescriptor], bool],
) -> list[tuple[float, float, float]]:
    """Of every anchor that has any: the mean absolute error, and the nearest one's log error and spread, when a single
    other row of its model on its GPU corrects it."""
    judged = []
    for anchor, bare in zip(anchors, usual, strict=True):
        job = anchor.job
        if anchor.trust not in TRUSTED:
            continue
        left = []
        for other in anchors:
            alike = (other.job.model, other.job.gpu, other.job.framework) == (job.model, job.gpu, job.framework)
            if alike and other.trust in TRUSTED and other.job.key != job.key and differs(job, other.job):
                correction = Anchors([other], found[job.family]).correction(job)
                left.append((correction.narrowed(bare), corrected(job, correction) - anchor.residual))
        if left:
            spread, log_error = min(left)
            judged.append((float(np.mean([abs(math.expm1(each)) for _, each in left])), log_error, spread))
    return judged


def table_of_one(anchors: Sequence[Anchor], usual: Sequence[float], found: Mapping[str, Covariance]) -> str:
    """Errors where one measured row is all that is known of a family: over all such rows, and with the nearest."""
    lines = []
    for name, differs in ONE.items():
        means, logs, spreads = (np.array(each) for each in zip(*judge_one(anchors, usual, found, differs), strict=True))
        sizes = np.abs(np.expm1(logs))
        lines.append([name, f"{len(means)}", percent(float(means.mean())), percent(float(sizes.mean())),
                      percent(float(np.median(sizes))), percent(float(np.quantile(sizes, 0.9))),
                      percent(float((np.abs(logs) <= Z90 * spreads).mean()), 0)])  # fmt: skip
    return format_table(
        ["one row, differing in", "rows", "MAPE, mean of all", "MAPE, nearest", "median", "P90", "in P10-P90"], lines
    )


def corrected(job: JobDescriptor, correction: Correction) -> float:
    """Log factor on the whole step."""
    factors = [correction.factors.get(name, 1.0) for name in INFORMED]
    return math.log(sum(share * factor for share, factor in zip(job.shares, factors, strict=True)))


def table(anchors: Sequence[Anchor], usual: Sequence[float], found: Mapping[str, Covariance]) -> str:
    """Errors on the rows of trust A and B, by what the anchors may not have in common with them."""
    lines = []
    trusted = np.array([a.trust in TRUSTED for a in anchors])
    for name, without in LEFT_OUT.items():
        logs, spreads = (
            np.array(each)[trusted] for each in zip(*judge_anchored(anchors, usual, found, without), strict=True)
        )
        errors = np.exp(logs) - 1.0
        sizes, inside = np.abs(errors), np.abs(logs) <= Z90 * spreads
        cells = [float(sizes.mean()), float(np.median(sizes)), float(np.quantile(sizes, 0.9))]
        lines.append([name, f"{trusted.sum()}", *map(percent, cells), percent(float(errors.mean()), sign="+"),
                      percent(float(inside.mean()), 0)])  # fmt: skip
    return format_table(
        ["no anchor shares with the row", "rows", "MAPE", "median", "P90", "signed", "in P10-P90"], lines
    )


def document(anchors: Sequence[Anchor], covariance: Covariance, source: Path) -> dict[str, Any]:
    return {
        "provenance": {**provenance("anchors", source, len(anchors)), "parameters": parameters_digest()},
        "covariance": {"effects": dict(covariance.effects), "noise": dict(covariance.noise)},
        "columns": list(COLUMNS),
        "rows": [row_of_anchor(a) for a in anchors],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m precision_time.fit.anchors", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shared", type=Path, required=True, help=f"folder with {TABLE.as_posix()}")
    parser.add_argument("--report", action="store_true", help="judge only, write nothing")
    given = parser.parse_args(arguments)
    source = given.shared / TABLE
    rows = read_table(source).rows
    everything = cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    judged = cross_validate(everything, FOLDS["model family"])
    held_out, usual = [j.anchor for j in judged], usual_spreads(judged)
    by_family = covariances(held_out)
    print(table(held_out, usual, by_family), table_of_one(held_out, usual, by_family), sep="\n\n")
    if not given.report:
        own = [j.anchor for j in judge(everything, shipped(), "none")]
        content = document(own, fit_covariance(held_out), source)
        OUTPUT.mkdir(exist_ok=True)
        shutil.copyfile(source, OUTPUT / "published.csv")
        (OUTPUT / "published.json").write_text(compact_json(content) + "\n", encoding="utf-8")
        print(f"written: {len(own)} anchors", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
