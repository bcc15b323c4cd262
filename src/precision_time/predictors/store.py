"""Trained predictors in a folder: one folder each, of plain files.

`precision-time train` writes them, `predict --predictor NAME --trained FOLDER` reads them.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from precision_time.checks import show
from precision_time.errors import DataError, PredictorError
from precision_time.journal import held
from precision_time.measurements.repository import STEPS, data_folder
from precision_time.predictors.interface import MeasuredJob, Predictor
from precision_time.predictors.published import published_jobs
from precision_time.predictors.registry import PREDICTORS, current_name, predictor_class
from precision_time.predictors.runs import read_runs
from precision_time.reading import LARGEST_SAVED, read_bytes, read_json, to_json
from precision_time.report.write import PART, make_folder, write_whole

PUBLISHED, RUNS = "published", "runs"
LEARNS_FROM: dict[str, tuple[str, ...]] = {
    "boosting": (PUBLISHED,),
    "boosting-residual": (PUBLISHED,),
    "additive": (RUNS,),
    "predictddl": (RUNS, PUBLISHED),
    "ernest": (RUNS,),
}
"""Rows that each predictor is trained on, the necessary ones first; the simulator needs none."""
CARD = "trained.json"
LOCK = ".train.lock"
"""File in the output folder by which one process holds it."""
FILES = "files"
"""Key of the card: SHA-256 of each file beside it."""


def load_trained(name: str, folder: Path | None) -> Predictor:
    """The predictor that was trained into `folder`. Raises a `PredictorError` where there is none."""
    name, cls = current_name(name), predictor_class(name)
    if name == "simulator":
        return cls()
    if folder is None:
        raise PredictorError(
            f"predictor {name!r} has to be trained first; run precision-time train {name} --output FOLDER, then add "
            "--trained FOLDER"
        )
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
    progress: Callable[[int, int], None] = lambda done, of: None,
    allow_code: bool = False,
) -> dict[str, dict[str, object]]:
    """Train predictors (all of them where none is named) and save them below `folder`; what each cost, by name.

    `tables` is the folder with `published/measurements.csv`, `runs` a folder of `precision-time runs`; both default to
    the `data/` of the repository. Each predictor is written whole or not at all, and no other process writes to the
    folder meanwhile. Raises a `PredictorError` where a predictor has no rows to learn from, a `DataError` where another
    process trains into the folder. Models of the table that are Python files run only with `allow_code`.
    """
    names = [current_name(name) for name in names] or [name for name in PREDICTORS if name != "simulator"]
    if "simulator" in names:
        raise PredictorError("predictor 'simulator' needs no training; leave it out")
    for name in names:
        predictor_class(name)
        if (folder / name).exists() and not (folder / name / CARD).is_file():
            raise PredictorError(f"folder {str(folder / name)!r} is no trained predictor; name another --output")
    rows = _rows({kind for name in names for kind in LEARNS_FROM[name]}, tables, runs, allow_code)
    if lacking := [name for name in names if not rows[LEARNS_FROM[name][0]]]:
        raise PredictorError(
            f"{', '.join(lacking)}: trained on published rows; name the folder that has {STEPS} with --tables"
        )
    cards: dict[str, dict[str, object]] = {}
    with held(make_folder(folder, "output", parents=True) / LOCK, f"output {str(folder)!r}"):
        for left in folder.glob(f"{PART}*"):  # of a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        for done, name in enumerate(names):
            progress(done, len(names))
            cards[name] = _train(name, folder, [m for kind in LEARNS_FROM[name] for m in rows[kind]])
    return cards


def _rows(kinds: set[str], tables: str | None, runs: str | None, allow_code: bool) -> dict[str, Sequence[MeasuredJob]]:
    """The measured jobs of each kind. Raises a `PredictorError` where a named folder, or the real runs, are missing."""
    data = data_folder(tables)
    if tables is not None and (data is None or not (data / STEPS).is_file()):
        raise PredictorError(f"folder {tables!r} has no {STEPS}; name the folder that has")
    published = published_jobs(data / STEPS, allow_code=allow_code) if data is not None and PUBLISHED in kinds else ()
    return {RUNS: read_runs(runs) if RUNS in kinds else (), PUBLISHED: published}


def _train(name: str, folder: Path, measured: Sequence[MeasuredJob]) -> dict[str, object]:
    start = time.monotonic()
    predictor = predictor_class(name)()
    predictor.fit(measured)
    cost = predictor.cost()
    card: dict[str, object] = {
        "predictor": name,
        "rows": len(measured),
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
