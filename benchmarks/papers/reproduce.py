"""All studies of the published predictors on the same measured jobs."""

from __future__ import annotations

import datetime
import importlib
import json
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.code_digest import code_digest
from benchmarks.papers.report import Report
from benchmarks.papers.study import Context, Section, large_caches
from precision_time.errors import MissingExtraError, PrecisionTimeError, PredictorError, nearest
from precision_time.journal import Journal
from precision_time.measurements.repository import LARGE_STEPS, STEPS
from precision_time.predictors.published import published_jobs
from precision_time.predictors.runs import read_runs
from precision_time.processes import cores, pooled
from precision_time.shipped import ROOT

STUDIES = ("boosting", "additive", "predictddl", "ernest", "cherrypick")
"""In the order of the report; each is a module of this package with a function `study(context) -> Section`."""

Progress = Callable[[str, str, int, int], None]
"""Called with a study, a part of it, and how much of that is done of how much."""

_HEARTBEAT_S = 0.5
_TABLES = (".csv", ".parquet")
_LONGEST_FIRST = ("boosting", "predictddl", "cherrypick", "additive", "ernest")
_PACKAGES = ("precision-time", "numpy", "scipy", "scikit-learn", "lightgbm", "cvxpy", "torch", "torch-geometric")


@dataclass(frozen=True, slots=True)
class Order:
    """One study for a process of its own. `notes` is the file where it writes its progress."""

    study: str
    data: str | None
    runs: str | None
    seed: int
    quick: bool
    notes: str


@dataclass(frozen=True, slots=True)
class Result:
    """The section of a study, or the reason why there is none."""

    study: str
    section: Section | None
    seconds: float
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values of a study that has a section; `from_dict` reads them back."""
        return {"seconds": self.seconds, "section": self.section.to_dict() if self.section else None}

    @classmethod
    def from_dict(cls, study: str, given: Mapping[str, Any]) -> Result:
        return cls(study, Section.from_dict(given["section"]), given["seconds"])


def known_studies(names: Sequence[str]) -> tuple[str, ...]:
    """The named studies, all of them where none is named. Raises a `PredictorError` for an unknown one."""
    for name in names:
        if name not in STUDIES:
            raise PredictorError(
                f"study {name!r} is unknown; nearest: {nearest(name, STUDIES, 1)}; use {', '.join(STUDIES)}"
            )
    return tuple(name for name in STUDIES if not names or name in names)


def reproduce(
    names: Sequence[str] = (),
    data: Path | None = None,
    runs: Path | None = None,
    *,
    seed: int = 0,
    quick: bool = False,
    workers: int | None = None,
    journal: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Report:
    """Run the studies, one process each as far as there are cores, and gather their sections.

    `data` is the folder with `published/` and `cloud-configurations/`; without it the studies do what they can. `runs`
    is a folder that `precision-time runs` wrote, `data/small_networks` of the repository where None. A study that fails
    is listed in the report with the reason and does not end the others. Studies that the file `journal` holds, made
    from the same tables, shipped data, code and settings, are not run again.
    """
    chosen = known_studies(names)
    read_runs(runs)  # a table that cannot be read is an error before the work
    count = min(cores(), len(chosen)) if workers is None else workers
    about = _about(data, runs, seed, quick)
    kept = Journal(journal, {"made from": _digest(data, runs, about)})
    results = {name: Result.from_dict(name, record) for name in chosen if (record := kept.get(name)) is not None}
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        orders = [
            Order(name, str(data) if data else None, str(runs) if runs else None, seed, quick, f"{folder}/{name}")
            for name in sorted(set(chosen) - results.keys(), key=_LONGEST_FIRST.index)
        ]

        def finished(result: Result) -> None:
            results[result.study] = result
            if result.section is not None:
                kept.add(result.study, result.to_dict())

        with _Watcher(orders, progress):
            if count > 1 and orders:
                for _, result in pooled(run_study, orders, count):
                    finished(result)
            for order in orders:
                if order.study not in results:  # one process, or a pool that broke
                    finished(run_study(order))
    sections = [results[name].section for name in chosen]
    return Report(
        tuple(s for s in sections if s is not None),
        {name: result.seconds for name, result in results.items()},
        {name: results[name].failure for name in chosen if results[name].section is None},
        about,
    )


def run_study(order: Order) -> Result:
    """Run one study; an error of the package's own becomes its failure."""
    start = time.monotonic()

    def note(part: str, done: int, of: int) -> None:
        Path(order.notes).write_text(json.dumps([part, done, of]), encoding="utf-8")

    section, failure = None, ""
    try:
        with large_caches():
            section = importlib.import_module(f"benchmarks.papers.{order.study}").study(context_of(order, note))
    except ImportError as error:
        failure = str(MissingExtraError(f"it needs {error.name}: pip install 'precision-time[predictors]'"))
    except PrecisionTimeError as error:
        failure = str(error)
    return Result(order.study, section, time.monotonic() - start, failure)


def context_of(order: Order, progress: Callable[[str, int, int], None]) -> Context:
    """The rows that the study works on."""
    data = Path(order.data) if order.data else None
    return Context(
        published=published_jobs(data / STEPS) if data else (),
        large=published_jobs(data / LARGE_STEPS) if data else (),
        runs=read_runs(order.runs),
        data=data,
        seed=order.seed,
        quick=order.quick,
        progress=progress,
    )


class _Watcher:
    """While it is open, `progress` is called with what the studies have written to their notes."""

    def __init__(self, orders: Sequence[Order], progress: Progress) -> None:
        self._orders, self._progress = orders, progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        last: dict[str, str] = {}
        while not self._over.wait(_HEARTBEAT_S):
            for order in self._orders:
                try:
                    text = Path(order.notes).read_text(encoding="utf-8")
                    part, done, of = json.loads(text)
                except (OSError, ValueError):  # nothing yet, or half a note
                    continue
                if last.get(order.study) != text:
                    last[order.study] = text
                    self._progress(order.study, part, done, of)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _digest(data: Path | None, runs: Path | None, about: Mapping[str, str]) -> str:
    """Of all that a study depends on: tables, shipped data and trees, code, versions and settings."""
    tables = [folder for folder in (data, runs) if folder]
    files = sorted(path for folder in tables for path in folder.rglob("*") if path.suffix in _TABLES)
    files += sorted((ROOT / "predictors").rglob("*.txt"))
    settings = [about[name] for name in ("versions", "rows", "seed")]
    return code_digest(Path(__file__).parent, files=files, settings=settings)


def _about(data: Path | None, runs: Path | None, seed: int, quick: bool) -> dict[str, str]:
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    real = read_runs(runs)
    rows = [f"{len({m.job.model for m in real})} networks in {len(real)} real runs"]
    for table in (STEPS, LARGE_STEPS):
        count = len(published_jobs(data / table)) if data else 0
        rows.append(f"{count} rows of {table.name} (trust A and B)")
    return {
        "rows": "; ".join(rows),
        "versions": f"python {platform.python_version()}, {', '.join(versions)}",
        "machine": f"{platform.machine()}, {cores()} cores, {platform.system()}",
        "date": datetime.date.today().isoformat(),
        "seed": str(seed) + (", quick: fewer seeds, rounds and rows than the report needs" if quick else ""),
    }
