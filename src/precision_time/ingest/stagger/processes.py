"""Launches jobs as process groups, reads their progress, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.child import kill_group
from precision_time.errors import IngestError
from precision_time.ingest.progress import VARIABLE
from precision_time.ingest.stagger.jobs_file import PLACEHOLDERS, JobsFile, JobSpec
from precision_time.processes import end_process, json_objects, start_module

POLL_S = 0.02
_PROGRAM = re.compile(r"[\w./+-]+")
_SHOWN_LINES = 3
_IMPORT_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Trace:
    """The progress of one launch of a job, in seconds since the launch.

    seconds, samples   time and cumulative samples of each progress line
    ended_s            end of the process; None if it was stopped
    launched_s         the machine's monotonic clock at the launch
    """

    job: str
    seconds: np.ndarray
    samples: np.ndarray
    ended_s: float | None
    launched_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "seconds": [round(float(s), 5) for s in self.seconds],
            "samples": [int(n) for n in self.samples],
            "ended_s": self.ended_s,
            "launched_s": self.launched_s,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Trace:
        return cls(
            fields["job"],
            np.array(fields["seconds"]),
            np.array(fields["samples"], dtype=float),
            fields["ended_s"],
            fields["launched_s"],
        )


class Running:
    """One launch of a job, during its run and afterwards."""

    def __init__(self, host: Host, progress: Path, log: Path) -> None:
        self.job, self.log = host.job, log
        self._host, self._path = host, progress
        self._offset, self._rest = 0, b""
        self._seconds: list[float] = []
        self._samples: list[int] = []
        self.launched_s = time.monotonic()
        self.pid: int | None = None
        self.code: int | None = None
        self.ended_s: float | None = None
        self.stopped = False

    @property
    def samples(self) -> int:
        """Samples trained on so far."""
        return self._samples[-1] if self._samples else 0

    @property
    def first_s(self) -> float | None:
        """Time of the first batch, on the monotonic clock."""
        return next((t for t, n in zip(self._seconds, self._samples, strict=True) if n), None)

    @property
    def last_s(self) -> float:
        """Time of the last progress, or of the launch."""
        return self._seconds[-1] if self._seconds else self.launched_s

    @property
    def lines(self) -> int:
        return len(self._samples)

    @property
    def over(self) -> bool:
        return self.code is not None

    def update(self) -> None:
        """Read new progress and the host's answers."""
        if not self.over:
            self._host.receive(self)
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    launch_arguments, more = line.split()
                    self._seconds.append(float(launch_arguments))
                    self._samples.append(self.samples + int(more))

    def stop(self) -> None:
        """Kill the process group and wait for its end."""
        if self.over:
            return
        self.stopped = True
        end = time.monotonic() + 10.0
        while not self.over and time.monotonic() < end:
            if self.pid is not None:
                kill_group(self.pid)
            self.update()
            time.sleep(POLL_S / 4)

    def trace(self) -> Trace:
        begin = self.launched_s
        ended = None if self.stopped or self.ended_s is None else self.ended_s - begin
        return Trace(self.job.name, np.array(self._seconds) - begin, np.array(self._samples, dtype=float), ended, begin)

    def exit_error(self, while_doing: str) -> IngestError:
        """The error of a failed job, with the last lines of its log."""
        code = self.code or 0
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return IngestError(
            f"job {self.job.name!r} died {while_doing}, {how}{self.log_tail()}; correct the job and call again, "
            "what was measured before is kept"
        )

    def no_progress_error(self, seconds: float) -> IngestError:
        """The error of a job without progress."""
        if self.job.progress:
            why = f"no line of its log matches progress {self.job.progress!r}; correct the pattern"
        elif self.job.is_python:
            why = "call progress(samples) after every batch"
        else:
            why = f"give a pattern of its log lines as progress, or append lines to the file that ${VARIABLE} names"
        ended = self.over and not self.stopped
        after = "ended after {:.3g} s and reported no progress" if ended else "reported no progress in {:.3g} s"
        return IngestError(f"job {self.job.name!r} {after.format(seconds)}: {why}{self.log_tail()}")

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return f"; its log {str(self.log)!r} ends: {' | '.join(lines[-_SHOWN_LINES:])[-400:]}"
        return f"; its log {str(self.log)!r} is empty"


