"""Rows judged by factors fitted without them, and intervals as wide as the errors of the other folds require.

A fold is a model family, a GPU or a precision: all its rows are judged together, by factors fitted to the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from precision_time.anchors.anchor import Anchor, JobDescriptor, describe_job
from precision_time.errors import DataError
from precision_time.estimate.assemble import SimulatedStep, assemble, process_bytes, spread_terms, step_terms
from precision_time.estimate.interval import Z90
from precision_time.estimate.spread import kind_of, widening
from precision_time.estimate.step_memory import step_memory
from precision_time.fit.cases import Case, fitted_to
from precision_time.fit.factors import fit
from precision_time.fit.kernel_factors import Steps
from precision_time.job.choices import AS_PYTORCH
from precision_time.layout.options import Options
from precision_time.measurements.row import Row
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernel_factors import NO_FACTORS, KernelFactors
from precision_time.timing.scaled import Factors
from precision_time.timing.step_factors import Openness

Array = NDArray[np.float64]
TRUSTED = ("A", "B")
"""Trust of the rows whose errors are reported and set the spread; rows of trust C are shown apart, and set only the
spread of frameworks for which PyTorch stands (`sets_spread`)."""
FOLDS: dict[str, Callable[[Row], str]] = {
    "model family": lambda row: row.family,
    "GPU": lambda row: _architecture_and_board(row.gpu),
    "precision": lambda row: row.precision,
}


def sets_spread(row: Row) -> bool:
    """Whether the error of a row counts in the spread of its kind. Rows of frameworks for which PyTorch stands have
    trust C because of their kernels, whose effect their spread is to hold."""
    return row.trust in TRUSTED or (row.job is not None and row.job.framework in AS_PYTORCH)


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
    kind: str
    """The kind of its step (`estimate.spread.kind_of`)."""
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
    openness: Openness | None = None,
) -> list[HeldOut]:
    """Predictions with these constants. `openness`: covariance of the fitted factors (None: as shipped)."""
    judged = []
    for case in cases:
        timed, timeline = case.run(constants)
        options, capacity = Options.of(case.job), case.cluster.gpu.memory_bytes
        memory_use = step_memory(case.step, case.program, options, capacity, process_bytes(case.cluster))
        simulated = SimulatedStep(case.step, timed, timeline)
        estimate = assemble(case.job, simulated, memory_use, case.cluster)
        terms = spread_terms(timed, timeline, case.cluster.gpu.arch, openness)
        added = widening(terms)
        breakdown = {name: float(seconds) for name, seconds in estimate.breakdown.items()}
        descriptor = describe_job(
            case.job, case.step, case.cluster.gpu, breakdown, case.row.kernels_of or case.job.framework
        )
        seconds, fits = float(estimate.step.p50), bool(estimate.memory.fits)
        scaled = partial(_scaled_terms, simulated)
        kind = kind_of(case.row.family, case.row.precision, case.job, case.cluster.gpu.name)
        judged.append(HeldOut(case.row, fold, seconds, added, kind, breakdown, fits, descriptor, scaled))
    return judged


def _scaled_terms(simulated: SimulatedStep, factors: Factors) -> dict[str, float]:
    return step_terms(simulated.scaled(factors))


def cross_validate(
    cases: Sequence[Case],
    fold: Callable[[Row], str],
    progress: Callable[[str], None] = lambda name: None,
    kernels: Steps | None = None,
) -> list[HeldOut]:
    """Every row judged by factors fitted without its fold, those on kernels (to the rows of `kernels`, None: none) and
    those on whole steps. Raises `DataError` for a table of one fold.
    """
    names = sorted({fold(case.row) for case in cases})
    if len(names) < 2:
        raise DataError(
            f"the table has only {names[0] if names else 'rows that cannot run'}; holding out needs two kinds"
        )
    on_kernels: Iterator[KernelFactors] = itertools.repeat(NO_FACTORS)
    if kernels is not None:
        masks = [[fold(row) == name for row in kernels.rows] for name in names]
        on_kernels = map(kernels.factors, kernels.without_each(masks))
    judged: list[HeldOut] = []
    for name, factors in zip(names, on_kernels, strict=False):
        progress(name)
        fitted = fit(fitted_to(c for c in cases if fold(c.row) != name), factors=factors)
        members = [c for c in cases if fold(c.row) == name]
        judged += judge(members, fitted.constants, name, fitted.openness)
    return judged


def least_spread(
    errors: Sequence[float] | Array,
    known: Sequence[float] | Array,
    weights: Sequence[float] | Array | None = None,
    coverage: float = 0.8,
) -> float:
    """The least standard deviation that, beside the `known` ones, puts `coverage` of the rows into P10-P90.

    `errors` are log(predicted / measured); `weights` of the rows (None: equal).
    """
    size, beside = np.abs(np.asarray(errors)), np.asarray(known)
    share = np.ones(len(size)) if weights is None else np.asarray(weights)
    # The spread at which each row is just inside; then the weighted quantile of these.
    needed = np.sqrt(np.maximum((size / Z90) ** 2 - beside**2, 0.0))
    order = np.argsort(needed)
    inside = np.cumsum(share[order]) >= (coverage - 1e-9) * share.sum()
    return float(needed[order][np.argmax(inside)])
