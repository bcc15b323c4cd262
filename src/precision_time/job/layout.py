"""Reading the `layout` word of a job: its spellings, and which of them can be predicted today (dp)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError, nearest
from precision_time.job.checks import count, count_or_zero, known_fields, show, switch
from precision_time.job.fields import parse_fields

NAMES = ("dp", "fsdp", "zero1", "zero2", "zero3")
DEGREES = ("dp", "tp", "pp", "cp", "ep", "vpp")


def check_layout(value: Any, gpus: int) -> str:
    """ "dp", or a sentence. {dp: N} and "dp=N" are dp over N GPUs, which must be all of them."""
    if isinstance(value, str) and "=" in value:
        value = parse_fields(value.replace(",", ";"), "layout")
    if isinstance(value, Mapping):
        return _check_degrees(known_fields(value, (*DEGREES, "sp", "zero"), "layout"), gpus)
    name = value.strip().lower() if isinstance(value, str) else ""
    if name in ("", "ddp"):
        name = "dp" if name else name
    if name not in NAMES:
        raise JobError(
            f"layout {show(value)} is unknown; nearest: {nearest(name, NAMES)}; "
            f"set layout to dp, the only one supported yet"
        )
    if name != "dp":
        raise _unsupported(name)
    return name


def _check_degrees(given: Mapping[str, Any], gpus: int) -> str:
    for name in DEGREES[1:]:
        if name in given and count(f"layout.{name}", given[name]) > 1:
            raise _unsupported(f"{name}={given[name]}")
    if "sp" in given and switch("layout.sp", bool(given["sp"]) if given["sp"] in (0, 1) else given["sp"]):
        raise _unsupported("sp")
    if "zero" in given and count_or_zero("layout.zero", given["zero"]):
        raise _unsupported(f"zero={given['zero']}")
    degree = count("layout.dp", given.get("dp", gpus))
    if degree != gpus:
        raise JobError(f"layout dp={degree} does not make up gpus {gpus}; set gpus to {degree} or dp to {gpus}")
    return "dp"


def _unsupported(what: str) -> JobError:
    return JobError(f"layout {what} is not supported yet; use layout dp (plain data parallel)")
