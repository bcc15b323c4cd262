"""Trained predictors in a folder: one folder each, of plain files. `precision-time train` writes it, `predict
--predictor NAME --trained FOLDER` reads it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from precision_time.errors import PredictorError
from precision_time.predictors.interface import MeasuredJob, Predictor
from precision_time.predictors.published import STEPS, published_jobs
from precision_time.predictors.registry import PREDICTORS, predictor_class
from precision_time.predictors.runs import read_runs

LEARNS_FROM: dict[str, tuple[str, ...]] = {
    "boosting": ("published",), "boosting-residual": ("published",), "additive": ("runs",),
    "predictddl": ("runs", "published"), "ernest": ("runs",),
}  # fmt: skip
"""Rows that each predictor is trained on; the main line needs none."""
CARD = "trained.json"


def trained(name: str, folder: Path | None) -> Predictor:
    """The predictor that was trained into `folder`. Raises a `PredictorError` where there is none."""
    cls = predictor_class(name)
    if name == "line":
        return cls()
    if folder is None:
        raise PredictorError(
            f"predictor {name!r} has to be trained first; run precision-time train {name} --output FOLDER, then add "
            "--trained FOLDER"
        )
    place = folder / name
    if not (place / CARD).is_file():
        known = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{CARD}"))) or "none"
        raise PredictorError(
            f"folder {str(folder)!r} holds no trained {name!r} (it holds: {known}); run precision-time train {name} "
            f"--output {folder}"
        )
    return cls.load(place)


def train(
    names: Sequence[str], folder: Path, shared: Path | None = None, runs: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, dict[str, object]]:  # fmt: skip
    """Train predictors on all rows they learn from and save them below `folder`; what each cost, by name.

    Each is written whole or not at all. Raises a `PredictorError` where a predictor has nothing to learn from.
    """
    if "line" in names:
        raise PredictorError("predictor 'line' is the product's own and needs no training; leave it out")
    names = names or [name for name in PREDICTORS if name != "line"]
    for name in names:
        predictor_class(name)
    if shared is not None and not (shared / STEPS).is_file():
        raise PredictorError(f"shared {str(shared)!r} has no {STEPS.as_posix()}; name the folder that has")
    rows = {"runs": read_runs(runs), "published": published_jobs(shared / STEPS) if shared else ()}
    if "published" in {kind for n in names for kind in LEARNS_FROM[n][:1]} and not rows["published"]:
        lacking = ", ".join(n for n in names if LEARNS_FROM[n][0] == "published")
        raise PredictorError(f"{lacking}: trained on published rows; name the folder that has {STEPS} with --shared")
    found: dict[str, dict[str, object]] = {}
    for done, name in enumerate(names):
        progress(name, done, len(names))
        found[name] = _train(name, folder, [m for kind in LEARNS_FROM[name] for m in rows[kind]])
    return found


def _train(name: str, folder: Path, measured: Sequence[MeasuredJob]) -> dict[str, object]:
    start = time.monotonic()
    predictor = predictor_class(name)()
    predictor.fit(measured)
    cost = predictor.cost()
    card: dict[str, object] = {
        "predictor": name, "rows": len(measured), "runs_charged": cost.runs,
        "measured_s": round(cost.measured_s, 1), "training_s": round(time.monotonic() - start, 1),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as beside:
        place = Path(beside) / name
        place.mkdir()
        predictor.save(place)
        (place / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        place.rename(folder / name)
    return card
