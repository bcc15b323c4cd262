"""Published training steps, judged by every fold and by every twin that is blind to precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.facts import Facts
from benchmarks.accuracy.step_anchors import anchored
from precision_time.estimate.spread import base_spread
from precision_time.evaluation.evaluation import Evaluation, Unpredicted
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.cases import Case, cases
from precision_time.fit.folds import FOLDS, TRUSTED, HeldOut, cross_validate, judge
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.spreads import with_intervals
from precision_time.fit.traced import read
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table
from precision_time.timing.constants import StepConstants, shipped

AWARE = "model family"
"""The run of the headline figures: held out by model family."""
PLAIN = "without factors"
ANCHORED = "anchored"
"""The rows of the headline, each corrected by the other rows of its family except those of the same job."""
ONE_ROW = "one measured row"
"""Rows whose model was measured on their GPU in their precision at another size, batch or count too, each corrected by
the nearest such row."""
TWINS = ("fp32", "amp-fp16")
"""The precision that a blind twin assumes for every job: the oldest one, and the most frequent of the table."""
ASSUMED = f"taken as {TWINS[0]}"
"""The prediction of `evaluate --blind fp32`: blind too, but with the shipped factors."""

Runs = dict[str, list[HeldOut]]


def twin(precision: str) -> str:
    """Name of the run of the twin that assumes this precision for every job."""
    return f"blind as {precision}"


@dataclass(frozen=True)
class Board:
    """The rows as each run judged them, in the order of the table."""

    facts: Facts
    runs: Mapping[str, Sequence[JudgedRow]]
    unexpressed: tuple[Evaluation, ...]

    def trusted(self, run: str) -> Evaluation:
        """The rows of trust A and B as the run judged them."""
        return self._of(run, TRUSTED)

    def rest(self, run: str) -> Evaluation:
        """The other rows."""
        return self._of(run, {j.row.trust for j in self.runs[run]} - {*TRUSTED})

    def _of(self, run: str, trusts: Sequence[str] | set[str]) -> Evaluation:
        return Evaluation(self.facts.table, tuple(j for j in self.runs[run] if j.row.trust in trusts), ())

    @functools.cached_property
    def best_twin(self) -> str:
        """The refitted twin with the smaller mean error: "the blind twin" where a page shows one figure."""
        return min(map(twin, TWINS), key=lambda name: self.trusted(name).overall.mape or 0.0)


def judge_all(rows: Sequence[Row], progress: Callable[[str], None] = lambda text: None) -> Runs:
    """Every run of the board. The twins are refitted in their blindness and judged by the same folds; they have no
    factors on kernels, which were fitted to rows of known precision.
    """

    def traced(precision: str | None = None) -> list[Case]:
        action = f"tracing as {precision}" if precision else "tracing"
        return cases(rows, lambda done: progress(f"{action} {done}/{len(rows)}"), precision)

    def without_refit(traced_cases: Sequence[Case], constants: StepConstants) -> list[HeldOut]:
        # nothing is fitted, so nothing is held out but the spread
        return [j for case in traced_cases for j in judge([case], constants, FOLDS[AWARE](case.row))]

    def held_out(
        run: str, traced_cases: Sequence[Case], fold: Callable[[Row], str], kernels: Steps | None = None
    ) -> list[HeldOut]:
        return cross_validate(traced_cases, fold, lambda name: progress(f"{run}: without {name}"), kernels)

    everything, kernels = traced(), Steps(read(required_data_folder()))
    runs = {name: held_out(name, everything, fold, kernels) for name, fold in FOLDS.items()}
    runs[PLAIN] = without_refit(everything, StepConstants())
    for precision in TWINS:
        blind = traced(precision)
        runs[twin(precision)] = held_out(twin(precision), blind, FOLDS[AWARE])
        if precision == TWINS[0]:
            runs[ASSUMED] = without_refit(blind, shipped())
    return runs


def judged_runs(runs: Runs) -> dict[str, list[JudgedRow]]:
    """The rows with their intervals; predictions with the shipped factors have intervals of the shipped width."""
    spreads = np.array([math.hypot(base_spread(each.kind), each.widening) for each in runs[ASSUMED]])
    return {name: with_intervals(judged, spreads if name == ASSUMED else None) for name, judged in runs.items()}


def board(facts: Facts, runs: Runs, tables: Sequence[Table]) -> Board:
    """All runs with intervals and anchors, and the rows of `tables` that cannot be expressed as a job."""
    by_all, by_one = anchored(runs[AWARE])
    judged = {**judged_runs(runs), ANCHORED: by_all, ONE_ROW: by_one}
    unexpressed = tuple(
        Evaluation(t.path.name, (), tuple(Unpredicted(row, row.reason) for row in t.rows if row.job is None))
        for t in tables
    )
    return Board(facts, judged, unexpressed)
