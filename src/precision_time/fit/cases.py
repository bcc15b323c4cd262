"""Measured rows with their traced program: the part of a step time that does not depend on the fitted factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.errors import PrecisionTimeError
from precision_time.estimate.assemble import spread_terms
from precision_time.estimate.spread import in_new_framework, widening
from precision_time.fit.traced_rows import waits_for_others
from precision_time.hardware.fabric import Cluster
from precision_time.job.choices import NOT_PYTORCH
from precision_time.job.job import Job
from precision_time.layout.options import Options
from precision_time.layout.program import StepProgram
from precision_time.layout.step_program import step_program
from precision_time.measurements.row import Row
from precision_time.placement import cluster_of
from precision_time.prediction import work_options
from precision_time.timeline.simulate import simulate
from precision_time.timeline.timeline import Timeline
from precision_time.timing.constants import StepConstants
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import TimedProgram, time_program


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A measured row with its job, traced step, program, cluster and the options of operator work."""

    row: Row
    job: Job
    step: TrainingStep
    program: StepProgram
    cluster: Cluster
    options: WorkOptions

    def run(self, constants: StepConstants) -> tuple[TimedProgram, Timeline]:
        """The timed program and the timeline with these constants."""
        timed = time_program(self.program, self.cluster, self.options, self.job.execution, constants)
        return timed, simulate(timed)

    def seconds(self, constants: StepConstants) -> float:
        """Predicted seconds of the step with these constants."""
        return self.run(constants)[1].step_s

    def widening(self, constants: StepConstants, new_framework: bool = False) -> float:
        """What the job itself adds to the standard deviation of log(step), in quadrature. `new_framework`: no fitted
        step is of its framework."""
        timed, timeline = self.run(constants)
        terms = spread_terms(timed, timeline, self.cluster.gpu.arch)
        return widening(in_new_framework(terms) if new_framework else terms)


def case_of(row: Row, job: Job) -> Case:
    """A row traced as this job. Raises a `PrecisionTimeError` for a job that cannot be predicted."""
    cluster = cluster_of(job)
    step = training_step(job, job.precision_spec, cluster.gpu.device_type)
    program = step_program(step, job.layout_spec, Options.of(job))
    options = work_options(job, cluster.gpu)
    return Case(row, job, step, program, cluster, options)


def is_data_parallel(job: Job) -> bool:
    """Whether a job is what the step factors are fitted to: PyTorch's DDP without recomputation."""
    return job.layout_spec.plain and job.recompute == "none" and job.framework in ("pytorch", *NOT_PYTORCH)


def cases(
    rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None, precision: str | None = None
) -> list[Case]:
    """The traced rows that are data-parallel jobs (see `is_data_parallel`).

    `precision` replaces the precision of every job. `progress` receives the number of rows done.
    """
    traced = []
    for done, row in enumerate(rows, 1):
        progress(done)
        if row.job is not None and is_data_parallel(row.job):
            traced.append(case_of(row, row.job if precision is None else row.job.replace(precision=precision)))
    return traced


def fitted_to(cases: Iterable[Case]) -> list[Case]:
    """Those that factors on whole steps are fitted to: without rows that wait for more than kernels."""
    return [case for case in cases if not waits_for_others(case.row)]


def layout_cases(rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None) -> list[Case]:
    """The traced rows of all other layouts that can be predicted. `progress` receives the number of rows done."""
    traced = []
    for done, row in enumerate(rows, 1):
        progress(done)
        job = row.job
        if job is None or job.schedule or is_data_parallel(job) or not row.measured_s > 0:
            continue
        try:
            traced.append(case_of(row, job))
        except PrecisionTimeError:
            continue
    return traced
