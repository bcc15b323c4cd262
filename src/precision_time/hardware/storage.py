"""Storages that samples are read from: bandwidth, latency, request rate, and whether nodes share them.

The catalog (data/storages.yaml) has the published figures of usual kinds. A storage file has one such entry with its
`name`; `precision-time calibrate --storage PATH` writes one with `source: measured`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precision_time import checks
from precision_time.bounded_cache import bounded
from precision_time.checks import Entry
from precision_time.errors import CatalogError, DataError, nearest
from precision_time.field_types import NAME
from precision_time.hardware.aliases import plain
from precision_time.hardware.fields import STORAGE, check_noun, values_of
from precision_time.reading import SUFFIXES, named, plain_entry, read_mapping, to_json
from precision_time.shipped import shipped_file

_DATA = "hardware/data/storages.yaml"

MEASURED_SPREAD = 0.10
"""Spread of the log of read times on a storage that was measured, from one run to the next: chosen."""
CATALOG_SPREAD = 0.30
"""The same where only the kind of storage is known: chosen; a site's own hardware and load differ that much."""


@dataclass(frozen=True)
class Storage:
    """One storage as a node sees it.

    bytes_per_s         what one node reads with many readers; with `shared`, what all nodes read together
    stream_bytes_per_s  what one reader gets
    latency_s           from a request to its first byte
    requests_per_s      reads that are answered per second, of a node or, with `shared`, of all; None: no limit known
    reader_efficiency   eta: share of `bytes_per_s` that is left when two jobs read at the same time
    shared              one server for all nodes (NFS); else every node has its own, or as much as it asks for
    page_cache          whether the kernel keeps what was read (files), or not (an object store's client)
    source              origin of the figures: "measured ...", a document, or "assumed ..."
    """

    name: str
    bytes_per_s: float
    stream_bytes_per_s: float
    latency_s: float
    requests_per_s: float | None = None
    reader_efficiency: float = 1.0
    shared: bool = False
    page_cache: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        check_noun(self)

    @property
    def measured(self) -> bool:
        return self.source.startswith("measured")

    @property
    def log_spread(self) -> float:
        """Standard deviation of the log of its read times."""
        return MEASURED_SPREAD if self.measured else CATALOG_SPREAD

    @classmethod
    def from_dict(cls, name: str, entry: Entry, where: str = "") -> Storage:
        """A storage from the keys of storages.yaml; `where` names the entry in errors."""
        where = where or f"storage {checks.show(name)}"
        entry = plain_entry(where, entry)
        checks.known_keys(entry, set(STORAGE), where)
        checks.required(entry, {key: key for key in _REQUIRED}, where)
        return cls(**{"source": "", **values_of(STORAGE, entry, where), "name": NAME.entry(name, f"{where}: the name")})

    def to_dict(self) -> dict[str, Any]:
        """The keys of a storage file; `from_dict(storage.name, ...)` reads them back."""
        fields: dict[str, Any] = {"name": self.name}
        for key, field in STORAGE.items():
            value = getattr(self, field.target)
            if value is not None:
                fields[key] = value if field.factor == 1 else value / field.factor
        return fields


_REQUIRED = ("bandwidth_gb_per_s", "stream_mb_per_s", "latency_ms")


@cache
def storages() -> Mapping[str, Storage]:
    """The catalog, by name."""
    document = _read(shipped_file(_DATA))
    catalog = {name: Storage.from_dict(name, entry, f"storages.yaml: {name}") for name, entry in document.items()}
    return MappingProxyType(catalog)


@cache
def _plain_names() -> Mapping[str, str]:
    """The names of the catalog by what is left of them without case and punctuation."""
    return {plain(each): each for each in storages()}


def storage(name: str) -> Storage:
    """The storage of a catalog name (ignoring case and punctuation) or of a storage file."""
    if name.lower().endswith(SUFFIXES):
        path = Path(name)
        try:
            state = path.stat()
        except OSError:
            return read_storage(path)  # raises the error
        return _of_file(name, state.st_mtime_ns, state.st_size)
    target = _plain_names().get(plain(name)) or _ALIASES.get(plain(name))
    if target is None and ("/" in name or name in (".", "..")):
        raise CatalogError(
            f"storage {checks.show(name)} is not a catalog name but a path or an address; measure it with "
            f"precision-time calibrate --storage {name} --output mine.yaml, and give storage=mine.yaml "
            "(docs/storage.md)."
        )
    if target is None:
        raise CatalogError(
            f"unknown storage {checks.show(name)}; nearest: {nearest(name, {*storages(), *_ALIASES})}; "
            "or name a file that calibrate --storage has written (docs/data-loading.md)."
        )
    return storages()[target]


_ALIASES = {
    "nvme": "nvme-gen4", "ssd": "sata-ssd", "sata": "sata-ssd", "hdd": "disk", "nfs": "nfs-10gbe", "ebs": "ebs-gp3",
    "gp3": "ebs-gp3", "s3": "object-store", "object": "object-store", "gcs": "object-store", "lustre": "parallel-fs",
    "fsx": "parallel-fs", "gpfs": "parallel-fs",
}  # fmt: skip


@bounded()
def _of_file(name: str, _changed_ns: int, _size: int) -> Storage:
    return read_storage(name)


def read_storage(path: str | Path) -> Storage:
    """The storage of a storage file (YAML or JSON)."""
    entry = _read(Path(path))
    return Storage.from_dict(str(entry.get("name") or Path(path).stem), entry, f"{named('storage file', path)}")


def write_storage(path: str | Path, storage: Storage) -> None:
    """Write a storage file, at once or not at all: YAML, or JSON where the name ends in .json."""
    import yaml

    from precision_time.report.write import write_whole

    check_storage_output(path)
    content = storage.to_dict()
    if Path(path).suffix.lower() == ".json":
        text = to_json(content, indent=1) + "\n"
    else:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_whole(path, text.encode())


def check_storage_output(path: str | Path) -> None:
    """Before anything is measured: raise `DataError` if it is no storage file's name or cannot be written."""
    from precision_time.report.write import check_file

    if Path(path).suffix.lower() not in SUFFIXES:
        raise DataError(f"{named('storage file', path)} must end in .yaml or .json, by which it is recognised as one")
    check_file("storage file", path)


def _read(path: Path) -> dict[str, Any]:
    return read_mapping(path, "storage file", "bandwidth_gb_per_s: 2")
