"""The commands that run real code: `calibrate`, `measure`, `runs` and `verify`."""

from __future__ import annotations

import dataclasses
import time
from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from precision_time.checks import small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
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
LEAST_S, LEAST_RANKS_S = 5.0, 15.0
"""The least budgets, with one rank and with several: below them, starting the processes leaves no time to measure."""
LEAST_QUICK_RUNS_S, LEAST_RUNS_S = 15.0, 60.0
"""Of `runs`, with --quick and with a calibration."""


def calibrate(options: Namespace, jobs: list[Job], precisions: list[str]) -> tuple[dict[str, Any], str]:
    """Write the device file; returns its content and a text about it."""
    budget = _Budget(options.budget or DEFAULT_BUDGET)
    _require_torch("calibrate")
    from precision_time.cli.progress import Progress
    from precision_time.journal import begin_again, held
    from precision_time.measure.calibrate import calibrate as measure
    from precision_time.measure.calibrate import check_output, journal_of, write
    from precision_time.measure.text import calibration_text
    from precision_time.measure.verify import jobs_here

    path = options.output or DEFAULT_OUTPUT
    check_output(path)
    here = _machine(options)
    budget.check_ranks(here.ranks)
    wanted = jobs_here(here, jobs, precisions, [1]) if jobs else []
    journal = journal_of(path)
    with held(journal), Progress("points") as progress:
        if options.fresh:
            begin_again(journal)
        result = measure(here, budget.left_s, progress, wanted, journal)
    write(path, result.content)
    return result.content, calibration_text(result.content, result.left_out, path, result.continued)


def calibrate_storage(options: Namespace) -> tuple[dict[str, Any], str]:
    """Write the storage file; returns the result of the probe as JSON and as text."""
    from precision_time.cli.progress import Progress
    from precision_time.hardware.storage import check_storage_output, write_storage
    from precision_time.ingest.storage.storage_probe import probe_storage

    for flag in ("source", "ranks", "threads", "on", "fresh", "precision"):
        if getattr(options, flag, None):
            name = f"model {options.source[0]!r}" if flag == "source" else f"flag --{flag}"
            raise UsageError(f"{name} has no meaning with --storage, which measures no training; leave one of them out")
    if not options.storage.strip():
        raise UsageError(
            "flag --storage is empty; give a folder with files, a large file, or the address of a data set"
        )
    path = options.output or DEFAULT_STORAGE
    check_storage_output(path)
    budget_s = _Budget(options.budget or STORAGE_BUDGET).seconds
    with Progress("steps") as progress:
        probe = probe_storage(options.storage, budget_s, progress)
    write_storage(path, probe.storage)
    content, text, fields = probe.to_dict(), str(probe), f"storage: {path}"
    if probe.pictures and all(find_spec(name) for name in ("torch", "PIL")):
        from precision_time.ingest.storage.preparation_probe import BUDGET_S, probe_preparation

        try:
            prepared = probe_preparation(options.storage, budget_s=min(0.3 * budget_s, BUDGET_S))
        except IngestError as error:  # the result about the storage stays valid
            content["not_measured"] = f"preparation: {error}"
            return content, f"{text}\ndecoding was not measured: {error}\n{_written(path, fields)}"
        content["preparation"] = dataclasses.asdict(prepared)
        text = f"{text}\n{prepared}"
        fields += f", bytes_per_sample: {probe.mean_bytes:.0f}, decode_ms: {prepared.worker_s * 1e3:.3g}"
        fields += f", keep_ms: {prepared.keep_s * 1e3:.3g}"
    return content, f"{text}\n{_written(path, fields)}"


def _written(path: str, fields: str) -> str:
    return f"written to {path}; a job reads it with data: {{{fields}}}"


def measure(options: Namespace, jobs: list[Job], precisions: list[str]) -> Measured:
    """Run the measuring suite into a folder."""
    budget = _Budget(options.budget)
    _require_torch("measure")
    from precision_time.cli.progress import Progress
    from precision_time.measure.measurement import KINDS
    from precision_time.measure.measurement import measure as run
    from precision_time.measure.verify import jobs_here

    here = _machine(options)
    budget.check_ranks(here.ranks)
    kinds = [kind for text in options.only or [] for kind in text.split(",")] or list(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"flag --only {kind!r} is unknown; nearest: {nearest(kind, KINDS, 1)}; use {', '.join(KINDS)}"
            )
    wanted = jobs_here(here, jobs, precisions, [1]) if jobs else []
    with Progress("tasks") as progress:
        return run(here, options.output or DEFAULT_FOLDER, budget.left_s, wanted, kinds, progress)


