"""All studies of the published predictors on the same measured jobs: `precision-time reproduce`."""

from __future__ import annotations

import datetime
import importlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_time.errors import MissingExtraError, PrecisionTimeError, PredictorError, nearest
from precision_time.predictors.published import LARGE, STEPS, published_jobs
from precision_time.predictors.report import Report
from precision_time.predictors.runs import read_runs
from precision_time.predictors.study import Context, Section
from precision_time.processes import cores, pooled

STUDIES = ("boosting", "additive", "predictddl", "ernest", "cherrypick")
"""In the order of the report; each is a module of `studies/` with a function `study(context) -> Section`."""

Progress = Callable[[str, str, int, int], None]
"""Called with a study, a part of it, and how much of that is done of how much."""

_HEARTBEAT_S = 0.5
_PACKAGES = ("precision-time", "numpy", "scipy", "scikit-learn", "lightgbm", "cvxpy", "torch", "torch-geometric")


@dataclass(frozen=True, slots=True)
class Order:
    """One study to make, in words that a process of its own understands. `notes` is where it says how far it is."""

    study: str
    shared: str | None
    runs: str | None
    seed: int
    quick: bool
    notes: str


@dataclass(frozen=True, slots=True)
class Made:
    """What came of an order: a section, or why there is none."""

    study: str
    section: Section | None
    seconds: float
    failure: str = ""


def known_studies(names: Sequence[str]) -> tuple[str, ...]:
    """The studies that are named, all where none is. Raises a `PredictorError` for an unknown one."""
    for name in names:
        if name not in STUDIES:
            raise PredictorError(
                f"study {name!r} is unknown; nearest: {nearest(name, STUDIES, 1)}; use {', '.join(STUDIES)}"
            )
    return tuple(name for name in STUDIES if not names or name in names)


def reproduce(
    names: Sequence[str] = (), shared: Path | None = None, runs: Path | None = None, *, seed: int = 0,
    quick: bool = False, workers: int | None = None, progress: Progress = lambda *_: None,
) -> Report:  # fmt: skip
    """Make the studies, one process each while there are cores, and gather their sections.

    `shared` is the folder with `data/published` and `data/cloud-configurations`; without it the studies do what they
    can. `runs` is a folder that `precision-time runs` wrote, the packaged one where None. A study that fails is told in
    the report and does not end the others.
    """
    chosen = known_studies(names)
    if shared is not None and not (shared / STEPS).is_file():
        raise PredictorError(f"shared {str(shared)!r} has no {STEPS.as_posix()}; name the folder that has, or none")
    read_runs(runs)  # a table that cannot be read is said before the work
    count = min(cores(), len(chosen)) if workers is None else workers
    made: dict[str, Made] = {}
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        orders = [
            Order(name, str(shared) if shared else None, str(runs) if runs else None, seed, quick, f"{folder}/{name}")
            for name in sorted(chosen, key=_LONGEST_FIRST.index)
        ]
        with _Watched(orders, progress):
            if count > 1:
                for _, found in pooled(make, orders, count):
                    made[found.study] = found
            for order in orders:
                if order.study not in made:  # one process, or a pool that broke
                    made[order.study] = make(order)
    sections = [made[name].section for name in chosen]
    return Report(
        tuple(s for s in sections if s is not None),
        {name: each.seconds for name, each in made.items()},
        {name: made[name].failure for name in chosen if made[name].section is None},
        _about(shared, runs, seed, quick),
    )


_LONGEST_FIRST = ("boosting", "predictddl", "cherrypick", "additive", "ernest")


def make(order: Order) -> Made:
    """Make one study; errors that we raise on purpose become its failure."""
    start = time.monotonic()

    def note(part: str, done: int, of: int) -> None:
        Path(order.notes).write_text(json.dumps([part, done, of]), encoding="utf-8")

    try:
        module = importlib.import_module(f"precision_time.predictors.studies.{order.study}")
        section = module.study(context_of(order, note))
    except ImportError as error:
        missing = MissingExtraError(f"it needs {error.name}: pip install 'precision-time[predictors]'")
        return Made(order.study, None, time.monotonic() - start, str(missing))
    except PrecisionTimeError as error:
        return Made(order.study, None, time.monotonic() - start, str(error))
    return Made(order.study, section, time.monotonic() - start)


def context_of(order: Order, progress: Callable[[str, int, int], None]) -> Context:
    """What the study works on."""
    shared = Path(order.shared) if order.shared else None
    return Context(
        published=published_jobs(shared / STEPS) if shared else (),
        large=published_jobs(shared / LARGE) if shared else (),
        runs=read_runs(order.runs),
        shared=shared,
        seed=order.seed,
        quick=order.quick,
        progress=progress,
    )


class _Watched:
    """While it is open, `progress` hears what the studies have noted."""

    def __init__(self, orders: Sequence[Order], progress: Progress) -> None:
        self._orders, self._progress = orders, progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        heard: dict[str, str] = {}
        while not self._over.wait(_HEARTBEAT_S):
            for order in self._orders:
                try:
                    said = Path(order.notes).read_text(encoding="utf-8")
                    part, done, of = json.loads(said)
                except (OSError, ValueError):  # nothing yet, or half a note
                    continue
                if heard.get(order.study) != said:
                    heard[order.study] = said
                    self._progress(order.study, part, done, of)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _about(shared: Path | None, runs: Path | None, seed: int, quick: bool) -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in (
        "precision-time",
        "numpy",
        "scipy",
        "scikit-learn",
        "lightgbm",
        "cvxpy",
        "torch",
        "torch-geometric",
    ):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    real = read_runs(runs)
    rows = [f"{len({m.job.model for m in real})} networks in {len(real)} real runs"]
    if shared:
        rows += [
            f"{len(published_jobs(shared / table))} rows of {table.name} (trust A and B)" for table in (STEPS, LARGE)
        ]
    else:
        rows.append("no published rows (--shared names their folder)")
    return {
        "rows": "; ".join(rows),
        "versions": f"python {platform.python_version()}, {', '.join(found)}",
        "machine": f"{platform.machine()}, {cores()} cores, {platform.system()}",
        "date": datetime.date.today().isoformat(),
        "seed": str(seed) + (", quick: fewer seeds, rounds and rows than the report needs" if quick else ""),
    }
