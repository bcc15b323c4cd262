"""Measured rows with their traced program: the part of a step time that does not depend on the fitted factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.layout.data_parallel import data_parallel
from precision_time.layout.rank_program import RankProgram
from precision_time.measurements.row import Row
from precision_time.timeline.simulate import Timeline, simulate
from precision_time.timing.constants import StepConstants
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import TimedProgram, time_program


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A measured row with its job, traced step, rank program, cluster and the options of operator work."""

    row: Row
    job: Job
    step: TrainingStep
    program: RankProgram
    cluster: Cluster
    options: WorkOptions


def cases(
    rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None, precision: str | None = None
) -> list[Case]:
    """The traced rows that are plain data-parallel jobs without recomputation.

    `precision` replaces the precision of every job. `progress` receives the number of rows done.
    """
    traced = []
    for done, row in enumerate(rows, 1):
        progress(done)
        if row.job is None or row.job.layout != "dp" or row.job.recompute != "none":
            continue
        job = row.job if precision is None else row.job.replace(precision=precision)
        step = training_step(job)
        cluster = default_catalog().cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
        program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
        options = WorkOptions(tf32=step.precision.tf32, channels_last=job.memory_format == "nhwc")
        traced.append(Case(row, job, step, program, cluster, options))
    return traced


def run(case: Case, constants: StepConstants) -> tuple[TimedProgram, Timeline]:
    """The timed program and the timeline of a case with these constants."""
    timed = time_program(case.program, case.cluster, case.options, case.job.execution, constants)
    return timed, simulate(timed)
