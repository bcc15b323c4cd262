"""Covariance of the errors of measured steps, so that rows of one model do not count as independent.

log(measured / predicted) of a row is the sum of what the factors explain, of effects that it shares with other rows
(of its family, of its family in the same arithmetic and so on: mechanisms that no factor has), and of its own error.
Without the shared effects, forty rows of one model would change a factor forty times as much as one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.measurements.row import Row

Array = NDArray[np.float64]

SHARED = {"family": 0.10, "family, class": 0.10, "family, architecture, class": 0.06, "family, framework": 0.10}
"""Standard deviations of the effects that rows share."""
OWN = {"A": 0.08, "B": 0.10, "C": 0.30}
"""Standard deviations of a row's own error, by trust. These and `SHARED` were chosen after trials with half to twice
their values, which held-out errors hardly distinguished. Marginal likelihood gave larger held-out errors: it widens the
factors until these few families fit."""
_FAR = 0.3
"""The own error of a row with a larger log residual is taken as larger: the model lacks something for such a row."""


def error_covariance(rows: Sequence[Row], architectures: Sequence[str], residual: Array) -> Array:
    """Covariance (rows x rows) of the log errors that no factor explains; `residual` are the current log residuals."""
    robust = np.minimum(1.0, _FAR / np.maximum(np.abs(residual), 1e-9))
    deviations = np.array([OWN.get(row.trust, OWN["C"]) for row in rows])
    covariance = np.diag(deviations**2 / robust)
    for keys, deviation in zip(_shared_keys(rows, architectures), SHARED.values(), strict=True):
        numbers: dict[tuple[str, ...], int] = {}
        number = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        covariance = covariance + deviation**2 * (number[:, None] == number[None, :])
    return np.asarray(covariance, dtype=np.float64)


def _shared_keys(rows: Sequence[Row], architectures: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """For each effect of `SHARED` the key of every row; rows with equal keys share the effect."""
    return [
        [(row.family,) for row in rows],
        [(row.family, _dtype_class(row)) for row in rows],
        [(row.family, arch, _dtype_class(row)) for row, arch in zip(rows, architectures, strict=True)],
        [(row.family, row.framework) for row in rows],
    ]


def _dtype_class(row: Row) -> str:
    return row.precision if row.job is None else row.job.precision_spec.math
