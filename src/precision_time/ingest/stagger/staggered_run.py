"""Runs co-located jobs with start offsets. A job that dies does not end the others."""

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
from precision_time.ingest.stagger.windows_journal import held_folder, key_of, open_journal
from precision_time.journal import Journal
from precision_time.report.write import make_folder

Tick = Callable[[float, Sequence[int]], None]


@dataclass(frozen=True)
class Measured:
    """One run: seconds from the launch of the first job, by job number; `first_epoch_s` from each job's launch."""

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

    The run is written to the folder's journal in any case. IngestError is raised for a job that died, when the others
    have ended, and for one that did not report all its samples. Ctrl-C ends all jobs. `on` holds running hosts, one for
    each job: repeated runs of the same jobs then import their files once.
    """
    if len(offsets_s) != len(file.jobs) or min(offsets_s) < 0:
        raise IngestError(
            f"offsets {list(offsets_s)} are not one number of at least 0 for each of {len(file.jobs)} jobs"
        )
    cache_state.check_reset(file)
    with held_folder(folder):
        return _run_jobs(file, offsets_s, folder, tick, keep_cache, on)


def _run_jobs(
    file: JobsFile,
    offsets_s: Sequence[float],
    folder: str | Path,
    tick: Tick,
    keep_cache: bool,
    on: Sequence[Host] | None,
) -> Measured:
    journal = open_journal(folder)
    logs = make_folder(Path(folder) / "runs", "folder", parents=True)
    launched: dict[int, Running] = {}
    with contextlib.nullcontext(on) if on else hosts(file) as each_host:
        if not keep_cache:
            cache_state.empty(file)
        try:
            _launch_and_wait(file, offsets_s, each_host, logs, launched, tick)
        finally:
            for run in launched.values():
                run.stop()
                run.update()
            if launched:
                measured = _measured(file, offsets_s, launched)
                _keep(file, journal, measured, launched)
    _check_ends(file, folder, launched)
    return measured


def _launch_and_wait(
    file: JobsFile,
    offsets_s: Sequence[float],
    each_host: Sequence[Host],
    logs: Path,
    launched: dict[int, Running],
    tick: Tick,
) -> None:
    """Fill `launched` by job number as the offsets pass; returns when all have ended."""
    start, patience = time.monotonic(), file.calibration.patience_s
    waiting = sorted(range(len(file.jobs)), key=lambda job: offsets_s[job])
    last_tick = 0.0
    while waiting or not all(run.over for run in launched.values()):
        now = time.monotonic() - start
        while waiting and offsets_s[waiting[0]] <= now:
            job = waiting.pop(0)
            spec = file.jobs[job]
            launched[job] = each_host[job].launch(file.samples_of(spec), 0, spec.epochs, logs / spec.name)
        for run in launched.values():
            run.update()
            if not run.over and time.monotonic() - max(run.last_s, run.launched_s) > patience:
                run.stop()
        if now - last_tick > 0.2:
            last_tick = now
            tick(now, [launched[j].samples if j in launched else 0 for j in range(len(file.jobs))])
        due = offsets_s[waiting[0]] - (time.monotonic() - start) if waiting else POLL_S
        time.sleep(max(0.0, min(POLL_S, due)))


def _check_ends(file: JobsFile, folder: str | Path, launched: dict[int, Running]) -> None:
    """Raise IngestError for the first job that died, or that did not report all its samples."""
    failed = [run for run in launched.values() if run.code != 0]
    if failed:
        ended = [run for run in launched.values() if run.code == 0]
        others = "".join(f"; job {run.job.name!r} ran on to its end, kept in {str(folder)!r}" for run in ended)
        hung = failed[0].stopped
        patience = file.calibration.patience_s
        error = failed[0].no_progress_error(patience) if hung else failed[0].exit_error("in the staggered run")
        raise IngestError(f"{error}{others}")
    for job, run in launched.items():
        spec = file.jobs[job]
        reported, whole = run.samples, spec.epochs * file.samples_of(spec)
        batch = batch_of(run.trace()) if reported > 0 else 0.0
        if not whole - spec.epochs * batch <= reported <= whole + 0.5:
            raise IngestError(
                f"job {spec.name!r} ended with exit code 0 and reported {reported} samples in the staggered run, where "
                f"{spec.epochs} epochs have {whole}; check that it reads all of them, and samples and batch_size of "
                f"the file{run.log_tail()}"
            )


def _measured(file: JobsFile, offsets_s: Sequence[float], running: dict[int, Running]) -> Measured:
    zero = min(job_run.launched_s for job_run in running.values())
    traces = {job: job_run.trace() for job, job_run in running.items()}
    finish = [
        (running[job].ended_s or running[job].last_s) - zero if job in running else float("nan")
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


def _keep(file: JobsFile, journal: Journal, measured: Measured, running: dict[int, Running]) -> None:
    number = 0
    base = key_of(file, list(file.jobs), _window(file))
    while journal.get(f"{base}-{number}") is not None:
        number += 1
    journal.add(
        f"{base}-{number}",
        {
            "window": _window(file),
            "jobs": [job.name for job in file.jobs],
            "run": measured.to_dict(),
            "codes": {job_run.job.name: job_run.code for job_run in running.values()},
            "whole": all(o.code == 0 for o in running.values()) and len(running) == len(file.jobs),
            "traces": {"run": [trace.to_dict() for trace in measured.traces]},
        },
    )


def earlier_runs(file: JobsFile, folder: str | Path) -> list[Measured]:
    """The complete runs of these jobs in the folder's journal."""
    journal = open_journal(folder)
    base = key_of(file, list(file.jobs), _window(file))
    measured, number = [], 0
    while (entry := journal.get(f"{base}-{number}")) is not None:
        number += 1
        if entry["whole"]:
            kept = entry["run"]
            measured.append(Measured(*(tuple(kept[w]) for w in ("offsets_s", "finish_s", "first_epoch_s"))))
    return measured
