"""What a board is made of: the published rows as each fold, and each blind twin, judged them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from precision_time.fit.board.anchored import anchored, anchored_by_one
from precision_time.fit.board.facts import Facts
from precision_time.fit.cases import Case, cases
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.evaluation.evaluation import Evaluation, Unpredicted
from precision_time.fit.folds import FOLDS, TRUSTED, HeldOut, cross_validate, judge, with_intervals
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.parameters import read_data

AWARE = "model family"
"""The fold of the headline."""
PLAIN = "without factors"
ANCHORED = "anchored"
"""The headline's rows, each corrected by the others of its family, those of the same job left out."""
ONE_ROW = "one measured row"
"""Those of them whose model was measured on their GPU in another way too, each corrected by the nearest such row."""
TWINS = ("fp32", "amp-fp16")
"""The one precision that a blind twin takes every job to run in: the oldest, and the most frequent of the table."""
ASSUMED = f"taken as {TWINS[0]}"
"""What `evaluate --blind fp32` says: blind too, but with the shipped factors."""

Runs = dict[str, list[HeldOut]]


def twin(precision: str) -> str:
    """Name of the run of the twin that takes every job to run in this precision."""
    return f"blind as {precision}"


@dataclass(frozen=True)
class Board:
    """What the page is written from: the rows as each run judged them, in the order of the table."""

    facts: Facts
    runs: Mapping[str, Sequence[Judged]]
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
        """The run of the refitted twin that is less far off: what "the blind twin" means where there is one figure."""
        return min(map(twin, TWINS), key=lambda name: self.trusted(name).overall.mape or 0.0)


def judge_all(rows: Sequence[Row], say: Callable[[str], None] = lambda text: None) -> Runs:
    """Every run of the board. The twins are refitted in their blindness and judged by the same folds."""

    def traced(precision: str | None = None) -> list[Case]:
        what = f"tracing as {precision}" if precision else "tracing"
        return cases(rows, lambda done: say(f"{what} {done}/{len(rows)}"), precision)

    def plainly(found: Sequence[Case], constants: StepConstants) -> list[HeldOut]:
        # nothing is fitted, so nothing is held out but the spread
        return [j for case in found for j in judge([case], constants, FOLDS[AWARE](case.row))]

    def held_out(run: str, found: Sequence[Case], fold: Callable[[Row], str]) -> list[HeldOut]:
        return cross_validate(found, fold, lambda name: say(f"{run}: without {name}"))

    everything = traced()
    runs = {name: held_out(name, everything, fold) for name, fold in FOLDS.items()}
    runs[PLAIN] = plainly(everything, StepConstants())
    for precision in TWINS:
        blind = traced(precision)
        runs[twin(precision)] = held_out(twin(precision), blind, FOLDS[AWARE])
        if precision == TWINS[0]:
            runs[ASSUMED] = plainly(blind, shipped())
    return runs


def settled(runs: Runs) -> dict[str, list[Judged]]:
    """The rows with their intervals; those of factors as shipped are as wide as shipped."""
    shipped_base = float(read_data("step_scales.json")["interval"]["log_spread"])
    return {name: with_intervals(judged, shipped_base if name == ASSUMED else None) for name, judged in runs.items()}


def board(facts: Facts, runs: Runs, tables: Sequence[Table]) -> Board:
    judged = {**settled(runs), ANCHORED: anchored(runs[AWARE]), ONE_ROW: anchored_by_one(runs[AWARE])}
    unexpressed = tuple(
        Evaluation(t.path.name, (), tuple(Unpredicted(row, row.reason) for row in t.rows if row.job is None))
        for t in tables
    )
    return Board(facts, judged, unexpressed)
