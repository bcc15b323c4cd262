"""The result of an importer: job fields, the global batch, and the settings that were not taken, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

from precision_time.errors import JobError
from precision_time.field_types import COUNT, GPUS, NODES
from precision_time.job.choices import PLAIN
from precision_time.job.importers.numerics import Numerics
from precision_time.job.importers.reader import NO_EFFECT
from precision_time.job.job import Job
from precision_time.job.layout_parsing import parse_layout
from precision_time.job.run import LENGTHS, RUN_FIELDS

MOST_NOTES = 100
"""Most reasons, and names for each, in `Imported.notes`."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The settings of another program's file.

    kind          what the file is: Megatron arguments, DeepSpeed config ...
    fields        job fields that the file states
    global_batch  samples per optimizer step in all; with the number of GPUs, and so dp, it decides grad_accum
    least_gpus    the product of the degrees, which is `gpus` where neither the file nor the user gives it
    not_taken     setting of the file -> why no job field has it
    taken         settings of the file that job fields have
    defaults      job fields that are defaults of the program; another file may state them
    undecided     job field -> why the file leaves it open; it has to come from another file or the user
    numerics      what the file says about mixed precision, where other files may add to it
    """

    kind: str
    fields: Mapping[str, Any]
    global_batch: int | None = None
    least_gpus: int = 1
    not_taken: Mapping[str, str] = dataclass_field(default_factory=dict)
    taken: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclass_field(default_factory=dict)
    undecided: Mapping[str, str] = dataclass_field(default_factory=dict)
    numerics: Numerics | None = None

    def job_fields(self, overrides: Mapping[str, Any] | None = None, chosen: Collection[str] = ()) -> dict[str, Any]:
        """All job fields: those of the file, replaced by `overrides`, and grad_accum from the global batch.

        A model in `overrides` replaces the file's model and shape; input sizes and `model_config` are merged key by
        key. Raises JobError where the global batch is not a multiple of batch_size x dp, or not their product with a
        grad_accum that the files state as well, and where a field is left open
        that neither `overrides` nor `chosen`, the names of fields that get their value later, has.
        """
        replaced = {key.replace("-", "_"): value for key, value in (overrides or {}).items() if value is not None}
        self._check_decided({*replaced, *chosen})
        precision = {} if self.numerics is None else self.numerics.job_fields()
        stated = {**self.defaults, **precision, **self.fields}
        if {**stated, **replaced}.get("framework", PLAIN[0]) not in PLAIN:
            stated.pop("loss", None)
        if "optimizer" in replaced or ("optimizer" in self.fields and "optimizer_impl" not in self.fields):
            stated.pop("optimizer_impl", None)  # it belongs to the file's optimizer, or to the default one
        if {"precision", "schedule"} & set(replaced):
            stated.pop("precision", None)
        fields = {key: value for key, value in stated.items() if key not in replaced}
        if "model" in replaced:
            fields.pop("model_config", None)
        if "run" in replaced or set(RUN_FIELDS) & set(replaced):
            fields.pop("run", None)
        for name in ("input", "model_config"):
            if name in replaced and name in stated and (name == "input" or "model" not in replaced):
                merged = getattr(Job("any", **{name: replaced[name]}), name)
                replaced = {**replaced, name: {**stated[name], **merged}}
        if "gpus" in replaced:
            fields.pop("nodes", None)
        fields = {**fields, **replaced}
        if self.global_batch is not None:
            self._settle_batch(fields, {"batch_size", "grad_accum"} & set(replaced))
        fields.setdefault("gpus", self.least_gpus)
        return fields

    def named(self, kind: str, not_taken: Mapping[str, str], taken: tuple[str, ...]) -> Imported:
        """The same with other names of its settings."""
        return replace(self, kind=kind, not_taken=not_taken, taken=taken)

    def _check_decided(self, names: Collection[str]) -> None:
        """Raises JobError for the fields that the file leaves open, apart from those called `names`."""
        undecided = dict(self.undecided)
        if self.numerics is not None and not self.numerics.job_fields():
            undecided.setdefault("precision", self.numerics.doubt)
        given = {*names, *(("precision",) if "schedule" in names else ())}
        if given & set(LENGTHS):
            given.update(LENGTHS)
        if "batch_size" in given and "grad_accum" in given:
            given.add("global_batch")
        fields = [name for name in undecided if name not in given]
        if fields:
            reasons = ", ".join(f"{name} ({undecided[name]})" for name in fields)
            known = [name for name in fields if name != "global_batch"] or ["batch_size", "grad_accum"]
            flags = " ".join(f"--{name.replace('_', '-')}" for name in known)
            raise JobError(
                f"{self.kind} does not decide {reasons}; give {flags}, or the file that decides it by --import"
            )

    def _settle_batch(self, fields: dict[str, Any], overridden: Collection[str]) -> None:
        """Sets batch_size or grad_accum, whichever is missing, from the global batch and dp; where neither is, and the
        number of GPUs is, sets that."""
        total = self.global_batch or 1
        if "batch_size" not in fields and "grad_accum" not in fields:
            fields["grad_accum"] = 1
        known, missing = ("batch_size", "grad_accum") if "batch_size" in fields else ("grad_accum", "batch_size")
        if missing in fields and overridden:
            return  # what the user gives overrides the total
        each = COUNT(known, fields[known]) * (COUNT(missing, fields[missing]) if missing in fields else 1)
        if missing in fields and "gpus" not in fields and total % each == 0:
            fields["gpus"] = self.least_gpus * (total // each)
            return
        gpus = GPUS("gpus", fields.get("gpus", self.least_gpus))
        dp = parse_layout(fields.get("layout", "dp"), gpus, _nodes(fields)).dp
        if missing in fields:
            if each * dp != total:
                raise JobError(
                    f"global batch {total} of the {self.kind} is not batch_size {fields['batch_size']} x grad_accum "
                    f"{fields['grad_accum']} x dp {dp} = {each * dp}; change gpus, or give batch_size and grad_accum"
                )
            return
        if total % (each * dp):
            raise JobError(
                f"global batch {total} of the {self.kind} is not a multiple of {known} {fields[known]} x dp {dp} = "
                f"{each * dp}; change gpus or {known}, or give {missing}"
            )
        fields[missing] = total // (each * dp)

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
