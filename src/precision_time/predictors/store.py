"""Trained predictors in a folder: one folder each, of plain files.

`precision-time train` writes them, `predict --predictor NAME --trained FOLDER` reads them. Those that ship, trained on
the published tables, are such a folder too, and are used where none is named. They are made by

    precision-time train --output src/precision_time/predictors/trained && python -m precision_time.shipped
"""

from __future__ import annotations

import datetime
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_time.anchors.sources import given_anchors
from precision_time.checks import show
from precision_time.errors import DataError, PredictorError
from precision_time.fit.cases import is_data_parallel
from precision_time.job.job import Job
from precision_time.journal import held
from precision_time.measurements.repository import STEPS, data_folder
from precision_time.predictors.ernest import Ernest
from precision_time.predictors.interface import MeasuredJob, Predictor
from precision_time.predictors.published import all_published, published_jobs
from precision_time.predictors.registry import PREDICTORS, current_name, predictor_class
from precision_time.predictors.runs import read_runs
from precision_time.reading import LARGEST_SAVED, read_bytes, read_json, to_json
from precision_time.report.write import PART, make_folder, write_whole
from precision_time.shipped import ROOT, is_shipped, shipped_file

SHIPPED = "predictors/trained"
"""Folder of the package with the predictors that ship."""
UNTRAINED = ("simulator", "additive")
"""Predictors that answer without training."""
SIMULATING = ("boosting-residual",)
"""Predictors for which the simulator predicts every training row."""
CARD = "trained.json"
LOCK = ".train.lock"
"""File in the output folder by which one process holds it."""
FILES = "files"
"""Key of the card: SHA-256 of each file beside it."""


def load_trained(name: str, folder: Path | None) -> Predictor:
    """The predictor that was trained into `folder`, without one the predictor that ships.

    Raises a `PredictorError` where there is none.
    """
    name, cls = current_name(name), predictor_class(name)
    if name in UNTRAINED and folder is None:
        return cls()
    if folder is None:
        if not is_shipped(f"{SHIPPED}/{name}/{CARD}"):
            raise PredictorError(
                f"predictor {name!r} has to be trained first; run precision-time train {name} --output FOLDER, then "
                "add --trained FOLDER"
            )
        folder = shipped_file(f"{SHIPPED}/{name}/{CARD}").parents[1]
    if not (folder / name / CARD).is_file():
        known = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{CARD}"))) or "none"
        raise PredictorError(
            f"folder {str(folder)!r} holds no trained {name!r} (it holds: {known}); run precision-time train {name} "
            f"--output {folder}"
        )
    _check_whole(folder / name, name)
    try:
        return cls.load(folder / name)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(folder / name, name, type(error).__name__) from error


def predictor_for(name: str, folder: Path | None, job: Job) -> tuple[Predictor, tuple[str, ...]]:
    """The predictor of a job, and a note where it is not one that was trained before.

    Ernest is fitted to the job's own `anchors` where it has any, since it uses runs of the job itself.
    """
    if current_name(name) == "ernest" and folder is None and (runs := given_anchors(job)):
        predictor = Ernest(per_step=True)
        predictor.fit([MeasuredJob(run.id, run.job, run.measured_s, "") for run in runs])
        return predictor, (f"fitted to {len(runs)} measured jobs of anchors, not to published ones",)
    return load_trained(name, folder), ()


def card_of(name: str, folder: Path | None) -> Mapping[str, Any]:
    """What `train` noted beside a trained predictor; empty for one that needs no training."""
    path = (folder or ROOT / SHIPPED) / current_name(name) / CARD
    card = read_json(path, "card") if path.is_file() else {}
    return card if isinstance(card, dict) else {}


def _check_whole(folder: Path, name: str) -> None:
    """Raise `DataError` where a file is not the one that `train` wrote, by its digest in the card."""
    card = read_json(folder / CARD, "card")
    digests = card.get(FILES) if isinstance(card, dict) else None
    if not isinstance(digests, dict):
        raise _damaged(folder, name, f"its {CARD} has no digests")
    for file, digest in digests.items():
        if Path(file).name != file or _digest(folder / file) != digest:
            raise _damaged(folder, name, f"{show(file)} was changed")


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, largest=LARGEST_SAVED)).hexdigest()


def _damaged(folder: Path, name: str, reason: str) -> DataError:
    return DataError(
        f"folder {str(folder)!r} holds no whole trained {name!r} ({reason}); run precision-time train {name} again"
    )


