"""Real runs of small networks, as `precision-time runs` collects them, as measured jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from precision_time.errors import PrecisionTimeError, PredictorError
from precision_time.field_types import SECONDS, number
from precision_time.job.job import Job
from precision_time.measurements.repository import data_folder
from precision_time.predictors.interface import MeasuredJob
from precision_time.reading import read_records
from precision_time.zoo.names import find

FOLDER = "small_networks"
"""Folder of the runs below `data/` of the repository; its README.md is the data card."""
_PASS = number(1e-9, 1e9, "seconds")
_SPREAD = number(1e-9, 1e3, zero=True)
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
    Raises a `DataError` for a table that cannot be read, a `PredictorError` for a wrong row.
    """
    folder = _repository_runs() if path is None else Path(path)
    table = folder / TABLE if folder.is_dir() else folder
    device = table.parent / DEVICE
    where = str(device) if device.is_file() else None
    return tuple(
        _measured(cells, where, f"{table}, line {line}") for line, cells in read_records(table, _NEEDED, "runs")
    )


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
                "batch_size": cells["batch_size"],
                "gpus": cells["gpus"],
                "device": device,
                "run": {"samples": cells["samples"], "dataset": cells["dataset"]},
            }
        )
        entry = find(job.model)
        seconds = _PASS("pass_s", cells["pass_s"])
        cost_s = SECONDS("cost_s", cells["cost_s"] or 0.0)
        spread = _SPREAD("spread", cells["spread"]) if cells["spread"] else None
    except PrecisionTimeError as error:
        raise PredictorError(f"{where}: {error}; correct the line, or measure again") from error
    return MeasuredJob(
        cells["id"], job, seconds, entry.family if entry else "unknown", cells["dataset"], cost_s, spread
    )
