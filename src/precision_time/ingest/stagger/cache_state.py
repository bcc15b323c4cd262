"""Emptying, filling and weighing the cache between jobs and their storage."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from precision_time.errors import IngestError
from precision_time.ingest.stagger.jobs_file import JobsFile
from precision_time.processes import run_command

DROP = Path("/proc/sys/vm/drop_caches")
_PATIENCE_S = 3600.0


def empty(file: JobsFile) -> None:
    """Empty the cache as `cache.reset` says. Raises IngestError if that fails."""
    reset = file.cache.reset
    if "folder" in reset:
        folder = cache_folder(file)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise IngestError(f"cache.reset folder {str(folder)!r} cannot be emptied: {reason}; check it") from None
    elif "command" in reset:
        _shell(file, reset["command"], "cache.reset.command")
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


def fill(file: JobsFile) -> None:
    """Run `cache.warm`, the command that loads all data into the cache."""
    assert file.cache.warm is not None  # asked by whoever has seen it
    _shell(file, file.cache.warm, "cache.warm.command")


def weight(file: JobsFile) -> float | None:
    """Bytes in the cache if it is a folder, else None."""
    if "folder" not in file.cache.reset:
        return None
    total = 0
    for place, _, names in os.walk(cache_folder(file)):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return float(total)


def cache_folder(file: JobsFile) -> Path:
    """Path of the cache folder. Raises IngestError for a folder that holds more than a cache."""
    folder = (file.folder / file.cache.reset["folder"]).resolve()
    if folder in (Path("/"), Path.home(), file.folder.resolve(), *file.folder.resolve().parents):
        raise IngestError(f"cache.reset.folder is {str(folder)!r}, which holds more than a cache; name its own folder")
    return folder


def _shell(file: JobsFile, command: str, field: str) -> None:
    try:
        code, output = run_command(command, file.folder, _PATIENCE_S)
    except TimeoutError as error:
        raise IngestError(f"{field} {command!r} is {error}; correct it") from None
    if code:
        lines = output.strip().splitlines()
        raise IngestError(
            f"{field} {command!r} ended with exit code {code}{f': {lines[-1]}' if lines else ''}; correct it"
        )
