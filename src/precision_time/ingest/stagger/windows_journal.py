"""The journal of a folder of co-located jobs, and the label of a measured window in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time import __version__
from precision_time.ingest.stagger.jobs_file import JobsFile, JobSpec
from precision_time.journal import Journal, held
from precision_time.report.write import make_folder

NAME = "journal.jsonl"
SCRIPTS = (".py", ".sh")
"""Files of a command that decide how it runs; others may be data sets."""


def open_journal(folder: str | Path, fresh: bool = False) -> Journal:
    """The journal of a folder, which is made where it is not there yet; `fresh` leaves earlier records unread."""
    return Journal(make_folder(folder, "folder", parents=True) / NAME, fresh=fresh)


def held_folder(folder: str | Path) -> contextlib.AbstractContextManager[None]:
    """Keep other processes from a folder of co-located jobs (`journal.held`), which is made where it is not there."""
    return held(make_folder(folder, "folder", parents=True) / NAME)


def key_of(file: JobsFile, jobs: list[JobSpec], window: Mapping[str, Any]) -> str:
    """Changes with the machine, the jobs that run in the window, what they read, the cache and the window itself."""
    content = {
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
        "versions": [__version__, platform.python_version()],
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


def _job(file: JobsFile, job: JobSpec) -> dict[str, Any]:
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
