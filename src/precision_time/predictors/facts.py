"""Counts of a job's operations, bytes, kernels and collectives: what features are made of, without any measured step.

Seconds of kernels are those of the curves fitted to kernel tables, seconds of launches the hand-set costs of a host:
nothing in this module was fitted to whole training steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT, Phase
from precision_time.capture.training_step import training_step
from precision_time.errors import PredictorError
from precision_time.fit.traced_rows import family_of
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.layout.options import Options
from precision_time.layout.program import CollectiveOp, StepProgram
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.layout.step_program import step_program
from precision_time.placement import cluster_of
from precision_time.prediction import work_options
from precision_time.predictors.kernel_sizes import class_peaks, kernel_sizes
from precision_time.timing.collectives import collective_seconds
from precision_time.timing.constants import StepConstants
from precision_time.timing.host import HostCosts
from precision_time.timing.kernels import compute_peak
from precision_time.timing.kind_works import KindWorks
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import time_program
from precision_time.timing.signature_times import TimedSignatures, host_of, machine
from precision_time.timing.step_factors import GROUPS
from precision_time.timing.work import HELPERS

Array = NDArray[np.float64]

CLASSES = ("fp64", "fp32", "tf32", "half", "fp8")
"""dtype classes of arithmetic, as kernels know them."""
_UNITS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_matrix", "fp64"),
    "fp32": ("fp32",),
    "tf32": ("tf32",),
    "half": ("fp16", "bf16", "fp16_vector"),
    "fp8": ("fp8",),
}
"""dtype class -> peaks of its matrix products."""
_FLOATS = ("fp64", "fp64_matrix", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Peaks that a training step may come near."""
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
_NO_FACTORS = StepConstants()
"""Without the factors that were fitted to whole steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One optimizer step of the busiest rank of a job. Compared and hashed by identity, as a key of caches.

    kernel_seconds    (group of kernels, pass) -> seconds of all its kernels; the pass is "fwd", "bwd", "dgrad", "wgrad"
                      or "" where they have none; "helpers" are transposes that a library adds around convolutions
    sizes             sizes of convolutions and products (`kernel_sizes`)
    flops             dtype class -> FLOP
    matrix_flops      FLOP on matrix units, weighted by the peak they have there over the best peak of the device
    bytes, fp32_bytes device memory traffic; what it would be with every number in fp32 and no casts
    cast_bytes, casts traffic and number of casts; `scaling_bytes`, `scalings` of what loss scaling adds
    kernels, host_s   kernels launched; seconds the host takes to launch them
    backward_s        kernel seconds of the backward pass behind which gradients travel
    wire_bytes        gradients reduced, in the dtype really sent; `gradient_bytes` of one element of them
    wire_s            seconds of the collectives over data-parallel ranks, each alone
    inner_s           seconds of collectives that layers wait for (tensor, context, expert ranks), each alone
    bubble            pipeline: share of the step that a stage waits for others
    """

    kernel_seconds: Mapping[tuple[str, str], float]
    sizes: Mapping[str, float]
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
    wire_bytes: float
    gradient_bytes: float
    wire_s: float
    inner_s: float
    bubble: float
    micro_steps: int
    cluster: Cluster
    execution: str
    torch: str | None
    family: str

    @property
    def kernel_s(self) -> float:
        """Seconds of all kernels, one after another."""
        return sum(self.kernel_seconds.values())

    @property
    def peak(self) -> float:
        """FLOP/s of the dtype class with most operations."""
        kind = max(self.flops, key=lambda name: self.flops[name])
        return max(self.cluster.gpu.peaks.get(name, 0.0) for name in _UNITS[kind]) or 1.0

    @property
    def initial_s(self) -> float:
        """Seconds of compute from which the trees of boosting start: kernels or launches, whichever take longer (their
        sum where the host runs the kernels itself), and the wait of a pipeline's stage."""
        busy_s = self.kernel_s + self.host_s if self.in_turns else max(self.kernel_s, self.host_s)
        return busy_s / (1.0 - self.bubble)

    @property
    def ranks(self) -> int:
        return self.cluster.gpus

    @property
    def in_turns(self) -> bool:
        """The host runs the kernels itself, one after another (a CPU): nothing is launched ahead."""
        return self.cluster.gpu.device_type == "cpu"


