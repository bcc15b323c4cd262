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
    TEXT,
    USD_PER_HOUR,
    apply_checks,
    option,
    optional,
    present_fields,
)
from precision_time.job.datasets import find_dataset, is_known, samples_per_epoch

LENGTHS = ("epochs", "steps", "samples")


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
        None, optional(EPOCHS), "epochs between evaluations (1 when evaluation_samples is given)"
    )
    checkpoint_every_steps: int | None = option(None, optional(STEPS), "steps between checkpoints")
    checkpoint_s: float | None = option(None, optional(SECONDS), "seconds that one checkpoint stops training")
    start_up_s: float | None = option(None, optional(SECONDS), "seconds from launch to the first step")
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
        if self.checkpoint_s and self.checkpoint_every_steps is None:
            raise JobError(f"checkpoint_s {show(self.checkpoint_s)} needs checkpoint_every_steps; add it")
        if self.evaluation_every_epochs is not None and self.evaluation_samples is None:
            raise JobError(
                f"evaluation_every_epochs {show(self.evaluation_every_epochs)} has no evaluation_samples; "
                f"add the number of samples of one evaluation"
            )
        if self.evaluation_samples is not None and self.evaluation_every_epochs is None:
            object.__setattr__(self, "evaluation_every_epochs", 1.0)

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
