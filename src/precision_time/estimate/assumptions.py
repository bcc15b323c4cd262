"""Defaults and omissions of an estimate, in sentences."""

from __future__ import annotations

from precision_time.capture.lengths import MIDDLE
from precision_time.capture.optimizer import rule
from precision_time.capture.training_step import TrainingStep
from precision_time.hardware.gpu import Gpu
from precision_time.job.choices import AS_PYTORCH, COMPOSING, FUSING
from precision_time.job.job import Job


def assumptions(job: Job, step: TrainingStep, gpu: Gpu, grouped_share: float) -> tuple[str, ...]:
    """Notes on defaults and on what is not modelled, one sentence each; `grouped_share` is that of `assemble`."""
    return tuple(
        note
        for note in (
            *step.graph.assumptions,
            _device(gpu),
            _defaults(job, step),
            _lengths(job, step),
            *_layout(job),
            _adapters(job, step),
            _matrices(job, step),
            _execution(job),
            _framework(job),
            *_precision(step, gpu),
            _grouped_convolutions(grouped_share),
            _around(job, gpu),
        )
        if note
    )


_LEAST_TOLD = 0.05
"""Least share of the kernels' time of which it is told that newer libraries may run them otherwise."""


def _grouped_convolutions(share: float) -> str:
    if share < _LEAST_TOLD:
        return ""
    return (
        f"nhwc: {share:.0%} of the kernels' time are gradients of grouped convolutions on vector units, as in PyTorch "
        "1.12, the last version measured; newer ones may take a fraction of it, and memory_format nchw avoids it"
    )


_OF_TWO_DIES = ("mi250", "mi250x")


def _device(gpu: Gpu) -> str:
    if gpu.name in _OF_TWO_DIES:
        return (
            f"{gpu.name}: a whole module, of whose two dies PyTorch sees each as a GPU: name {gpu.name}-die for those"
        )
    if gpu.calibration is None:
        return ""
    return f"device calibrated on {gpu.calibration.made}, noise {100 * gpu.calibration.noise:.1f} %"


def _defaults(job: Job, step: TrainingStep) -> str:
    """The fields that the job left to the model, with their values."""
    defaults = [f"batch {step.batch_size}"] if job.batch_size is None else []
    defaults += [f"{k} {v}" for k, v in step.sizes.items() if k not in job.input and k != "batch_size"]
    defaults += [f"optimizer {step.optimizer}"] if job.optimizer is None else []
    defaults += [f"ema {step.ema}"] if job.ema is None and step.ema else []
    if job.run.dataset is None and job.run.dataset_size is None and step.dataset:
        defaults.append(f"dataset {step.dataset}")
    return f"the model's defaults: {', '.join(defaults)}" if defaults else ""


def _lengths(job: Job, step: TrainingStep) -> str:
    if not step.length_spread:
        return ""
    name = next((n for n in step.sizes if n in ("audio_frames", "seq_len")), "")
    given = job.input.get(name)
    notes = []
    if type(given) is int and given != step.sizes[name]:
        notes.append(f"{name} {given} is the mean of batches of {MIDDLE} clips: one of {step.batch_size} is padded to ")
        notes[-1] += f"its longest, about {step.sizes[name]:,}"
    if job.gpus > 1:
        notes.append(f"batches differ in length by up to {step.length_spread:.0%}, and GPUs wait for the longest")
    length = given if type(given) is int else step.sizes.get(name)
    if notes and name:
        notes.append(f"for equal ones give {name}={length}..{length}")
    return "; ".join(notes)


def _layout(job: Job) -> tuple[str, ...]:
    layout = job.layout_spec
    notes = []
    if layout.ep > 1 and layout.expert_imbalance == 1.0:
        notes.append("experts: tokens are spread evenly (layout expert_imbalance says otherwise)")
    if layout.pp > 1:
        notes.append(f"{job.grad_accum} micro-batches a step (grad_accum) in schedule {layout.schedule}")
    return tuple(notes)


def _adapters(job: Job, step: TrainingStep) -> str:
    if job.lora is None:
        return ""
    trained = round(step.layers.trainable_share * step.parameters)
    packed = "; dequantized at the rate of other casts" if job.quantized else ""
    if job.quantized == "int8":
        packed += ", products of 8 bits taken to last as long as those of 16"
    return f"{job.lora}: {trained:,} of {step.parameters:,} parameters are trained{packed}"


def _matrices(job: Job, step: TrainingStep) -> str:
    if rule(step.optimizer).matrix is None:
        return ""
    shared = job.layout_spec.zero >= 1 and job.layout_spec.data_ranks > 1
    note = f"{step.optimizer}: matrices of blocks alone, AdamW for all other weights"
    whole = f"{step.optimizer}: each rank updates whole matrices, whose exchange between ranks takes no time here"
    return f"{note}; {whole}" if shared else note


def _framework(job: Job) -> str:
    if job.framework not in AS_PYTORCH:
        return ""
    eager = "; execution eager launches them as PyTorch does, static_graph or xla as it does itself"
    composed = ", several for each layer norm, dropout and softmax," if job.framework in COMPOSING else ""
    stand = f"PyTorch's operators and kernels{composed} stand for its own"
    note = f"{job.framework}: {stand}, and the interval is wider for that"
    return note + (eager if job.execution == "eager" else "")


def _execution(job: Job) -> str:
    if job.execution not in FUSING:
        return ""
    return f"{job.execution}: fusion of pointwise chains is a model of the compiler, not its output"


def _precision(step: TrainingStep, gpu: Gpu) -> tuple[str, ...]:
    precision = step.precision
    notes = []
    if precision.fp8_scaling and not any("scaled" in name for name in step.graph.skeleton.names):
        notes.append("fp8: no matrix multiply of this model qualifies (sizes in multiples of 16), so it runs in bf16")
    if precision.name == "fp32" and gpu.device_type != "cpu":
        notes.append(
            "fp32: matrix units off; PyTorch on Ampere and later runs convolutions in tf32 unless told otherwise, "
            "which is precision torch-fp32"
        )
    if precision.tf32_convolutions and gpu.device_type != "cpu":
        parts = "convolutions and recurrent layers in tf32, products in fp32"
        units = parts if gpu.has("tf32") else "this GPU has no tf32, so all of it in fp32"
        notes.append(f"torch-fp32, PyTorch's default: {units}")
    if precision.name in ("fp16", "bf16"):
        notes.append(
            f"{precision.name}: pure half, of weights, gradients and optimizer states too; mixed precision is "
            f"amp-{precision.name} or {precision.name}-master"
        )
    return tuple(notes)


def _around(job: Job, gpu: Gpu) -> str:
    notes = [] if job.data else ["data loading keeps up"]
    if gpu.tdp_w or gpu.calibration is None:
        notes.append("energy from the board's power limit")
    return "; ".join(notes)
