"""The flags: every field of the job file with hyphens, read off the fields of `Job` and `Run`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from precision_time.field_types import type_of
from precision_time.job import Job, Run

_NOT_FLAGS = frozenset({"schedule", "run", "code"})
"""Fields without a flag: a schedule is given in a job file, and the fields of `run` have flags of their own."""

AXES = ("gpu", "gpus", "batch_size", "layout", "precision")
"""Words that `compare` takes several values of; the last varies fastest."""

VERIFY_AXES = ("gpus", "precision")
"""The same for `verify`."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One field of the job as a flag. Values stay text: `Job` converts and checks them."""

    field: str
    help: str
    choices: tuple[str, ...]
    group: str

    @property
    def text(self) -> str:
        return "--" + self.field.replace("_", "-")


FLAGS: tuple[Flag, ...] = tuple(
    Flag(item.name, item.metadata["meaning"], type_of(item).choices, group)
    for section, group in ((Job, "job"), (Run, "run"))
    for item in dataclasses.fields(section)
    if item.name not in _NOT_FLAGS
)
