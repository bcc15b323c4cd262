"""What the text of a script says of a job: fields, the line of each, and by name what it leaves open."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from precision_time.job.scripts.script import Call, Script
from precision_time.job.scripts.values import Unread, Values


@dataclass(slots=True)
class Facts:
    """What a script says.

    fields        job fields, without the model
    where         field -> the line that says it
    missing       what was looked for and is not in the text -> why, or what to give
    notes         settings that change time or memory and that no field of the job has, and answers that were assumed
    global_batch  samples of a step on all ranks, where the script states these and divides them
    by_trainer    whether a trainer's settings were found, which decide batch, precision and layout
    several       whether the script can run on several GPUs
    """

    fields: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    global_batch: int | None = None
    by_trainer: bool = False
    several: bool = False

    def say(self, name: str, value: Any, where: str) -> None:
        """A field that is not known yet, with the line that says it; the reason where the text leaves it open."""
        if name in self.fields:
            return
        if isinstance(value, Unread):
            self.missing.setdefault(name, value.reason)
        else:
            self.fields[name], self.where[name] = value, where
            self.missing.pop(name, None)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class Reading:
    """One file of a script with the calls that may run, and where its facts go."""

    script: Script
    values: Values
    calls: list[Call]
    facts: Facts
    main: Script

    def named(self, *names: str) -> list[Call]:
        """The calls whose last name is one of these."""
        return [call for call in self.calls if call.last in names]

    def place(self, call: Call, text: str = "") -> str:
        file = "" if self.script is self.main else f"{self.script.path.name}, "
        return f"{file}line {call.line}: {text or call.last or ast.unparse(call.node.func)[:60]}"
