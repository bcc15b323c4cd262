"""Measured rows traced once: everything of a whole training step that does not depend on the fitted factors."""

from __future__ import annotations

import dataclasses
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
from precision_time.timing.price import PricedProgram, price

TRUST_WEIGHT = {"A": 1.0, "B": 0.6, "C": 0.1}
"""Rows of trust C (other frameworks' kernels, loose or host-bound) only help to settle the execution factors."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A row with everything that does not depend on the factors."""

    row: Row
    job: Job
    step: TrainingStep
    program: RankProgram
    cluster: Cluster
    options: WorkOptions
    weight: float


def cases(
    rows: Iterable[Row], progress: Callable[[int], None] = lambda done: None, precision: str | None = None
) -> list[Case]:
    """The rows that can be expressed, traced; with a `precision`, every job as if it ran in this one."""
    found = []
    for done, row in enumerate(rows, 1):
        progress(done)
        if row.job is None:
            continue
        job = row.job if precision is None else row.job.replace(precision=precision)
        step = training_step(job)
        cluster = default_catalog().cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
        program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
        options = WorkOptions(tf32=step.precision.tf32, channels_last=job.memory_format == "nhwc")
        weight = TRUST_WEIGHT.get(row.trust, TRUST_WEIGHT["C"])
        found.append(Case(row, job, step, program, cluster, options, weight))
    return _balanced(found)


def _balanced(found: list[Case]) -> list[Case]:
    """Rows of one model, GPU and precision are near copies: together they weigh as the root of their number."""
    sizes: dict[tuple[str, str, str], int] = {}
    for case in found:
        key = (case.row.model, case.row.gpu, case.row.precision)
        sizes[key] = sizes.get(key, 0) + 1
    return [
        dataclasses.replace(c, weight=c.weight / sizes[(c.row.model, c.row.gpu, c.row.precision)] ** 0.5) for c in found
    ]


def run(case: Case, constants: StepConstants) -> tuple[PricedProgram, Timeline]:
    priced = price(case.program, case.cluster, case.options, case.job.execution, constants)
    return priced, simulate(priced)
