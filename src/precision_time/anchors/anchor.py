"""The descriptor by which jobs are compared, and the anchor: a measured job with its uncorrected prediction."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from precision_time.capture.captured_model import CapturedModel
from precision_time.capture.training_step import TrainingStep
from precision_time.estimate.correction import INFORMED, TERM_OF
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.timing.registry import CUDNN
from precision_time.zoo.names import find, zoo_name

_HALF = ("fp16", "bf16", "fp8")
_PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "pt.attention")
DIGITS = 12
"""Hex digits of a job's key."""


@dataclass(frozen=True, slots=True)
class JobDescriptor:
    """What is known of a job when its errors are compared with those of others.

    model      name, whatever its sizes; with adapters another one
    maths      arithmetic of its matrix products: fp64, fp32, tf32 or half
    setting    memory format, attention and execution, which decide the kernels
    shares     share of each term of `INFORMED` in the predicted step
    key        digest of model, sizes, precision, GPUs and framework: two jobs with one key are the same job
    """

    family: str
    model: str
    gpu: str
    arch: str
    maths: str
    precision: str
    framework: str
    setting: str
    batch_size: int
    gpus: int
    shares: tuple[float, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured job. `predicted_s` is the P50 of its step without any anchor; `own`: the user measured it."""

    job: JobDescriptor
    id: str
    source: str
    trust: str
    measured_s: float
    predicted_s: float
    own: bool = False

    @property
    def residual(self) -> float:
        """log(measured / predicted)."""
        return math.log(self.measured_s / self.predicted_s)


def family_of(job: Job) -> str:
    """The family of a named model; the name itself for any other model."""
    entry = find(job.model)
    return entry.family if entry else job.model.lower()


def describe_job(
    job: Job,
    step: CapturedModel | TrainingStep,
    gpu: Gpu,
    breakdown: Mapping[str, float],
    framework: str,
) -> JobDescriptor:
    """The descriptor of a job; `breakdown` (seconds by term) is that of the uncorrected prediction."""
    arithmetic = _arithmetic(step, gpu)
    sizes = {name: value for name, value in sorted(step.sizes.items()) if name != "batch_size"}
    identity = (
        zoo_name(job.model),
        step.parameter_count,
        *sizes.items(),
        framework,
        step.batch_size,
        job.grad_accum,
        job.gpus,
        job.gpu,
        arithmetic if arithmetic == "fp32" else step.precision.name,
        job.memory_format,
        *(() if job.recompute_method is None else (job.recompute_method,)),
        *(() if job.offload is None else (job.offload, job.offload_ratio)),
        *(() if job.lora is None else (job.lora, job.quantized)),
        *(("reference",) if job.reference else ()),
        *(() if step.ema is None else (f"ema {step.ema}",)),
        *(() if job.logits_loss is None else (f"loss {job.logits_loss}",)),
        *(() if job.layout == "dp" and job.recompute == "none" else (job.layout, job.recompute, job.recompute_layers)),
    )
    return JobDescriptor(
        family=family_of(job),
        model=zoo_name(job.model) if job.lora is None else f"{zoo_name(job.model)} with adapters",
        gpu=job.gpu,
        arch=gpu.arch,
        maths="half" if step.precision.math in _HALF else arithmetic or step.precision.math,
        precision=arithmetic or step.precision.name,
        framework=framework,
        setting=f"{job.memory_format} {job.attention} {job.execution}",
        batch_size=step.batch_size,
        gpus=job.gpus,
        shares=shares_of(breakdown),
        key=hashlib.sha256(repr(identity).encode()).hexdigest()[:DIGITS],
    )


def _arithmetic(step: CapturedModel | TrainingStep, gpu: Gpu) -> str:
    """fp32 or tf32, whichever PyTorch's default runs most of the model's products in; "" in any other precision."""
    if not step.precision.tf32_convolutions:
        return ""
    if not gpu.has("tf32"):
        return "fp32"
    skeleton = step.graph.skeleton
    calls = Counter(skeleton.names[call.kind] for call in skeleton.calls)
    cudnn = sum(count for name, count in calls.items() if name.startswith(CUDNN))
    products = sum(count for name, count in calls.items() if name.startswith(_PRODUCTS))
    return "tf32" if cudnn > products else "fp32"


def shares_of(breakdown: Mapping[str, float]) -> tuple[float, ...]:
    """Share of each term of `INFORMED` in a step whose terms take the seconds of `breakdown`."""
    whole = sum(breakdown.values()) or 1.0
    seconds = dict.fromkeys(INFORMED, 0.0)
    for term, each in breakdown.items():
        if TERM_OF[term] in seconds:
            seconds[TERM_OF[term]] += each
    return tuple(round(seconds[name] / whole, 5) for name in INFORMED)
