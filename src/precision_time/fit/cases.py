"""Measured rows traced once: everything of a whole training step that does not depend on the fitted factors."""

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
    """A row with everything that does not depend on the factors."""

    row: Row
    job: Job
    step: TrainingStep
    program: RankProgram
    cluster: Cluster
    options: WorkOptions


def cases(
    rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None, precision: str | None = None
) -> list[Case]:
    """The rows that can be expressed and predicted, traced; with a `precision`, every job as if it ran in this one."""
    found = []
    for done, row in enumerate(rows, 1):
        progress(done)
        if row.job is None or row.job.layout != "dp" or row.job.recompute != "none":  # no program for them yet
            continue
        job = row.job if precision is None else row.job.replace(precision=precision)
        step = training_step(job)
        cluster = default_catalog().cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
        program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
        options = WorkOptions(tf32=step.precision.tf32, channels_last=job.memory_format == "nhwc")
        found.append(Case(row, job, step, program, cluster, options))
    return found


def run(case: Case, constants: StepConstants) -> tuple[TimedProgram, Timeline]:
    timed = time_program(case.program, case.cluster, case.options, case.job.execution, constants)
    return timed, simulate(timed)
