"""What a board was made from: table, parameters, versions and date, so that a stale one is noticed."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from precision_time.fit.provenance import sha256
from precision_time.measurements.table import Table

COMMAND = "python -m precision_time.fit.board --shared DIR --readme README.md"
_PACKAGES = ("precision-time", "numpy", "torch")
_ABOUT = ("provenance", "about", "made")
"""What data files say of themselves."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`rows` counts the rows by trust; `parameters` is a digest of the package's timing data."""

    date: str
    versions: dict[str, str]
    table: str
    sha256: str
    rows: dict[str, int]
    parameters: str

    @classmethod
    def of(cls, path: Path, table: Table) -> Facts:
        trusts = [row.trust for row in table.rows]
        return cls(
            date=datetime.date.today().isoformat(),
            versions={"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            table=path.name,
            sha256=sha256(path),
            rows={trust: trusts.count(trust) for trust in sorted(set(trusts))},
            parameters=parameters_digest(),
        )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


OF_LAYOUTS = frozenset({"layout_scales.json", "overlap.json"})
"""What only steps of other layouts rest on; `fit.layouts` judges those."""


def parameters_digest() -> str:
    """First digits of SHA-256 over every number that prices a data-parallel step.

    Where they came from and when does not count.
    """
    found = hashlib.sha256()
    files = [f for f in (resources.files("precision_time.timing") / "data").iterdir() if f.name.endswith(".json")]
    for file in sorted(files, key=lambda f: f.name):
        if file.name in OF_LAYOUTS:
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        content = {k: v for k, v in content.items() if k not in _ABOUT}
        found.update(json.dumps([file.name, content], sort_keys=True).encode())
    return found.hexdigest()[:16]
