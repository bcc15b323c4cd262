"""Numbers as people read them: 104.9 ms, 3.4 h, 12.2 GiB, 13,200."""

from __future__ import annotations

import math

_SECONDS = ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_BYTES = ((1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))


def unit_for(seconds: float) -> tuple[float, str]:
    """The unit in which a duration reads well, as (seconds per unit, name): 1.5 ms, 12 s, 3.4 h."""
    fitting = [unit for unit in _SECONDS if abs(seconds) >= (2 if unit[0] >= 60 else 1) * unit[0]]
    return fitting[-1] if fitting else _SECONDS[0]


def digits_for(value: float) -> int:
    """Decimals that leave about three significant digits."""
    return min(9, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0


def human_seconds(seconds: float) -> str:
    """ "104.9 ms": three to four significant digits."""
    scale, unit = unit_for(seconds)
    value = seconds / scale
    return f"{value:,.{max(digits_for(value), 0)}f} {unit}"


def human_bytes(size: float) -> str:
    """ "12.2 GiB", in binary units."""
    fitting = [(s, u) for s, u in _BYTES if abs(size) >= s] or [(1, "B")]
    scale, unit = fitting[-1]
    return f"{size / scale:.{digits_for(size / scale) if scale > 1 else 0}f} {unit}"


def human_count(value: float) -> str:
    """ "13,200": about four significant digits, thousands separated."""
    return f"{value:,.{max(0, digits_for(value))}f}"
