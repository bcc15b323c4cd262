"""P10, P50 and P90 from a median and the spread of its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z90 = 1.2815515655446004
"""90th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Tenth, fiftieth and ninetieth percentile of one quantity, in seconds."""

    p10: float
    p50: float
    p90: float

    @classmethod
    def around(cls, middle: float, log_spread: float, least: float = 0.0) -> Interval:
        """Log-normal around `middle` with standard deviation `log_spread` of the logarithm, P10 at least `least`."""
        width = math.exp(Z90 * max(log_spread, 0.0))
        return cls(min(max(middle / width, least), middle), middle, middle * width)

    def scaled(self, factor: float) -> Interval:
        return Interval(self.p10 * factor, self.p50 * factor, self.p90 * factor)

    def shifted(self, seconds: float) -> Interval:
        return Interval(self.p10 + seconds, self.p50 + seconds, self.p90 + seconds)

    def __float__(self) -> float:
        return self.p50
