"""Rows judged by factors fitted without them, and intervals as wide as the errors of the other folds require.

A fold is a model family, a GPU or a precision: all its rows are judged together, by factors fitted to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from precision_time.anchors.anchor import Anchor, JobDescriptor, describe_job
from precision_time.errors import DataError
from precision_time.estimate.assemble import SimulatedStep, assemble, process_bytes, spread_terms, step_terms
from precision_time.estimate.interval import Interval
from precision_time.estimate.spread import widening
from precision_time.estimate.step_memory import step_memory
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.cases import Case
from precision_time.fit.factors import fit
from precision_time.layout.step_program import Options
from precision_time.measurements.row import Row
from precision_time.timing.constants import StepConstants
from precision_time.timing.scaled import Factors
from precision_time.timing.step_factors import Openness

TRUSTED = ("A", "B")
"""Trust of the rows whose errors are reported and set the spread; rows of trust C are shown apart."""
UNSEEN_ARCHITECTURE = 0.15
"""Added to the standard deviation of log(step) on an architecture without any fitted whole step: chosen."""
Z90 = 1.2815515655446004
"""90th percentile of the standard normal distribution."""

FOLDS: dict[str, Callable[[Row], str]] = {
    "model family": lambda row: row.family,
    "GPU": lambda row: _architecture_and_board(row.gpu),
    "precision": lambda row: row.precision,
}


def _architecture_and_board(gpu: str) -> str:
    """Cards that differ only in memory size are one GPU."""
    from precision_time.hardware.catalog import default_catalog

    return default_catalog().gpu(gpu).arch + ("-sxm" if "sxm" in gpu else "-pcie")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A measured row with its prediction by factors fitted without its `fold`, and what the job adds to the spread."""

    row: Row
    fold: str
    predicted_s: float
    widening: float
    breakdown: dict[str, float]
    fits: bool
    descriptor: JobDescriptor
    """The job as anchors see it."""
    scaled: Callable[[Factors], dict[str, float]]
    """Seconds by term of the step with the times of its program multiplied."""

    @property
    def anchor(self) -> Anchor:
        """The row as an anchor of other rows."""
        row = self.row
        return Anchor(self.descriptor, row.id, row.source, row.trust, row.measured_s, float(f"{self.predicted_s:.6g}"))

    @property
    def log_error(self) -> float:
        """log(predicted / measured)."""
        return float(np.log(self.predicted_s / self.row.measured_s))


def judge(
    cases: Iterable[Case],
    constants: StepConstants,
    fold: str,
    architectures: Sequence[str] | None = None,
    openness: Openness | None = None,
) -> list[HeldOut]:
    """Predictions with these constants.

    `architectures`: those that the constants were fitted on (None: all). `openness`: covariance of the fitted factors
    (None: as shipped).
    """
    judged = []
    for case in cases:
        timed, timeline = case.run(constants)
        options, capacity = Options.of(case.job), case.cluster.gpu.memory_bytes
        memory_use = step_memory(case.step, case.program, options, capacity, process_bytes(case.cluster))
        simulated = SimulatedStep(case.step, timed, timeline)
        estimate = assemble(case.job, simulated, memory_use, case.cluster)
        known = architectures is None or case.cluster.gpu.arch in architectures
        terms = spread_terms(timed, timeline, case.cluster.gpu.arch, openness)
        added = float(np.hypot(widening(terms), 0.0 if known else UNSEEN_ARCHITECTURE))
        breakdown = {name: float(seconds) for name, seconds in estimate.breakdown.items()}
        descriptor = describe_job(case.job, case.step, case.cluster.gpu, breakdown, case.row.framework, case.row.source)
        seconds, fits = float(estimate.step.p50), bool(estimate.memory.fits)
        scaled = partial(_scaled_terms, simulated)
        judged.append(HeldOut(case.row, fold, seconds, added, breakdown, fits, descriptor, scaled))
    return judged


def _scaled_terms(simulated: SimulatedStep, factors: Factors) -> dict[str, float]:
    return step_terms(simulated.scaled(factors))


def cross_validate(
    cases: Sequence[Case], fold: Callable[[Row], str], progress: Callable[[str], None] = lambda name: None
) -> list[HeldOut]:
    """Every row judged by factors fitted without its fold. Raises `DataError` for a table of one fold."""
    names = sorted({fold(case.row) for case in cases})
    if len(names) < 2:
        raise DataError(
            f"the table has only {names[0] if names else 'rows that cannot run'}; holding out needs two kinds"
        )
    judged: list[HeldOut] = []
    for name in names:
        progress(name)
        fitted = fit([c for c in cases if fold(c.row) != name])
        members = [c for c in cases if fold(c.row) == name]
        judged += judge(members, fitted.constants, name, fitted.parameters.architectures, fitted.openness)
    return judged


def spread_for(judged: Sequence[HeldOut], coverage: float = 0.8) -> float:
    """The base spread with which P10-P90 holds `coverage` of the held-out rows, together with what each job adds."""
    trusted = [j for j in judged if j.row.trust in TRUSTED] or judged
    size = np.abs([j.log_error for j in trusted])
    added = np.array([j.widening for j in trusted])
    candidates = np.linspace(0.0, 5.0, 5001)
    covered = [float((size <= Z90 * np.hypot(base, added)).mean()) for base in candidates]
    return float(
        next((base for base, share in zip(candidates, covered, strict=True) if share >= coverage), candidates[-1])
    )


def with_intervals(judged: Sequence[HeldOut], base: float | None = None) -> list[JudgedRow]:
    """The rows in the order of the table with their intervals.

    The base spread of each row comes from the other folds, or is `base`.
    """
    names = {j.fold for j in judged}
    bases = {n: spread_for([j for j in judged if j.fold != n] or judged) if base is None else base for n in names}
    return [
        JudgedRow(
            j.row,
            Interval.around(j.predicted_s, float(np.hypot(bases[j.fold], j.widening))),
            j.breakdown,
            j.fits,
            seen=False,
        )
        for j in sorted(judged, key=lambda j: j.row.line)
    ]
