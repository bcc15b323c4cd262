"""What was learned, kept in a file between two runs of a server, so that a long history is learned once.

The file is a cache: where it is absent, damaged, of another version, or of another store, everything is learned anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import precision_time
from precision_time.errors import DataError
from precision_time.report.write import write_whole
from precision_time.serve.http.corrections import Corrections
from precision_time.serve.learning.effects import FILE as VARIANCES
from precision_time.serve.records import Store
from precision_time.shipped import shipped_file

EVERY = 1_000
"""Outcomes that are learned between two writes; the last ones are written when the server stops."""


class KeptState:
    """The file of a store in a folder."""

    def __init__(self, folder: Path, store_name: str) -> None:
        self.path = folder / f"learned-{hashlib.sha256(store_name.encode()).hexdigest()[:16]}.json"
        self._written = 0

    def load(self, store: Store) -> Corrections:
        """What the file says, if it was learned from the outcomes of this store by this version; else nothing yet.
        Raises `StoreError` as the store does."""
        try:
            content = json.loads(self.path.read_bytes())
            if content["made_by"] != _made_by():
                return Corrections()
            learned = Corrections.from_dict(content["learned"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError):
            return Corrections()
        last = next(itertools.islice(store.recorded(learned.number - 1), 1), None)
        if last is None or [last.number, last.prediction.id, last.outcome.key] != learned.last:
            return Corrections()
        self._written = learned.number
        return learned

    def save(self, learned: Corrections, least: int = 1) -> None:
        """Write the file whole or not at all, if `least` outcomes came since. Raises `DataError`."""
        if learned.last is None or learned.number - self._written < least:
            return
        content = {"made_by": _made_by(), "learned": learned.to_dict()}
        write_whole(self.path, json.dumps(content, separators=(",", ":")).encode())
        self._written = learned.number


def _made_by() -> list[Any]:
    """What the state is a function of, besides the outcomes."""
    return [precision_time.__version__, hashlib.sha256(shipped_file(VARIANCES).read_bytes()).hexdigest()]
