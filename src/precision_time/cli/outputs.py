"""The files that a command line names for output, checked against its inputs and each other before any work."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator

from precision_time.errors import DataError
from precision_time.job import Job
from precision_time.report.write import check_file, check_folder

_FILES = ("trace", "plot", "html", "csv", "save", "state")
_FOLDERS = ("folder",)
_FILE_OF = frozenset({"calibrate", "capture"})
"""Commands whose --output is a file; of the others it is a folder."""
_INPUTS = (
    "source", "jobs", "table", "device", "imported", "cluster", "model", "anchor", "anchors", "data", "storage",
    "measured", "trained", "tables", "real_runs", "provider", "spot",
)  # fmt: skip


def check_outputs(options: Namespace, jobs: Iterable[Job] = ()) -> None:
    """Raise `DataError` where an output of the command cannot be written, is an input, or is another output.

    `jobs` are the jobs that the command line names, once they are read: they name further inputs.
    """
    texts = [text for name in _INPUTS for text in _texts(getattr(options, name, None))]
    for job in jobs:
        texts += [job.model, job.device or "", job.data.storage or "", *job.anchors]
        texts.append(job.run.checkpoint_storage or "")
    inputs = {path for text in texts for path in _paths(text)}
    written: dict[str, str] = {}
    for flag, path in _outputs(options):
        target = str(check_file(flag, path, inputs))
        if target in written:
            raise DataError(f"{flag} {path!r} is the file of {written[target]} too; give two paths")
        written[target] = flag
    for name in (*_FOLDERS, *(() if options.command in _FILE_OF else ("output",))):
        if folder := getattr(options, name, None):
            check_folder(f"--{name}", folder)


def _outputs(options: Namespace) -> Iterator[tuple[str, str]]:
    for name in (*_FILES, *(("output",) if options.command in _FILE_OF else ())):
        path = getattr(options, name, None)
        if path is not None:
            yield f"--{name}", path


def _texts(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value] if isinstance(value, list) else []


def _paths(text: str) -> Iterator[str]:
    """The files that a word of the command line may name: itself, FILE.py:FUNCTION, hf:FILE, storage=FILE;..."""
    parts = {text, text.rpartition(":")[0], text.partition(":")[2], *re.split("[=;,]", text)}
    return (part for part in map(str.strip, parts) if part and os.path.isfile(part))
