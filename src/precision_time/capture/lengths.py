"""Input sizes that vary from batch to batch, written `audio_frames: 1408..1920`; the middle of the range is traced.

Data-parallel ranks wait for the rank with the longest batch, so the width of the range is returned as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError

_RANGE = re.compile(r"\s*(\d{1,12})\s*\.\.\s*(\d{1,12})\s*")


def settle_lengths(sizes: Mapping[str, Any], grid: Mapping[str, int] | None = None) -> tuple[dict[str, Any], float]:
    """Sizes with ranges replaced by their middle, and half the width of the widest range as a share of its middle.

    `grid` holds the number of which a size must be a multiple. Raises `JobError` for a range that decreases or starts
    at zero.
    """
    settled: dict[str, Any] = dict(sizes)
    half_widths: list[float] = []
    for name, value in sizes.items():
        match = _RANGE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            continue
        low, high = int(match[1]), int(match[2])
        if not 0 < low <= high:
            fix = f"{name}={max(min(low, high), 1)}..{max(low, high, 1)}"
            raise JobError(f"input {name} {value!r} is a range that decreases or starts at 0; write {fix}")
        step = (grid or {}).get(name, 1)
        settled[name] = max(round((low + high) / 2 / step), 1) * step
        half_widths.append((high - low) / (high + low))
    return settled, max(half_widths, default=0.0)


def padded_to_longest(
    sizes: Mapping[str, Any], name: str, share: float, grid: Mapping[str, int]
) -> tuple[dict[str, Any], float]:
    """Sizes of a batch that is padded to its longest clip, and half the range of these lengths as a share.

    `sizes[name]` is the mean length of batches of `MIDDLE` clips; the longest of more clips is longer, and varies less:
    `share` is half the range of one clip's length. Both follow the root of the number of clips, as batches drawn from
    clips with an upper limit do (tests/test_ranks.py).
    """
    half_range = share / math.sqrt(sizes["batch_size"])
    longer = 1.0 + 1.25 * (share / math.sqrt(MIDDLE) - half_range)
    step = grid.get(name, 1)
    return {**sizes, name: max(round(sizes[name] * longer / step), 1) * step}, half_range


MIDDLE = 8
"""Clips of a batch whose length is the middle of 1408..1920 frames, which NVIDIA's scripts of Jasper name."""
