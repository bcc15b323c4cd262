"""How wide intervals are: by kind of step, and by what the job shares with no fitted step.

A kind (`estimate.spread.kind_of`) has a base spread of its own, since errors of one kind say little about another's.
Rows of one fold (a model, a GPU, a framework) err alike, so that a fold counts as the root of its rows: a table of
hundreds of rows from one cluster does not say alone how far a prediction is off on another. What a few folds tell of
the next one is as uncertain as Student's t of that many is wider than a normal distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from precision_time.estimate.interval import Z90, Interval
from precision_time.estimate.spread import OTHER_FRAMEWORK, TIMM
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.folds import HeldOut, least_spread, sets_spread
from precision_time.report.errors import ErrorStatistics

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ALL = ""
"""Of `bases` and `added`: the rows of every kind but timm's networks, which one table holds by the thousand, and
frameworks for which PyTorch stands."""
_APART = (TIMM, OTHER_FRAMEWORK)
FEWEST_ROWS, FEWEST_FOLDS = 30, 3
"""Of a kind, so that they settle its spread; with fewer the rows of all kinds do (and those apart, where these are too
few as well), or its own if they require more."""


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """log(predicted / measured) of rows that were held out with all rows of their fold (a name).

    `judged`: the rows whose errors are looked at, where the others only show what the fit then lacks.
    """

    values: Array
    folds: NDArray[np.str_]
    judged: Mask

    @classmethod
    def of(cls, values: Sequence[float] | Array, folds: Sequence[str], judged: Sequence[bool] | None = None) -> Errors:
        """`judged`: None for all."""
        return cls(
            np.asarray(values), np.array(folds), np.ones(len(folds), np.bool_) if judged is None else np.array(judged)
        )

    def least(self, known: Array, rows: Mask) -> float:
        """The spread beside `known` that puts 80 % of the judged `rows` into P10-P90, each fold weighing as the root
        of its rows; 0 without any."""
        kept = rows & self.judged
        if not kept.any():
            return 0.0
        _, fold, count = np.unique(self.folds[kept], return_inverse=True, return_counts=True)
        weights = np.asarray(count[fold], dtype=np.float64) ** -0.5
        return least_spread(self.values[kept], known[kept], weights)

    def of_next_fold(self, known: Array, rows: Mask) -> float:
        """`least` for a fold that is none of these: wider by the P90 of Student's t with one degree of freedom less
        than there are folds, over that of a normal distribution; as it is of a single fold, which tells no spread."""
        folds = len(set(self.folds[rows & self.judged].tolist()))
        wider = float(stdtrit(folds - 1, 0.9)) / Z90 if folds > 1 else 1.0
        return replace(self, values=self.values * wider).least(known, rows)

    def enough(self, rows: Mask) -> bool:
        """Whether rows settle a spread."""
        return bool(rows.sum() >= FEWEST_ROWS) and len(set(self.folds[rows].tolist())) >= FEWEST_FOLDS


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Rows with what each job adds to its spread (`widenings`), its kind, whether it counts, and its error held out by
    model, which settles the base. `left_out`: what each job adds to its spread in a run that leaves out more."""

    widenings: Array
    kinds: NDArray[np.str_]
    trusted: Mask
    errors: Errors
    left_out: Array

    def of_kind(self, kind: str) -> Mask:
        """The rows of a kind that count."""
        return np.asarray(self.trusted & (~np.isin(self.kinds, _APART) if kind == ALL else self.kinds == kind))

    @property
    def names(self) -> list[str]:
        """The kinds."""
        return sorted(set(self.kinds.tolist()))

    def bases(self) -> dict[str, float]:
        """The base spread of each kind, and of all rows."""
        return {name: self._settled(name, self.errors, self.widenings) for name in (ALL, *self.names)}

    def known(self) -> Array:
        """The spread of every row without what is new about it."""
        bases = self.bases()
        return np.hypot([bases[kind] for kind in self.kinds.tolist()], self.left_out)

    def added(self, errors: Errors) -> dict[str, float]:
        """What puts 80 % of the rows of each kind, and of all, into P10-P90. `errors`: of rows held out otherwise."""
        known = self.known()
        return {name: self._settled(name, errors, known) for name in (ALL, *self.names)}

    def elsewhere(self, errors: Errors, new: bool) -> Array:
        """The spread of every row, base and addition both from the rows of other folds. `new`: with the addition."""
        widths = np.zeros(len(errors.values))
        for fold in dict.fromkeys(errors.folds.tolist()):
            outside = errors.folds != fold
            for kind in self.names:
                inside = ~outside & (self.kinds == kind)
                if not inside.any():
                    continue
                base = self._settled(kind, self.errors, self.widenings, outside)
                addition = self._settled(kind, errors, np.hypot(base, self.left_out), outside) if new else 0.0
                widths[inside] = np.hypot(np.hypot(base, addition), self.left_out[inside])
        return widths

    def _settled(self, kind: str, errors: Errors, known: Array, rows: Mask | None = None) -> float:
        """The spread beside `known` of a kind, or of all, as some of the `rows` (None: all) tell it."""
        some = self.trusted if rows is None else rows
        own, every = self.of_kind(kind) & some, self.of_kind(ALL) & some
        if errors.enough(own):
            return errors.of_next_fold(known, own)
        if not errors.enough(every):
            every = self.trusted & some if (self.trusted & some).any() else self.trusted  # of one fold
        return max(errors.of_next_fold(known, every), errors.least(known, own))


