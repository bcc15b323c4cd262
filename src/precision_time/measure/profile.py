"""Times every operator of given jobs, forward and backward, at its real dtype and local shape.

Unlike `calibrate`, this includes small operators, and measures both gradients of a convolution as the one call that a
step makes: an additive model needs the time of every call.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from precision_time.capture.captured_model import resolve
from precision_time.capture.graph import OpSignature
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.journal import Journal, Record
from precision_time.measure.bench import tf32_allowed
from precision_time.measure.clock import timed
from precision_time.measure.launch import Report
from precision_time.measure.machine import header
from precision_time.measure.point import Point
from precision_time.measure.recording import Counted, call_of, label, record, record_workload
from precision_time.measure.replay import options_of, weighed_operators
from precision_time.measure.session import run_plan
from precision_time.measure.suite import Task, record_of
from precision_time.measure.tensors import taking_turns
from precision_time.timing.operators import WorkOptions
from precision_time.zoo.parallel import SPLITS, local_config, whole_config
from precision_time.zoo.shallow import Shallow


def record_local(job: Job, device_type: str) -> list[Counted]:
    """The distinct operators of a micro-step on one rank of the job's layout."""
    from_file = ".py" in job.model or ":" in job.model
    model = None if from_file or job.layout_spec.tp == job.layout_spec.ep == 1 else resolve(job)
    split = SPLITS.get(model.entry.builder) if model else None
    if model is None or split is None:
        return record(job, device_type)
    layout = job.layout_spec
    tp = layout.tp
    config = local_config(whole_config(model.config, split), split, tp, layout.ep, layout.etp or tp)
    module, _, function = model.entry.builder.partition(":")
    build = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    operators: dict[OpSignature, Counted] = {}
    for parts in (1, tp) if layout.sp and tp > 1 else (1,):  # outside the divided modules: a part of the sequence
        sizes = {
            **model.sizes,
            **{name: -(-model.sizes[name] // parts) for name in split.lengths if name in model.sizes},
        }
        fields = {**config, **Shallow.of(config, split.depth).changes}
        for each in record_workload(lambda fields=fields, sizes=sizes: build(fields, sizes), job, device_type):  # type: ignore[misc]
            operators.setdefault(each.kind, each)
    return list(operators.values())


def profile_tasks(device: torch.device, jobs: Sequence[Job]) -> list[Task]:
    """Every distinct operator of the jobs, those that take the largest share of a step first."""
    tasks: dict[str, tuple[float, Task]] = {}
    for job in jobs:
        options = options_of(job, device.type)
        recorded = record_local(job, device.type)
        shares = {id(each): share for each, share in weighed_operators(recorded, device.type, options)}
        for each in recorded:
            own = options.of_operator(each.kind.name)
            parts = (label(each.recorded), "tf32" if own.tf32 else "", "nhwc" if own.channels_last else "")
            name = " ".join(part for part in parts if part)
            share = shares.get(id(each), 0.0)
            if name not in tasks or tasks[name][0] < share:
                tasks[name] = share, Task(name, _measure(each, own, device))
    return [task for _, task in sorted(tasks.values(), key=lambda pair: -pair[0])]


def _measure(each: Counted, options: WorkOptions, device: torch.device) -> Callable[[float], Record]:
    def run(budget_s: float) -> Record:
        begin = time.perf_counter()
        nbytes = float(sum(spec.nbytes for spec in (*each.kind.inputs, *each.kind.outputs)))
        with torch.no_grad(), tf32_allowed(device, options.tf32):
            call = taking_turns(lambda: call_of(each.recorded, device, options.channels_last), nbytes, device)
            time_of_call = timed(call, device, budget_s, warm=True)
        took_s = time.perf_counter() - begin
        return {**record_of(Point(each.kind, options, time_of_call)), "took_s": round(took_s, 4)}

    return run


def profile_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """Add the operators of the task's `jobs` to its `journal` (a path) within `budget_s`, as `worker` calls it.

    Returns {"left_out": ["label: reason" ...], "spent_s": seconds of measuring in this call}.
    """
    jobs = [Job.from_fields(fields, GIVEN) for fields in task["jobs"]]
    journal = Journal(Path(task["journal"]), header(device))
    before = spent_s(journal.records)
    left_out = run_plan(profile_tasks(device, jobs), journal, device, task["budget_s"], report)
    return {"left_out": left_out, "spent_s": spent_s(journal.records) - before}


def spent_s(records: Mapping[str, Record]) -> float:
    """Seconds that the measurement of the records took."""
    return sum(float(record.get("took_s", 0.0)) for record in records.values())
