"""The data files of the package: each is checked against its digest when it is read.

`digests.json` has the digest of every data file (CSV, JSON, YAML, ZIP, NPZ) of the package. A file that is absent or
changed is a `DataError`, because a prediction without it would be another one. Code that writes such a file uses
`write_shipped`; `python -m precision_time.shipped` writes all digests anew after an edit by hand.

A file and its digest cannot change at one moment. While a file is replaced, `digests.json` therefore names both its old
and its new digest, so that a process that is killed in between leaves an installation that reads: with the whole old
file or the whole new one. One process at a time writes (`writing`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from precision_time.errors import DataError
from precision_time.report.write import PART, write_whole

ROOT = Path(__file__).parent
MANIFEST = "digests.json"
SUFFIXES = (".csv", ".json", ".yaml", ".zip", ".npz")
LOCK = ".writing.lock"
"""File in the package by which one process holds its data files (see `writing`)."""
HOLDER = "PRECISION_TIME_HOLDER"
"""Variable with the process that holds them, for processes that it starts to write in its place."""
_ATTEMPTS = 3


def shipped_file(name: str) -> Path:
    """The path of a data file, `name` being relative to the package ("timing/data/host.json").

    Raises `DataError` where it is absent, cannot be read or is not the one that was shipped.
    """
    path = ROOT / name
    for _ in range(_ATTEMPTS):  # another process may have replaced it after the digests were read
        try:
            found = _digest(path.read_bytes())
        except OSError as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise _damaged(name, why) from None
        if found in _digests().get(name, ()):
            return path
        _digests.cache_clear()
    raise _damaged(name, "is damaged or was edited")


def is_shipped(name: str) -> bool:
    """Whether the package ships a data file of this name, be it there or not."""
    return name in _digests()


def shipped_names(folder: str) -> list[str]:
    """The data files of a folder of the package ("timing/data"), sorted."""
    return [name for name in sorted(_digests()) if name.rpartition("/")[0] == folder]


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Keep other processes from writing data files of the package while the block runs; blocks may be nested.

    Processes that this one starts may write where their environment names it as `HOLDER`. Raises `DataError` where
    another process writes.
    """
    if os.environ.get(HOLDER) == str(os.getppid()):
        yield
        return
    from precision_time.journal import held

    with held(ROOT / LOCK, "the installation's folder of parameters", ""):
        yield


def write_shipped(path: Path, content: bytes | str) -> None:
    """Write a file, and its digest where it is a data file of the package."""
    if not path.is_relative_to(ROOT):
        write_whole(path, content)
        return
    name, data = path.relative_to(ROOT).as_posix(), content.encode() if isinstance(content, str) else content
    with writing():
        _remove_parts(path.parent)
        _digests.cache_clear()  # another process may have written since
        digests, new = _settled(_digests()), (_digest(data),)
        if name in digests:
            _write_digests({**digests, name: tuple(dict.fromkeys((*digests[name], *new)))})
        write_whole(path, data)
        _write_digests({**digests, name: new})


def _remove_parts(folder: Path) -> None:
    """What a killed process left of the files that it wrote."""
    for part in (*folder.glob(f"{PART}*"), *ROOT.glob(f"{PART}*")):
        part.unlink(missing_ok=True)


def _settled(digests: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The digests with one for each file that a killed process was replacing: that of the file which is there."""
    settled = dict(digests)
    for name, known in digests.items():
        if len(known) > 1 and (ROOT / name).is_file():
            found = _digest((ROOT / name).read_bytes())
            settled[name] = (found,) if found in known else known
    return settled


def current_digests() -> dict[str, tuple[str, ...]]:
    """The digest, alone, of every data file that is in the package now."""
    files = (path for path in ROOT.rglob("*") if path.suffix in SUFFIXES and path != ROOT / MANIFEST)
    return {path.relative_to(ROOT).as_posix(): (_digest(path.read_bytes()),) for path in files}


def _damaged(name: str, why: str) -> DataError:
    return DataError(
        f"file {name} of the installation {why}; reinstall precision-time, or after an edit in a clone run "
        "python -m precision_time.shipped"
    )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@cache
def _digests() -> Mapping[str, tuple[str, ...]]:
    """By name: the digest of the file, and while it is replaced that of the new one."""
    try:
        content = dict(json.loads((ROOT / MANIFEST).read_bytes()))
        return {name: (each,) if isinstance(each, str) else tuple(each) for name, each in content.items()}
    except (OSError, ValueError, TypeError):
        raise _damaged(MANIFEST, "is missing or damaged") from None


def _write_digests(digests: Mapping[str, tuple[str, ...]]) -> None:
    content = {name: known[0] if len(known) == 1 else known for name, known in sorted(digests.items())}
    write_whole(ROOT / MANIFEST, json.dumps(content, indent=0) + "\n")
    _digests.cache_clear()


def main() -> int:
    """Write the digests of all data files anew, and list the files whose digests changed."""
    try:
        with writing():
            digests = current_digests()
            try:
                before = dict(_digests())
            except DataError:
                before = {}
            _write_digests(digests)
    except DataError as error:
        print(f"python -m precision_time.shipped: {error}", file=sys.stderr)
        return 2
    for name in sorted(before.keys() | digests.keys()):
        if before.get(name) != digests.get(name):
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
