"""Runs a plan of measurements within a time budget: finished tasks are kept, new records are written at once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from precision_time.errors import PrecisionTimeError
from precision_time.hardware.fields import MOST_NOISE
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.journal import Journal, Record
from precision_time.measure.clock import timed
from precision_time.measure.conditions import conditions
from precision_time.measure.hosts import host_costs
from precision_time.measure.launch import Report, no_report
from precision_time.measure.machine import header
from precision_time.measure.point import Point
from precision_time.measure.suite import Task, family_tasks, job_tasks

LONGEST_POINT_S = 0.1
"""Seconds for the samples of one point, allocation and warm-up excluded."""
PROBE_EVERY = 10
"""Number of tasks between two timings of one fixed product, which shows how far equal measurements differ."""
NO_TIME = "no time left"
"""Reason of every task that the budget left out."""


def run_plan(
    plan: Sequence[Task], journal: Journal, device: torch.device, budget_s: float, report: Report = no_report
) -> list[str]:
    """Run the tasks that the journal lacks until the budget is spent; "label: reason" of each task left out.

    A task that runs when the budget is spent is cut off; those marked `required` run even then, so that a busy machine
    still gets a usable result. What a device refuses (a kernel it lacks in this dtype, memory) is recorded in the
    journal too and is not tried again.
    """
    left_out: list[str] = []
    end = time.monotonic() + budget_s
    todo = sum(task.label not in journal for task in plan)
    probe = _Probe(device)
    for index, task in enumerate(plan):
        if task.label not in journal:
            left = end - time.monotonic()
            if left <= 0 and not task.required:
                left_out.append(f"{task.label}: {NO_TIME}")
                continue
            if todo % PROBE_EVERY == 0:
                journal.add(f"probe {len(journal)}", probe())
            try:
                with _cut_off(1e9 if task.required else left):
                    record = _record(task, min(LONGEST_POINT_S, max(left, 0.0) / todo), device)
            except _TimeUpError:
                left_out.append(f"{task.label}: {NO_TIME}")
                continue
            journal.add(task.label, record)
            todo -= 1
        if reason := journal.records[task.label].get("refused"):
            left_out.append(f"{task.label}: {reason}")
        report(index + 1, len(plan))
    return left_out


def _record(task: Task, budget_s: float, device: torch.device) -> Record:
    try:
        return task.run(budget_s)
    except (RuntimeError, NotImplementedError, PrecisionTimeError) as error:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return {"refused": next(iter(str(error).splitlines()), type(error).__name__)}


class _TimeUpError(BaseException):
    """The budget is spent. Not an `Exception`, which models and libraries catch."""


@contextlib.contextmanager
def _cut_off(seconds: float) -> Iterator[None]:
    """Raise `_TimeUpError` in the block after so long, once the operator under way has returned.

    Only the main thread of a process on a system with timers is interrupted; elsewhere the block runs to its end.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TimeUpError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), 1e8))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _Probe:
    """Times one fixed product, together with the clock and power of the device at that moment."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._a = torch.randn(*[384 if device.type == "cpu" else 4096] * 2, device=device)

    def __call__(self) -> Record:
        seconds = timed(lambda: self._a @ self._a, self._device, 0.02).seconds
        return {"probe_s": seconds, **conditions(self._device)}


def points_of(records: Mapping[str, Record]) -> list[Point]:
    """Every measured operator of the records."""
    return [Point.from_json(point) for record in records.values() for point in record.get("points", ())]


def noise_of(records: Mapping[str, Record]) -> float:
    """Half the distance between the 10th and 90th percentile of the probes, relative to their median; at most
    `MOST_NOISE`."""
    ordered = sorted(record["probe_s"] for record in records.values() if "probe_s" in record)
    if not ordered:
        return 0.0
    low, middle, high = (ordered[int(q * (len(ordered) - 1))] for q in (0.1, 0.5, 0.9))
    return min(float((high - low) / (2.0 * middle)), MOST_NOISE)


def kernels_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """Rows of a calibration, host costs and noise, as `worker` runs it.

    Fields of `task`: dtypes, end (on the machine's monotonic clock), jobs (their operators come first), families
    (False: only the operators of the jobs), journal (a path, or None).
    """
    jobs = [Job.from_fields(fields, GIVEN) for fields in task.get("jobs", ())]
    journal = Journal(task.get("journal"), header(device))
    earlier = len(points_of(journal.records))
    host = host_costs(device)
    plan = job_tasks(device, jobs)
    if task.get("families", True):
        dtypes = [getattr(torch, name) for name in task["dtypes"]]
        plan += family_tasks(device, dtypes, device.type == "cuda", journal)
    left_out = run_plan(plan, journal, device, task["end"] - time.monotonic(), report)
    return {
        "rows": [point.row() for point in points_of(journal.records)],
        "left_out": left_out,
        "unfinished": any(text.endswith(NO_TIME) for text in left_out),
        "continued": earlier,
        "host": host,
        "noise": noise_of(journal.records),
    }
