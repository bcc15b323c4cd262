"""Input sizes that vary from batch to batch, written `audio_frames: 1408..1920`: the middle is traced.

Data-parallel ranks then wait for the one whose batch is longest, so the width of the range matters beside its middle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError
from precision_time.zoo.workload import ZooEntry

_RANGE = re.compile(r"\s*(\d{1,12})\s*\.\.\s*(\d{1,12})\s*")


def settle_lengths(sizes: Mapping[str, Any], given: Mapping[str, Any], entry: ZooEntry) -> tuple[dict[str, Any], float]:
    """Sizes with ranges replaced by their middle, and half the width of the widest range as a share of its middle.

    Without a range, what the model's usual data do (`ZooEntry.varies`) holds, around whatever size the job gives.
    Raises `JobError` for a range that falls.
    """
    settled, spread, said = dict(sizes), 0.0, False
    steps = {symbol.name: symbol.multiple_of for symbol in entry.symbols}
    for name, value in sizes.items():
        match = _RANGE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            continue
        low, high = int(match[1]), int(match[2])
        if not 0 < low <= high:
            raise JobError(
                f"input {name} {value!r} is a range that falls or starts at 0; write it as {name}={max(high, 1)}..{low}"
            )
        grid = steps.get(name, 1)
        settled[name] = max(round((low + high) / 2 / grid), 1) * grid
        spread, said = max(spread, (high - low) / (high + low)), said or name in given
    return settled, spread if said or not entry.varies else entry.varies
