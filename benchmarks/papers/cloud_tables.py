"""The runs published with CherryPick: analytics jobs on clusters of virtual machines, as tables for the searches.

The file is `data/cloud-configurations/runs.csv`. Two encodings: `authors`, the five variables of the authors' public
code, and `totals`, ours.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precision_time.errors import DataError, PredictorError, nearest
from precision_time.predictors.cloud_search import Configurations, table_of

FILE = Path("cloud-configurations") / "runs.csv"
JOBS = ("kmeans", "spark", "terasort", "tpcds", "tpch")
"""The five jobs of the paper; spark is its regression."""

SMALLEST_CLUSTER_CORES = 16
"""The authors' code leaves clusters of so many cores out; 66 configurations remain where all were measured."""
VOLUME_USD_PER_HOUR = 0.12 * 500 / (30 * 24)
"""Of a machine's network disks in the authors' code: 500 GB at 0.12 USD a month. runs.csv has no price of storage."""


@dataclass(frozen=True, slots=True)
class CloudRun:
    """One line of the file. RAM in GB of one machine, price in USD per hour of one machine."""

    job: str
    vm: str
    cpus: int
    ram_gb: float
    fast_cpu: bool
    vm_usd_per_hour: float
    local_disk: bool
    disk_count: int
    machines: int
    seconds: float

    @property
    def family(self) -> str:
        return self.vm.partition(".")[0]

    @property
    def cores(self) -> int:
        """Of the whole cluster."""
        return self.cpus * self.machines

    def price_per_s(self, storage: bool) -> float:
        """USD per second of the cluster."""
        volumes = VOLUME_USD_PER_HOUR if storage and not self.local_disk else 0.0
        return (self.vm_usd_per_hour + volumes) * self.machines / 3600.0


def read_cloud_runs(data: Path) -> tuple[CloudRun, ...]:
    """All runs below the data folder. Raises a `DataError` where the file cannot be read."""
    path = data / FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(_run(line) for line in csv.DictReader(file))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"file {str(path)!r} holds no cloud runs ({type(error).__name__}: {error}); see its README for the columns"
        ) from error


def _run(line: Mapping[str, str]) -> CloudRun:
    return CloudRun(
        line["job"],
        line["vm"],
        int(line["cpus"]),
        float(line["ram_gb"]),
        line["cpu_speed"] == "fast",
        float(line["vm_usd_per_hour"]),
        line["disk"] == "local",
        int(line["disk_count"]),
        int(line["machines"]),
        float(line["time_s"]),
    )


def authors(run: CloudRun) -> dict[str, float]:
    """CPU speed, cores of a machine, of the cluster, disk speed, and RAM per core in three classes."""
    per_core = run.ram_gb / run.cpus
    return {
        "fast_cpu": float(run.fast_cpu),
        "cpus": run.cpus,
        "cores": run.cores,
        "local_disk": float(run.local_disk),
        "ram_class": float(per_core > 3.0) + float(per_core > 6.0),
    }


def totals(run: CloudRun) -> dict[str, float]:
    """What the cluster has in all, and of what size: a job that needs so much memory sees it in one feature."""
    return {
        "fast_cpu": float(run.fast_cpu),
        "log_cpus": math.log(run.cpus),
        "log_cores": math.log(run.cores),
        "log_ram": math.log(run.ram_gb * run.machines),
        "local_disk": float(run.local_disk),
        "log_ram_per_core": math.log(run.ram_gb / run.cpus),
    }


ENCODINGS = {"authors": authors, "totals": totals}


def cloud_configurations(
    runs: tuple[CloudRun, ...], job: str, *, encoding: str = "authors", as_authors: bool = False
) -> Configurations:
    """The table of a job. `as_authors` drops the smallest clusters and adds the price of storage, as their code does.

    Coordinates are those of the paper's coordinate descent: family (memory per core, disk), machine size, cluster size.
    """
    if encoding not in ENCODINGS:
        raise PredictorError(f"encoding {encoding!r} is unknown; use one of {', '.join(ENCODINGS)}")
    chosen = [r for r in runs if r.job == job and not (as_authors and r.cores <= SMALLEST_CLUSTER_CORES)]
    if not chosen:
        raise PredictorError(f"job {job!r} has no cloud runs; nearest: {nearest(job, {r.job for r in runs})}")
    return table_of(
        [ENCODINGS[encoding](r) for r in chosen],
        [f"{r.machines} x {r.vm}" for r in chosen],
        [r.price_per_s(as_authors) for r in chosen],
        [(r.family, r.cpus, r.cores) for r in chosen],
        [r.seconds for r in chosen],
    )