def train(
    names: Sequence[str],
    folder: Path,
    tables: str | None = None,
    runs: str | None = None,
    rows: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, of: None,
    allow_code: bool = False,
) -> dict[str, dict[str, object]]:
    """Train predictors (all that need it where none is named) and save them below `folder`; what each cost, by name.

    They are trained on the published steps below `tables` (default: the `data/` of the repository), or instead on
    `rows`, CSV files of measured steps, or on `runs`, a folder of `precision-time runs`. Each predictor is written
    whole or not at all, and no other process writes to the folder meanwhile. Raises a `PredictorError` where there are
    no rows to learn from, a `DataError` where another process trains into the folder. Models of the table that are
    Python files run only with `allow_code`.
    """
    names = [current_name(name) for name in names] or [name for name in PREDICTORS if name not in UNTRAINED]
    if "simulator" in names:
        raise PredictorError("predictor 'simulator' needs no training; leave it out")
    for name in names:
        predictor_class(name)
        if (folder / name).exists() and not (folder / name / CARD).is_file():
            raise PredictorError(f"folder {str(folder / name)!r} is no trained predictor; name another --output")
    if "additive" in names and runs is None:
        raise PredictorError(
            "predictor 'additive' needs no training, since kernel benchmarks give its operator times; name --real-runs "
            "to take those of its profile, or leave it out"
        )
    measured = _measured(tables, runs, rows, allow_code)
    cards: dict[str, dict[str, object]] = {}
    with held(make_folder(folder, "output", parents=True) / LOCK, f"output {str(folder)!r}"):
        for left in folder.glob(f"{PART}*"):  # of a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        for done, name in enumerate(names):
            progress(done, len(names))
            taught = [each for each in measured if is_simulated(each)] if name in SIMULATING else measured
            cards[name] = _train(name, folder, taught, "real runs" if runs else "rows" if rows else "published")
    return cards


def is_simulated(measured: MeasuredJob) -> bool:
    """Whether the simulator predicts a row without torch, by factors that a fit to rows can move."""
    return measured.facts is None and is_data_parallel(measured.job)


def _measured(tables: str | None, runs: str | None, rows: Sequence[str], allow_code: bool) -> Sequence[MeasuredJob]:
    """The measured jobs to train on. Raises a `PredictorError` where there are none."""
    if runs and rows:
        raise PredictorError("both real runs (whole passes) and rows (single steps) are named; train on one of them")
    if runs:
        return read_runs(runs)
    if rows:
        found = [job for name in rows for job in _rows_of(name, allow_code)]
    else:
        data = data_folder(tables)
        if data is None or not (data / STEPS).is_file():
            where = f"folder {tables!r} has no" if tables else "there is no"
            raise PredictorError(
                f"{where} {STEPS}, on which predictors are trained; name the folder that has it with --tables, or a "
                "CSV file of measured steps with --rows"
            )
        found = list(all_published(data, allow_code=allow_code))
    return found


def _rows_of(name: str, allow_code: bool) -> Sequence[MeasuredJob]:
    """The rows of a user's own table, whatever their trust."""
    if not Path(name).is_file():
        raise PredictorError(f"rows {name!r} is no file; name a CSV file of measured steps (docs/evaluate.md)")
    found = published_jobs(Path(name), ("A", "B", "C", ""), allow_code=allow_code)
    if not found:
        raise PredictorError(f"no row of {name!r} is a job that can be predicted; precision-time evaluate says why")
    return found


def _new(name: str, kind: str) -> Predictor:
    """A predictor to train; Ernest's curves are of steps where its rows are."""
    cls = predictor_class(name)
    return cls(per_step=kind != "real runs") if name == "ernest" else cls()  # type: ignore[call-arg]


def _train(name: str, folder: Path, measured: Sequence[MeasuredJob], kind: str) -> dict[str, object]:
    start = time.monotonic()
    predictor = _new(name, kind)
    predictor.fit(measured)
    cost = predictor.cost()
    card: dict[str, object] = {
        "predictor": name,
        "trained": datetime.date.today().isoformat(),
        "learned_from": kind,
        "rows": cost.runs,
        "held_out": {left_out: round(error, 4) for left_out, error in predictor.held_out().items()},
        "runs_charged": cost.runs,
        "measured_s": round(cost.measured_s, 1),
        "training_s": round(time.monotonic() - start, 1),
    }
    with tempfile.TemporaryDirectory(dir=folder, prefix=PART) as beside:
        place = Path(beside) / name
        place.mkdir()
        predictor.save(place)
        content = to_json({**card, FILES: {path.name: _digest(path) for path in sorted(place.iterdir())}}, indent=2)
        write_whole(place / CARD, content + "\n")
        if (folder / name).exists():
            (folder / name).rename(Path(beside) / "before")  # removed with the temporary folder
        place.rename(folder / name)
    return card
