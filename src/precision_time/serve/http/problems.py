"""Errors as problems of RFC 9457, with the parts of this package's sentences: field, value, nearest, fix.

A sentence names the field first, quotes the value, lists the nearest choices after "nearest:" and ends with the fix
after a semicolon. What a sentence does not have is left out of the problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

from precision_time.errors import PlanError, PrecisionTimeError, ServeError, StoreError

MEDIA_TYPE = "application/problem+json"
_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""As RFC 9110 has them; older versions of Python have former names."""
_UNKNOWN = re.compile(r"unknown (field|GPU|node|fabric|storage|price|data set|column) ")
_NAMES = {"GPU": "gpu", "data set": "dataset"}
"""How catalogs name an entry -> the field of a job that names it."""
_OF_SERVER = {
    "model": "name one of GET /v1/models, or capture yours where it is (precision-time capture) and post its graph",
    "gpu": "name one of GET /v1/gpus",
}
"""What to do about an unknown name where the library's sentence names files, which a request may not."""
_WORD = re.compile(r"(?:input |model_config |layout )?'?([a-z_][A-Za-z0-9_.]*(?:\[[0-9]+\])?)'?(?=[ =:;]|$)")
_VALUE = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([+-]?\d[\d.e+-]*)(?![\w])")
_REFUSED = re.compile(r", not (.*)$")
_NEAREST = re.compile(r"nearest: ([^;]*)")


class ProblemError(ServeError):
    """A request that is refused, with its status and the parts of the sentence that are known."""

    def __init__(self, status: int, detail: str, retry_s: int | None = None, **parts: Any) -> None:
        super().__init__(detail)
        self.status, self.retry_s, self.parts = status, retry_s, {"fix": _fix_of(detail), **parts}
        self.headers: dict[str, str] = {}
        """Of the reply, beside those of every problem."""

    def to_dict(self) -> dict[str, Any]:
        """The members of RFC 9457, then ours."""
        return {
            "type": "about:blank",
            "title": _TITLES.get(self.status) or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": str(self),
            **{name: value for name, value in self.parts.items() if value is not None},
        }


def problem_of(error: PrecisionTimeError) -> ProblemError:
    """The problem that an error of this package is to a client."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, StoreError):
        return ProblemError(503, str(error), retry_s=5, error="StoreError")
    parts: dict[str, Any] = {"fix": None} if isinstance(error, PlanError) else parts_of(str(error))
    if "nearest" in parts and parts.get("field") in _OF_SERVER:
        parts["fix"] = _OF_SERVER[parts["field"]]
    return ProblemError(422, str(error), error=type(error).__name__, **parts)


def parts_of(sentence: str) -> dict[str, Any]:
    """Field, value, nearest and fix of a sentence of this package, those that it has."""
    first = sentence.split("; ")[0]
    parts: dict[str, Any] = {}
    unknown = _UNKNOWN.match(first)
    word = None if unknown else _WORD.match(first)
    if unknown:
        value = _VALUE.search(first, unknown.end())
        shown = "" if value is None else _text_of(value)
        parts |= {"field": shown if unknown[1] == "field" else _NAMES.get(unknown[1], unknown[1]), "value": shown}
    elif word and _is_field(word[1]):
        parts["field"] = word[1]
        refused = _REFUSED.search(first, word.end())
        value = _VALUE.search(first, refused.start(1) if refused else word.end())
        if value:
            parts["value"] = _text_of(value)
    if found := _NEAREST.search(sentence):
        parts["nearest"] = [name.strip() for name in found[1].split(", ") if name.strip(" .") not in ("", "...")]
    if fix := _fix_of(sentence):
        parts["fix"] = fix
    return parts


def _fix_of(sentence: str) -> str | None:
    """What follows the last semicolon."""
    _, *rest = sentence.split("; ")
    return rest[-1] if rest and not rest[-1].startswith("nearest:") else None


def _text_of(value: re.Match[str]) -> str:
    return next(text for text in value.groups() if text is not None)


@cache
def _field_names() -> frozenset[str]:
    from precision_time.field_table import field_table
    from precision_time.serve.http.routes import ROUTES

    names = {field.name for field in field_table()} | {name for route in ROUTES for name in route.fields}
    return frozenset(names | {"run", "job"})


def _is_field(word: str) -> bool:
    """Whether a word, such as run.epochs or steps_s[3], is a field or the part of one."""
    return not _field_names().isdisjoint(re.split(r"[.\[]", word))


def parts_from(given: Mapping[str, Any]) -> dict[str, Any]:
    """The extra members of a problem that was written as a mapping."""
    return {name: given[name] for name in ("error", "field", "value", "nearest", "fix") if name in given}
