"""Really runs co-located jobs with their offsets. A job that dies does not end the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.errors import IngestError
from precision_time.ingest.stagger import cache_state
from precision_time.ingest.stagger.calibration_windows import batch_of
from precision_time.ingest.stagger.jobs_file import JobsFile
from precision_time.ingest.stagger.processes import POLL_S, Host, Running, Trace, hosts
from precision_time.ingest.stagger.trace_rates import reached_s
from precision_time.ingest.stagger.windows_journal import key_of, open_journal
from precision_time.journal import Journal
from precision_time.report.write import make_folder

Tick = Callable[[float, Sequence[int]], None]


@dataclass(frozen=True)
class Measured:
    """One run. Seconds from the launch of the first job, by job number; `first_epoch_s` from each job's own launch."""

    offsets_s: tuple[float, ...]
    finish_s: tuple[float, ...]
    first_epoch_s: tuple[float | None, ...]
    traces: tuple[Trace, ...] = ()

    @property
    def makespan_s(self) -> float:
        return max(self.finish_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "offsets_s": list(self.offsets_s),
            "finish_s": list(self.finish_s),
            "first_epoch_s": list(self.first_epoch_s),
            "makespan_s": self.makespan_s,
        }


def run_jobs(
    file: JobsFile,
    offsets_s: Sequence[float],
    folder: str | Path,
    tick: Tick = lambda seconds, samples: None,
    keep_cache: bool = False,
    on: Sequence[Host] | None = None,
) -> Measured:
    """Launch every job at its offset, from an empty cache, and wait for all.

    The run is written to the folder's journal whatever becomes of it. If a job died, IngestError is raised when the
    others have come to their end. Ctrl-C ends all. `on` are hosts that are up already, one a job: many runs of the same
    jobs need not import their files each time.
    """
    if len(offsets_s) != len(file.jobs) or min(offsets_s) < 0:
        raise IngestError(
            f"offsets {list(offsets_s)} are not one number of at least 0 for each of {len(file.jobs)} jobs"
        )
    journal = open_journal(folder)
    place = make_folder(Path(folder) / "runs", "folder", parents=True)
    begun: dict[int, Running] = {}
    with contextlib.nullcontext(on) if on else hosts(file) as up:
        if not keep_cache:
            cache_state.empty(file)
        start = time.monotonic()
        try:
            waiting = sorted(range(len(file.jobs)), key=lambda job: offsets_s[job])
            told = 0.0
            while waiting or not all(one.over for one in begun.values()):
                now = time.monotonic() - start
                while waiting and offsets_s[waiting[0]] <= now:
                    job = waiting.pop(0)
                    spec = file.jobs[job]
                    begun[job] = up[job].launch(file.samples_of(spec), 0, spec.epochs, place / spec.name)
                for one in begun.values():
                    one.update()
                    if not one.over and time.monotonic() - max(one.last_s, one.launched_s) > _patience(file):
                        one.stop()
                if now - told > 0.2:
                    told = now
                    tick(now, [begun[j].samples if j in begun else 0 for j in range(len(file.jobs))])
                due = offsets_s[waiting[0]] - (time.monotonic() - start) if waiting else POLL_S
                time.sleep(max(0.0, min(POLL_S, due)))
        finally:
            for one in begun.values():
                one.stop()
                one.update()
            if begun:
                found = _measured(file, offsets_s, begun)
                _keep(file, journal, found, begun)
    dead = [one for one in begun.values() if one.code != 0]
    if dead:
        others = [one for one in begun.values() if one.code == 0]
        rest = "".join(f"; job {one.job.name!r} ran on to its end, kept in {str(folder)!r}" for one in others)
        error = dead[0].silence(_patience(file)) if dead[0].stopped else dead[0].death("in the staggered run")
        raise IngestError(f"{error}{rest}")
    for job, one in begun.items():
        spec = file.jobs[job]
        told, whole = one.samples, spec.epochs * file.samples_of(spec)
        batch = batch_of(one.trace()) if told > 0 else 0.0
        if not whole - spec.epochs * batch <= told <= whole + 0.5:
            raise IngestError(
                f"job {spec.name!r} ended with exit code 0 and reported {told} samples in the staggered run, where "
                f"{spec.epochs} epochs have {whole}; check that it reads all of them, and samples and batch_size of "
                f"the file{one.log_tail()}"
            )
    return found


def _patience(file: JobsFile) -> float:
    return file.calibration.patience_s


def _measured(file: JobsFile, offsets_s: Sequence[float], begun: dict[int, Running]) -> Measured:
    zero = min(one.launched_s for one in begun.values())
    traces = {job: one.trace() for job, one in begun.items()}
    finish = [
        (begun[job].ended_s or begun[job].last_s) - zero if job in begun else float("nan")
        for job in range(len(file.jobs))
    ]
    epochs = [
        reached_s(traces[job], file.samples_of(spec)) if job in traces and _has_epoch(file, traces[job], job) else None
        for job, spec in enumerate(file.jobs)
    ]
    return Measured(tuple(offsets_s), tuple(finish), tuple(epochs), tuple(traces[job] for job in sorted(traces)))


def _has_epoch(file: JobsFile, trace: Trace, job: int) -> bool:
    return bool(len(trace.samples)) and trace.samples[-1] >= file.samples_of(file.jobs[job]) - 0.5


def _window(file: JobsFile) -> dict[str, Any]:
    return {"kind": "run", "epochs": [job.epochs for job in file.jobs]}


def _keep(file: JobsFile, journal: Journal, found: Measured, begun: dict[int, Running]) -> None:
    number = 0
    base = key_of(file, list(file.jobs), _window(file))
    while journal.get(f"{base}-{number}") is not None:
        number += 1
    journal.add(
        f"{base}-{number}",
        {
            "window": _window(file),
            "jobs": [job.name for job in file.jobs],
            "run": found.to_dict(),
            "codes": {one.job.name: one.code for one in begun.values()},
            "whole": all(o.code == 0 for o in begun.values()) and len(begun) == len(file.jobs),
            "traces": {"run": [trace.to_dict() for trace in found.traces]},
        },
    )


def earlier_runs(file: JobsFile, folder: str | Path) -> list[Measured]:
    """Whole runs of these jobs that the folder's journal keeps."""
    journal = open_journal(folder)
    base = key_of(file, list(file.jobs), _window(file))
    found, number = [], 0
    while (entry := journal.get(f"{base}-{number}")) is not None:
        number += 1
        if entry["whole"]:
            kept = entry["run"]
            found.append(Measured(*(tuple(kept[w]) for w in ("offsets_s", "finish_s", "first_epoch_s"))))
    return found
