"""How a job tells how far it is: a file of lines `seconds samples`, written after every batch.

A training loop of ours or of a user calls `progress(len(batch))`; any other command may append to the file that the
environment variable names, or print log lines that `stagger` reads with a pattern.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

VARIABLE = "PRECISION_TIME_PROGRESS"
"""Names the file, in the environment of a job that `stagger` launches."""


class Progress:
    """Counts samples; every call appends one line with the seconds of the machine's monotonic clock.

    Without a file it only counts. The clock is shared by all processes of a machine, so that two jobs' lines compare.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.samples = 0
        # Unbuffered, so that a job that dies leaves what it had done, and a reader sees it at once.
        self._file = open(path, "ab", buffering=0) if path else None  # noqa: SIM115

    @classmethod
    def from_environment(cls) -> Progress:
        """That of the job that this process is, or one that only counts."""
        return cls(os.environ.get(VARIABLE))

    def __call__(self, samples: int) -> None:
        """`samples` more have been trained on; call it with 0 when reading starts."""
        self.samples += samples
        if self._file is not None:
            self._file.write(b"%.6f %d\n" % (time.monotonic(), samples))

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
