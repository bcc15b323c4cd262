"""The files of a data set: from its index.json, or from the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precision_time.errors import DataError, IngestError
from precision_time.ingest.storage.object_reader import ObjectReader, open_reader
from precision_time.ingest.storage.pictures import INDEX
from precision_time.reading import parse_json

MOST_VALUES = 20_000_000
"""Most values of an index, which has four for each file."""
MOST_FILES = 50_000
"""Most files listed of a folder without an index."""


@dataclass(frozen=True, slots=True)
class Index:
    """Names, bytes and labels of the files of a data set, in order; `listed`: from its index.json."""

    names: tuple[str, ...]
    bytes: tuple[int, ...]
    labels: tuple[int, ...]
    listed: bool = True

    def __len__(self) -> int:
        return len(self.names)

    @property
    def mean_bytes(self) -> float:
        return sum(self.bytes) / len(self.bytes)

    def part(self, first: int, samples: int | None) -> Index:
        """The `samples` files from number `first` on; None: all further files. Raises IngestError beyond the end."""
        end = len(self) if samples is None else first + samples
        if not 0 <= first < end <= len(self):
            raise IngestError(
                f"samples {first} to {end - 1} are not all in the data set, which has {len(self)}; "
                f"choose first and samples so that their sum is at most {len(self)}"
            )
        return Index(self.names[first:end], self.bytes[first:end], self.labels[first:end])


def read_index(root: str, reader: ObjectReader | None = None) -> Index:
    """The index.json of a data set. Raises IngestError if it is missing, malformed or empty."""
    opened = reader or open_reader(root)
    try:
        content = opened.read(INDEX)
    finally:
        if reader is None:
            opened.close()
    try:
        rows = parse_json(content.decode(), INDEX, most=MOST_VALUES)["files"]
        index = Index(
            tuple(str(row[0]) for row in rows), tuple(int(row[1]) for row in rows), tuple(int(row[2]) for row in rows)
        )
    except (DataError, ValueError, KeyError, TypeError, IndexError) as error:
        raise IngestError(
            f"{INDEX} of data set {root!r} is no index of pictures ({error}); make one with "
            "python -m precision_time.ingest.storage.pictures"
        ) from error
    wrong = next((place for place, size in enumerate(index.bytes) if size < 1), None)
    if wrong is not None:
        raise IngestError(
            f"{INDEX} of data set {root!r} says that {index.names[wrong]!r} has {index.bytes[wrong]} bytes; "
            "leave empty files out, or make the data set anew"
        )
    if not index:
        raise IngestError(
            f"data set {root!r} is empty: its {INDEX} names no file; make pictures with "
            "python -m precision_time.ingest.storage.pictures"
        )
    return index


def files_of(root: str) -> tuple[str, Index]:
    """The folder or address, and its files: those of the index, all files of a folder, or one file."""
    path = local_path(root)
    if path is None:
        return root, read_index(root)
    if path.is_file() and not path.stat().st_size:
        raise IngestError(f"storage {root!r} is an empty file; give one of at least some MiB, or a folder with files")
    if path.is_file():
        return str(path.parent), Index((path.name,), (path.stat().st_size,), (0,), listed=False)
    if not path.is_dir():
        raise IngestError(f"storage {root!r} does not exist; give a folder with files, or the address of a data set")
    if (path / INDEX).exists():
        return str(path), read_index(str(path))
    sizes = _lying_in(path)
    if not sizes:
        raise IngestError(f"storage {root!r} is empty: it has no file with content; give a folder with files")
    names = tuple(sorted(sizes))
    return str(path), Index(names, tuple(sizes[name] for name in names), (0,) * len(names), listed=False)


def local_path(root: str) -> Path | None:
    """The path of a local data set, else None."""
    if root.startswith("file://"):
        return Path(root.removeprefix("file://"))
    return None if "://" in root else Path(root)


def _lying_in(folder: Path) -> dict[str, int]:
    index: dict[str, int] = {}
    for path in folder.rglob("*"):
        if path.is_file() and (size := path.stat().st_size):
            index[str(path.relative_to(folder))] = size
            if len(index) >= MOST_FILES:
                break
    return index
