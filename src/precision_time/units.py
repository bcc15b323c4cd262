"""Numbers as people read them: 105 ms, 3.40 h, 12.2 GiB, 13,200. Rounded parts add up to the rounded total."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SECONDS = ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_BYTES = ((1.0, "B"), (1024.0, "KiB"), (1024.0**2, "MiB"), (1024.0**3, "GiB"), (1024.0**4, "TiB"))


def unit_for(seconds: float) -> tuple[float, str]:
    """The unit in which a duration reads well, as (seconds per unit, name): 1.5 ms, 12 s, 3.4 h."""
    fitting = [unit for unit in _SECONDS if abs(seconds) >= (2 if unit[0] >= 60 else 1) * unit[0]]
    return fitting[-1] if fitting else _SECONDS[0]


def byte_unit_for(size: float) -> tuple[float, str]:
    """The binary unit in which a size reads well, as (bytes per unit, name)."""
    fitting = [unit for unit in _BYTES if abs(size) >= unit[0]]
    return fitting[-1] if fitting else _BYTES[0]


def digits_for(value: float) -> int:
    """Decimals that leave about three significant digits; 0 for values below a thousandth."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) >= 1e-3 else 0


def human_seconds(seconds: float) -> str:
    """ "105 ms": three to four significant digits."""
    scale, unit = unit_for(seconds)
    value = seconds / scale
    return f"{value:,.{digits_for(value)}f} {unit}"


def human_bytes(size: float) -> str:
    """ "12.2 GiB", in binary units."""
    scale, unit = byte_unit_for(size)
    return f"{size / scale:,.{digits_for(size / scale) if scale > 1 else 0}f} {unit}"


def human_count(value: float) -> str:
    """ "13,200": about three significant digits, thousands separated."""
    return f"{value:,.{digits_for(value)}f}"


def rounded_parts(parts: Sequence[float], digits: int) -> list[float]:
    """The parts rounded so that they sum to their rounded total (largest remainders go up)."""
    scale = 10.0**digits
    floors = [math.floor(part * scale) for part in parts]
    missing = round(round(sum(parts), digits) * scale) - sum(floors)
    by_remainder = sorted(range(len(parts)), key=lambda i: floors[i] - parts[i] * scale)
    for index in by_remainder[:missing]:
        floors[index] += 1
    return [value / scale for value in floors]
