"""Real runs of small networks, as `precision-time runs` collects them, as measured jobs."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from precision_time.errors import PrecisionTimeError, PredictorError
from precision_time.job.job import Job
from precision_time.measurements.repository import data_folder
from precision_time.predictors.interface import MeasuredJob
from precision_time.zoo.catalog import ENTRIES

FOLDER = "small_networks"
"""Folder of the runs below `data/` of the repository; its README.md is the data card."""
TABLE, DEVICE = "runs.csv", "device.json"
_NEEDED = (
    "id",
    "model",
    "model_config",
    "input",
    "batch_size",
    "gpus",
    "gpu",
    "precision",
    "optimizer",
    "dataset",
    "samples",
    "pass_s",
    "spread",
    "cost_s",
)


def read_runs(path: str | Path | None = None) -> tuple[MeasuredJob, ...]:
    """The jobs of a folder (or its runs.csv), by default of `data/small_networks` in the repository.

    `seconds` is the median pass over `job.run.samples` pictures, warm-up not counted; `cost_s` what all its repeats
    took with building and warm-up. Where the folder has the device file of its machine, the jobs name it as `device`.
    Raises a `PredictorError` for a table that cannot be read.
    """
    folder = _repository_runs() if path is None else Path(path)
    table = folder / TABLE if folder.is_dir() else folder
    device = table.parent / DEVICE
    try:
        with table.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise PredictorError(
                    f"{table} has no column {missing[0]}, so it is no table of runs; `precision-time runs` makes one"
                )
            return tuple(
                _measured(cells, str(device) if device.is_file() else None, f"{table}, line {line}")
                for line, cells in enumerate(reader, 2)
            )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PredictorError(
            f"runs {str(table)!r} cannot be read ({type(error).__name__}); name a folder of `precision-time runs`"
        ) from error


def _repository_runs() -> Path:
    data = data_folder()
    if data is None or not (data / FOLDER / TABLE).is_file():
        raise PredictorError(
            f"there is no data/{FOLDER}/{TABLE} here, which only a checkout of the repository has; name a folder of "
            "`precision-time runs` (--real-runs)"
        )
    return data / FOLDER


def _measured(cells: Mapping[str, str], device: str | None, where: str) -> MeasuredJob:
    try:
        job = Job.from_dict(
            {
                **{word: cells[word] for word in ("model", "model_config", "input", "precision", "gpu", "optimizer")},
                "batch_size": int(cells["batch_size"]),
                "gpus": int(cells["gpus"]),
                "device": device,
                "run": {"samples": int(cells["samples"]), "dataset": cells["dataset"]},
            }
        )
        entry = ENTRIES.get(job.model)
        seconds, cost_s = float(cells["pass_s"]), float(cells["cost_s"] or 0.0)
        spread = float(cells["spread"]) if cells["spread"] else None
    except (PrecisionTimeError, ValueError, TypeError) as error:
        raise PredictorError(f"{where}: {error}; correct the line, or measure again") from error
    if not (math.isfinite(seconds) and seconds > 0.0):
        raise PredictorError(f"{where}: pass_s is {cells['pass_s']}; give seconds above 0")
    return MeasuredJob(
        cells["id"], job, seconds, entry.family if entry else "unknown", cells["dataset"], cost_s, spread
    )
