"""The commands that run real code: `calibrate`, `measure`, `runs` and `verify`."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from precision_time.cli.parser import UsageError
from precision_time.errors import IngestError, MissingExtraError, nearest

if TYPE_CHECKING:
    from precision_time.hardware.catalog import Catalog
    from precision_time.job.job import Job
    from precision_time.measure.calibrate import Machine
    from precision_time.measure.measurement import Measured
    from precision_time.measure.runs_table import RunsTable
    from precision_time.measure.verify import Verification

DEFAULT_OUTPUT = "this-machine.json"
DEFAULT_STORAGE = "this-storage.yaml"
DEFAULT_BUDGET = "180s"
STORAGE_BUDGET = "20s"
DEFAULT_FOLDER = "measurements"
DEFAULT_RUNS = "small-networks"


def calibrate(given: Namespace, jobs: list[Job], precisions: list[str]) -> tuple[dict[str, Any], str]:
    """The device file's content, already written, and what to say about it."""
    _require_torch("calibrate")
    from precision_time.cli.progress import Progress
    from precision_time.measure.calibrate import calibrate as measure
    from precision_time.measure.calibrate import check_output, journal_of, write
    from precision_time.measure.text import calibration_text
    from precision_time.measure.verify import jobs_here

    path = given.output or DEFAULT_OUTPUT
    check_output(path)
    here, budget_s = _machine(given), _seconds(given.budget or DEFAULT_BUDGET, "budget")
    wanted = jobs_here(here, jobs, precisions, [1]) if jobs else []
    journal = journal_of(path)
    if given.fresh:
        journal.unlink(missing_ok=True)
    with Progress("points") as progress:
        found = measure(here, budget_s, progress, wanted, journal)
    write(path, found.content)
    return found.content, calibration_text(found.content, found.left_out, path, found.continued)


def calibrate_storage(given: Namespace) -> tuple[dict[str, Any], str]:
    """The storage probe as JSON and as text; the storage file is written."""
    from precision_time.cli.progress import Progress
    from precision_time.hardware.storage import check_storage_output, write_storage
    from precision_time.ingest.storage.storage_probe import probe_storage

    for flag in ("source", "ranks", "threads", "on", "fresh", "precision"):
        if getattr(given, flag, None):
            what = f"model {given.source[0]!r}" if flag == "source" else f"flag --{flag}"
            raise UsageError(f"{what} has no meaning with --storage, which measures no training; leave one of them out")
    if not given.storage.strip():
        raise UsageError(
            "flag --storage is empty; give a folder with files, a large file, or the address of a data set"
        )
    path = given.output or DEFAULT_STORAGE
    check_storage_output(path)
    budget_s = _seconds(given.budget or STORAGE_BUDGET, "budget")
    with Progress("steps") as progress:
        found = probe_storage(given.storage, budget_s, progress)
    write_storage(path, found.storage)
    content, text, words = found.to_dict(), str(found), f"storage: {path}"
    if found.pictures and all(find_spec(name) for name in ("torch", "PIL")):
        from precision_time.ingest.storage.preparation_probe import BUDGET_S, probe_preparation

        try:
            prepared = probe_preparation(given.storage, budget_s=min(0.3 * budget_s, BUDGET_S))
        except IngestError as error:  # the storage is measured all the same
            content["not_measured"] = f"preparation: {error}"
            return content, f"{text}\ndecoding was not measured: {error}\n{_written(path, words)}"
        content["preparation"] = dataclasses.asdict(prepared)
        text = f"{text}\n{prepared}"
        words += f", bytes_per_sample: {found.mean_bytes:.0f}, decode_ms: {prepared.worker_s * 1e3:.3g}"
        words += f", keep_ms: {prepared.keep_s * 1e3:.3g}"
    return content, f"{text}\n{_written(path, words)}"


def _written(path: str, words: str) -> str:
    return f"written to {path}; a job reads it with data: {{{words}}}"