@dataclass(frozen=True, slots=True)
class JobKey:
    """A hashable key of a job without its run. `device` is the modification time and size of its device file."""

    fields: str
    device: tuple[int, int] | None
    job: Job = field(compare=False)

    @classmethod
    def of(cls, job: Job) -> JobKey:
        return cls(json.dumps({**job.to_dict(), "run": None}, sort_keys=True), _state(job.device), job)


def _state(device: str | None) -> tuple[int, int] | None:
    try:
        stat = os.stat(device) if device else None
    except OSError:  # reading it raises the error
        return None
    return None if stat is None else (stat.st_mtime_ns, stat.st_size)


def facts_of(job: Job) -> Facts:
    """The facts of a job, cached by `JobKey` unless its model is a file or a library model that may change.

    Raises the errors of `predict` for an impossible job.
    """
    if job.schedule:
        raise PredictorError(
            "precision is a schedule, and a predictor's features are those of one precision; ask for each part alone"
        )
    if ":" in job.model or ".py" in job.model:
        return _count(job)
    return _kept(JobKey.of(job))


@bounded()
def _kept(key: JobKey) -> Facts:
    return _count(key.job)


Runs = Sequence[tuple[Segment, int]]
"""Segments and how often each runs in a step."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step of the busiest rank: its operators and their times, and the counts that depend on the layout (see
    `Facts`).

    window  share of the backward passes of a step behind which gradients travel
    """

    timed: TimedSignatures
    runs: Runs
    family: str
    wire_bytes: float
    gradient_bytes: float
    wire_s: float
    window: float
    inner_s: float = 0.0
    bubble: float = 0.0


def _count(job: Job) -> Facts:
    precision = job.precision_spec
    cluster = cluster_of(job)
    compute_peak(cluster.gpu, precision.math, "")
    options = work_options(job, cluster.gpu)
    return _facts(job, _step(job, cluster, options), cluster)


def _facts(job: Job, step: _Step, cluster: Cluster) -> Facts:
    timed, works = step.timed, step.timed.works
    phases = _calls(timed.kinds, step.runs)
    total, cast, unscale = phases.sum(axis=1), works.is_cast, phases[:, Phase.UNSCALE]
    calls = total[works.owner]
    nbytes = total * works.nbytes
    flops, matrix_flops = _flops(works, total, cluster)
    host = host_of(job.execution, machine(cluster), _NO_FACTORS, 1.0)
    per_kind = np.bincount(works.owner, weights=timed.work_s, minlength=len(timed.kinds))
    return Facts(
        kernel_seconds=_kernel_seconds(timed, calls),
        sizes=kernel_sizes(works.table, calls, cluster.gpu),
        flops=flops,
        matrix_flops=matrix_flops,
        bytes=float(nbytes.sum()),
        fp32_bytes=float((nbytes * _widened(timed.kinds))[~cast].sum()),
        cast_bytes=float(nbytes[cast].sum()),
        casts=float(total[cast].sum()),
        scaling_bytes=float((unscale * works.nbytes).sum()),
        scalings=float((unscale * works.launches).sum()),
        kernels=float((total * works.launches).sum()),
        host_s=host.step_s + _host_seconds(host, timed.kinds, works, step.runs),
        backward_s=float((phases[:, Phase.BACKWARD] * per_kind).sum()) * step.window,
        wire_bytes=step.wire_bytes,
        gradient_bytes=step.gradient_bytes,
        wire_s=step.wire_s,
        inner_s=step.inner_s,
        bubble=step.bubble,
        micro_steps=job.grad_accum,
        cluster=cluster,
        execution=job.execution,
        torch=job.torch,
        family=family_of(job.model, step.family),
    )


def _flops(works: KindWorks, total: Array, cluster: Cluster) -> tuple[dict[str, float], float]:
    """FLOP of a step by dtype class; FLOP on matrix units, weighted by their peak over the best peak of the device."""
    table, gpu = works.table, cluster.gpu
    peaks = class_peaks(table.classes, gpu)
    best = max(gpu.peaks.get(name, 0.0) for name in _FLOATS) or max(gpu.peaks.values())
    counts = np.bincount(table.class_of, weights=table.flops * total[works.owner], minlength=len(table.classes))
    flops = dict.fromkeys(CLASSES, 0.0)
    matrix_flops = 0.0
    for i, (_, _, math, kind) in enumerate(table.classes):
        flops[kind] += float(counts[i])
        if math not in ("vector", "fp32") and peaks[i] > gpu.peaks.get("fp32", 0.0):
            matrix_flops += float(counts[i] * peaks[i] / best)
    return flops, matrix_flops


