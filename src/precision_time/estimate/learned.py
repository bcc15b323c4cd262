"""The correction of an estimate by outcomes of other jobs on the same cluster: one factor on the step, and its spread.

`serve.learning` makes it (`Corrections`); anchors (`correction.py`) come first, so that it corrects what they leave.
The factor is one on everything in the step, since an outcome is the time of a whole step: all terms keep their shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from precision_time.estimate.interval import Z90, Interval

if TYPE_CHECKING:
    from precision_time.job.job import Job

_COUNTED = ("gpu", "framework", "precision", "family", "model", "job")


class Corrections(Protocol):
    """What outcomes say about any job."""

    def correction_of(self, job: Job, precision: str, launch: float) -> Learned | None:
        """Of a job in a precision, launching its kernels being the limit for this share of their time; None: none."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What outcomes of a cluster say about a job.

    cluster         name of the cluster
    outcomes        number of outcomes of the cluster behind it
    sharing         how many of these share each facet with the job: gpu, framework, precision, family, model, job
    factor          on the seconds of the step
    informed        share of the variance between jobs that the outcomes explain
    own_spread      spread of log(step time) that no outcome explains
    low, high       distance of P10 and of P90 from the median, in spreads of log(step time); 1.28 of a normal
                    distribution, and what holds a tenth of the cluster's outcomes outside each
    uncorrected_s   seconds of the step before this correction
    prior_spread    spread of log(measured / predicted) between jobs before any outcome
    """

    cluster: str
    outcomes: int
    sharing: Mapping[str, int] = field(default_factory=dict)
    factor: float = 1.0
    informed: float = 0.0
    own_spread: float = 0.0
    low: float = Z90
    high: float = Z90
    uncorrected_s: float | None = None
    prior_spread: float = 0.0

    def correction_of(self, job: Job, precision: str, launch: float) -> Learned:
        """The same for every job (`Corrections`)."""
        return self

    def narrowed(self, log_spread: float) -> float:
        """The remaining spread of log(step time).

        The outcomes leave the unexplained share of a variance: of `log_spread`, and of what the corrected jobs of other
        clusters show. The more they explain, the more the second counts, whatever `log_spread` expected.
        """
        if not self.outcomes:
            return log_spread
        unknown = 1.0 - self.informed
        left = unknown * self.prior_spread**2 + self.own_spread**2
        return math.sqrt((unknown * log_spread) ** 2 + self.informed * left)

    def around(self, middle: float, log_spread: float, least: float) -> Interval:
        """P10 and P90 around a median, for the spread that is left; P10 is at least `least`."""
        p10 = min(max(middle / math.exp(self.low * log_spread), least), middle)
        return Interval(p10, middle, middle * math.exp(self.high * log_spread))

    def __str__(self) -> str:
        """One line: what the correction rests on."""
        jobs = "1 outcome" if self.outcomes == 1 else f"{self.outcomes:,} outcomes"
        shared = ", ".join(f"{self.sharing[name]:,} of this {name}" for name in _COUNTED if self.sharing.get(name))
        return f"corrected by {jobs} on {self.cluster}, step {self.factor - 1.0:+.1%}{f': {shared}' if shared else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {**asdict(self), "sharing": dict(self.sharing)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Learned:
        return cls(**given)
