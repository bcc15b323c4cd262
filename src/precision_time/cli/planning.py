"""The commands `plan`, `layouts` and `walltime`."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.progress import Progress
from precision_time.cli.streams import note
from precision_time.cli.workers import workers_of

if TYPE_CHECKING:
    from precision_time.job import Job
    from precision_time.plan import Goal, Space


def plan(options: Namespace, job: Job) -> tuple[dict[str, Any], str]:
    """For JSON, and as text; writes the picture where one is asked for."""
    from precision_time.plan import plan as run

    goal, space = goal_of(options), space_of(options)
    if options.plot:
        from precision_time.report.figure import image_kind, require_matplotlib

        image_kind(options.plot)
        require_matplotlib()
    with workers_of(options) as workers, Progress("candidates") as progress:
        found = run(job, goal, space, workers=workers, progress=progress)
    if options.quantile is not None:
        found = found.with_quantile(options.quantile)
    if options.plot:
        found.plot(options.plot)
        note(f"picture written to {options.plot}")
    return found.to_dict(), str(found)


def goal_of(options: Namespace) -> Goal:
    """The goal that the flags give; a deadline is a moment or a span from now."""
    from precision_time.plan import Goal
    from precision_time.plan.goal import deadline_hours

    given: dict[str, Any] = {"budget_usd": options.budget, "objective": options.objective}
    given["confidence"] = options.confidence
    if options.deadline is not None:
        given["deadline_hours"] = deadline_hours(options.deadline, datetime.now())
    return Goal(**{name: value for name, value in given.items() if value is not None})


def space_of(options: Namespace) -> Space:
    """The space that the flags give."""
    from precision_time.plan import Space

    return Space(**space_fields(options))


def space_fields(options: Namespace) -> dict[str, Any]:
    """The fields of the space that flags give."""
    given: dict[str, Any] = {
        "providers": _joined(options.provider),
        "gpu": _joined(options.gpu),
        "gpus": options.gpus,
        "precision": _joined(options.precision),
        "schedule": options.schedule,
        "reserved": options.reserved or None,
        "layout": "auto" if options.layout == "auto" else None,
        "global_batch_size": options.global_batch_size,
        "spot": options.spot,
        "pue": options.pue,
        "grid": options.grid,
    }
    return {name: value for name, value in given.items() if value is not None}


def _joined(texts: list[str] | None) -> str | None:
    return ",".join(texts) if texts else None


def layouts(options: Namespace, job: Job) -> tuple[dict[str, Any], str]:
    """For JSON, and as text."""
    from precision_time.field_types import BATCH
    from precision_time.plan import rank_layouts

    shown = small_number(options.top)
    if not shown:
        raise UsageError(f"flag --top is {show(options.top)}; give a whole number above 0")
    batch = options.global_batch_size
    with workers_of(options) as workers, Progress("layouts") as progress:
        found = rank_layouts(
            job,
            global_batch=None if batch is None else BATCH("global_batch_size", batch),
            largest_batch=options.largest_batch,
            workers=workers,
            progress=progress,
        )
    if options.quantile is not None:
        found = found.with_quantile(options.quantile)
    return found.to_dict(), found.text(shown)


def limits(options: Namespace, kind: str, job: Job) -> tuple[dict[str, Any], str]:
    """For JSON, and as text; writes the limit into the file where that is asked for."""
    from precision_time.plan import time_limits
    from precision_time.prediction import predict

    slurm = kind == time_limits.SLURM
    check = time_limits.check_slurm if slurm else time_limits.check_manifest
    checked = check(options.file, predict(job), options.confidence)
    if options.rewrite:
        rewrite = time_limits.rewrite_slurm if slurm else time_limits.rewrite_manifest
        rewrite(options.file, checked.needed)
        note(f"limit written into {options.file}")
    return checked.to_dict(), str(checked)


def walltime(options: Namespace, job: Job) -> tuple[dict[str, Any], str]:
    """For JSON, and the lines to paste; predicted here."""
    from precision_time.plan.walltime import time_limit
    from precision_time.prediction import predict

    limit = time_limit(predict(job), options.confidence, options.format)
    return limit.to_dict(), limit.text