def measure(given: Namespace, jobs: list[Job], precisions: list[str]) -> Measured:
    """Measure this machine at length into a folder."""
    _require_torch("measure")
    from precision_time.cli.progress import Progress
    from precision_time.measure.measurement import KINDS
    from precision_time.measure.measurement import measure as run
    from precision_time.measure.verify import jobs_here

    here, budget_s = _machine(given), _seconds(given.budget, "budget")
    kinds = [kind for text in given.only or [] for kind in text.split(",")] or list(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"flag --only {kind!r} is unknown; nearest: {nearest(kind, KINDS, 1)}; use {', '.join(KINDS)}"
            )
    wanted = jobs_here(here, jobs, precisions, [1]) if jobs else []
    with Progress("tasks") as progress:
        return run(here, given.output or DEFAULT_FOLDER, budget_s, wanted, kinds, progress)


def runs(given: Namespace) -> RunsTable:
    """Really train small networks into a folder: one thread a worker, unless said otherwise."""
    _require_torch("runs")
    from precision_time.cli.progress import Progress
    from precision_time.measure.small_runs import collect, networks_named

    given.threads = given.threads or "1"
    names = networks_named([name.strip() for text in given.only or [] for name in text.split(",")])
    here, budget_s = _machine(given), _seconds(given.budget, "budget", longest_min=120)
    with Progress("passes") as progress:
        return collect(here, given.output or DEFAULT_RUNS, budget_s, names, progress, given.quick)


def verify(given: Namespace, jobs: list[Job], precisions: list[str], ranks: list[int]) -> Verification:
    """Calibrate (or take the given device file), predict, train, compare."""
    _require_torch("verify")
    from precision_time.cli.progress import Progress
    from precision_time.hardware.catalog import default_catalog
    from precision_time.measure.calibrate import check_output, write
    from precision_time.measure.rounds import Rounds
    from precision_time.measure.verify import jobs_here
    from precision_time.measure.verify import verify as run

    if given.save:
        check_output(given.save)
    here, budget_s = _machine(given), _seconds(given.budget, "budget")
    runs, steps = _count(given.runs, "runs"), _count(given.measured_steps, "steps")
    wanted = jobs_here(here, jobs, precisions, ranks)
    rounds: Rounds | None = None
    catalog: Catalog
    if given.device:
        catalog = default_catalog().with_file(given.device)
    else:
        print("measuring this machine", file=sys.stderr)
        with Progress("points") as progress:
            rounds = Rounds(here, wanted, budget_s, progress)
        catalog = rounds.catalog()
    print(f"training {len(wanted)} jobs, {runs} times each", file=sys.stderr)
    with Progress("runs") as progress:
        found = run(wanted, here, catalog, runs, steps, progress, rounds.again if rounds else None)
    if rounds and given.save:
        write(given.save, rounds.content)
    return found


def _machine(given: Namespace) -> Machine:
    from precision_time.measure.calibrate import Machine

    ranks = None if given.ranks is None else _count(given.ranks, "ranks")
    threads = None if given.threads is None else _count(given.threads, "threads")
    return Machine.here(given.on, ranks, threads)


def _require_torch(command: str) -> None:
    if find_spec("torch") is None:
        raise MissingExtraError(
            f"{command} runs real kernels, which needs PyTorch: pip install 'precision-time[torch]'"
        )


def _count(text: str, flag: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"flag --{flag} is {text!r}; give a whole number of at least 1")
    return int(text)


def _seconds(text: str, flag: str, longest_min: int = 10) -> float:
    """ "90", "90s" or "2min"."""
    units = {"s": 1.0, "m": 60.0, "min": 60.0}
    number = text.rstrip("smin ")
    unit = text[len(number) :].strip() or "s"
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        raise UsageError(f"flag --{flag} is {text!r}; give seconds or minutes, for example 90s or 2min") from None
    if not 5.0 <= seconds <= 60.0 * longest_min:
        raise UsageError(f"flag --{flag} is {text!r}; give between 5s and {longest_min}min")
    return seconds
