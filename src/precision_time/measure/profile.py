"""Every operator of given jobs, forward and backward, timed whole and alone at its real dtype and local shape.

What `calibrate` leaves out as too small is measured here as well, and a convolution's gradients as the one call they
are: a model that adds up operators needs all of them, and nothing else.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from precision_time.capture.regimes import regime_of
from precision_time.capture.step import Regime, capture
from precision_time.capture.training_step import resolve
from precision_time.job.job import Job
from precision_time.layered_prediction import is_layered
from precision_time.measure.bench import tf32_allowed
from precision_time.measure.clock import timed
from precision_time.measure.journal import Journal, Record
from precision_time.measure.machine import header
from precision_time.measure.point import Point
from precision_time.measure.recording import Counted, Recorder, call_of, label, record
from precision_time.measure.replay import weighed_operators
from precision_time.measure.session import work_off
from precision_time.measure.suite import Task, points
from precision_time.measure.tensors import taking_turns
from precision_time.timing.operators import WorkOptions
from precision_time.zoo.parallel import SPLITS, local_config, whole_config
from precision_time.zoo.shallow import Shallow

Report = Callable[[int, int], None]


def options_of(job: Job, device_type: str) -> WorkOptions:
    """What decides an operator's kernels beside its tensors; TF32 is a switch of GPUs."""
    return WorkOptions(job.precision_spec.tf32 and device_type == "cuda", job.memory_format == "nhwc")


def record_local(job: Job, device_type: str) -> list[Counted]:
    """The distinct operators of a micro-step of one rank of the job's layout."""
    own = ".py" in job.model or ":" in job.model
    model = None if own or not is_layered(job) else resolve(job)
    split = SPLITS.get(model.entry.builder) if model else None
    if model is None or split is None:
        return record(job, device_type)
    layout, precision = job.layout_spec, job.precision_spec
    tp = layout.tp
    config = local_config(whole_config(model.config, split), split, tp, layout.ep, layout.etp or tp)
    module, _, function = model.entry.builder.partition(":")
    build = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    low = getattr(torch, precision.compute_dtype)
    found: dict[Any, Counted] = {}
    for parts in (1, tp) if layout.sp and tp > 1 else (1,):  # between divided modules on a part of the sequence
        sizes = {**model.sizes, **{w: -(-model.sizes[w] // parts) for w in split.lengths if w in model.sizes}}
        words = {**config, **Shallow.of(config, split.depth).words}
        recorder = Recorder(layouts=device_type == "cpu")
        capture(
            lambda words=words, sizes=sizes: build(words, sizes), Regime(regime_of(precision)),  # type: ignore[misc]
            low_precision=low if low in (torch.float16, torch.bfloat16) else torch.bfloat16,
            attention="math" if job.attention == "math" else "flash", name=job.model, device_rules=device_type,
            tracer=recorder,
        )  # fmt: skip
        for each in recorder.recorded():
            found.setdefault(each.kind, each)
    return list(found.values())


def profile_tasks(device: torch.device, jobs: Sequence[Job]) -> list[Task]:
    """Every distinct operator of the jobs, those that take most of a step first."""
    found: dict[str, tuple[float, Task]] = {}
    for job in jobs:
        options = options_of(job, device.type)
        recorded = record_local(job, device.type)
        shares = {id(each): share for each, share in weighed_operators(recorded, device.type, options)}
        for each in recorded:
            words = (label(each.recorded), "tf32" if options.tf32 else "", "nhwc" if options.channels_last else "")
            name = " ".join(word for word in words if word)
            share = shares.get(id(each), 0.0)
            if name not in found or found[name][0] < share:
                found[name] = share, Task(name, _measure(each, options, device))
    return [task for _, task in sorted(found.values(), key=lambda pair: -pair[0])]


def _measure(each: Counted, options: WorkOptions, device: torch.device) -> Callable[[float], Record]:
    def run(budget_s: float) -> Record:
        begin = time.perf_counter()
        nbytes = float(sum(spec.nbytes for spec in (*each.kind.inputs, *each.kind.outputs)))
        with torch.no_grad(), tf32_allowed(device, options.tf32):
            call = taking_turns(lambda: call_of(each.recorded, device, options.channels_last), nbytes, device)
            time_of_call = timed(call, device, budget_s, warm=True)
        took_s = time.perf_counter() - begin
        return {**points(Point(each.kind, options, time_of_call)), "took_s": round(took_s, 4)}

    return run


def profile_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """Fills the task's `journal` (a path) with the operators of its `jobs` in `budget_s`.

    What was left out, each with why, and the seconds of measuring now.
    """
    jobs = [Job.from_dict(words) for words in task["jobs"]]
    journal = Journal(Path(task["journal"]), header(device))
    before = spent_s(journal.records)
    left_out = work_off(profile_tasks(device, jobs), journal, device, task["budget_s"], report)
    return {"left_out": left_out, "spent_s": spent_s(journal.records) - before}


def spent_s(records: Mapping[str, Record]) -> float:
    """Seconds that measuring the records took."""
    return sum(float(record.get("took_s", 0.0)) for record in records.values())
