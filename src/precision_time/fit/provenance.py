"""Provenance of fitted parameters, stored in the files that hold them."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from precision_time.shipped import shipped_file, shipped_names


def sha256(path: Path) -> str:
    """Checksum of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def provenance(stage: str, table: Path, rows: int) -> dict[str, Any]:
    """The command that writes the file, the measured table and how many of its rows were fitted, the date."""
    return {
        "command": f"precision-time fit {stage}",
        "table": table.name,
        "sha256": sha256(table),
        "rows": rows,
        "date": datetime.date.today().isoformat(),
    }


_ABOUT = ("provenance", "about", "made")
"""Keys of a parameter file that say where its numbers came from."""
_OF_LAYOUTS = frozenset({"layout_scales.json", "overlap.json"})
"""Parameters that no data-parallel step depends on."""


def parameters_digest() -> str:
    """First 16 hexadecimal digits of SHA-256 over the parameters that the time of a data-parallel step depends on.

    Provenance and dates are left out.
    """
    digest = hashlib.sha256()
    for file in map(shipped_file, shipped_names("timing/data")):
        if file.name in _OF_LAYOUTS:
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        content = {k: v for k, v in content.items() if k not in _ABOUT}
        digest.update(json.dumps([file.name, content], sort_keys=True).encode())
    return digest.hexdigest()[:16]
