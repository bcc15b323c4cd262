"""Operators and kernels of one really executed step with the GPU's time of each, by torch's profiler."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from precision_time.job.job import Job
from precision_time.journal import Record
from precision_time.measure.suite import Task
from precision_time.measure.train import Trainer, settings, wait

_WARMUP_STEPS = 3
_OPERATOR = re.compile(r"[a-z]+::[\w.]+")
_LONGEST_NAME = 160
"""Characters of a kernel's name that are kept: templates have thousands."""


def profile_task(job: Job, device: torch.device) -> Task:
    """The task that profiles one step of a job."""

    def run(_budget_s: float) -> Record:
        with settings(job, device):
            trainer = Trainer(job, device)
            for _ in range(_WARMUP_STEPS):
                trainer.step()
            wait(device)
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
            with profile(activities=activities, record_shapes=True) as recorded:
                trainer.step()
                wait(device)
        of_job = {"model": job.model, "precision": job.precision, "batch_size": job.batch_size,
                  "memory_format": job.memory_format}  # fmt: skip
        rows = operator_rows(recorded.key_averages(group_by_input_shape=True), device.type)
        kernels = kernel_rows(recorded.events())
        del trainer
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return {"profiled": [of_job | row for row in rows], "kernels": [of_job | row for row in kernels]}

    return Task(f"profile {job.model} {job.precision} batch {job.batch_size} {job.memory_format}", run)


def operator_rows(averages: Iterable[Any], device_type: str) -> list[dict[str, Any]]:
    """A row for each operator and input shapes with the microseconds of the kernels that it launched itself."""
    rows = []
    for each in averages:
        time_us = float(each.self_device_time_total if device_type == "cuda" else each.self_cpu_time_total)
        if time_us > 0 and _OPERATOR.fullmatch(each.key):  # kernels have rows of their own
            shapes = ";".join("x".join(map(str, shape)) for shape in each.input_shapes or () if shape)
            rows.append({"operator": each.key.replace("::", "."), "shapes": shapes, "calls": int(each.count),
                         "us": round(time_us, 2)})  # fmt: skip
    return sorted(rows, key=lambda row: -row["us"])


def kernel_rows(events: Iterable[Any]) -> list[dict[str, Any]]:
    """A row for each kernel's name with its calls and microseconds; none on a CPU."""
    found: dict[str, list[float]] = {}
    for event in events:
        if str(event.device_type).endswith("CUDA"):
            found.setdefault(str(event.name)[:_LONGEST_NAME], []).append(float(event.device_time_total))
    rows = [{"kernel": name, "calls": len(times), "us": round(sum(times), 2)} for name, times in found.items()]
    return sorted(rows, key=lambda row: -row["us"])