class Host:
    """The process that launches one job repeatedly (host.py)."""

    def __init__(self, file: JobsFile, job: JobSpec) -> None:
        file.check_code(f"run of job {job.name!r}", job.run)
        self.job, self._folder = job, file.folder
        self._process = start_module(
            "precision_time.ingest.stagger.host",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=file.folder,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the host
        )
        self._buffer = b""
        self._ready = False
        self._launched = False
        if job.is_python:
            name, function = job.python_function
            fields = [*PLACEHOLDERS, *job.arguments]
            self._ask({"import": [str((file.folder / name).absolute()), function], "arguments": fields})

    def ready(self) -> None:
        """Wait until the job's file is imported, or see that its program is there."""
        if self._ready:
            return
        if not self.job.is_python:
            self._check_program()
            self._ready = True
            return
        end = time.monotonic() + _IMPORT_PATIENCE_S
        answer: dict[str, Any] | None = None
        while answer is None and time.monotonic() < end and self._process.poll() is None:
            answer = next(iter(self._answers(0.1)), None)
        if answer is None or "failed" in answer:
            why = answer["failed"] if answer else "its import does not end"
            raise IngestError(f"job {self.job.name!r} cannot run {self.job.run}: {why}; correct the job or its file")
        self._ready = True

    def _check_program(self) -> None:
        """Raise IngestError for a command whose program is not there; a shell's own syntax is left to the shell."""
        program = self.job.run.split()[0]
        if not _PROGRAM.fullmatch(program):
            return
        asked = ["sh", "-c", 'command -v -- "$1"', "sh", program]
        if subprocess.run(asked, cwd=self._folder, capture_output=True).returncode:
            raise IngestError(f"job {self.job.name!r} cannot run {self.job.run}: there is no program {program}")

    def launch(self, samples: int, first: int, epochs: int, place: Path) -> Running:
        """Start the job now; `place` is the path of log and progress file without suffix."""
        self.ready()
        # Not with_suffix: a name may have a dot in it.
        log, progress = (place.absolute().with_name(f"{place.name}.{kind}") for kind in ("log", "progress"))
        for path in (log, progress):
            path.unlink(missing_ok=True)
        request: dict[str, Any] = {"log": str(log), "progress": str(progress)}
        launch_arguments = {"samples": samples, "first": first, "epochs": epochs}
        if self.job.is_python:
            request["call"] = {**launch_arguments, **self.job.arguments}
        else:
            request |= {
                "command": self.job.run.format(**launch_arguments),
                "pattern": self.job.progress,
                "batch_size": self.job.batch_size,
            }
        running = Running(self, progress, log)
        self._launched = True
        self._ask(request)
        return running

    def receive(self, running: Running) -> None:
        """Read the host's answers about a run."""
        for answer in self._answers(0.0):
            if "pid" in answer:
                running.pid, running.launched_s = answer["pid"], answer["at"]
            elif "code" in answer:
                running.code, running.ended_s = answer["code"], answer["at"]
        if running.code is None and self._process.poll() is not None:
            if running.pid is not None:
                kill_group(running.pid)
            running.code, running.ended_s = self._process.returncode or 1, time.monotonic()

    def close(self) -> None:
        """End the host and the job it runs; one that still imports the job's file is killed at once."""
        end_process(self._process, 5.0 if self._launched else 0.0)

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # asked for above
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise IngestError(f"the process that starts job {self.job.name!r} has ended; call again") from None
        except TypeError as error:
            raise IngestError(f"job {self.job.name!r} has arguments that cannot be passed on: {error}") from None

    def _answers(self, patience_s: float) -> Iterator[dict[str, Any]]:
        stdout = self._process.stdout
        assert stdout is not None  # asked for above
        while select.select([stdout], [], [], patience_s)[0]:
            data = os.read(stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            yield from json_objects(lines)
            patience_s = 0.0


@contextlib.contextmanager
def hosts(file: JobsFile) -> Iterator[list[Host]]:
    """One host for each job, started concurrently; all are ended when the block is left."""
    started: list[Host] = []
    try:
        started += [Host(file, job) for job in file.jobs]
        for host in started:
            host.ready()
        yield started
    finally:
        for host in started:
            host.close()


def watch(
    running: Sequence[Running],
    until: Callable[[], bool] = lambda: False,
    patience_s: float = 120.0,
    while_doing: str = "in calibration",
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Wait until all jobs have ended or `until` holds, then stop the rest. Raises IngestError for a failed or hung
    job."""
    try:
        while True:
            for one in running:
                one.update()
                if one.over and one.code != 0 and not one.stopped:
                    raise one.exit_error(while_doing)
                if one.over and not one.samples:
                    raise one.no_progress_error((one.ended_s or one.launched_s) - one.launched_s)
                if not one.over and time.monotonic() - max(one.last_s, one.launched_s) > patience_s:
                    raise one.no_progress_error(patience_s)
            if all(one.over for one in running) or until():
                return
            tick()
            time.sleep(POLL_S)
    finally:
        for one in running:
            one.stop()
            one.update()
