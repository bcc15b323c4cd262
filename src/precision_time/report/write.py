"""Output files and folders: checked before the work, written whole or not at all, and never over an input.

Every file that the package writes goes through `write_whole`. The rules, which `check_file` applies before the work:

- the target is a new name in a folder that is there, or a regular file that may be written; never a device, FIFO,
  socket or folder, and nothing under /dev, /proc or /sys but /dev/shm;
- a symbolic link is written through: the file that it leads to is replaced, the link stays;
- a file that is there keeps its permissions, and its owner where this process may set it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError

_SYSTEM = re.compile(r"/(dev(?!/shm/)|proc|sys)(/|$)")
PART = ".precision-time-"
"""Prefix of temporary files; a file of this name is left only where the process was killed while it wrote."""


def write_whole(path: str | Path, content: bytes | str | Iterable[str | bytes]) -> None:
    """Write `content` (text as UTF-8, in one or in parts) to a temporary file beside the target, sync it, then rename
    it to the target.

    A reader sees the old file or the whole new one, also after a crash. Raises `DataError` when the file cannot be
    written.
    """
    target = check_file("file", path)
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=PART)
        try:
            with os.fdopen(handle, "wb") as stream:
                for part_of in (content,) if isinstance(content, (bytes, str)) else content:
                    stream.write(part_of.encode(errors="backslashreplace") if isinstance(part_of, str) else part_of)
                stream.flush()
                _as_before(stream.fileno(), target)
                os.fsync(stream.fileno())
            os.replace(part, target)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise DataError(f"file {str(path)!r} cannot be written: {reason(error)}; give another path") from None


def _as_before(handle: int, target: Path) -> None:
    """Permissions and owner of the file that is replaced; of a new file what the umask leaves."""
    try:
        before = target.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(handle, 0o666 & ~umask)
        return
    with contextlib.suppress(PermissionError):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


def check_file(name: str, path: str | Path, inputs: Iterable[str | Path] = ()) -> Path:
    """The file that writing to `path` replaces or makes: `path` itself, or what it links to.

    Raises `DataError` where the rules above forbid it, or where it is one of `inputs`, also by another name or link.
    `name` is the flag or field that the error names.
    """
    label = f"{name} {str(path)!r}"
    if not str(path).strip():
        raise DataError(f"{label} is empty; name a file")
    if str(path).endswith(os.sep):
        raise DataError(f"{label} is the name of a folder; name a file in it")
    try:
        target = Path(os.path.realpath(path))
        if any(_SYSTEM.match(str(each)) for each in (Path(path).absolute(), target)):
            raise DataError(f"{label} is a file of the system, which cannot be replaced; give another path")
        mode = target.lstat().st_mode if os.path.lexists(target) else None
        _check_parent(name, path, target)
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null character
        raise DataError(f"{label} cannot be written: {reason(error)}; give another path") from None
    if mode is not None and not stat.S_ISREG(mode):
        raise DataError(f"{label} is {_kind(mode)}; name a file{' in it' if stat.S_ISDIR(mode) else ''}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise DataError(f"{label}: the folder {str(target.parent)!r} cannot be written to; name another")
    if mode is not None and not os.access(target, os.W_OK):
        raise DataError(f"{label} is read-only; make it writable or give another path")
    for source in inputs:
        if same_file(target, source):
            raise DataError(f"{label} is an input of this command; give another path")
    return target


def same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one file that is there, by whatever links."""
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder", stat.S_IFLNK: "a loop of links", stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def reason(error: OSError | ValueError) -> str:
    """What the system says about a file, in lower case, without the path."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def check_folder(name: str, path: str | Path) -> None:
    """Raise `DataError` where `path` is there and no folder."""
    try:
        other = os.path.lexists(path) and not Path(path).is_dir()
        system = any(_SYSTEM.match(str(each)) for each in (Path(path).absolute(), os.path.realpath(path)))
    except (OSError, ValueError) as error:
        raise DataError(f"{name} {str(path)!r} cannot be used: {reason(error)}; give another folder") from None
    if system:
        raise DataError(f"{name} {str(path)!r} is a folder of the system; name another")
    if other:
        raise DataError(f"{name} {str(path)!r} is a file; name a folder")


def make_folder(path: str | Path, name: str = "output", parents: bool = False) -> Path:
    """The folder, made where it is not there yet, with its `parents` or not. Raises `DataError` where it cannot be."""
    folder = Path(path)
    check_folder(name, folder)
    if not parents:
        _check_parent(name, path, folder.absolute())
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise DataError(f"{name} {str(path)!r} cannot be made: {reason(error)}; give another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{name} {str(path)!r} cannot be written to; give another folder")
    return folder


def make_own_folder(path: str | Path, marks: Iterable[str], name: str = "output") -> Path:
    """As `make_folder`, for a folder whose files are replaced: it is new, empty, or has one of the files `marks`."""
    folder = make_folder(path, name)
    names = {entry for entry in os.listdir(folder) if not entry.startswith(PART)}
    if names and not names & set(marks):
        raise DataError(
            f"{name} {str(path)!r} holds {sorted(names)[0]!r} and nothing that this command wrote; name a new or empty "
            "folder"
        )
    return folder


def _check_parent(name: str, path: str | Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise DataError(f"{name} {str(path)!r}: there is no folder {str(Path(path).parent)!r}; make it first")


def compact_json(content: Mapping[str, Any]) -> str:
    """Indented JSON with each innermost list on one line, so that two versions can be compared line by line."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text)
