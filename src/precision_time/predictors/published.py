"""Published rows as measured jobs, and the groups of them that cross-validation keeps in one fold.

Only rows of trust A and B are loaded. Rows of trust C (kernels of other frameworks, doubtful conditions) neither train
nor judge a predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_time.capture.captured_model import resolve
from precision_time.errors import JobError
from precision_time.fit.traced_rows import measured_otherwise
from precision_time.job.code import is_code
from precision_time.job.fields import Value, format_fields
from precision_time.measurements.repository import LARGE_STEPS, STEPS
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.predictors import traced_facts
from precision_time.predictors.interface import MeasuredJob
from precision_time.zoo.names import find, zoo_name

TRUSTED = ("A", "B")
TABLES = (
    STEPS,
    *(STEPS.with_name(name) for name in ("measurements_more.csv", *traced_facts.TABLES)),
    LARGE_STEPS,
    LARGE_STEPS.with_name("measurements_llm_more.csv"),
)
"""Tables of steps below the data folder: data-parallel ones, then large language models in other layouts."""


def all_published(data: Path, *, allow_code: bool = False) -> tuple[MeasuredJob, ...]:
    """The rows of all tables. Rows whose model torch has to trace have their facts from `traced_facts`; those that it
    lacks, and those of networks that are others today (`fit.traced.measured_otherwise`), are left out."""
    found: list[MeasuredJob] = []
    traced = traced_facts.read(data)
    for table in TABLES:
        if table.name not in traced_facts.TABLES:
            found += published_jobs(data / table, allow_code=allow_code)
        elif (data / table).is_file():
            for row in read_table(data / table).rows:
                known = traced.get((table.name, row.id))
                if known is not None and row.job and row.trust in TRUSTED and not measured_otherwise(row):
                    facts = traced_facts.facts_from(known, row.job)
                    found.append(replace(measured_job(row), family=known.family, facts=facts))
    return tuple(found)


def published_jobs(path: Path, trust: Sequence[str] = TRUSTED, *, allow_code: bool = False) -> tuple[MeasuredJob, ...]:
    """The rows of a table in the measurement schema (docs/evaluate.md) that can be expressed as a job.

    Empty where there is no such file. `seconds` are of one optimizer step, as published; their cost is unknown and set
    to 0. Raises `DataError` where the file is no table.
    """
    if not path.is_file():
        return ()
    return tuple(
        measured_job(row)
        for row in read_table(path, allow_code=allow_code).rows
        if row.trust in trust and _is_known(row)
    )


def _is_known(row: Row) -> bool:
    """Whether the row is a job of a model that can be captured."""
    if row.job is None:
        return False
    try:
        return is_code(row.job.model) or bool(resolve(row.job))
    except JobError:
        return False


def measured_job(row: Row) -> MeasuredJob:
    """A row that has a job."""
    assert row.job is not None
    return MeasuredJob(row.id, row.job, row.measured_s, row.family, dataset_of(row.job.model))


def dataset_of(model: str) -> str:
    """Type of data that a named model trains on by default ("" where unknown)."""
    entry = find(model)
    return entry.dataset if entry is not None else ""


Group = Callable[[MeasuredJob], str]


def job_group(measured: MeasuredJob) -> str:
    """The same text for a job in other precisions, batches, accumulations, memory formats and optimizers.

    It names model, configuration, input, GPU, system, number of GPUs and nodes, and layout.
    """
    job = measured.job
    return "|".join((card_group(measured), job.system or job.node or "", str(job.gpus), str(job.nodes), job.layout))


def card_group(measured: MeasuredJob) -> str:
    """Model and GPU type: a stricter group, of any number of GPUs and any machine."""
    job = measured.job
    entry = find(job.model)
    config, sizes = (entry.config, entry.input) if entry is not None else ({}, {})
    return "|".join((zoo_name(job.model), _departs(job.model_config, config), _departs(job.input, sizes), job.gpu))


def _departs(fields: Mapping[str, Value], defaults: Mapping[str, Any]) -> str:
    """The fields that differ from the named model's defaults, since sources differ in which defaults they state."""
    return format_fields({key: value for key, value in sorted(fields.items()) if defaults.get(key) != value})


def grouped_folds(measured: Sequence[MeasuredJob], group: Group, count: int = 5, seed: int = 0) -> list[int]:
    """The fold of every job, 0 to count-1: whole groups, spread so that the folds are about equally large.

    Groups are shuffled by `seed`, then each goes to the smallest fold, the largest first.
    """
    import numpy as np

    groups = [group(each) for each in measured]
    sizes: dict[str, int] = {}
    for name in groups:
        sizes[name] = sizes.get(name, 0) + 1
    names = sorted(sizes)
    np.random.default_rng(seed).shuffle(names)
    filled = [0] * count
    fold_of: dict[str, int] = {}
    for name in sorted(names, key=lambda n: -sizes[n]):
        fold_of[name] = filled.index(min(filled))
        filled[fold_of[name]] += sizes[name]
    return [fold_of[name] for name in groups]
