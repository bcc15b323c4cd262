"""Provenance of a page: table, parameters, versions and date, so that a stale page is noticed."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from precision_time.fit.provenance import parameters_digest, sha256
from precision_time.measurements.table import Table

COMMAND = "make board"
_PACKAGES = ("precision-time", "numpy", "torch")


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
        """Facts of `table`, read from `path`, with today's date, versions and parameters."""
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
