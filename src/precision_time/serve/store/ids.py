"""Ids of predictions: UUIDs of version 7 (RFC 9562), whose text sorts by the time at which they were made."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable

_TIME_BITS = 60
"""48 bits of milliseconds and 12 of 1/4096 ms, as in section 6.2 of the RFC, method 3."""
_RANDOM_BITS = 62


class Ids:
    """Makes ids; those of one process sort in the order in which they were made, also where the clock stands or is set
    back. Ids of processes on one clock sort by its time; 62 random bits tell those of one moment apart."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        """The next id, 36 characters."""
        moment = self._clock_ns() * 4096 // 1_000_000
        with self._lock:
            self._last = moment = max(moment, self._last + 1)
        moment &= (1 << _TIME_BITS) - 1
        random = int.from_bytes(os.urandom(8), "big") & ((1 << _RANDOM_BITS) - 1)
        return str(uuid.UUID(int=(moment >> 12) << 80 | 7 << 76 | (moment & 0xFFF) << 64 | 2 << 62 | random))


new_id = Ids()
"""Makes the ids of this process."""


def made_at(identifier: str) -> float:
    """Seconds since 1970 at which an id was made, to the millisecond."""
    return (uuid.UUID(identifier).int >> 80) / 1000.0
