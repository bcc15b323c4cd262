"""Statistics of prediction errors, and percentages as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LABELS = {
    "n": "rows",
    "mape": "MAPE",
    "median_ape": "median",
    "signed_mean": "signed",
    "p90_ape": "P90",
    "max_ape": "max",
    "coverage_p10_p90": "in P10-P90",
    "geo_mean_ratio": "ratio",
}
"""Field of `ErrorStatistics` -> column heading, in the order of the tables."""
ALL_FIELDS = tuple(_LABELS)


@dataclass(frozen=True, slots=True)
class ErrorStatistics:
    """Statistics of `n` errors, each predicted / measured - 1, as fractions; None where there are none.

    mape, median_ape, p90_ape, max_ape    mean, median, 90th percentile and largest absolute error
    signed_mean                           mean error, positive where predictions are too slow
    coverage_p10_p90                      share of measurements between P10 and P90; None without intervals
    geo_mean_ratio                        geometric mean of predicted / measured
    """

    n: int
    mape: float | None = None
    median_ape: float | None = None
    signed_mean: float | None = None
    p90_ape: float | None = None
    max_ape: float | None = None
    coverage_p10_p90: float | None = None
    geo_mean_ratio: float | None = None

    @classmethod
    def of(
        cls,
        errors: Sequence[float] | npt.NDArray[np.floating[Any]],
        inside: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    ) -> ErrorStatistics:
        """Statistics of `errors`; `inside[i]` says whether measurement i lies in its P10-P90 interval.

        Percentiles interpolate linearly between the two nearest values, as `numpy.quantile` does. Raises `ValueError`
        for an error below -1 (a negative time) or `inside` of another length.
        """
        values = np.asarray(errors, dtype=float)
        if not values.size:
            return cls(0)
        if inside is not None and len(inside) != values.size:
            raise ValueError(f"{values.size} errors but {len(inside)} interval checks")
        if (values < -1.0).any():
            raise ValueError(f"an error of {values.min()} means a negative time; errors are predicted / measured - 1")
        sizes = np.abs(values)
        return cls(
            n=values.size,
            mape=float(sizes.mean()),
            median_ape=float(np.median(sizes)),
            signed_mean=float(values.mean()),
            p90_ape=float(np.quantile(sizes, 0.9)),
            max_ape=float(sizes.max()),
            coverage_p10_p90=None if inside is None else float(np.mean(inside)),
            geo_mean_ratio=math.exp(float(np.log1p(values).mean())) if values.min() > -1.0 else 0.0,
        )

    def to_dict(self) -> dict[str, float | int | None]:
        """Field names and values, as in the JSON of `evaluate`."""
        return asdict(self)

    def cells(self, fields: Sequence[str] = ALL_FIELDS) -> list[str]:
        """The named fields as table cells: `n` with thousands separated, the ratio with two decimals, percentages."""
        return [self._cell(name) for name in fields]

    def _cell(self, name: str) -> str:
        value = getattr(self, name)
        if name == "n":
            return f"{value:,}"
        if name == "geo_mean_ratio":
            return "-" if value is None else f"{value:.2f}"
        return percent(value, 0 if name == "coverage_p10_p90" else 1, "+" if name == "signed_mean" else "")


def labels(fields: Sequence[str] = ALL_FIELDS) -> list[str]:
    """Column headings of `ErrorStatistics.cells`."""
    return [_LABELS[name] for name in fields]


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    """ "12.5%" of 0.125, with a plus where `sign="+"`, with an exponent above 10,000 %; "-" of None or not-a-number."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:{sign},.{digits}%}" if abs(value) < 100 else f"{100 * value:{sign}.1e}%"
