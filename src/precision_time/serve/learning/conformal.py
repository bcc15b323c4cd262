"""Adaptive conformal intervals: how far P10 and P90 lie from the median, learned from which outcomes fell outside.

Each tail is one number, a distance in spreads of log(step time). An outcome outside moves its logarithm outwards by
`RATE` x 0.9, one inside moves it inwards by `RATE` x 0.1, so that it rests where a tenth of the outcomes are outside
(Gibbs and Candes, arXiv:2106.00170, in the form of quantile tracking, arXiv:2307.16895). A step is a share of the tail,
so that one which starts several times too narrow follows as fast as any. Whatever the order or drift of the outcomes,
of T of them the share outside a tail is at most

    0.1 + (log(MOST / start) + RATE) / (RATE T) + the share of outcomes that lie beyond MOST.

It may be smaller only where a tail is at `LEAST`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precision_time.estimate.interval import Z90

OUTSIDE = 0.1
"""Share of the outcomes that shall lie outside of each tail."""
RATE = 0.2
"""Logarithm by which a tail moves for one outcome: chosen by replay."""
LEAST, MOST = 0.4, 6.0
"""Bounds of a tail, in spreads: an interval never vanishes, and hardly is more than five times as wide as that of a
normal distribution."""
WINDOW = 100
"""Last outcomes whose coverage is kept."""


@dataclass(frozen=True, slots=True)
class Tails:
    """Distances of P10 and P90 from the median in spreads, and which of the last outcomes lay within."""

    low: float = Z90
    high: float = Z90
    inside: tuple[bool, ...] = ()

    def after(self, deviation: float, rate: float = RATE) -> Tails:
        """The tails once an outcome came out `deviation` spreads above the median of log(step time)."""
        below, above = deviation < -self.low, deviation > self.high
        inside = (*self.inside, not (below or above))[-WINDOW:]
        return Tails(_moved(self.low, below, rate), _moved(self.high, above, rate), inside)

    @property
    def coverage(self) -> float | None:
        """Share of the last `WINDOW` outcomes within P10-P90."""
        return sum(self.inside) / len(self.inside) if self.inside else None

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "inside": [int(each) for each in self.inside]}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Tails:
        return cls(float(given["low"]), float(given["high"]), tuple(bool(each) for each in given["inside"]))


def _moved(tail: float, outside: bool, rate: float) -> float:
    """A tail beyond `MOST` moves no further outwards, so that it stays below `MOST` x exp(`rate`)."""
    return max(tail * math.exp(rate * ((outside and tail <= MOST) - OUTSIDE)), LEAST)


def bound(start: float, outcomes: int, beyond: int) -> float:
    """The largest share of so many outcomes that can lie outside of a tail which starts at `start`, `beyond` of them
    further than `MOST`."""
    return OUTSIDE + (math.log(MOST / start) + RATE) / (RATE * outcomes) + beyond / outcomes


def after_all(deviations: Sequence[float], start: Tails = Tails()) -> Tails:
    """The tails after several outcomes."""
    tails = start
    for deviation in deviations:
        tails = tails.after(deviation)
    return tails
