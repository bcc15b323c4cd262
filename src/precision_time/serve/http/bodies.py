"""Bodies of requests: size and nesting are checked before they are parsed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.reading import parse_json
from precision_time.serve.http.limits import BODY_WAIT_S, DEEPEST, GRAPH_BYTES, MOST_BODY_VALUES, MOST_GRAPH_VALUES
from precision_time.serve.http.problems import ProblemError

Receive = Callable[[], Any]
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[{\]}]")
_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded", "text/plain", "text/json", ""})
"""Types that a body of JSON comes with; the second is what `curl -d` states."""


async def read_body(receive: Receive, headers: Mapping[str, str], largest: int) -> bytes:
    """The body of at most so many bytes; `ProblemError` 413 as soon as it has more, or says so."""
    stated = headers.get("content-length", "0")
    if stated.isdigit() and int(stated[:20]) > largest:
        raise too_large(largest)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        try:
            message = await asyncio.wait_for(receive(), BODY_WAIT_S)
        except asyncio.TimeoutError:
            raise ProblemError(408, f"no part of the body came for {BODY_WAIT_S:g} s; send it again") from None
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "the connection ended before the body; send it again")
        part = message.get("body", b"")
        size += len(part)
        if size > largest:
            raise too_large(largest)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def too_large(largest: int) -> ProblemError:
    """The problem of a body of more than so many bytes."""
    return ProblemError(413, f"the body is larger than {largest >> 10} KiB, the most that this route takes; send less")


def check_type(headers: Mapping[str, str]) -> None:
    """Raise `ProblemError` 415 for a body that says it is no JSON."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _TYPES and not given.endswith("+json"):
        raise ProblemError(415, f"Content-Type {given[:100]!r} is not read; send application/json")


def parsed(body: bytes, largest: int) -> Any:
    """The JSON value of a body. Raises `ProblemError`: 400 for what is no JSON, 422 for values that are not read."""
    if not body.strip():
        raise ProblemError(400, 'the body is empty; send a JSON object, for example {"job": {"model": "resnet50"}}')
    if depth_of(body) > DEEPEST:
        raise ProblemError(400, f"the body has more than {DEEPEST} mappings and lists inside each other; flatten it")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(400, f"the body is not UTF-8 (byte {error.start}); send UTF-8") from None
    try:
        return parse_json(text, "the body", MOST_GRAPH_VALUES if largest >= GRAPH_BYTES else MOST_BODY_VALUES)
    except DataError as error:
        raise ProblemError(422 if _is_json(text) else 400, str(error)) from None


def _is_json(text: str) -> bool:
    """Whether the text follows the grammar of JSON, so that a value in it is what is refused."""
    try:
        json.loads(text, parse_constant=_no_constant, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(word: str) -> None:
    raise ValueError(word)


def depth_of(body: bytes) -> int:
    """Brackets inside each other, up to one more than are allowed; text in quotes does not count."""
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_STRING.sub(b"", body)):
        if bracket[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > DEEPEST:
                break
        else:
            depth -= 1
    return deepest
