"""The correction of an estimate by measured jobs: a factor on each term of the step, and a narrower spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

TERM_OF: dict[str, str] = {
    "forward": "compute", "backward": "compute", "casts": "compute", "optimizer": "optimizer",
    "loss_scaling": "optimizer", "host_gaps": "host", "communication_exposed": "communication",
    "straggler_wait": "communication", "recompute": "compute", "bubble": "compute",
    "loader_stall": "loader",
}  # fmt: skip
"""Term of the breakdown -> the factor that corrects it (see `INFORMED`); none corrects the loader."""
INFORMED = ("compute", "optimizer", "host", "communication")


@dataclass(frozen=True, slots=True)
class AnchorUse:
    """One measured job behind a correction. `likeness` is its correlation with the job, at most one."""

    id: str
    source: str
    measured_s: float
    likeness: float


@dataclass(frozen=True, slots=True)
class Correction:
    """`factors` multiply the terms of `INFORMED`; the spread of log(step time) is at most `log_spread`.

    own_spread  spread of log(step time) when the same job is measured again
    informed    share of the variance between jobs that the anchors explain: 0 where nothing similar was measured
    count       anchors that were used
    nearest     the anchors with the highest likeness
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    log_spread: float | None = None
    own_spread: float = 0.0
    informed: float = 0.0
    count: int = 0
    nearest: tuple[AnchorUse, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {**asdict(self), "factors": dict(self.factors), "nearest": [asdict(use) for use in self.nearest]}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Correction:
        return cls(**{**given, "nearest": tuple(AnchorUse(**use) for use in given.get("nearest", ()))})

    def narrowed(self, log_spread: float) -> float:
        """The remaining spread of an uncorrected one: without the share that the anchors explain."""
        if self.log_spread is None:
            return log_spread
        left = math.hypot(log_spread * math.sqrt(max(1.0 - self.informed, 0.0)), self.own_spread)
        return min(log_spread, self.log_spread, left)

    def of(self, term: str) -> float:
        """The factor on a term of the breakdown."""
        return self.factors.get(TERM_OF[term], 1.0)

    def seconds(self, terms: Mapping[str, float]) -> float:
        """Seconds of a step whose terms are these, corrected."""
        return sum(seconds * self.of(term) for term, seconds in terms.items())

    def at_most(self, terms: Mapping[str, float], limit_s: float) -> Correction:
        """This correction, or with all factors lowered alike so that a step with these terms takes `limit_s`."""
        seconds = self.seconds(terms)
        if seconds <= limit_s:
            return self
        lower = {name: self.factors.get(name, 1.0) * limit_s / seconds for name in INFORMED}
        return replace(self, factors=lower)


NONE = Correction()
