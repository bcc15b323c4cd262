"""A calibration repeated between training runs, for machines whose speed drifts within minutes.

Predictions and measured runs then cover the same stretch of time. A single calibration before all runs would compare
the machine at two different times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from precision_time.hardware.catalog import Catalog
from precision_time.job.job import Job
from precision_time.measure.calibrate import Machine, calibrate, catalog_of, device_name, measure_kernels
from precision_time.measure.launch import Report, no_report
from precision_time.measure.point import COLUMNS

ROUND_BUDGET_S = 60.0
"""Seconds for the operators of the jobs in each further round."""
_SECONDS, _SPREAD = COLUMNS.index("seconds"), COLUMNS.index("spread")


class Rounds:
    """One whole calibration, then on request the operators of the jobs and the host again; medians over all rounds."""

    def __init__(self, here: Machine, jobs: Sequence[Job], budget_s: float, report: Report = no_report) -> None:
        self.content = calibrate(here, budget_s, report, jobs).content
        self._here, self._jobs = here, jobs
        calibration = self.content["gpus"][device_name(here)]["calibration"]
        self._rows: list[list[Any]] = calibration["kernels"]["rows"]
        self._host: dict[str, float] = calibration["host"]
        self._times: dict[tuple[Any, ...], list[float]] = {}
        self._costs: dict[str, list[float]] = {key: [value] for key, value in self._host.items()}
        for row in self._rows:
            self._times.setdefault(_key(row), []).append(row[_SECONDS])

    def catalog(self) -> Catalog:
        """The catalog with this machine at the medians of all rounds so far."""
        return catalog_of(self.content)

    def again(self) -> Catalog:
        """Measure the operators of the jobs and the host costs once more; returns the catalog with the new medians."""
        kernels = measure_kernels(self._here, ROUND_BUDGET_S, no_report, self._jobs, families=False)
        for row in kernels["rows"]:
            self._times.setdefault(_key(row), []).append(row[_SECONDS])
        for row in self._rows:
            row[_SECONDS] = statistics.median(self._times[_key(row)])
        for key, values in self._costs.items():
            values.append(kernels["host"][key])
            self._host[key] = round(statistics.median(values), 4)
        return self.catalog()


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    """All fields of a row but its times: what was measured."""
    return tuple(value for index, value in enumerate(row) if index not in (_SECONDS, _SPREAD))
