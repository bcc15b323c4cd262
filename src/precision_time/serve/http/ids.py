"""Ids of predictions: 32 hexadecimal digits in the order of time, of which no two are equal."""

from __future__ import annotations

import secrets
import threading
import time

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """Twelve digits of milliseconds since 1970 and four of a count within them, then sixteen at random."""
    global _last
    with _lock:
        _last = max(_last + 1, time.time_ns() // 10**6 << 16)
        return f"{_last:016x}{secrets.token_hex(8)}"
