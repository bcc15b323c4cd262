"""The accuracy goals for training steps, and whether the judged rows reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.accuracy.steps import ANCHORED, AWARE, ONE_ROW, TWINS, Board, twin
from precision_time.evaluation.rows import statistics
from precision_time.report.errors import ErrorStatistics, percent

GOAL_PUBLISHED = 0.098
"""MAPE of the published precision-aware predictor."""
GOAL_PRECISION, GOAL_P90, GOAL_SIGNED, GOAL_ORDER = 0.12, 0.25, 0.04, 0.95
GOAL_COVERAGE = (0.75, 0.85)
GOAL_ANCHORED = 0.05
GOAL_RELATED, GOAL_NEW = 0.07, 0.13
RELATED = frozenset({"bert", "transformer-xl", "resnet", "ssd", "jasper", "waveglow"})
"""Families that share building blocks with another family of the table (transformers, ResNet-50, one-dimensional
convolutions), so that the fit without them has seen similar kernels."""
CLEARLY_WORSE = 1.5
"""Ratio of mean errors from which a blind twin counts as clearly worse: chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """A goal, the figure reached, and whether it meets the goal."""

    goal: str
    reached: str
    met: bool


def targets(board: Board) -> list[Target]:
    """All goals, on the rows of trust A and B held out by model family."""
    return [*_error_targets(board), *_choice_targets(board), *_anchor_targets(board)]


def _error_targets(board: Board) -> list[Target]:
    aware = board.trusted(AWARE)
    overall, by_precision = aware.overall, aware.by("precision")
    worst = max(by_precision, key=lambda name: by_precision[name].mape or 0.0)
    related, new = (
        statistics([j for j in aware.judged if (j.row.family in RELATED) == member]).mape for member in (True, False)
    )
    covered = overall.coverage_p10_p90 or 0.0
    coverages = {name: errors.coverage_p10_p90 for name, errors in by_precision.items()}
    return [
        Target(
            f"MAPE at most {percent(GOAL_PUBLISHED)}, as the published precision-aware predictor",
            percent(overall.mape),
            (overall.mape or 0.0) <= GOAL_PUBLISHED,
        ),
        Target(
            f"MAPE at most {percent(GOAL_PRECISION, 0)} in every precision",
            f"{percent(by_precision[worst].mape)} in the worst, {worst}",
            (by_precision[worst].mape or 0.0) <= GOAL_PRECISION,
        ),
        Target(
            f"MAPE at most {percent(GOAL_RELATED, 0)} in families that share building blocks with another, and at most "
            f"{percent(GOAL_NEW, 0)} in the others",
            f"{percent(related)} and {percent(new)}",
            (related or 0.0) <= GOAL_RELATED and (new or 0.0) <= GOAL_NEW,
        ),
        Target(
            f"P90 of the errors at most {percent(GOAL_P90, 0)}",
            percent(overall.p90_ape),
            (overall.p90_ape or 0.0) <= GOAL_P90,
        ),
        Target(
            f"signed mean within {percent(GOAL_SIGNED, 0)}",
            percent(overall.signed_mean, sign="+"),
            abs(overall.signed_mean or 0.0) <= GOAL_SIGNED,
        ),
        Target(
            f"P10-P90 holds {GOAL_COVERAGE[0]:.0%} to {GOAL_COVERAGE[1]:.0%} of the rows",
            f"{covered:.0%}; by precision {_range(coverages)}",
            GOAL_COVERAGE[0] <= covered <= GOAL_COVERAGE[1],
        ),
    ]


def _choice_targets(board: Board) -> list[Target]:
    aware = board.trusted(AWARE)
    in_order = aware.order.pairs_right or 0.0
    times = {name: times_the_error(board.trusted(twin(name)).overall, aware.overall) for name in TWINS}
    return [
        Target(
            f"at least {percent(GOAL_ORDER, 0)} of the pairs of precisions in order",
            percent(in_order, 0),
            in_order >= GOAL_ORDER,
        ),
        Target(
            f"blind twin clearly worse (here: {CLEARLY_WORSE:g} times the MAPE or more, whatever it assumes)",
            ", ".join(f"{ratio:.1f} times as {name}" for name, ratio in times.items()),
            min(times.values()) >= CLEARLY_WORSE,
        ),
    ]


def _anchor_targets(board: Board) -> list[Target]:
    anchored, by_one = board.trusted(ANCHORED).overall, board.trusted(ONE_ROW).overall
    return [
        Target(
            f"with the nearest measured row of the same model and GPU: MAPE at most {percent(GOAL_ANCHORED, 0)}",
            f"{percent(by_one.mape)} of {by_one.n} rows",
            (by_one.mape or 0.0) <= GOAL_ANCHORED,
        ),
        Target(
            f"with all other jobs of the family as anchors: MAPE at most {percent(GOAL_ANCHORED, 0)}",
            percent(anchored.mape),
            (anchored.mape or 0.0) <= GOAL_ANCHORED,
        ),
    ]


def times_the_error(blind: ErrorStatistics, aware: ErrorStatistics) -> float:
    """Mean error of `blind` over that of `aware`."""
    return (blind.mape or 0.0) / (aware.mape or 1e-9)


def _range(shares: Mapping[str, float | None]) -> str:
    """ "from 61% (amp-fp16) to 97% (fp32)"."""
    known = sorted((share, name) for name, share in shares.items() if share is not None)
    return " ".join(f"{word} {known[at][0]:.0%} ({known[at][1]})" for word, at in (("from", 0), ("to", -1)))
