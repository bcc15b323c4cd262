"""Precision schedules of a plan: a first precision for a share of the run's steps, then another.

fp32:10%..amp-bf16     fp32 for the first tenth of the steps
fp32:N%..amp-bf16      every tenth of the run from none to all of it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.job.precision import parse_precision
from precision_time.job.schedule import PrecisionFrom

SHARES = tuple(n / 10 for n in range(11))
"""Shares of the run that are tried for `N%`."""
_FORM = re.compile(r"\s*(?P<first>[^:%.]+?)\s*:\s*(?P<share>[Nn]|\d+(?:\.\d+)?)\s*%\s*\.\.\s*(?P<then>[^:%.]+?)\s*")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`first` for a share of the steps, then `then`; without a share, all of `SHARES`."""

    first: str
    then: str
    share: float | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        return SHARES if self.share is None else (self.share,)

    @property
    def precisions(self) -> tuple[str, str]:
        return self.first, self.then

    def entries(self, share: float, steps: int) -> tuple[PrecisionFrom, ...]:
        """The schedule of a run of so many steps, of which `share` are in the first precision."""
        switch = round(share * steps)
        if switch <= 0 or switch >= steps:
            return (PrecisionFrom(0, self.first if switch else self.then),)
        return PrecisionFrom(0, self.first), PrecisionFrom(switch, self.then)

    def __str__(self) -> str:
        share = "N" if self.share is None else f"{100 * self.share:g}"
        return f"{self.first}:{share}%..{self.then}"


def parse_schedule(field: str, value: Any) -> Schedule:
    """A `Schedule` from its text. Raises `JobError` for other text and unknown precisions."""
    if isinstance(value, Schedule):
        return value
    match = _FORM.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise JobError(
            f"{field} {show(value)} is no schedule; write fp32:10%..amp-bf16, or fp32:N%..amp-bf16 to try every tenth"
        )
    first, then = (parse_precision(match[name]).label for name in ("first", "then"))
    if first == then:
        raise JobError(f"{field} {show(value)} has {first} twice; name two precisions")
    if match["share"] in "Nn":
        return Schedule(first, then)
    share = float(match["share"]) / 100.0
    if share > 1.0:
        raise JobError(f"{field} {show(value)} is more than the whole run; give a share of 0 to 100 %")
    return Schedule(first, then, share)
