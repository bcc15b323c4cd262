"""The job's field `anchors`: which measured jobs may correct its estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, nearest

MOST_ANCHORS = 100
"""Most entries of the field; a CSV file is one."""
PUBLISHED, NONE = "published", "none"
ANCHOR_FIELDS = (
    "step_time_s", "model", "model_config", "input", "batch_size", "grad_accum", "gpus", "nodes", "gpu", "system",
    "precision", "optimizer", "memory_format", "attention", "execution", "id",
)  # fmt: skip
"""Columns of the measurement table that an anchor given as one line may set; the others are those of the job."""


def parse_anchors(field: str, value: Any) -> tuple[str, ...]:
    """The checked entries: `published`, `none`, CSV file names and `key=value,...` lines. A mapping becomes a line."""
    entries = [value] if isinstance(value, (str, Mapping)) else value
    if value is None or value == "":
        return ()
    if not isinstance(entries, (list, tuple)):
        raise JobError(f"{field} must be published, none, a CSV file or a list of such, not {show(value)}")
    if len(entries) > MOST_ANCHORS:
        raise JobError(
            f"{field} has {len(entries):,} entries; give at most {MOST_ANCHORS}, or one CSV file with all rows"
        )
    return tuple(_entry(field, each) for each in entries)


def _entry(field: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={each}" for key, each in value.items())
    if not isinstance(value, str):
        raise JobError(f"{field} {show(value)} is not text; give published, none, a CSV file or key=value,...")
    text = value.strip()
    if not text.isprintable():
        raise JobError(f"{field} {show(text)} is no line of plain text; write key=value,...")
    if text in (PUBLISHED, NONE) or text.lower().endswith(".csv"):
        return text
    if "=" not in text:
        raise JobError(
            f"{field} {show(text)} is unknown; give {PUBLISHED}, {NONE}, a file that ends in .csv, or "
            "key=value,...,step_time_s=SECONDS"
        )
    anchor_fields(text, field)
    return text


def anchor_fields(text: str, field: str = "anchors") -> dict[str, str]:
    """The columns of an anchor given as one line, as text. Raises `JobError` for an unknown or missing column."""
    fields: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, content = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise JobError(f"{field} {show(text)}: {show(part)} has no value; write key=value")
        if key not in ANCHOR_FIELDS:
            raise JobError(f"{field} {show(text)}: unknown column {key!r}; nearest: {nearest(key, ANCHOR_FIELDS)}")
        fields[key] = content.strip()
    seconds = fields.get("step_time_s", "")
    try:
        valid = 1e-9 <= float(seconds) <= 1e9
    except ValueError:
        valid = False
    if not valid:
        raise JobError(
            f"{field} {show(text)}: step_time_s is {seconds[:40] or 'missing'}; give the measured seconds of a step"
        )
    return fields
