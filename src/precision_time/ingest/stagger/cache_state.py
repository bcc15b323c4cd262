"""Emptying, filling and weighing the cache between jobs and their storage.

A cache folder is emptied only where nothing of the user's can be lost: it is absent or empty, or it has the mark of an
earlier call, or the command line names it (`--empty-cache`). The mark is a file in it with its path, so that a copy of
the folder is not marked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from precision_time.errors import IngestError
from precision_time.ingest.stagger.jobs_file import JobsFile
from precision_time.ingest.storage.file_cache import MARK
from precision_time.processes import run_command

DROP = Path("/proc/sys/vm/drop_caches")
_PATIENCE_S = 3600.0


def check_reset(file: JobsFile) -> None:
    """Raise IngestError, before any job starts, for a cache folder that may not be emptied."""
    if "folder" in file.cache.reset:
        cache_folder(file)


def empty(file: JobsFile) -> None:
    """Empty the cache as `cache.reset` says. Raises IngestError if that fails."""
    ((kind, value),) = file.cache.reset.items()
    file.check_code("cache.reset", value or kind)
    if kind == "folder":
        _empty_folder(cache_folder(file))
    elif kind == "command":
        _shell(file, value, "cache.reset.command")
    else:
        try:
            os.sync()
            DROP.write_text("1\n")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise IngestError(
                f"cache.reset page_cache cannot be done: {reason}; run as root, or give cache.reset.command (for "
                "example 'vmtouch -e data') or cache.reset.folder"
            ) from None


def _empty_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(f"{folder}\n")
        for entry in folder.iterdir():
            if entry.name == MARK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise IngestError(f"cache.reset folder {str(folder)!r} cannot be emptied: {reason}; check it") from None


def fill(file: JobsFile) -> None:
    """Run `cache.warm`, the command that loads all data into the cache."""
    assert file.cache.warm is not None  # asked by whoever has seen it
    _shell(file, file.cache.warm, "cache.warm.command")


def weight(file: JobsFile) -> float | None:
    """Bytes in the cache if it is a folder, else None."""
    if "folder" not in file.cache.reset:
        return None
    total = 0
    for place, _, names in os.walk(_path(file)):
        for name in names:
            if name == MARK:
                continue
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return float(total)


def cache_folder(file: JobsFile) -> Path:
    """Path of the cache folder. Raises IngestError for a folder that may not be emptied."""
    folder = _path(file)
    real = folder.resolve()
    within = (Path(os.path.expanduser("~")).resolve(), Path.cwd(), file.folder.resolve())
    if any(each == real or real in each.parents for each in within):
        raise IngestError(f"cache.reset.folder is {str(real)!r}, which holds more than a cache; name its own folder")
    if folder.is_symlink():
        raise IngestError(f"cache.reset.folder {str(folder)!r} is a symbolic link; name the folder itself")
    if folder.exists() and not folder.is_dir():
        raise IngestError(f"cache.reset.folder {str(folder)!r} is a file; name the folder of the cache")
    confirmed = file.emptied is not None and file.emptied.resolve() == real
    if not (confirmed or _is_marked(real) or not _holds_something(real)):
        raise IngestError(
            f"cache.reset.folder {str(folder)!r} is not empty and was not made by stagger; empty it yourself, or add "
            f"--empty-cache {str(folder)!r} if all of it may be deleted"
        )
    return real


def _path(file: JobsFile) -> Path:
    return file.folder / file.cache.reset["folder"]


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / MARK).read_text() == f"{folder}\n"
    except (OSError, ValueError):
        return False


def _holds_something(folder: Path) -> bool:
    try:
        return folder.exists() and any(folder.iterdir())
    except OSError:
        return True


def _shell(file: JobsFile, command: str, field: str) -> None:
    file.check_code(field, command)
    try:
        code, output = run_command(command, file.folder, _PATIENCE_S)
    except TimeoutError as error:
        raise IngestError(f"{field} {command!r} is {error}; correct it") from None
    if code:
        lines = output.strip().splitlines()
        raise IngestError(
            f"{field} {command!r} ended with exit code {code}{f': {lines[-1]}' if lines else ''}; correct it"
        )
