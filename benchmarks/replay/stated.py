"""What the notes of a published row say of its job beyond the cells that `measurements.row` reads.

Two rows that differ in their notes alone are two jobs where a job has fields for the difference: scaling of fp8, tokens
that experts drop, ranks that share the states of ZeRO, products of tensor parallelism in chunks. The importers read
these fields from the files of the frameworks, so that a server which is sent such jobs tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from precision_time.job.job import Job
from precision_time.measurements.row import Row
from precision_time.reading import read_records

SCALINGS = {
    "float8 rowwise": "fp8-rowwise",
    "precision printed mxfp8": "fp8-block",
    "precision printed fp8-mx": "fp8-block",
}
"""Phrase of the notes -> precision of a job in fp8, as the importers of torchtitan and Megatron name it."""
SETTINGS = {"token-drop capacity": "capacity_factor=1", "async tp": "overlap_tp=1"}
"""Phrase -> setting of the layout. The capacity is the default of Megatron-Bridge's `apply_moe_token_drop`."""
_GROUP = re.compile(r"zero1 group (\d+)")


def as_stated(job: Job, notes: str) -> Job:
    """The job with what the notes say of it."""
    notes = notes.lower()
    precision = next((name for phrase, name in SCALINGS.items() if phrase in notes), job.precision)
    settings = [setting for phrase, setting in SETTINGS.items() if phrase in notes]
    ranks = job.layout_spec.data_ranks
    if (found := _GROUP.search(notes)) and int(found[1]) < ranks:
        settings.append(f"shard={found[1]}")
    if not settings and precision == job.precision:
        return job
    return job.replace(precision=precision, layout=",".join((job.layout, *settings)))


def notes_of(tables: Iterable[Path]) -> dict[str, str]:
    """Notes by the id of their row."""
    return {cells["id"]: cells["notes"] for path in tables for _, cells in read_records(path, ("id", "notes"))}


def stated(rows: Iterable[Row], notes: Mapping[str, str]) -> Iterator[Row]:
    """The rows, each with its job as its notes state it."""
    for row in rows:
        yield row if row.job is None else replace(row, job=as_stated(row.job, notes.get(row.id, "")))
