"""Which member of a stored model's archive holds the step at given sizes.

Where a dimension is one, torch views what it copies otherwise, runs another product, or cannot train at all. Where the
operators of such a size differ from those of all others, the step is stored apart, as `half@batch_size=1`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from functools import cache

from precision_time.shipped import shipped_file

Pins = tuple[tuple[str, int], ...]
"""Symbols and their values, which a step that is stored apart has for good; none: the step at all other sizes."""


def member_of(variant: str, pins: Pins) -> str:
    """The name of a step in the archive."""
    return f"{variant}@{','.join(f'{name}={value}' for name, value in pins)}" if pins else variant


def closest(known: Iterable[Pins], sizes: Mapping[str, int]) -> Pins:
    """Of the pins that the sizes have, the most; the first in order among as many."""
    there = (pins for pins in known if all(sizes.get(name) == value for name, value in pins))
    return min(there, key=lambda pins: (-len(pins), pins), default=())


def member_at(file: str, variant: str, sizes: Mapping[str, int], channels_last: bool = False) -> str:
    """The name of the step that holds at `sizes`; `file`: of the package ("zoo/data/gpt2.zip").

    A step with images stored channels last is that with images in rows, unless there is one of its own.
    """
    stored = _stored(file)
    if channels_last and last_of(variant) in stored:
        variant = last_of(variant)
    known = stored.get(variant)
    return member_of(variant, closest(known, sizes)) if known else variant


def last_of(variant: str) -> str:
    """The name of a variant's step with images stored channels last."""
    return f"{variant}.nhwc"


@cache
def _stored(file: str) -> Mapping[str, list[Pins]]:
    """The sizes of which a step is stored apart, by variant; those of every variant that is stored."""
    with zipfile.ZipFile(shipped_file(file)) as archive:
        members = [name.removesuffix(".json").partition("@") for name in archive.namelist()]
    found: dict[str, list[Pins]] = {}
    for variant, apart, text in members:
        pins = found.setdefault(variant, [])
        if apart:
            pairs = (pin.split("=") for pin in text.split(","))
            pins.append(tuple((name, int(value)) for name, value in pairs))
    return found
