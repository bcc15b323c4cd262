"""How a job reports its progress: a file of lines `seconds samples`, one for every batch.

A training loop calls `progress(len(batch))`. Any other command appends to the file that the environment variable names,
or prints log lines that `stagger` reads with a pattern.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

VARIABLE = "PRECISION_TIME_PROGRESS"
"""Environment variable with the file's name, set for jobs that `stagger` launches."""


class Progress:
    """Counts samples; every call appends one line with the seconds of the machine's monotonic clock.

    Without a file it only counts. All processes of a machine share the clock, so lines of two jobs are comparable.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.samples = 0
        # Unbuffered, so that a job that dies leaves what it had done, and a reader sees it at once.
        self._file = open(path, "ab", buffering=0) if path else None  # noqa: SIM115

    @classmethod
    def from_environment(cls) -> Progress:
        """Progress of the job that runs in this process; without the variable it only counts."""
        return cls(os.environ.get(VARIABLE))

    def __call__(self, samples: int) -> None:
        """Report `samples` more trained samples; 0 when reading starts."""
        self.samples += samples
        if self._file is not None:
            self._file.write(b"%.6f %d\n" % (time.monotonic(), samples))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
