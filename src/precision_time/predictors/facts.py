"""What a job has to do on its cluster, counted: the raw material of features, without any measured step.

Seconds here are physical bounds (operations over dense peak, bytes over bandwidth) or the hand-set costs of a host;
nothing in this module was fitted to whole training steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import BYTES_PER_ELEMENT, Phase
from precision_time.capture.training_step import training_step
from precision_time.errors import PredictorError
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.layered_prediction import is_layered, program_of
from precision_time.layout.data_parallel import data_parallel
from precision_time.layout.layered_program import CollectiveOp, LayeredProgram
from precision_time.layout.rank_program import OpSignatures, Segment
from precision_time.prediction import cluster_of
from precision_time.timing.collectives import collective_seconds
from precision_time.timing.constants import StepConstants
from precision_time.timing.host import HostCosts
from precision_time.timing.kernels import compute_peak
from precision_time.timing.layer_times import busiest_stage, time_layers
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import KindWorks, collective, host_of, kind_works, machine
from precision_time.timing.step_factors import GROUPS
from precision_time.timing.work import HELPERS

Array = NDArray[np.float64]

CLASSES = ("fp64", "fp32", "tf32", "half", "fp8")
"""dtype classes of arithmetic, as kernels know them."""
_FLOATS = ("fp64", "fp64_matrix", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Peaks that a training step may come near."""
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
_PLAIN = StepConstants()
"""No factor that was fitted to whole steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One optimizer step of the busiest rank of a job. Equal to itself alone, so that what follows from it can be kept.

    roofs             (group of kernels, dtype class) -> seconds at the roofline: per kernel the larger of operations
                      over dense peak and bytes over memory bandwidth; "helpers" are transposes a library may add
    flops             dtype class -> FLOP
    matrix_flops      FLOP on matrix units, weighted by the peak they have there over the best peak of the device
    bytes, fp32_bytes device memory traffic; what it would be with every number in fp32 and no casts
    cast_bytes, casts traffic and number of casts; `scaling_bytes`, `scalings` of what loss scaling adds
    kernels, host_s   kernels launched; seconds the host takes to launch them
    backward_s        roofline seconds of the backward pass behind which gradients travel
    wire_bytes        gradients reduced, in the dtype really sent; `gradient_bytes` of one element of them
    wire_s            seconds of the collectives over data-parallel ranks, each alone
    inner_s           seconds of collectives that layers wait for (tensor, context, expert ranks), each alone
    bubble            pipeline: share of the step that a stage waits for others
    """

    roofs: Mapping[tuple[str, str], float]
    flops: Mapping[str, float]
    matrix_flops: float
    bytes: float
    fp32_bytes: float
    cast_bytes: float
    casts: float
    scaling_bytes: float
    scalings: float
    kernels: float
    host_s: float
    backward_s: float
    parameters: float
    wire_bytes: float
    gradient_bytes: float
    wire_s: float
    inner_s: float
    bubble: float
    batch: int
    micro_steps: int
    cluster: Cluster
    execution: str
    family: str

    @property
    def roof_s(self) -> float:
        """Roofline seconds of all kernels, helpers apart."""
        return sum(seconds for (group, _), seconds in self.roofs.items() if group != HELPERS)

    @property
    def ranks(self) -> int:
        return self.cluster.gpus

    @property
    def in_turns(self) -> bool:
        """The host runs the kernels itself, one after another (a CPU): nothing is launched ahead."""
        return self.cluster.gpu.device_type == "cpu"


@dataclass(frozen=True, slots=True)
class JobKey:
    """A job by its words, its run apart: jobs hold tables, so they have no hash of their own. `device` is the state of
    its device file, which may be calibrated anew."""

    words: str
    device: tuple[int, int] | None
    job: Job = field(compare=False)

    @classmethod
    def of(cls, job: Job) -> JobKey:
        return cls(json.dumps({**job.to_dict(), "run": None}, sort_keys=True), _state(job.device), job)


def _state(device: str | None) -> tuple[int, int] | None:
    try:
        found = os.stat(device) if device else None
    except OSError:  # whoever reads it says what is wrong
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)


def facts_of(job: Job) -> Facts:
    """The facts of a job, kept for its next question unless files that may change stand behind it.

    Raises what `predict` raises for a job that cannot be.
    """
    if job.schedule:
        raise PredictorError(
            "precision is a schedule, and a predictor's features are those of one precision; ask for each part alone"
        )
    if ":" in job.model or ".py" in job.model:
        return _count(job)
    return _kept(JobKey.of(job))


@lru_cache(maxsize=4096)
def _kept(key: JobKey) -> Facts:
    return _count(key.job)