def runs(options: Namespace) -> RunsTable:
    """Train small networks into a folder, with one thread per worker unless --threads is given."""
    budget = _Budget(options.budget, LEAST_QUICK_RUNS_S if options.quick else LEAST_RUNS_S, longest_min=120)
    _require_torch("runs")
    from precision_time.cli.progress import Progress
    from precision_time.measure.small_runs import collect, networks_named

    options.threads = options.threads or "1"
    names = networks_named([name.strip() for text in options.only or [] for name in text.split(",")])
    here = _machine(options)
    with Progress("passes") as progress:
        return collect(here, options.output or DEFAULT_RUNS, budget.left_s, names, progress, options.quick)


def verify(options: Namespace, jobs: list[Job], precisions: list[str], ranks: list[int]) -> Verification:
    """Calibrate (or take the given device file), predict, train, compare."""
    budget = _Budget(options.budget)
    _require_torch("verify")
    from precision_time.cli.progress import Progress
    from precision_time.hardware.catalog import default_catalog
    from precision_time.measure.calibrate import check_output, write
    from precision_time.measure.rounds import Rounds
    from precision_time.measure.verify import jobs_here
    from precision_time.measure.verify import verify as run

    if options.save:
        check_output(options.save)
    here = _machine(options)
    budget.check_ranks(here.ranks)
    runs, steps = _count(options.runs, "runs"), _count(options.measured_steps, "steps")
    wanted = jobs_here(here, jobs, precisions, ranks)
    rounds: Rounds | None = None
    catalog: Catalog
    if options.device:
        catalog = default_catalog().with_file(options.device)
    else:
        note("measuring this machine")
        with Progress("points") as progress:
            rounds = Rounds(here, wanted, budget.left_s, progress)
        catalog = rounds.catalog()
    note(f"training {len(wanted)} jobs, {runs} times each")
    with Progress("runs") as progress:
        verification = run(wanted, here, catalog, runs, steps, progress, rounds.again if rounds else None)
    if rounds and options.save:
        write(options.save, rounds.content)
    return verification


def _machine(options: Namespace) -> Machine:
    from precision_time.measure.calibrate import Machine

    ranks = None if options.ranks is None else _count(options.ranks, "ranks")
    threads = None if options.threads is None else _count(options.threads, "threads")
    return Machine.here(options.on, ranks, threads)


def _require_torch(command: str) -> None:
    if find_spec("torch") is None:
        raise MissingExtraError(
            f"{command} runs real kernels, which needs PyTorch: pip install 'precision-time[torch]'"
        )


def _count(text: str, flag: str) -> int:
    if small_number(text) not in range(1, 10_000):
        raise UsageError(f"flag --{flag} is {text!r}; give a whole number from 1 to 9999")
    return int(text)


class _Budget:
    """The flag --budget: seconds from the start of the command, in which imports and warm-up count."""

    def __init__(self, text: str, least_s: float = LEAST_S, longest_min: int = 10) -> None:
        self._begin = time.monotonic()
        self._text, self._longest_min = text, longest_min
        self.seconds = _seconds(text)
        self._check(least_s)

    @property
    def left_s(self) -> float:
        return max(self.seconds - (time.monotonic() - self._begin), 1.0)

    def check_ranks(self, ranks: int) -> None:
        """Raise `UsageError` where the budget is too short for this number of ranks."""
        if ranks > 1:
            self._check(LEAST_RANKS_S, f" with {ranks} ranks, or --ranks 1")

    def _check(self, least_s: float, condition: str = "") -> None:
        if not least_s <= self.seconds <= 60.0 * self._longest_min:
            raise UsageError(
                f"flag --budget is {self._text!r}; give between {least_s:g}s and {self._longest_min}min{condition}"
            )


def _seconds(text: str) -> float:
    """Seconds of a text such as "90", "90s" or "2min"."""
    units = {"s": 1.0, "m": 60.0, "min": 60.0}
    number = text.rstrip("smin ")
    unit = text[len(number) :].strip() or "s"
    try:
        return float(number) * units[unit]
    except (ValueError, KeyError):
        raise UsageError(f"flag --budget is {text!r}; give seconds or minutes, for example 90s or 2min") from None
