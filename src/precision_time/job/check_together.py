"""Fields of a job that are right alone and contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precision_time.errors import JobError
from precision_time.job.choices import NOT_PYTORCH, PLAIN
from precision_time.job.layout import FSDP_FRAMEWORKS, Layout

if TYPE_CHECKING:
    from precision_time.job.job import Job


def check_together(job: Job, layout: Layout) -> None:
    """Raise `JobError` for the first pair of fields that contradict each other."""
    if job.recompute_layers is not None and job.recompute != "full":
        raise JobError(
            f"recompute_layers {job.recompute_layers} goes with recompute full, not {job.recompute}; "
            f"set recompute to full or leave recompute_layers out"
        )
    if job.recompute_method is not None and job.recompute_layers is None:
        raise JobError(
            f"recompute_method {job.recompute_method} needs a number of layers; set recompute_layers, such as 1"
        )
    if job.offload_ratio != 1.0 and job.offload != "optimizer":
        raise JobError(
            f"offload_ratio {job.offload_ratio:g} goes with offload optimizer, not {job.offload or 'none'}; "
            "set offload to optimizer, or leave offload_ratio out"
        )
    if job.ema not in (None, "none") and job.optimizer == "none":
        raise JobError(f"ema {job.ema} averages weights after an update, and optimizer is none; leave ema out")
    if job.framework in NOT_PYTORCH and not layout.plain:
        raise JobError(
            f"framework {job.framework} is predicted with whole replicas alone, and layout is {layout.label}; "
            "set layout to dp, or framework to one of PyTorch's"
        )
    if job.offload is not None:
        _check_offload(job, layout)
    if job.reference and layout.pp > 1:
        raise JobError(f"reference goes with one pipeline stage, and layout has pp={layout.pp}; set pp to 1")
    if job.loss is not None:
        _check_loss(job, layout)
    if job.quantized and job.lora is None:
        raise JobError(
            f"quantized {job.quantized} freezes the weights, and no adapter is trained; add lora, such as lora: 16"
        )
    if job.lora is not None and job.lora.dora and (layout.tp > 1 or job.precision_spec.fp8_scaling):
        what = f"layout has tp={layout.tp}; set tp to 1" if layout.tp > 1 else f"precision is {job.precision}"
        raise JobError(f"lora.dora takes norms of whole weights in 16 or 32 bits, and {what}, or leave dora out")
    if job.quantized and job.precision_spec.fp8_scaling:
        raise JobError(
            f"quantized {job.quantized} gives products in the dtype of activations, and precision is "
            f"{job.precision}; set precision to bf16-master, or leave quantized out"
        )
    if job.nodes is not None and job.gpus % job.nodes:
        raise JobError(
            f"gpus {job.gpus} cannot be shared out evenly over nodes {job.nodes}; "
            f"set gpus to a multiple of {job.nodes} or leave nodes out"
        )


def _check_loss(job: Job, layout: Layout) -> None:
    if job.framework not in PLAIN:
        raise JobError(f"loss {job.loss} replaces PyTorch's, and {job.framework} has its own; leave loss out")
    if job.loss == "liger" and (job.precision_spec.autocast or layout.tp > 1):
        what = f"layout has tp={layout.tp}; set tp to 1" if layout.tp > 1 else f"precision is {job.precision}"
        fix = "" if layout.tp > 1 else ", under which each chunk casts the head again; set precision to bf16-master"
        raise JobError(f"loss liger is modelled for whole heads in the dtype of the activations, and {what}{fix}")


def _check_offload(job: Job, layout: Layout) -> None:
    offload, optimizer, fsdp = job.offload, job.optimizer, job.framework in FSDP_FRAMEWORKS and layout.zero >= 2
    weights = str(offload).startswith("parameters")
    least = 1 if not weights else 2 if fsdp else 3
    if layout.zero < least:
        names = "zero1, zero2 or zero3" if least == 1 else "zero3"
        raise JobError(f"offload {offload} needs shards, and layout is {layout.label}; set layout to {names}")
    if fsdp and offload != "parameters":
        raise JobError(
            f"offload {offload} is DeepSpeed's, and framework is {job.framework}, whose FSDP offloads parameters with "
            "their states; set offload to parameters, or framework to deepspeed"
        )
    if layout.pp > 1 and weights:
        raise JobError(
            f"offload {offload} goes with one pipeline stage, and layout has pp={layout.pp}; set pp to 1, or offload "
            "to optimizer"
        )
    if optimizer in ("muon", "soap", "shampoo"):
        raise JobError(f"offload {offload} has no update of {optimizer} on CPUs; set optimizer to adamw")
