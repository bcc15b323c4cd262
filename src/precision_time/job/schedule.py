"""A precision schedule: a run that changes its precision at given steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.checks import known_fields, show
from precision_time.errors import JobError
from precision_time.field_types import whole
from precision_time.job.precision import parse_precision

FROM_STEP = whole(0, 10**12, "steps")
MOST_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class PrecisionFrom:
    """`precision` (a label) holds from step `from_step` until the next entry."""

    from_step: int
    precision: str

    def to_dict(self) -> dict[str, Any]:
        return {"from_step": self.from_step, "precision": self.precision}


def parse_schedule(value: Any, field: str = "precision") -> tuple[PrecisionFrom, ...]:
    """Entries from a list of {from_step, precision}; the first starts at step 0, steps increase."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise JobError(f"{field} {show(value)} is not a schedule; give a list of {{from_step, precision}}")
    entries = tuple(_entry(item, field) for item in itertools.islice(value, MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise JobError(f"{field} has more than {MOST_ENTRIES:,} entries; give at most so many")
    if not entries:
        raise JobError(f"{field} is an empty schedule; give a precision or a list of {{from_step, precision}}")
    if entries[0].from_step != 0:
        raise JobError(
            f"{field} must start with from_step: 0, not {entries[0].from_step}; add the precision of the first steps"
        )
    for before, after in itertools.pairwise(entries):
        if after.from_step <= before.from_step:
            raise JobError(f"{field} has from_step {after.from_step} after {before.from_step}; list them in order")
    return entries


def _entry(item: Any, field: str) -> PrecisionFrom:
    if isinstance(item, PrecisionFrom):
        item = item.to_dict()
    if not isinstance(item, Mapping):
        raise JobError(f"{field} holds {show(item)}; each entry of a schedule is {{from_step: N, precision: NAME}}")
    fields = known_fields(item, ("from_step", "precision"), f"an entry of {field}")
    for name in ("from_step", "precision"):
        if name not in fields:
            raise JobError(f"{field} has an entry without {name}: {show(dict(item))}; add it")
    return PrecisionFrom(
        FROM_STEP(f"{field}.from_step", fields["from_step"]), parse_precision(fields["precision"]).label
    )
