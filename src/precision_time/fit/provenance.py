"""Where fitted parameters come from, as the files that hold them say it."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any


def sha256(path: Path) -> str:
    """Of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def provenance(module: str, table: Path, rows: int) -> dict[str, Any]:
    """The command that makes the file again, the measured table and how many of its rows were fitted, the date."""
    return {
        "command": f"python -m precision_time.fit.{module} --shared DIR",
        "table": table.name,
        "sha256": sha256(table),
        "rows": rows,
        "date": datetime.date.today().isoformat(),
    }
