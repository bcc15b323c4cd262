"""How far measured steps err together: what keeps many rows of one model from speaking as many witnesses.

log(measured / predicted) of a row is what the factors leave, plus effects that it shares with other rows (of its
family, of its family in this arithmetic ...: mechanisms that no factor has), plus its own error. Without the shared
effects forty rows of one model would pull a factor forty times as hard as one, though they err alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.measurements.row import Row

Array = NDArray[np.float64]

SHARED = {"family": 0.10, "family, class": 0.10, "family, architecture, class": 0.06, "family, framework": 0.10}
OWN = {"A": 0.08, "B": 0.10, "C": 0.30}
"""Standard deviations of the shared effects, and of a row's own error by trust: chosen, after trials with half to twice
these values, which held-out errors hardly told apart. Settling them by marginal likelihood was tried too and made
held-out errors worse: it widens the factors until these few families fit."""
_FAR = 0.3
"""Rows further off than this say that the model lacks something; their own error is taken as larger."""


def between(rows: Sequence[Row], architectures: Sequence[str], residual: Array) -> Array:
    """Covariance of the rows' log errors that no factor explains; `residual` tells which lie far off."""
    robust = np.minimum(1.0, _FAR / np.maximum(np.abs(residual), 1e-9))
    own = np.array([OWN.get(row.trust, OWN["C"]) for row in rows])
    total = np.diag(own**2 / robust)
    for words, deviation in zip(_words(rows, architectures), SHARED.values(), strict=True):
        known: dict[tuple[str, ...], int] = {}
        at = np.array([known.setdefault(word, len(known)) for word in words])
        total = total + deviation**2 * (at[:, None] == at[None, :])
    return np.asarray(total, dtype=np.float64)


def _words(rows: Sequence[Row], architectures: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """For each of `SHARED`: what two rows must have in common."""
    return [
        [(row.family,) for row in rows],
        [(row.family, _class(row)) for row in rows],
        [(row.family, arch, _class(row)) for row, arch in zip(rows, architectures, strict=True)],
        [(row.family, row.framework) for row in rows],
    ]


def _class(row: Row) -> str:
    return row.precision if row.job is None else row.job.precision_spec.math
