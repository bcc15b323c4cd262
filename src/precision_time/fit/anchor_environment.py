"""Chooses how much the user's own measured jobs share by their environment, which published rows do not.

A row stands for the user's own and corrects one other: alone, where that has another batch or GPU, and beside the rows
of all other sources (a source is a repository at a commit), where both are of one source and configuration.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.anchors.anchor import Anchor
from precision_time.anchors.covariance import Array
from precision_time.fit.anchor_choice import GRID, KNOWN, NEW, ONE_ROW, Evidence, KindRows

ALONE = ("at another batch or count", "on another GPU")
"""Of `ONE_ROW`."""
BESIDE_OTHERS = "of the same source, beside the rows of others"
TIE = 0.01
"""Share by which errors may grow above the smallest: the largest of such sizes is taken, since a user's step may lie
further from its prediction than any published one. Chosen."""


def source_of(anchor: Anchor) -> str:
    """Where a row was published: the repository and commit that its source begins with."""
    return anchor.source.partition(":")[0]


def environment_size(kinds: Iterable[Sequence[Evidence]], effects: Mapping[str, float]) -> float:
    """`Covariance.environment` beside these effects, by the rows of several kinds; 0 where none corrects another.

    Its errors are the mean over regimes and situations of the log of the mean |log error|, where the rows of a kind
    (of a source, beside others) weigh as the root of their pairs.
    """
    sums: dict[float, dict[tuple[str, str], list[float]]] = {size: defaultdict(lambda: [0.0, 0.0]) for size in GRID}
    for rows in kinds:
        kind = _Kind(rows, effects)
        for regime in (KNOWN, NEW):
            for situation, pairs in kind.pairs(regime):
                weight = math.sqrt(len(pairs.left))
                for size, of_size in sums.items():
                    of_size[regime, situation][0] += weight * float(np.abs(pairs.errors(size)).mean())
                    of_size[regime, situation][1] += weight
    if not sums[0.0]:
        return 0.0
    losses = {
        size: float(np.mean([math.log(total / weight) for total, weight in of_size.values()]))
        for size, of_size in sums.items()
    }
    return max(size for size, loss in losses.items() if loss <= min(losses.values()) + TIE)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Judged rows, each with another row that corrects it, given some other rows or none.

    left, known  log errors of judged rows and of those that correct them, as the given rows leave them
    shared       covariance of both
    variance     of the latter, with its own error
    alike        covariance of both by an environment of variance one
    """

    left: Array
    known: Array
    shared: Array
    variance: Array
    alike: Array

    def errors(self, size: float) -> Array:
        """What the corrections leave, by an environment of this standard deviation."""
        weight = (self.shared + size**2 * self.alike) / (self.variance + size**2)
        return self.left - weight * self.known


class _Kind:
    """The rows of one family and framework with the covariance between their errors."""

    def __init__(self, rows: Sequence[Evidence], effects: Mapping[str, float]) -> None:
        kind = KindRows(rows)
        self.rows, self.noise, self.covariance = rows, kind.noise, kind.covariance(effects)
        self.alike = kind.matrices["length"]
        self.source = np.array([source_of(row.anchor) for row in rows])
        self.other_job = ~self._same("key")

    def _same(self, name: str) -> NDArray[np.bool_]:
        values = np.array([getattr(row.anchor.job, name) for row in self.rows])
        return np.asarray(values[:, None] == values[None, :])

    def pairs(self, regime: str) -> Iterator[tuple[str, _Pairs]]:
        """Those of every situation, among the rows that this regime knows."""
        errors = np.array([row.errors(regime, "key")[0] for row in self.rows])
        known = np.flatnonzero(~np.isnan(errors))
        for situation in ALONE:
            equal, other = ONE_ROW[situation]
            correcting = ~self._same(other) & np.logical_and.reduce([self._same(name) for name in equal])
            yield from self._pairs(situation, correcting, known, errors[known], self.covariance[np.ix_(known, known)])
        correcting = (self.alike > 0.0) & self.other_job
        for source in np.unique(self.source):
            of, others = known[self.source[known] == source], known[self.source[known] != source]
            if len(others):
                yield from self._pairs(BESIDE_OTHERS, correcting, of, *self._given(errors, of, others))

    def _pairs(
        self, situation: str, correcting: NDArray[np.bool_], of: NDArray[np.intp], errors: Array, covariance: Array
    ) -> Iterator[tuple[str, _Pairs]]:
        """Those among the rows `of`, with these errors and covariance, if there are any."""
        judged, by = np.nonzero(correcting[np.ix_(of, of)])
        if len(judged):
            variance = covariance[by, by] + self.noise[of][by]
            alike = self.alike[np.ix_(of, of)][judged, by]
            yield situation, _Pairs(errors[judged], errors[by], covariance[judged, by], variance, alike)

    def _given(self, errors: Array, of: NDArray[np.intp], others: NDArray[np.intp]) -> tuple[Array, Array]:
        """Errors of some rows and the covariance between them, given the errors of others."""
        across, own = self.covariance[np.ix_(of, others)], self.covariance[np.ix_(of, of)]
        inverse = np.linalg.inv(self.covariance[np.ix_(others, others)] + np.diag(self.noise[others]))
        return errors[of] - across @ (inverse @ errors[others]), own - across @ inverse @ across.T
