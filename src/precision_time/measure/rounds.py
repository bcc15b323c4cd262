"""A calibration that is repeated between the runs it is held against: for machines whose speed drifts within minutes.

What is predicted and what is measured then see the same stretch of time, in turns; a single calibration before all runs
would hold the machine of one quarter of an hour against that of the next.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from precision_time.hardware.catalog import Catalog
from precision_time.job.job import Job
from precision_time.measure.calibrate import Machine, calibrate, catalog_of, device_name, measure_kernels
from precision_time.measure.point import COLUMNS

OWN_BUDGET_S = 60.0
"""Seconds for the operators of the jobs in every further round."""
_SECONDS, _SPREAD = COLUMNS.index("seconds"), COLUMNS.index("spread")
Report = Callable[[int, int], None]


class Rounds:
    """One whole calibration, then the operators of the jobs and the host again at will: each at its median."""

    def __init__(
        self, here: Machine, jobs: Sequence[Job], budget_s: float, report: Report = lambda done, total: None
    ) -> None:
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
        """The catalog with this machine as all rounds together have found it."""
        return catalog_of(self.content)

    def again(self) -> Catalog:
        """Measure the operators of the jobs and the host's costs once more; the catalog with the medians."""
        found = measure_kernels(self._here, OWN_BUDGET_S, lambda done, total: None, self._jobs, families=False)
        for row in found["rows"]:
            self._times.setdefault(_key(row), []).append(row[_SECONDS])
        for row in self._rows:
            row[_SECONDS] = statistics.median(self._times[_key(row)])
        for key, values in self._costs.items():
            values.append(found["host"][key])
            self._host[key] = round(statistics.median(values), 4)
        return self.catalog()


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    """What a row measured, without how long it took."""
    return tuple(value for index, value in enumerate(row) if index not in (_SECONDS, _SPREAD))
