"""The data files of the package: each is checked against its digest when it is read.

`digests.json` has the digest of every data file (CSV, JSON, YAML, ZIP, NPZ) of the package. A file that is absent or
changed is a `DataError`, because a prediction without it would be another one. Code that writes such a file uses
`write_shipped`; `python -m precision_time.shipped` writes all digests anew after an edit by hand.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from precision_time.errors import DataError
from precision_time.report.write import write_whole

ROOT = Path(__file__).parent
MANIFEST = "digests.json"
SUFFIXES = (".csv", ".json", ".yaml", ".zip", ".npz")


def shipped_file(name: str) -> Path:
    """The path of a data file, `name` being relative to the package ("timing/data/host.json").

    Raises `DataError` where it is absent, cannot be read or is not the one that was shipped.
    """
    path = ROOT / name
    try:
        found = _digest(path.read_bytes())
    except OSError as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise _damaged(name, why) from None
    if found != _digests().get(name):
        raise _damaged(name, "is damaged or was edited")
    return path


def is_shipped(name: str) -> bool:
    """Whether the package ships a data file of this name, be it there or not."""
    return name in _digests()


def shipped_names(folder: str) -> list[str]:
    """The data files of a folder of the package ("timing/data"), sorted."""
    return [name for name in sorted(_digests()) if name.rpartition("/")[0] == folder]


def write_shipped(path: Path, content: bytes | str) -> None:
    """Write a file, and its digest where it is a data file of the package."""
    write_whole(path, content)
    if path.is_relative_to(ROOT):
        name = path.relative_to(ROOT).as_posix()
        _digests.cache_clear()  # another process may have written since
        _write_digests({**_digests(), name: _digest(path.read_bytes())})


def current_digests() -> dict[str, str]:
    """The digest of every data file that is in the package now."""
    files = (path for path in ROOT.rglob("*") if path.suffix in SUFFIXES and path != ROOT / MANIFEST)
    return {path.relative_to(ROOT).as_posix(): _digest(path.read_bytes()) for path in files}


def _damaged(name: str, why: str) -> DataError:
    return DataError(
        f"file {name} of the installation {why}; reinstall precision-time, or after an edit in a clone run "
        "python -m precision_time.shipped"
    )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@cache
def _digests() -> Mapping[str, str]:
    try:
        return dict(json.loads((ROOT / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError):
        raise _damaged(MANIFEST, "is missing or damaged") from None


def _write_digests(digests: Mapping[str, str]) -> None:
    write_whole(ROOT / MANIFEST, json.dumps(dict(sorted(digests.items())), indent=0) + "\n")
    _digests.cache_clear()


def main() -> int:
    """Write the digests of all data files anew, and list the files whose digests changed."""
    digests = current_digests()
    try:
        before = dict(_digests())
    except DataError:
        before = {}
    _write_digests(digests)
    for name in sorted(before.keys() | digests.keys()):
        if before.get(name) != digests.get(name):
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
