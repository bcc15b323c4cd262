"""What is recorded: measured values, alone or with the job and the prediction that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from precision_time.checks import switch
from precision_time.errors import JobError, PrecisionTimeError
from precision_time.estimate.estimate import Estimate
from precision_time.field_types import SECONDS, FieldType
from precision_time.job.job import Job

_BYTES = FieldType("whole", 0, 2**60, "bytes")


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of an outcome, as `records.Outcome` has them; those that were not measured are None."""

    key: str
    step_s: float | None = None
    steps_s: tuple[float, ...] = ()
    run_s: float | None = None
    peak_bytes: int | None = None
    finished: bool | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_texts(cls, key: str, given: Mapping[str, str | None], machine: Mapping[str, Any]) -> Measured:
        """The values of flags or cells, of which some may be None or empty. Raises `JobError`."""
        values = {name: text for name, text in given.items() if text is not None and text.strip()}
        if unknown := sorted(set(values) - set(MEASURES)):
            raise JobError(f"{unknown[0]} is no measure of an outcome; use {', '.join(MEASURES)}")
        checked = {name: MEASURES[name](name, text.strip()) for name, text in values.items()}
        if not checked:
            raise JobError(f"the outcome measures nothing; give one of {', '.join(MEASURES)}")
        return cls(key=key, machine=machine, **checked)

    def fields(self) -> dict[str, Any]:
        """The values that are there, but the key."""
        named = {name: getattr(self, name) for name in (*MEASURES, "steps_s", "machine")}
        return {name: value for name, value in named.items() if value not in (None, (), {})}


MEASURES: Mapping[str, Callable[[str, Any], Any]] = {
    "step_s": SECONDS, "run_s": SECONDS, "peak_bytes": _BYTES, "finished": switch
}  # fmt: skip
"""Measures that a flag or a cell may have, and their checks."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that ran, with the prediction that was made for it.

    key       of the prediction: the same key twice is one prediction
    estimate  None: it is predicted when it is recorded
    made_at   when it was predicted, in seconds since 1970; None: now
    framework that it ran in, where another one stands for it in the job
    """

    key: str
    job: Job
    measured: Measured
    estimate: Estimate | None = None
    made_at: float | None = None
    framework: str | None = None

    def predicted(self) -> Estimate:
        """The estimate; raises a `PrecisionTimeError` for a job that cannot be predicted."""
        from precision_time.prediction import predict

        return self.estimate or predict(self.job)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of one outcome: the id of its prediction, whether it was new, or why it was not recorded."""

    key: str
    prediction: str | None = None
    new: bool = False
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "prediction": self.prediction, "new": self.new, "refused": self.refused or None}


def reason(error: PrecisionTimeError) -> str:
    """The sentence of an error, in one line."""
    return " ".join(str(error).split())
