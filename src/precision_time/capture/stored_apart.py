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


def member_at(file: str, variant: str, sizes: Mapping[str, int]) -> str:
    """The name of the step that holds at `sizes`; `file`: of the package ("zoo/data/gpt2.zip")."""
    known = _stored_apart(file).get(variant)
    return member_of(variant, closest(known, sizes)) if known else variant


@cache
def _stored_apart(file: str) -> Mapping[str, list[Pins]]:
    """The steps that are stored apart, by variant."""
    with zipfile.ZipFile(shipped_file(file)) as archive:
        members = [name.removesuffix(".json").partition("@") for name in archive.namelist()]
    found: dict[str, list[Pins]] = {}
    for variant, apart, text in members:
        if apart:
            pairs = (pin.split("=") for pin in text.split(","))
            found.setdefault(variant, []).append(tuple((name, int(value)) for name, value in pairs))
    return found
