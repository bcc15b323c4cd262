"""What an importer found: job-file words, what waits for the number of GPUs, and what was not taken and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from precision_time.errors import JobError
from precision_time.job.checks import count
from precision_time.job.job import Job
from precision_time.job.layout_parsing import parse_layout
from precision_time.job.run import RUN_FIELDS

NO_EFFECT = "does not change the time of a step"
UNKNOWN = "unknown here"


@dataclass(frozen=True, slots=True)
class Imported:
    """The words of a foreign file.

    kind          what the file is: Megatron arguments, DeepSpeed config or torchtitan config
    fields        job fields that need nothing else
    global_batch  samples per optimizer step in all; with the number of GPUs, and so dp, it decides grad_accum
    least_gpus    the fewest GPUs that the degrees make up, taken where nobody says how many there are
    not_taken     word of the file -> why it is in no job word
    """

    kind: str
    fields: Mapping[str, Any]
    global_batch: int | None = None
    least_gpus: int = 1
    not_taken: Mapping[str, str] = dataclass_field(default_factory=dict)

    def job_fields(self, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All job-file words, with those of `said` (also job-file words) on top, and grad_accum from the global batch.

        A model that is said replaces the file's with its shape; input sizes and configuration are merged key by key.
        Raises JobError where the global batch is not a multiple of batch_size x dp.
        """
        replaced = {key.replace("-", "_"): value for key, value in (overrides or {}).items() if value is not None}
        fields = {key: value for key, value in self.fields.items() if key not in replaced}
        if "model" in replaced:
            fields.pop("model_config", None)
        if "run" in replaced or set(RUN_FIELDS) & set(replaced):
            fields.pop("run", None)
        for name in ("input", "model_config"):
            if name in replaced and name in self.fields and (name == "input" or "model" not in replaced):
                merged = getattr(Job("any", **{name: replaced[name]}), name)
                replaced = {**replaced, name: {**self.fields[name], **merged}}
        if "gpus" in replaced:
            fields.pop("nodes", None)
        fields = {**fields, **replaced}
        fields.setdefault("gpus", self.least_gpus)
        if self.global_batch is not None:
            self._settle_batch(fields)
        return fields

    def _settle_batch(self, fields: dict[str, Any]) -> None:
        """Of batch size and accumulation, the one that is missing."""
        total = self.global_batch or 1
        gpus = count("gpus", fields["gpus"])
        dp = parse_layout(fields.get("layout", "dp"), gpus, _nodes(fields)).dp
        if "batch_size" not in fields and "grad_accum" not in fields:
            fields["grad_accum"] = 1
        known, missing = ("batch_size", "grad_accum") if "batch_size" in fields else ("grad_accum", "batch_size")
        if missing in fields:
            return  # both are said, and overrule the total
        each = count(known, fields[known]) * dp
        if total % each:
            raise JobError(
                f"global batch {total} of the {self.kind} is not a multiple of {known} {fields[known]} x dp {dp} = "
                f"{each}; change gpus or {known}, or say {missing}"
            )
        fields[missing] = total // each

    def notes(self) -> list[str]:
        """What was not taken, one sentence for each reason; what has no effect comes last."""
        reasons = sorted(set(self.not_taken.values()), key=lambda reason: (reason == NO_EFFECT, reason))
        return [
            f"{', '.join(word for word, why in self.not_taken.items() if why == reason)}: {reason}"
            for reason in reasons
        ]


def _nodes(fields: Mapping[str, Any]) -> int | None:
    return None if fields.get("nodes") is None else count("nodes", fields["nodes"])


class Reader:
    """Takes words out of a flat mapping one by one; what nobody took is left over with a reason."""

    def __init__(self, values: Mapping[str, Any], auto: bool = False) -> None:
        """`auto`: the word "auto" stands for a value that another program fills in."""
        self.left = dict(values)
        self._auto = auto
        self.not_taken: dict[str, str] = {}

    def take(self, *names: str, default: Any = None) -> Any:
        """The value of the first name that is there; all of them are taken. null counts as absent."""
        result = default
        for name in reversed(names):
            value = self.left.pop(name, None)
            if self._auto and isinstance(value, str) and value.strip().lower() == "auto":
                self.not_taken[name] = "is auto, decided by the program that reads it; say it as a flag"
            elif value is not None:
                result = value
        return result

    def number(self, *names: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, as above; anything else is a JobError with the file's word."""
        value = self.take(*names)
        return default if value is None else count(names[0], value)

    def on(self, *names: str) -> bool:
        """Whether a switch is there and on."""
        return is_on(self.take(*names))

    def refuse(self, reason: str, *names: str) -> None:
        """Leave words out that are there, for this reason."""
        for name in names:
            if name in self.left:
                del self.left[name]
                self.not_taken[name] = reason

    def finish(self, unimportant: tuple[str, ...]) -> dict[str, str]:
        """Reasons for all that is left; names that start with or are one of `unimportant` change no time."""
        for name in self.left:
            harmless = name.startswith(unimportant)
            self.not_taken.setdefault(name, NO_EFFECT if harmless else UNKNOWN)
        return self.not_taken


def is_on(value: Any) -> bool:
    """Whether a switch's value means on: a bare flag, true, 1."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "0", "no", "off", "none")
    return bool(value)
