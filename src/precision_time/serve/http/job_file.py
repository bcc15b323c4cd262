"""A job file among the texts that are imported: one whose `model` is a name and whose keys are fields of a job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from precision_time.errors import PrecisionTimeError
from precision_time.job.job import Job
from precision_time.reading import SUFFIXES, named, parse_mapping
from precision_time.serve.http.safe_job import safe_job

_FIELDS = frozenset(field.name for field in dataclasses.fields(Job))
_OTHER_PROGRAMS = frozenset({"trainer", "train", "base_model", "training"})
"""Keys of config files that may also name a model."""


def job_in(text: str, name: str) -> dict[str, Any] | None:
    """The fields of the job file, as they are written; None where the text is none.

    Most of its keys have to be fields. Raises `JobError` for the others, with the nearest field, and for what a request
    may not name.
    """
    path = name if Path(name).suffix.lower() in SUFFIXES else "job.yaml"
    try:
        content = parse_mapping(text, path, named("file", name) if name else "the text")
    except PrecisionTimeError:
        return None
    keys = set(map(str, content))
    if not isinstance(content.get("model"), str) or keys & _OTHER_PROGRAMS or 2 * len(keys & _FIELDS) < len(keys):
        return None
    safe_job(content)
    return content
