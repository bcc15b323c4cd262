"""How wide the intervals of large-model steps are: by kind of job, and by what the job shares with no fitted step.

A kind (`estimate.spread.kind_of`) has a base spread of its own, since errors of one kind say little about another's:
steps in fp8 are predicted worse than those of data ranks in half precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.folds import Z90, least_spread
from precision_time.report.errors import ErrorStatistics

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ALL = ""
"""Of `bases` and `added`: the rows of every kind."""
FEWEST = 5
"""Rows of other folds that settle the spread of a kind; with fewer the rows of all kinds do."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Rows with what each job adds to its spread (`widenings`), its kind, whether it counts, and its error held out by
    model (`errors`, log(predicted / measured)), which settles the base. `left_out`: what each job adds to its spread in
    a run that leaves out more."""

    widenings: Array
    kinds: NDArray[np.str_]
    trusted: Mask
    errors: Array
    left_out: Array

    def of_kind(self, kind: str) -> Mask:
        """The rows of a kind that count."""
        inside: Mask = self.trusted if kind == ALL else self.trusted & (self.kinds == kind)
        return inside

    @property
    def names(self) -> list[str]:
        """The kinds."""
        return sorted(set(self.kinds.tolist()))

    def bases(self) -> dict[str, float]:
        """The base spread of each kind, and of all rows."""
        rows = {name: self.of_kind(name) for name in (ALL, *self.names)}
        return {name: least_spread(self.errors[row], self.widenings[row]) for name, row in rows.items()}

    def known(self) -> Array:
        """The spread of every row without what is new about it."""
        bases = self.bases()
        return np.hypot([bases[kind] for kind in self.kinds.tolist()], self.left_out)

    def added(self, errors: Array) -> dict[str, float]:
        """What puts 80 % of the rows of each kind, and of all, into P10-P90. `errors`: of rows held out otherwise."""
        known = self.known()
        rows = {name: self.of_kind(name) for name in (ALL, *self.names)}
        return {name: least_spread(errors[row], known[row]) for name, row in rows.items()}

    def elsewhere(self, errors: Array, folds: Sequence[str], new: bool) -> Array:
        """The spread of every row, base and addition both from the rows of other folds. `new`: with the addition."""
        names = np.array(folds)
        widths = np.zeros(len(names))
        for fold in dict.fromkeys(folds):
            for kind in self.names:
                inside, rest = (names == fold) & (self.kinds == kind), self.of_kind(kind) & (names != fold)
                if not inside.any():
                    continue
                if rest.sum() < FEWEST:
                    rest = self.trusted & (names != fold)
                rest = rest if rest.any() else self.trusted  # of one fold
                base = least_spread(self.errors[rest], self.widenings[rest])
                addition = least_spread(errors[rest], np.hypot(base, self.left_out[rest])) if new else 0.0
                widths[inside] = np.hypot(np.hypot(base, addition), self.left_out[inside])
        return widths


def novelty(runs: Mapping[str, tuple[Spread, Array]]) -> dict[str, float]:
    """What something new adds to the spread of a job, by what that is and, after a colon, by kind. `runs`: the errors
    without it, and their spread."""
    found: dict[str, float] = {}
    for name, (spread, errors) in runs.items():
        found |= {f"{name}:{kind}" if kind else name: round(value, 4) for kind, value in spread.added(errors).items()}
    return found


def covered(spread: Spread, errors: Array, folds: Sequence[str], new: bool) -> list[tuple[str, ErrorStatistics, float]]:
    """Of each kind and of all rows: errors with the share of rows in P10-P90 at the shipped spreads, and that share at
    spreads from other folds."""
    added = spread.added(errors)
    shipped = spread.known()
    if new:
        shipped = np.hypot(shipped, [added[kind] for kind in spread.kinds.tolist()])
    inside = np.abs(errors) <= Z90 * shipped
    outside = np.abs(errors) <= Z90 * spread.elsewhere(errors, folds, new)
    return [
        (name, ErrorStatistics.of(np.expm1(errors[rows]), inside[rows].tolist()), float(outside[rows].mean()))
        for name, rows in ((name, spread.of_kind(name)) for name in (ALL, *spread.names))
    ]