def _count(job: Job) -> Facts:
    precision = job.precision_spec
    cluster = cluster_of(job)
    compute_peak(cluster.gpu, precision.math, "")
    options = WorkOptions(tf32=precision.tf32, channels_last=job.memory_format == "nhwc")
    if is_layered(job):
        return _layered(job, cluster, options)
    step = training_step(job, precision, cluster.gpu.device_type)
    program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
    runs = (
        (program.micro, program.micro_steps), (program.accumulate, program.micro_steps - 1),
        (program.bucket_copies, program.synced_micro_steps), (program.tail, 1),
    )  # fmt: skip
    sent = np.array([bucket.nbytes for bucket in program.buckets], dtype=np.float64)
    wire_s = 0.0
    if len(sent):
        wire_s = float(collective("all_reduce", sent, cluster).seconds.sum())
    elements = sum(bucket.elements for bucket in program.buckets)
    synced = program.synced_micro_steps
    return _facts(
        job, program.kinds, runs, cluster, options,
        parameters=step.parameter_count,
        wire_bytes=float(sent.sum()) * synced,
        gradient_bytes=float(sent.sum()) / elements if elements else 0.0,
        wire_s=wire_s * synced,
        window=synced / program.micro_steps,
        batch=step.batch_size,
        host=host_of(job.execution, machine(cluster), _PLAIN, 1.0),
        family=step.family,
    )  # fmt: skip


Runs = Sequence[tuple[Segment, int]]
"""Segments and how often each runs in a step."""


def _facts(
    job: Job, kinds: OpSignatures, runs: Runs, cluster: Cluster, options: WorkOptions, *, parameters: float,
    wire_bytes: float, gradient_bytes: float, wire_s: float, window: float, batch: int, host: HostCosts, family: str,
    inner_s: float = 0.0, bubble: float = 0.0,
) -> Facts:  # fmt: skip
    found = kind_works(kinds, options)
    table, gpu, owner = found.table, cluster.gpu, found.owner
    phases = _calls(kinds, runs)
    times = phases.sum(axis=1)[owner]
    peaks = np.array([compute_peak(gpu, math, kind) for _, _, math, kind in table.classes])
    best = max(gpu.peaks.get(name, 0.0) for name in _FLOATS) or max(gpu.peaks.values())
    clock = cluster.node.clock_factor
    peak = peaks[table.class_of]
    roof = np.maximum(table.flops / peak, table.bytes / gpu.memory_bytes_per_s) / clock
    roofs: dict[tuple[str, str], float] = {}
    flops = dict.fromkeys(CLASSES, 0.0)
    count = len(table.classes)
    by_class = np.bincount(table.class_of, weights=roof * times, minlength=count)
    flops_of = np.bincount(table.class_of, weights=table.flops * times, minlength=count)
    helper_s = table.serial_bytes / gpu.memory_bytes_per_s / clock
    helping = np.bincount(table.class_of, weights=helper_s * times, minlength=count)
    matrix_flops = 0.0
    for i, (kernel, variant, math, kind) in enumerate(table.classes):
        group = _GROUP_OF.get(kernel) or _GROUP_OF.get(f"{kernel}.{variant.rpartition('.')[2]}") or kernel
        roofs[group, kind] = roofs.get((group, kind), 0.0) + float(by_class[i])
        if helping[i]:
            roofs[HELPERS, kind] = roofs.get((HELPERS, kind), 0.0) + float(helping[i])
        flops[kind] += float(flops_of[i])
        if math not in ("vector", "fp32") and peaks[i] > gpu.peaks.get("fp32", 0.0):
            matrix_flops += float(flops_of[i] * peaks[i] / best)
    cast = found.is_cast
    total = phases.sum(axis=1)
    unscale = phases[:, Phase.UNSCALE]
    per_kind = np.bincount(owner, weights=roof, minlength=len(kinds))
    return Facts(
        roofs=roofs,
        flops=flops,
        matrix_flops=matrix_flops,
        bytes=float((total * found.nbytes).sum()),
        fp32_bytes=float((total * found.nbytes * _widened(kinds))[~cast].sum()),
        cast_bytes=float((total * found.nbytes)[cast].sum()),
        casts=float(total[cast].sum()),
        scaling_bytes=float((unscale * found.nbytes).sum()),
        scalings=float((unscale * found.launches).sum()),
        kernels=float((total * found.launches).sum()),
        host_s=host.step_s + _host_seconds(host, kinds, found, runs),
        backward_s=float((phases[:, Phase.BACKWARD] * per_kind).sum()) * window,
        parameters=float(parameters),
        wire_bytes=wire_bytes,
        gradient_bytes=gradient_bytes,
        wire_s=wire_s,
        inner_s=inner_s,
        bubble=bubble,
        batch=batch,
        micro_steps=job.grad_accum,
        cluster=cluster,
        execution=job.execution,
        family=family,
    )