def novelty(runs: Mapping[str, tuple[Spread, Errors]]) -> dict[str, float]:
    """What something new adds to the spread of a job, by what that is and, after a colon, by kind. `runs`: the errors
    without it, and their spread."""
    found: dict[str, float] = {}
    for name, (spread, errors) in runs.items():
        found |= {f"{name}:{kind}" if kind else name: round(value, 4) for kind, value in spread.added(errors).items()}
    return found


def base_spreads(spread: Spread) -> dict[str, float]:
    """The base spreads as a data file holds them."""
    return {f"log_spread:{kind}" if kind else "log_spread": round(v, 4) for kind, v in spread.bases().items()}


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Whether each row is in P10-P90: at the shipped spreads, and at spreads that other folds give."""

    errors: Array
    shipped: Mask
    elsewhere: Mask

    @classmethod
    def of(cls, spread: Spread, errors: Errors, new: bool) -> Coverage:
        """`new`: something is new about every row, which adds to its spread."""
        added = spread.added(errors)
        shipped = spread.known()
        if new:
            shipped = np.hypot(shipped, [added[kind] for kind in spread.kinds.tolist()])
        size = np.abs(errors.values)
        return cls(errors.values, size <= Z90 * shipped, size <= Z90 * spread.elsewhere(errors, new))

    def statistics(self, rows: Mask) -> tuple[ErrorStatistics, float]:
        """Errors of some rows with their share in P10-P90 at the shipped spreads, and the share at those of other
        folds."""
        shipped = ErrorStatistics.of(np.expm1(self.errors[rows]), self.shipped[rows].tolist())
        return shipped, float(self.elsewhere[rows].mean())


def by_kind(spread: Spread, errors: Errors, new: bool) -> list[tuple[str, ErrorStatistics, float]]:
    """`Coverage.statistics` of all judged rows and of those of each kind that has any."""
    coverage = Coverage.of(spread, errors, new)
    rows = {name: spread.of_kind(name) & errors.judged for name in (ALL, *spread.names)}
    return [(name, *coverage.statistics(kept)) for name, kept in rows.items() if kept.any()]


def of_held_out(judged: Sequence[HeldOut]) -> Array:
    """The spread of every row, from the errors of the other folds."""
    errors = Errors.of([each.log_error for each in judged], [each.fold for each in judged])
    widenings = np.array([each.widening for each in judged])
    trusted = np.array([sets_spread(each.row) for each in judged])
    kinds = np.array([each.kind for each in judged])
    return Spread(widenings, kinds, trusted, errors, widenings).elsewhere(errors, new=False)


def with_intervals(judged: Sequence[HeldOut], spreads: Array | None = None) -> list[JudgedRow]:
    """The rows in the order of the table with their intervals: of these spreads, or of those that `of_held_out`
    gives."""
    widths = of_held_out(judged) if spreads is None else spreads
    rows = [
        JudgedRow(each.row, Interval.around(each.predicted_s, width), each.breakdown, each.fits, seen=False)
        for each, width in zip(judged, widths.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: row.row.line)
