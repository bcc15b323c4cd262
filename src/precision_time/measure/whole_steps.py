"""Whole training steps of zoo models on one device, as rows of the measurement table that `evaluate` reads."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from precision_time.errors import CatalogError
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.journal import Record
from precision_time.measure.suite import Task
from precision_time.measure.train import OPTIMIZERS, Trainer, settings, times
from precision_time.measure.usage import usage
from precision_time.zoo.catalog import ENTRIES

_WARMUP_STEPS, _STEPS, _BUDGET_S = 5, 9, 6.0
_SMALLER_BATCH = 8

JOBS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "cpu": (
        {"model": "resnet50", "model_config": {"depth": 18}, "input": {"image_size": 96}, "batch_size": 4},
        {"model": "gpt", "model_config": {"layers": 2, "hidden": 256, "heads": 4, "vocab": 4096},
         "input": {"seq_len": 128}, "batch_size": 2},
        {"model": "mobilenet-v3-large", "input": {"image_size": 96}, "batch_size": 4},
        {"model": "densenet121", "input": {"image_size": 64}, "batch_size": 2},
        {"model": "bert-base", "input": {"seq_len": 32}, "batch_size": 1},
        {"model": "vit-b-16", "batch_size": 1},
    ),
    "cuda": tuple(
        {"model": model, "batch_size": batch}
        for model, batch in (
            ("resnet50", 128), ("bert-large", 32), ("gpt2", 8), ("efficientnet-b0", 128), ("waveglow", 10),
            ("unet3d", 2), ("vit-b-16", 64), ("ssd300-resnet50", 32), ("transformer-xl-base", 32), ("convnext-t", 64),
            ("jasper-10x5dr", 16), ("t5-base", 8), ("mobilenet-v3-large", 128), ("densenet121", 64), ("swin-t", 64),
            ("vgg16", 64), ("inception-v3", 64), ("nnunet-2d", 32), ("unet-industrial", 16), ("bert-base", 32),
            ("dlrm-small", 32768), ("maskrcnn-r50-fpn", 2), ("hifigan", 16), ("resnext101-32x4d", 64),
        )
    ),
}  # fmt: skip
"""The first models of each list differ most from each other."""
PRECISIONS: Mapping[str, Sequence[str]] = {
    "cpu": ("fp32", "amp-bf16"),
    "cuda": ("amp-bf16", "tf32", "amp-fp16", "fp32", "bf16"),
}
COLUMNS = (
    "id", "source", "trust", "framework", "execution", "model", "model_config", "input", "batch_size", "grad_accum",
    "gpus", "nodes", "gpu", "system", "precision", "parallelism", "optimizer", "memory_format", "torch",
    "step_time_s", "notes",
)  # fmt: skip
"""Columns of the measurement table (docs/evaluate.md)."""


def step_tasks(device: torch.device) -> list[Task]:
    """Every model in every precision at its batch, then the same at an eighth of the batch."""
    tasks = []
    for smaller in (1, _SMALLER_BATCH):
        for precision in PRECISIONS[device.type]:
            for fields in JOBS[device.type]:
                batch = max(int(fields["batch_size"]) // smaller, 1)
                if smaller > 1 and batch == fields["batch_size"]:
                    continue
                tasks.append(step_task(trainable_job({**fields, "batch_size": batch, "precision": precision}), device))
    return tasks


def trainable_job(fields: Mapping[str, Any]) -> Job:
    """The job with the model's own optimizer if torch has it, else AdamW."""
    usual = ENTRIES[fields["model"]].optimizer
    return Job.from_dict({**fields, "optimizer": usual if usual in OPTIMIZERS else "adamw"})


def step_task(job: Job, device: torch.device, warmup: int = _WARMUP_STEPS, steps: int = _STEPS) -> Task:
    """The task that trains a job for some steps and records them as a row of the measurement table."""
    sizes = " ".join(f"{key}={value}" for key, value in {**job.model_config, **job.input}.items())
    label = f"step {job.model} {sizes} {job.precision} batch {job.batch_size}"
    label += " nhwc" if job.memory_format == "nhwc" else ""

    def run(_budget_s: float) -> Record:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with settings(job, device):
            trainer = Trainer(job, device)
            steps_s = times(trainer.step, device, warmup, steps, _BUDGET_S)
            row = row_of(job, device, steps_s)
            used = usage(trainer.step, device, statistics.median(steps_s))
        del trainer
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return {"step": row, "steps_s": steps_s, **({"usage": {"id": row["id"], **used}} if used else {})}

    return Task(label, run)


def row_of(job: Job, device: torch.device, steps_s: Sequence[float]) -> dict[str, Any]:
    """A measured job as a row of the measurement table; `step_time_s` is the median of `steps_s`."""
    median = statistics.median(steps_s)
    tuned = "; cudnn.benchmark" if torch.backends.cudnn.benchmark else ""
    sizes = (*job.model_config.values(), *job.input.values(), f"b{job.batch_size}")
    slug = "-".join(map(str, (*sizes, *(["nhwc"] if job.memory_format == "nhwc" else []))))
    return {
        "id": f"{job.model}-{job.precision}-{slug}",
        "source": "precision-time measure",
        "trust": "A",
        "framework": "pytorch",
        "execution": job.execution,
        "model": job.model,
        "model_config": _cell(job.model_config),
        "input": _cell(job.input),
        "batch_size": job.batch_size,
        "grad_accum": job.grad_accum,
        "gpus": 1,
        "nodes": 1,
        "gpu": gpu_name(device),
        "system": "",
        "precision": job.precision,
        "parallelism": "dp",
        "optimizer": job.optimizer,
        "memory_format": job.memory_format,
        "torch": ".".join(torch.__version__.split(".")[:2]),
        "step_time_s": float(f"{median:.5g}"),
        "notes": f"torch {torch.__version__}; {len(steps_s)} steps, slowest {max(steps_s) / median - 1:+.0%}{tuned}",
    }


def gpu_name(device: torch.device) -> str:
    """The catalog name of a GPU, or the device's own name if the catalog lacks it; "this-cpu" for a CPU."""
    if device.type == "cpu":
        return "this-cpu"
    name: str = torch.cuda.get_device_name(device)
    try:
        return default_catalog().gpu(name).name
    except CatalogError:
        return name


def _cell(values: Mapping[str, Any]) -> str:
    """`key=value;key=value`, as the table writes mappings."""
    return ";".join(f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items())
