"""Replies that are kept as bytes, bounded together; the one used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict

_ENTRY_BYTES = 500
"""Of an entry beside its key and reply."""


class Replies:
    """Key -> (state, reply). A reply is found only in the state that it was made in."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self.hits = self.misses = 0
        self._kept: OrderedDict[bytes, tuple[str, int, bytes]] = OrderedDict()

    def get(self, key: bytes, state_of: dict[str, int]) -> bytes | None:
        """The reply of a key; `state_of` has the present state of every cluster, 0 where it has none."""
        found = self._kept.get(key)
        if found is None or found[1] != state_of.get(found[0], 0):
            return None
        self._kept.move_to_end(key)
        return found[2]

    def add(self, key: bytes, cluster: str, state: int, reply: bytes) -> None:
        self._drop(key)
        self._kept[key] = cluster, state, reply
        self.held_bytes += len(key) + len(reply) + _ENTRY_BYTES
        while self.held_bytes > self.limit_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.held_bytes -= len(key) + len(entry[2]) + _ENTRY_BYTES
