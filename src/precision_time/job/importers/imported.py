"""The result of an importer: job fields, the global batch, and the settings that were not taken, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import COUNT, GPUS, NODES
from precision_time.job.job import Job
from precision_time.job.layout_parsing import parse_layout
from precision_time.job.run import RUN_FIELDS

NO_EFFECT = "does not change the time of a step"
UNKNOWN = "unknown here"
MOST_NOTES = 100
"""Most reasons, and names for each, in `Imported.notes`."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The settings of another program's file.

    kind          what the file is: Megatron arguments, DeepSpeed config or torchtitan config
    fields        job fields that need nothing else
    global_batch  samples per optimizer step in all; with the number of GPUs, and so dp, it decides grad_accum
    least_gpus    the product of the degrees, which is `gpus` where neither the file nor the user gives it
    not_taken     setting of the file -> why no job field has it
    """

    kind: str
    fields: Mapping[str, Any]
    global_batch: int | None = None
    least_gpus: int = 1
    not_taken: Mapping[str, str] = dataclass_field(default_factory=dict)

    def job_fields(self, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All job fields: those of the file, replaced by `overrides`, and grad_accum from the global batch.

        A model in `overrides` replaces the file's model and shape; input sizes and `model_config` are merged key by
        key. Raises JobError where the global batch is not a multiple of batch_size x dp.
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
        """Sets batch_size or grad_accum, whichever is missing, from the global batch and dp."""
        total = self.global_batch or 1
        gpus = GPUS("gpus", fields["gpus"])
        dp = parse_layout(fields.get("layout", "dp"), gpus, _nodes(fields)).dp
        if "batch_size" not in fields and "grad_accum" not in fields:
            fields["grad_accum"] = 1
        known, missing = ("batch_size", "grad_accum") if "batch_size" in fields else ("grad_accum", "batch_size")
        if missing in fields:
            return  # both are given, and override the total
        each = COUNT(known, fields[known]) * dp
        if total % each:
            raise JobError(
                f"global batch {total} of the {self.kind} is not a multiple of {known} {fields[known]} x dp {dp} = "
                f"{each}; change gpus or {known}, or give {missing}"
            )
        fields[missing] = total // each

    def notes(self) -> list[str]:
        """The settings that were not taken, one sentence for each reason; those without effect come last."""
        names: dict[str, list[str]] = {}
        for name, why in self.not_taken.items():
            names.setdefault(why, []).append(name)
        reasons = sorted(names, key=lambda reason: (reason == NO_EFFECT, reason))
        return [f"{_listed(names[reason])}: {reason}" for reason in reasons[:MOST_NOTES]]


def _listed(names: list[str]) -> str:
    """Names with commas, the first `MOST_NOTES` of them."""
    more = f" and {len(names) - MOST_NOTES:,} more" if len(names) > MOST_NOTES else ""
    return ", ".join(names[:MOST_NOTES]) + more


def _nodes(fields: Mapping[str, Any]) -> int | None:
    return None if fields.get("nodes") is None else NODES("nodes", fields["nodes"])


class Reader:
    """Takes settings out of a flat mapping one by one; those left over get a reason why they were not taken."""

    def __init__(self, values: Mapping[str, Any], auto: bool = False) -> None:
        """`auto`: whether the value "auto" means that another program fills it in (DeepSpeed under HF Trainer)."""
        self.left = dict(values)
        self._auto = auto
        self.not_taken: dict[str, str] = {}

    def take(self, *names: str, default: Any = None, several: bool = False) -> Any:
        """The value of the first of `names` that is set; all of them are taken. None is not set.

        Raises JobError for a list or a mapping, unless the setting may have `several` values.
        """
        result = default
        for name in reversed(names):
            value = self.left.pop(name, None)
            if isinstance(value, (list, tuple, Mapping)) and not several:
                raise JobError(f"{name} is {show(value)}; give a single value")
            if self._auto and isinstance(value, str) and value.strip().lower() == "auto":
                self.not_taken[name] = "is auto, decided by the program that reads it; give it as a flag"
            elif value is not None:
                result = value
        return result

    def number(self, *names: str, default: int | None = None) -> int | None:
        """The same for a whole number of at least 1. Raises JobError, with the file's name of it, for anything else."""
        value = self.take(*names)
        return default if value is None else COUNT(names[0], value)

    def on(self, *names: str) -> bool:
        """Whether a switch is set and on."""
        return is_on(self.take(*names))

    def refuse(self, reason: str, *names: str) -> None:
        """Mark those of `names` that are set as not taken, for this reason."""
        for name in names:
            if name in self.left:
                del self.left[name]
                self.not_taken[name] = reason

    def finish(self, unimportant: tuple[str, ...]) -> dict[str, str]:
        """All settings not taken, with the reason; names that start with one of `unimportant` change no time."""
        for name in self.left:
            harmless = name.startswith(unimportant)
            self.not_taken.setdefault(name, NO_EFFECT if harmless else UNKNOWN)
        return self.not_taken


def is_on(value: Any) -> bool:
    """Whether the value of a switch means on: true, 1, or a flag without a value."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "0", "no", "off", "none")
    return bool(value)