def _kernel_seconds(timed: TimedSignatures, calls: Array) -> dict[tuple[str, str], float]:
    """Seconds of a step by (group of kernels, pass), its helpers apart."""
    table, seconds = timed.works.table, timed.work_s * calls
    helpers = seconds * timed.work_helpers
    by_class = np.bincount(table.class_of, weights=seconds - helpers, minlength=len(table.classes))
    helpers_of = np.bincount(table.class_of, weights=helpers, minlength=len(table.classes))
    found: dict[tuple[str, str], float] = {}
    for i, (kernel, variant, _, _) in enumerate(table.classes):
        group = _GROUP_OF.get(kernel) or _GROUP_OF.get(f"{kernel}.{variant.rpartition('.')[2]}") or kernel
        run_in = variant.partition(".")[0]
        for name, of_class in ((group, by_class[i]), (HELPERS, helpers_of[i])):
            if of_class:
                found[name, run_in] = found.get((name, run_in), 0.0) + float(of_class)
    return found


def _calls(kinds: OpSignatures, runs: Runs) -> Array:
    """How often each kind runs in a step, by phase."""
    width = len(Phase)
    total = np.zeros(len(kinds) * width)
    for segment, times in runs:
        if len(segment) and times > 0:
            total += np.bincount(segment.kind * width + segment.phase, minlength=len(total)) * times
    return total.reshape(len(kinds), width)


def _host_seconds(host: HostCosts, kinds: OpSignatures, works: KindWorks, runs: Runs) -> float:
    per_kind = host.per_kind(kinds, works.launches)
    return float(sum(host.of(segment, per_kind).sum() * times for segment, times in runs if len(segment) and times > 0))


@bounded()
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


def _step(job: Job, cluster: Cluster, options: WorkOptions) -> _Step:
    step = training_step(job, job.precision_spec, cluster.gpu.device_type)
    program = step_program(step, job.layout_spec, Options.of(job))
    timed = time_program(program, cluster, options, job.execution, _NO_FACTORS)
    stage = timed.busiest
    runs: list[tuple[Segment, int]] = list(program.sweeps(stage))
    inner_s = wire_s = 0.0
    for chunk in stage.chunks:
        for index, repeat, again in chunk.units:
            unit, data = program.units[index], timed.unit_data[index]
            runs += [(unit.forward, repeat * program.micro_batches), (unit.backward, repeat * program.micro_batches)]
            runs += [(unit.recompute, again * program.micro_batches)]
            exchanges = (*unit.forward_collectives, *unit.backward_collectives)
            collectives_s = _collectives_s(program, cluster, exchanges) * repeat
            collectives_s += _collectives_s(program, cluster, unit.recompute_collectives) * again
            inner_s += collectives_s * program.micro_batches
            if program.layout.zero >= 3:
                wire_s += (2.0 * data.gather_s + data.reduce_s) * repeat * program.micro_batches
    layout = program.layout
    if timed.bucket_s:
        wire_s = sum(timed.bucket_s) * program.reductions
    elif layout.zero < 3:
        data = timed.stage_data[program.stages.index(stage)]
        wire_s = data.gather_s + data.reduce_s * program.reductions
    waits = (layout.pp - 1) / max(layout.vpp, 1)
    gradient_bytes = program.gradient_bytes if layout.dp > 1 else 0.0
    return _Step(
        timed,
        runs,
        family=step.family,
        wire_bytes=float((stage.dense_trainable + stage.expert_trainable) * gradient_bytes * program.reductions),
        gradient_bytes=float(gradient_bytes),
        wire_s=wire_s,
        window=program.reductions / program.micro_batches,
        inner_s=inner_s + 2.0 * timed.send_s * program.micro_batches,
        bubble=waits / (waits + program.micro_batches),
    )


def _collectives_s(program: StepProgram, cluster: Cluster, collectives: Sequence[CollectiveOp]) -> float:
    """Seconds of collectives, each alone on its links."""
    seconds = 0.0
    for each in collectives:
        size, stride = program.groups.get(each.group, (1, 1))
        if size > 1:
            group = cluster.group(size, stride)
            seconds += each.times * float(collective_seconds(each.collective, float(each.nbytes), group).seconds)
    return seconds