def _calls(kinds: OpSignatures, runs: Runs) -> Array:
    """How often each kind runs in a step, by phase."""
    width = len(Phase)
    total = np.zeros(len(kinds) * width)
    for segment, times in runs:
        if len(segment) and times > 0:
            total += np.bincount(segment.kind * width + segment.phase, minlength=len(total)) * times
    return total.reshape(len(kinds), width)


def _host_seconds(host: HostCosts, kinds: OpSignatures, found: KindWorks, runs: Runs) -> float:
    per_kind = host.per_kind(kinds, found.launches)
    return float(sum(host.of(segment, per_kind).sum() * times for segment, times in runs if len(segment) and times > 0))


@lru_cache(maxsize=256)
def _widened(kinds: OpSignatures) -> Array:
    """Bytes of each kind's tensors with every narrow float in four bytes, over their bytes."""
    factors = np.ones(len(kinds))
    for i, kind in enumerate(kinds):
        now = wide = 0.0
        for spec in (*kind.inputs, *kind.outputs):
            now += spec.nbytes
            narrow = spec.dtype.startswith(("float", "bfloat")) and BYTES_PER_ELEMENT[spec.dtype] < 4
            wide += spec.numel * 4.0 if narrow else spec.nbytes
        factors[i] = wide / now if now else 1.0
    return factors


# --- layouts beyond plain data parallelism


def _layered(job: Job, cluster: Cluster, options: WorkOptions) -> Facts:
    step, program = program_of(job, job.precision_spec, cluster.gpu.device_type)
    # Priced to know which stage has the most to do and how long each collective takes; its seconds are not used.
    timed = time_layers(program, cluster, options, job.execution, _PLAIN)
    stage = busiest_stage(program, timed.units)
    runs: list[tuple[Segment, int]] = [
        (stage.tail, 1), (stage.accumulate, program.micro_batches - 1), (stage.copies, program.reductions)
    ]  # fmt: skip
    inner_s = wire_s = 0.0
    for chunk in stage.chunks:
        for index, repeat, again in chunk.units:
            unit, data = program.units[index], timed.unit_data[index]
            runs += [(unit.forward, repeat * program.micro_batches), (unit.backward, repeat * program.micro_batches)]
            runs += [(unit.recompute, again * program.micro_batches)]
            exchanged = _exchange_s(program, cluster, (*unit.forward_collectives, *unit.backward_collectives)) * repeat
            exchanged += _exchange_s(program, cluster, unit.recompute_collectives) * again
            inner_s += exchanged * program.micro_batches
            if program.layout.zero >= 3:
                wire_s += (2.0 * data.gather_s + data.reduce_s) * repeat * program.micro_batches
    if program.layout.zero < 3:
        data = timed.stage_data[program.stages.index(stage)]
        wire_s = data.gather_s + data.reduce_s * program.reductions
    layout = program.layout
    waits = (layout.pp - 1) / max(layout.vpp, 1)
    wire = (stage.dense_trainable + stage.expert_trainable) * program.gradient_bytes * program.reductions
    return _facts(
        job, program.kinds, runs, cluster, options,
        parameters=step.parameter_count,
        wire_bytes=float(wire) if layout.dp > 1 else 0.0,
        gradient_bytes=float(program.gradient_bytes) if layout.dp > 1 else 0.0,
        wire_s=wire_s,
        window=program.reductions / program.micro_batches,
        batch=step.batch_size,
        host=host_of(job.execution, machine(cluster), _PLAIN, 1.0),
        family=step.family,
        inner_s=inner_s + 2.0 * timed.send_s * program.micro_batches,
        bubble=waits / (waits + program.micro_batches),
    )  # fmt: skip


def _exchange_s(program: LayeredProgram, cluster: Cluster, exchanges: Sequence[CollectiveOp]) -> float:
    return sum(seconds for seconds in _each_exchange(program, cluster, exchanges))


def _each_exchange(program: LayeredProgram, cluster: Cluster, exchanges: Sequence[CollectiveOp]) -> Iterator[float]:
    for each in exchanges:
        size, stride = program.groups.get(each.group, (1, 1))
        if size > 1:
            group = cluster.group(size, stride)
            yield each.times * float(collective_seconds(each.collective, float(each.nbytes), group).seconds)
