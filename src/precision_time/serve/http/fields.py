"""The fields of bodies and queries: each has the `FieldType` that checks it, from which the OpenAPI schema is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.checks import known_fields, show
from precision_time.errors import JobError
from precision_time.field_types import GPUS, SWITCH, FieldType, choice, number, structured, whole
from precision_time.plan.goal import Goal
from precision_time.plan.space import Space
from precision_time.plan.walltime import CONFIDENCE, FORMATS
from precision_time.serve.http.limits import IMPORT_BYTES, MOST_ROWS, MOST_STEPS

CLUSTER_FORM, KEY_FORM, ID_FORM = r"[A-Za-z0-9._-]{1,100}", r"[!-~]{1,200}", r"[A-Za-z0-9_-]{1,100}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body or query.

    type      its check
    meaning   one line
    schema    what JSON Schema says of it beyond the type; {"$ref": ...} of a mapping
    required  whether a request without it is refused
    """

    type: FieldType
    meaning: str
    schema: Mapping[str, Any]
    required: bool = False


def _as_given(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise JobError(f"{field} is {show(value)}; give a mapping of fields")
    return dict(value)


def _matching(form: str, words: str) -> FieldType:
    found = re.compile(form)

    def check(field: str, value: Any) -> str:
        if not isinstance(value, str) or not found.fullmatch(value):
            raise JobError(f"{field} must be {words}, not {show(value)}; for example {field}: run-1")
        return value

    return structured("text", check)


def _list_of(of: FieldType, most: int) -> FieldType:
    def check(field: str, value: Any) -> tuple[Any, ...]:
        parts = value if isinstance(value, (list, tuple)) else [value]
        if not 1 <= len(parts) <= most:
            raise JobError(f"{field} has {len(parts):,} entries; give from 1 to {most:,}")
        return tuple(of(f"{field}[{index}]", part) for index, part in enumerate(parts))

    return structured("list", check)


def _plain(field: str, value: Any) -> Any:
    if not isinstance(value, (str, Mapping)):
        raise JobError(f"{field} is {show(value)}; give a name or a mapping of degrees")
    return value


def _content(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise JobError(f"{field} is {show(value)}; give the content of a file as text")
    return value


def _file_name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w. -]{1,200}", value) or value.strip(". ") == "":
        raise JobError(f"{field} is {show(value)}; give a file name without folders, such as config.yaml")
    return value


def _machine(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) > 50:
        raise JobError(f"{field} is {show(value)}; give a mapping of up to 50 names to text or numbers")
    for key, each in value.items():
        if not re.fullmatch(r"[\w. -]{1,100}", key):
            raise JobError(f"{field} has the key {show(key)}; use letters, digits, dots, hyphens and underscores")
        if not (each is None or isinstance(each, (bool, int, float)) or (isinstance(each, str) and len(each) <= 500)):
            raise JobError(f"{field}.{key} is {show(each)}; give a number, or text of at most 500 characters")
    return dict(value)


_MAPPING = structured("mapping", _as_given)
_WORD = {"type": "string", "minLength": 1, "maxLength": 4096}
TEXT_OF = structured("text", lambda field, value: _content(field, value).strip())
SECONDS_OF_STEP = number(1e-9, 1e9, "seconds")

JOB = Field(_MAPPING, "the fields of the job file", {"$ref": "#/components/schemas/Job"}, required=True)
CLUSTER = Field(
    _matching(CLUSTER_FORM, "1 to 100 letters, digits, dots, hyphens and underscores"),
    "the machines that the job is meant for (default: default)",
    {"type": "string", "pattern": f"^{CLUSTER_FORM}$"},
)
KEY = Field(
    _matching(KEY_FORM, "1 to 200 printable characters without spaces"),
    "the same key twice is one entry",
    {"type": "string", "pattern": f"^{KEY_FORM}$"},
)
KEEP = Field(SWITCH, "whether the prediction is kept, so that outcomes can name it (default true)", {"type": "boolean"})
QUANTILE = Field(
    number(0.01, 0.999), "a probability whose quantile is added", {"type": "number", "minimum": 0.01, "maximum": 0.999}
)
GRAPH = Field(
    _MAPPING, "what `precision-time capture` wrote, in place of model", {"$ref": "#/components/schemas/Graph"}
)


def _words(meaning: str) -> Field:
    of = {"type": "array", "items": _WORD, "minItems": 1, "maxItems": MOST_ROWS}
    return Field(_list_of(TEXT_OF, MOST_ROWS), meaning, of)


COMPARE: Mapping[str, Field] = {
    "precisions": _words("precisions to cross the job with"),
    "gpus": _words("GPU types to cross the job with"),
    "counts": Field(
        _list_of(GPUS, MOST_ROWS),
        "numbers of GPUs to cross the job with",
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": MOST_ROWS},
    ),
    "layouts": Field(
        _list_of(structured("layout", _plain), MOST_ROWS),
        "layouts to cross the job with",
        {"type": "array", "items": {"type": ["string", "object"]}, "minItems": 1, "maxItems": MOST_ROWS},
    ),
    "batch_sizes": Field(
        _list_of(whole(1, 2**24, "samples"), MOST_ROWS),
        "batch sizes to cross the job with",
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": MOST_ROWS},
    ),
}
PLAN: Mapping[str, Field] = {
    "goal": Field(_MAPPING, "deadline_hours, budget_usd, confidence, objective", {"$ref": "#/components/schemas/Goal"}),
    "space": Field(_MAPPING, "what the plan chooses among", {"$ref": "#/components/schemas/Space"}),
}
WALLTIME: Mapping[str, Field] = {
    "confidence": Field(
        CONFIDENCE, "probability of ending in time (default 0.95)", {"type": "number", "minimum": 0.5, "maximum": 0.999}
    ),
    "format": Field(choice(FORMATS), "whose clock (default seconds)", {"type": "string", "enum": list(FORMATS)}),
}
IMPORT: Mapping[str, Field] = {
    "text": Field(
        structured("text", _content),
        "content of the file",
        {"type": "string", "minLength": 1, "maxLength": IMPORT_BYTES},
        required=True,
    ),
    "name": Field(
        structured("text", _file_name),
        "name of the file, which decides how it is read (default: by its content)",
        {"type": "string", "pattern": r"^[\w. -]{1,200}$"},
    ),
    "job": Field(_MAPPING, "fields that override the file", {"$ref": "#/components/schemas/JobFields"}),
}
_SECONDS_SCHEMA = {"type": "number", "minimum": 1e-9, "maximum": 1e9}
OUTCOME: Mapping[str, Field] = {
    "key": KEY,
    "step_s": Field(SECONDS_OF_STEP, "median seconds of a step", _SECONDS_SCHEMA),
    "steps_s": Field(
        _list_of(SECONDS_OF_STEP, MOST_STEPS),
        "seconds of single steps",
        {"type": "array", "items": _SECONDS_SCHEMA, "minItems": 1, "maxItems": MOST_STEPS},
    ),
    "run_s": Field(SECONDS_OF_STEP, "seconds from launch to end", _SECONDS_SCHEMA),
    "peak_bytes": Field(
        whole(1, 10**15, "bytes"),
        "highest memory of the fullest GPU in bytes",
        {"type": "integer", "minimum": 1, "maximum": 10**15},
    ),
    "finished": Field(SWITCH, "whether all steps were done", {"type": "boolean"}),
    "machine": Field(
        structured("mapping", _machine),
        "what ran it: gpu, gpus, hosts, driver, torch, framework ...",
        {
            "type": "object",
            "maxProperties": 50,
            "propertyNames": {"pattern": r"^[\w. -]{1,100}$"},
            "additionalProperties": {"type": ["string", "number", "boolean", "null"], "maxLength": 500},
        },
    ),
}
PAGE: Mapping[str, Field] = {
    "before": Field(
        _matching(ID_FORM, "an id of a prediction"),
        "id of the last prediction that was seen",
        {"type": "string", "pattern": f"^{ID_FORM}$"},
    ),
    "limit": Field(whole(1, 200, "predictions"), "most predictions (default 50)",
                   {"type": "integer", "minimum": 1, "maximum": 200}),
}  # fmt: skip
NOUNS: Mapping[str, type] = {"Goal": Goal, "Space": Space}
"""Mappings inside a body whose fields are those of a dataclass."""


def checked(given: Any, fields: Mapping[str, Field], where: str) -> dict[str, Any]:
    """The checked fields of a body or query of plain values; raises `JobError` for an unknown, missing or wrong one."""
    if not isinstance(given, Mapping):
        raise JobError(f"{where} is {show(given)}; give a mapping of fields: {', '.join(fields) or 'none'}")
    values = known_fields(given, fields, where)
    for name, field in fields.items():
        if field.required and name not in values:
            raise JobError(f"{name} is missing in {where}; add it")
    return {name: fields[name].type(name, value) for name, value in values.items()}
