"""What was measured of co-located jobs, kept in a file of JSON lines: a window is measured once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.ingest.stagger.jobs_file import JobsFile, JobWords

NAME = "journal.jsonl"
SCRIPTS = (".py", ".sh")
"""Files of a command that decide how it runs; others may be data sets."""


def made(folder: Path) -> Path:
    """The folder, made where it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def _unusable(folder: Path, error: OSError) -> DataError:
    reason = (error.strerror or str(error)).lower()
    return DataError(f"folder {str(folder)!r} cannot be used: {reason}; give another one")


class Journal:
    """Entries by key; the last of a key counts. A line that a crash has cut short is passed over."""

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self.folder = folder
        self._path = folder / NAME
        self._found: dict[str, dict[str, Any]] = {}
        made(folder)
        try:
            if fresh:
                return
            with contextlib.suppress(FileNotFoundError), self._path.open(encoding="utf-8") as lines:
                for line in lines:
                    with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
                        entry = json.loads(line)
                        self._found[entry["key"]] = entry
        except OSError as error:
            raise _unusable(folder, error) from None

    def get(self, key: str) -> dict[str, Any] | None:
        return self._found.get(key)

    def put(self, key: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Keep it, on the disk at once."""
        entry = {"key": key, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), **content}
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not self._ends_line():
                file.write("\n")
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[key] = entry
        return entry

    def _ends_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def key_of(file: JobsFile, jobs: list[JobWords], window: Mapping[str, Any]) -> str:
    """Changes with the machine, the jobs that run in the window, what they read, the cache and the window itself."""
    content = {
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
        "jobs": [_job(file, job) for job in jobs],
        "cache": {
            "reset": dict(file.cache.reset),
            "capacity": file.cache.capacity,
            "policy": file.cache.policy,
            "warm": file.cache.warm,
        },
        "window": dict(window),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _job(file: JobsFile, job: JobWords) -> dict[str, Any]:
    """All that decides how it runs: not its name, nor how many epochs it is to run in the end."""
    code = ""
    named = [job.python_function[0]] if job.is_python else [w for w in job.run.split() if w.endswith(SCRIPTS)]
    for name in named:
        with contextlib.suppress(OSError):
            code += hashlib.sha256((file.folder / name.strip("'\"")).read_bytes()).hexdigest()
    return {
        "run": job.run,
        "folder": str(file.folder),
        "code": code,
        "arguments": dict(job.arguments),
        "samples": file.samples_of(job),
        "data": dict(file.parts_of(job)),
        "progress": job.progress,
        "batch_size": job.batch_size,
    }
