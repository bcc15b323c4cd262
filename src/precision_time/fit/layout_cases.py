"""Measured steps of layered jobs, ready to be timed again and again with other constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.assemble import spread_terms
from precision_time.estimate.spread import widening
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.layered_prediction import is_layered, program_of
from precision_time.layout.layered_program import LayeredProgram
from precision_time.measurements.row import Row
from precision_time.timeline.layers import simulate_layers
from precision_time.timing.constants import StepConstants
from precision_time.timing.layer_times import time_layers
from precision_time.timing.operators import WorkOptions


@dataclass(frozen=True, slots=True, eq=False)
class LayoutCase:
    """A measured row with its program and cluster."""

    row: Row
    program: LayeredProgram
    cluster: Cluster
    options: WorkOptions
    execution: str

    def widening(self, constants: StepConstants) -> float:
        """What the job itself adds to the standard deviation of log(step), in quadrature."""
        timed = time_layers(self.program, self.cluster, self.options, self.execution, constants)
        return widening(spread_terms(timed, simulate_layers(timed), self.cluster.gpu.arch))

    def seconds(self, constants: StepConstants) -> float:
        """Predicted seconds of the step with these constants."""
        timed = time_layers(self.program, self.cluster, self.options, self.execution, constants)
        return simulate_layers(timed).step_s


def layout_cases(rows: Iterable[Row], progress: Callable[[int], None] = lambda _: None) -> list[LayoutCase]:
    """The rows that are layered jobs and can be predicted. `progress` receives the number of rows done."""
    traced = []
    for done, row in enumerate(rows, 1):
        progress(done)
        job = row.job
        if job is None or job.schedule or not is_layered(job) or not row.measured_s > 0:
            continue
        try:
            cluster = default_catalog().cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
            _, program = program_of(job, job.precision_spec, cluster.gpu.device_type)
        except PrecisionTimeError:
            continue
        options = WorkOptions(tf32=job.precision_spec.tf32, channels_last=job.memory_format == "nhwc")
        traced.append(LayoutCase(row, program, cluster, options, job.execution))
    return traced
