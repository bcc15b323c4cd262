"""The line for layouts beyond plain data parallelism: the same stages, on one rank's units instead of all operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from precision_time.capture.layered_step import LayeredStep, layered_step
from precision_time.estimate.assemble import assemble, process_bytes, step_terms
from precision_time.estimate.correction import Correction
from precision_time.estimate.layered_memory import layered_memory
from precision_time.estimate.spread import LAYOUTS
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.prices import Rental
from precision_time.ingest.pipeline.job_loader import loader_of
from precision_time.job.job import Job
from precision_time.job.precision import Precision
from precision_time.layout.layered_program import LayeredProgram
from precision_time.layout.layers import Options, layered_program
from precision_time.timeline.layers import simulate_layers
from precision_time.timeline.layers_trace import layers_trace_events
from precision_time.timeline.pipeline import held_in_flight
from precision_time.timing.constants import StepConstants
from precision_time.timing.layer_times import time_layers
from precision_time.timing.operators import WorkOptions

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate
    from precision_time.estimate.memory import Memory


def is_layered(job: Job) -> bool:
    """Whether a job needs more than the line of plain data parallelism."""
    plain = job.layout_spec.plain and job.recompute == "none" and job.framework == "pytorch"
    return not plain or job.attention in ("triton", "flash2")


def program_of(job: Job, precision: Precision, device_type: str) -> tuple[LayeredStep, LayeredProgram]:
    """A rank's operators at its local shapes, in units that repeat, and the program of every distinct stage."""
    step = layered_step(job, precision, device_type)
    return step, layered_program(step, job.layout_spec, options_of(job))


Correct = Callable[[LayeredStep, Mapping[str, float]], tuple[Correction, tuple[str, ...]]]
"""What measured jobs say of a step with such terms."""


def predict_layers(
    job: Job, precision: Precision, cluster: Cluster, constants: StepConstants | None, correct: Correct,
    rental: Rental | None = None,
) -> Estimate:  # fmt: skip
    """The estimate of a job in any layout."""
    # 2. and 3. What runs on one rank, and who exchanges what with whom.
    step, program = program_of(job, precision, cluster.gpu.device_type)
    # 4. Seconds on every pass of every unit and on every collective.
    works = WorkOptions(tf32=precision.tf32, channels_last=job.memory_format == "nhwc")
    timed = time_layers(program, cluster, works, job.execution, constants)
    # 5. Streams and stages: what waits for what.
    timeline = simulate_layers(timed)
    # 6. What the fullest stage holds.
    memory = layered_memory(
        step, program, options_of(job), in_flight(job), cluster.gpu.memory_bytes, process_bytes(cluster)
    )  # fmt: skip
    # 7. The loader beside training, where the job says what it reads; and what measured jobs like this one say.
    loader, filled = loader_of(job, step, cluster) if job.data else (None, ())
    correction, unheard = correct(step, step_terms(timeline))
    events = partial(layers_trace_events, timeline, timed, job.signature())
    said = (*_said(job, step, precision), *filled, *unheard)
    return assemble(
        job,
        step,
        timed,
        timeline,
        memory,
        cluster,
        events,
        said,
        correction,
        judged_by=LAYOUTS,
        rental=rental,
        loader=loader,
    )


def options_of(job: Job) -> Options:
    """What of a job, beside its layout, decides the program."""
    return Options(
        job.grad_accum, job.recompute, job.recompute_layers, job.communication_dtype, job.framework, job.loss_scale,
        job.no_sync,
    )  # fmt: skip


def in_flight(job: Job) -> list[int]:
    """(Micro-batch, chunk) pairs whose activations each stage holds at most."""
    layout = job.layout_spec
    if layout.pp == 1:
        return [1]
    return [int(n) for n in held_in_flight(layout.schedule, layout.pp, layout.vpp, job.grad_accum)]


def layers_memory(job: Job, precision: Precision, cluster: Cluster) -> Memory:
    """The memory of a job in any layout, without its time."""
    step, program = program_of(job, precision, cluster.gpu.device_type)
    return layered_memory(
        step, program, options_of(job), in_flight(job), cluster.gpu.memory_bytes, process_bytes(cluster)
    )


def _said(job: Job, step: LayeredStep, precision: Precision) -> tuple[str, ...]:
    """What was filled in, in words."""
    said: list[str] = list(step.layers.graph.assumptions)
    layout = job.layout_spec
    defaults = [f"{k} {v}" for k, v in step.sizes.items() if k not in job.input and k != "batch_size"]
    if job.batch_size is None:
        defaults.insert(0, f"batch {step.batch_size}")
    if job.optimizer is None:
        defaults.append(f"optimizer {step.optimizer}")
    if defaults:
        said.append(f"the model's defaults: {', '.join(defaults)}")
    if layout.ep > 1 and layout.expert_imbalance == 1.0:
        said.append("experts: tokens are spread evenly (layout expert_imbalance says otherwise)")
    if layout.pp > 1:
        said.append(f"{job.grad_accum} micro-batches a step (grad_accum) in schedule {layout.schedule}")
    if precision.loss_scaling:
        said.append("loss scaling: no skipped steps counted")
    said.append(f"{'' if job.data else 'data loading keeps up; '}energy from the board's power limit")
    return tuple(said)
