"""Anchors that the user gives: rows of a CSV file in the measurement schema, or one line of `key=value` pairs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from precision_time.anchors.anchor import family_of
from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.errors import DataError, JobError
from precision_time.job.anchors import NONE, PUBLISHED, anchor_fields
from precision_time.job.code import CodeRule, is_code
from precision_time.job.job import Job
from precision_time.measurements.table import read_table

OWN = "own"
"""Source of an anchor that names none."""
GIVEN_TRUST = "A"
"""An anchor on one line is the user's own measurement of this very setting."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A measured job, not yet predicted. Compared by identity: a row of a file is one object while it is kept."""

    job: Job
    framework: str
    trust: str
    id: str
    source: str
    measured_s: float
    on_line: bool = False
    """Whether it was given on a line, with fields of the job that it corrects."""


MOST_RELATED, LARGEST_ANCHORS = 1_000, 4 * 2**20
"""Most measured jobs of one family, each predicted and then all correlated, and most bytes of all files of them."""


def wants_published(entries: tuple[str, ...]) -> bool:
    return NONE not in entries


def given_anchors(job: Job) -> list[Measured]:
    """The anchors in the job's field `anchors` that are of its family; rows of a file that are no job are skipped.

    Raises `DataError` for a file without any job, and `JobError` for a line that describes none.
    """
    anchors: list[Measured] = []
    entries = [entry for entry in job.anchors if entry not in (PUBLISHED, NONE)]
    states = {entry: _state(entry) for entry in entries if is_file(entry)}
    if sum(state.st_size for state in states.values()) > LARGEST_ANCHORS:
        several = f"{len(states)} files together are" if len(states) > 1 else f"{next(iter(states))!r} is"
        raise DataError(f"anchors: {several} larger than {LARGEST_ANCHORS >> 20} MiB; keep rows of the model's family")
    for entry in entries:
        state = states.get(entry)
        anchors += [_of_line(entry, job)] if state is None else _of_file(entry, state.st_mtime_ns, state.st_size)
    related = [_with_rule(each, job) for each in anchors if family_of(each.job) == family_of(job)]
    if len(related) > MOST_RELATED:
        raise DataError(
            f"anchors have {len(related):,} measured jobs of the model's family, and at most {MOST_RELATED:,} are "
            "read; keep those of the most similar jobs"
        )
    return related


def _with_rule(measured: Measured, job: Job) -> Measured:
    """The anchor, whose model may be code only where that of the job may, and it is the same or all code is allowed."""
    if not is_code(measured.job.model):
        return measured
    same = job.code.anything or measured.job.model == job.model
    rule = job.code if same else CodeRule(f"anchor {measured.id!r}")
    return replace(measured, job=replace(measured.job, code=rule))


def is_file(entry: str) -> bool:
    """Whether an entry of `anchors` names a file."""
    return entry.lower().endswith(".csv")


def _state(name: str) -> os.stat_result:
    try:
        return Path(name).stat()
    except OSError:
        raise DataError(f"anchors: {name!r} cannot be read; name a CSV file of measured jobs") from None


@bounded(budget=STRUCTURES)
def _of_file(name: str, _changed_ns: int, _size: int) -> tuple[Measured, ...]:
    table = read_table(name)
    rows = tuple(
        Measured(
            row.job,
            row.kernels_of or row.job.framework,
            row.trust or "B",
            row.id or f"{Path(name).name}:{row.line}",
            row.source or OWN,
            row.measured_s,
        )
        for row in table.rows
        if row.job is not None
    )
    if not rows:
        reason = next((row.reason for row in table.rows), "it has no rows")
        raise DataError(f"anchors: no row of {name!r} can be used: {reason}")
    return rows


def _of_line(text: str, job: Job) -> Measured:
    fields = dict(anchor_fields(text))
    seconds, name = float(fields.pop("step_time_s")), fields.pop("id", text)
    if fields.get("gpu", job.gpu) != job.gpu:
        fields = {"node": None, "nodes": None, "system": None, **fields}  # type: ignore[dict-item]
    try:
        measured = job.replace(anchors=(), **fields)
    except JobError as error:
        raise JobError(f"anchors {text!r}: {error}") from None
    return Measured(measured, measured.framework, GIVEN_TRUST, name, OWN, seconds, on_line=True)
