"""The run around the steps: its length, data set, evaluations, checkpoints, start-up and price."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from precision_time.checks import known_fields, show
from precision_time.errors import JobError
from precision_time.field_types import (
    EPOCHS,
    SAMPLES,
    SECONDS,
    STEPS,
    SWITCH,
    TEXT,
    USD_PER_HOUR,
    apply_checks,
    choice,
    number,
    option,
    optional,
    present_fields,
    whole,
)
from precision_time.job.datasets import find_dataset, is_known, samples_per_epoch

LENGTHS = ("epochs", "steps", "samples")
PRIORS = ("none", "published")
GPU_HOURS = number(1e-3, 1e12, "hours")
FAILURES = whole(0, 10**9, "failures")


@dataclass(frozen=True, slots=True)
class Run:
    """Length of the run (one of epochs, steps, samples), its data set and what else it does; None: not set."""

    _: KW_ONLY
    epochs: float | None = option(None, optional(EPOCHS), "epochs to train; may be a fraction")
    steps: int | None = option(None, optional(STEPS), "optimizer steps to train, instead of epochs")
    samples: int | None = option(None, optional(SAMPLES), "samples to train on, instead of epochs")
    dataset: str | None = option(None, optional(TEXT), "training set, from the catalog or with dataset_size")
    dataset_size: int | None = option(None, optional(SAMPLES), "samples in one epoch, instead of the catalog's")
    steps_per_epoch: int | None = option(None, optional(STEPS), "optimizer steps in one epoch, if not derived")
    evaluation_samples: int | None = option(None, optional(SAMPLES), "samples of one evaluation (forward only)")
    evaluation_every_epochs: float | None = option(
        None, optional(EPOCHS), "epochs between evaluations (1 when an evaluation has a length)"
    )
    evaluation_every_steps: int | None = option(None, optional(STEPS), "steps between evaluations, instead of epochs")
    evaluation_s: float | None = option(None, optional(SECONDS), "seconds of one evaluation, instead of predicted ones")
    checkpoint_every_steps: int | None = option(None, optional(STEPS), "steps between checkpoints")
    checkpoint_every_s: float | None = option(
        None, optional(SECONDS), "seconds between checkpoints (default: what loses least, where failures are known)"
    )
    checkpoint_s: float | None = option(None, optional(SECONDS), "seconds that one checkpoint stops training")
    checkpoint_storage: str | None = option(
        None, optional(TEXT), "storage that checkpoints are written to, from the catalog or a file"
    )
    checkpoint_async: bool | None = option(
        None, optional(SWITCH), "training goes on once a checkpoint is copied to the host's memory"
    )
    start_up_s: float | None = option(
        None, optional(SECONDS), "seconds from launch to the first step (default: as MLPerf's runs)"
    )
    compile_s: float | None = option(None, optional(SECONDS), "seconds of compilation and warm-up besides start-up")
    queue_s: float | None = option(None, optional(SECONDS), "seconds in a scheduler's queue before launch")
    gpu_hours_per_failure: float | None = option(
        None, optional(GPU_HOURS), "GPU-hours between failures that interrupt a run, where they are known"
    )
    failure_prior: str | None = option(
        None, optional(choice(PRIORS)), "failures where none are known: none, or published (one in 50,700 GPU-hours)"
    )
    failures_seen: int | None = option(None, optional(FAILURES), "failures in a log of failures_gpu_hours")
    failures_gpu_hours: float | None = option(
        None, optional(GPU_HOURS), "GPU-hours of that log, which updates the published rate"
    )
    restart_s: float | None = option(
        None, optional(SECONDS), "seconds from a failure until training goes on (default: as the start-up)"
    )
    price_per_gpu_hour: float | None = option(None, optional(USD_PER_HOUR), "US dollars per GPU and hour")
    price: str | None = option(
        None, optional(TEXT), "list price of a cloud: aws, azure, gcp ..., any, or an instance type (p4d.24xlarge)"
    )

    def __post_init__(self) -> None:
        apply_checks(self)
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise JobError(f"run gives {' and '.join(lengths)}; keep one of epochs, steps and samples")
        if self.dataset is not None and self.dataset_size is None:
            object.__setattr__(self, "dataset", find_dataset(self.dataset).name)
        self._settle_evaluation()
        self._settle_checkpoints()
        self._settle_failures()

    def _settle_evaluation(self) -> None:
        every = [n for n in ("evaluation_every_epochs", "evaluation_every_steps") if getattr(self, n) is not None]
        if len(every) > 1:
            raise JobError(f"run gives {' and '.join(every)}; keep one of them")
        if every and self.evaluation_samples is None and self.evaluation_s is None:
            raise JobError(
                f"{every[0]} {show(getattr(self, every[0]))} has no evaluation_samples; "
                f"add the number of samples of one evaluation, or its evaluation_s"
            )
        if not every and (self.evaluation_samples is not None or self.evaluation_s is not None):
            object.__setattr__(self, "evaluation_every_epochs", 1.0)

    def _settle_checkpoints(self) -> None:
        every = [n for n in ("checkpoint_every_steps", "checkpoint_every_s") if getattr(self, n) is not None]
        if len(every) > 1:
            raise JobError(f"run gives {' and '.join(every)}; keep one of them")
        if self.checkpoint_every_s == 0:
            raise JobError("checkpoint_every_s 0 leaves no time to train; give the seconds between checkpoints")
        for name in ("checkpoint_s", "checkpoint_storage"):
            if getattr(self, name) and not every and not self.knows_failures:
                raise JobError(
                    f"{name} {show(getattr(self, name))} needs checkpoint_every_steps or checkpoint_every_s; add one, "
                    f"or gpu_hours_per_failure, from which the best interval follows"
                )
        if self.checkpoint_async and self.checkpoint_storage is None:
            raise JobError("checkpoint_async true needs checkpoint_storage, which it is written to; add it")

    def _settle_failures(self) -> None:
        log = self.failures_seen is not None, self.failures_gpu_hours is not None
        if log[0] != log[1]:
            given, absent = ("failures_seen", "failures_gpu_hours")[:: 1 if log[0] else -1]
            raise JobError(f"{given} {show(getattr(self, given))} needs {absent}, the other half of the log; add it")
        if self.gpu_hours_per_failure is not None and (log[0] or self.failure_prior is not None):
            other = "failures_seen" if log[0] else "failure_prior"
            raise JobError(f"run gives gpu_hours_per_failure and {other}; keep one of them")
        if log[0] and self.failure_prior == "none":
            raise JobError("failures_seen updates the published rate, but failure_prior is none; leave one of them out")

    @property
    def knows_failures(self) -> bool:
        """Whether a rate of failures is given, or a log, or the published one is asked for."""
        known = self.gpu_hours_per_failure is not None or self.failures_seen is not None
        return known or self.failure_prior == "published"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        return cls(**known_fields(values, RUN_FIELDS, "run"))

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set; `from_dict` reads them back."""
        return present_fields(self)

    def samples_per_epoch(self, default_dataset: str | None = None, seq_len: int | None = None) -> int | None:
        """dataset_size, or the catalog's figure for the (default) data set; None where it has none."""
        if self.dataset_size is not None:
            return self.dataset_size
        name = self.dataset or default_dataset
        return samples_per_epoch(name, seq_len) if name is not None and is_known(name) else None


RUN_FIELDS = tuple(item.name for item in dataclasses.fields(Run))
