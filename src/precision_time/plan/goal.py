"""What a plan has to achieve: by when, for how much, how surely, and what is to be least."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, nearest
from precision_time.field_types import apply_checks, choice, number, option, optional

OBJECTIVES = ("cost", "time", "energy", "co2")
HOURS = number(1e-3, 1e6, "hours")
SUREST = 0.98
"""No job is said to fit in memory more surely (`estimate.memory`)."""
USD = number(1e-3, 1e12, "US dollars")
_UNITS = {"s": 1 / 3600, "m": 1 / 60, "min": 1 / 60, "h": 1, "d": 24, "day": 24, "days": 24, "w": 168, "weeks": 168}
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_FORMS = ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of a plan; None: no such limit. `deadline_hours` counts from now, with the time in a queue."""

    deadline_hours: float | None = option(None, optional(HOURS), "hours from now until the run has to be finished")
    budget_usd: float | None = option(None, optional(USD), "US dollars that the run may cost")
    confidence: float = option(0.9, number(0.5, SUREST), "probability of fitting, being in time and within the budget")
    objective: str = option("cost", choice(OBJECTIVES), "what is to be least among what meets the goal")

    def __post_init__(self) -> None:
        apply_checks(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def deadline_hours(text: str, now: datetime) -> float:
    """Hours from `now` to a deadline: "2026-12-04 18:00", a day (its end), or a span as in "36h" and "3 days"."""
    if match := _SPAN.fullmatch(text.lower()):
        if match[2] not in _UNITS:
            raise JobError(
                f"deadline {show(text)} has the unit {match[2]!r}; nearest: {nearest(match[2], _UNITS)}; write 36h"
            )
        return float(match[1]) * _UNITS[match[2]]
    for form in _FORMS:
        try:
            moment = datetime.strptime(text.strip(), form)
        except ValueError:
            continue
        if form == "%Y-%m-%d":
            moment += timedelta(days=1)
        hours = (moment - now).total_seconds() / 3600.0
        if hours <= 0.0:
            raise JobError(
                f"deadline {show(text)} is in the past: now is {now:%Y-%m-%d %H:%M}; give a later one, or a span: 36h"
            )
        return hours
    raise JobError(f"deadline {show(text)} is no date and time; write 2026-12-04 18:00, or a span as in 36h")
