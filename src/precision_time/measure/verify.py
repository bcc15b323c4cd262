"""`verify`: predicts jobs on this machine, trains them here, and compares the two times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_time.errors import MeasureError
from precision_time.estimate.estimate import Estimate
from precision_time.hardware.catalog import Catalog
from precision_time.job.job import Job
from precision_time.measure.calibrate import NOISY, Machine, device_name, portable_fields
from precision_time.measure.launch import Report, launch, no_report
from precision_time.measure.train import check
from precision_time.prediction import predict

WARMUP_STEPS, STEPS, RUNS = 12, 60, 3
RUN_BUDGET_S = 9.0
"""Target seconds for the measured steps of one run; at least three steps are measured in any case."""

DEFAULT_JOBS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "cpu": (
        {"model": "resnet50", "model_config": {"depth": 18}, "input": {"image_size": 96}, "batch_size": 4},
        {"model": "gpt", "model_config": {"layers": 2, "hidden": 256, "heads": 4, "vocab": 4096},
         "input": {"seq_len": 128}, "batch_size": 2},
    ),
    "cuda": (
        {"model": "resnet50", "batch_size": 64},
        {"model": "gpt", "model_config": {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50304},
         "input": {"seq_len": 512}, "batch_size": 8},
    ),
}  # fmt: skip
"""The jobs of `verify` without arguments: a CNN and a transformer, small enough for the device."""
DEFAULT_PRECISIONS = ("fp32", "amp-bf16")


@dataclass(frozen=True, slots=True)
class Verified:
    """One job: its estimate, and the median step time of each run."""

    job: Job
    estimate: Estimate
    runs_s: tuple[float, ...]
    step_spread: float
    """Relative spread of the steps within a run (median over runs)."""

    @property
    def measured_s(self) -> float:
        return statistics.median(self.runs_s)

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.estimate.step.p50 / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured step time lies between P10 and P90."""
        return self.estimate.step.p10 <= self.measured_s <= self.estimate.step.p90

    @property
    def run_spread(self) -> float:
        """Largest over smallest run, minus one."""
        return max(self.runs_s) / min(self.runs_s) - 1.0

    def to_dict(self) -> dict[str, Any]:
        step = self.estimate.step
        return {
            "job": self.job.to_dict(),
            "ranks": self.job.gpus,
            "precision": self.job.precision,
            "p10_s": step.p10,
            "p50_s": step.p50,
            "p90_s": step.p90,
            "measured_s": self.measured_s,
            "runs_s": list(self.runs_s),
            "step_spread": self.step_spread,
            "run_spread": self.run_spread,
            "error": self.error,
            "inside": self.inside,
            "breakdown": dict(self.estimate.breakdown),
            "sources": dict(self.estimate.sources),
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """All jobs of one `verify`, and the noise of the machine."""

    rows: tuple[Verified, ...]
    machine: str
    noise: float
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def noisy(self) -> bool:
        """Whether equal measurements or runs differ by more than `NOISY`."""
        return max([self.noise, *(row.run_spread for row in self.rows)]) > NOISY

    @property
    def mape(self) -> float:
        """Mean absolute error relative to the measured times."""
        return statistics.mean(abs(row.error) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "versions": dict(self.versions),
            "noise": self.noise,
            "noisy": self.noisy,
            "n": len(self.rows),
            "mape": self.mape,
            "max_ape": max(abs(row.error) for row in self.rows),
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        from precision_time.measure.text import verification_text

        return verification_text(self)


def jobs_here(
    here: Machine, jobs: Sequence[Job], precisions: Sequence[str] = (), ranks: Sequence[int] = ()
) -> list[Job]:
    """`jobs` (or `DEFAULT_JOBS`) on this machine, in every precision and number of ranks.

    Raises `MeasureError` for a job that cannot be trained here.
    """
    bases = list(jobs) or [Job.from_dict(words) for words in DEFAULT_JOBS[here.device_type]]
    counts = list(ranks) or sorted({1, min(2, here.ranks)})
    for count in counts:
        if count > here.ranks:
            raise MeasureError(f"gpus is {count}, but {here.ranks} ranks were calibrated; use at most {here.ranks}")
    here_jobs = [
        base.replace(precision=precision, gpus=count, gpu=device_name(here), node=None, nodes=None, system=None)
        for base in bases
        for precision in (precisions or DEFAULT_PRECISIONS)
        for count in counts
    ]
    for job in here_jobs:
        check(job)
    return here_jobs


def verify(
    jobs: Sequence[Job],
    here: Machine,
    catalog: Catalog,
    runs: int = RUNS,
    steps: int = STEPS,
    report: Report = no_report,
    again: Callable[[], Catalog] | None = None,
) -> Verification:
    """Train every job `runs` times, and predict it with the calibrated device of `catalog`.

    The runs of the jobs take turns, so that slow drift of the machine affects all of them. `again` calibrates once more
    before each further turn (`rounds.Rounds.again`); predictions use the last catalog that it returned.
    """
    medians: list[list[float]] = [[] for _ in jobs]
    spreads: list[list[float]] = [[] for _ in jobs]
    for turn in range(runs):
        catalog = again() if again and turn else catalog
        for index, job in enumerate(jobs):
            times = _train(job, here, steps)
            middle = statistics.median(times)
            medians[index].append(middle)
            spreads[index].append(1.4826 * statistics.median(abs(t - middle) for t in times) / middle)
            report(turn * len(jobs) + index + 1, runs * len(jobs))
    estimates = [predict(job, catalog=catalog) for job in jobs]
    calibration = catalog.gpu(device_name(here)).calibration
    return Verification(
        tuple(
            Verified(job, estimate, tuple(each), statistics.median(spread))
            for job, estimate, each, spread in zip(jobs, estimates, medians, spreads, strict=True)
        ),
        calibration.machine if calibration else "",
        calibration.noise if calibration else 0.0,
        dict(calibration.versions) if calibration else {},
    )


def _train(job: Job, here: Machine, steps: int) -> list[float]:
    task = {
        "task": "train",
        "device": here.device_type,
        "job": portable_fields(job),
        "warmup": WARMUP_STEPS,
        "steps": steps,
        "budget_s": RUN_BUDGET_S,
    }
    result = launch(task, job.gpus, here.threads, timeout_s=1800.0)
    return [float(seconds) for seconds in result["steps_s"]]
