"""The correction of an estimate by measured jobs: factors on the times of the program, and a narrower spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from precision_time.timing.scaled import UNCHANGED, Factors

TERM_OF: dict[str, str] = {
    "forward": "kernels", "backward": "kernels", "casts": "kernels", "optimizer": "kernels",
    "loss_scaling": "kernels", "recompute": "kernels", "bubble": "kernels", "host_gaps": "host",
    "communication_exposed": "communication", "straggler_wait": "communication", "loader_stall": "loader",
}  # fmt: skip
"""Term of the breakdown -> the field of `Factors` that it mostly follows; none corrects the loader."""
INFORMED = Factors._fields


@dataclass(frozen=True, slots=True)
class AnchorUse:
    """One measured job behind a correction. `likeness` is its correlation with the job, at most one."""

    id: str
    source: str
    measured_s: float
    likeness: float


@dataclass(frozen=True, slots=True)
class Correction:
    """The factors on a program's times, and how much of the spread of log(step time) is left.

    own_spread      spread of log(step time) that no anchor explains
    informed        share of the variance between jobs that the anchors explain: 0 where nothing similar was measured
    count           anchors that were used
    nearest         the anchors with the highest likeness
    uncorrected_s   seconds of the step without the correction
    """

    factors: Factors = UNCHANGED
    own_spread: float = 0.0
    informed: float = 0.0
    count: int = 0
    nearest: tuple[AnchorUse, ...] = ()
    uncorrected_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {**asdict(self), "factors": self.factors._asdict(), "nearest": [asdict(use) for use in self.nearest]}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Correction:
        nearest = tuple(AnchorUse(**use) for use in given.get("nearest", ()))
        return cls(**{**given, "factors": Factors(**given["factors"]), "nearest": nearest})

    def narrowed(self, log_spread: float) -> float:
        """The remaining spread of an uncorrected one: without the share that the anchors explain."""
        if not self.count:
            return log_spread
        left = math.hypot(log_spread * math.sqrt(max(1.0 - self.informed, 0.0)), self.own_spread)
        return min(log_spread, left)

    def lowered(self, factor: float) -> Correction:
        """This correction with all its factors multiplied, and so the step."""
        return replace(self, factors=self.factors.times(factor))


NONE = Correction()
