"""Operators and dtypes of a traced step beside those that torch's profiler sees when the step really runs."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from precision_time.job.job import Job
from precision_time.journal import Record
from precision_time.measure.recording import record
from precision_time.measure.suite import Task
from precision_time.measure.train import Trainer, settings, wait

DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long int": "int64",
    "long": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8",
}  # fmt: skip
"""Name of a dtype in a trace -> its name in graphs."""
Seen = Counter[tuple[str, str]]
"""Calls by (operator, dtype of its first tensor)."""


def captured_calls(job: Job, device_type: str) -> Seen:
    """Of a traced micro-step, without the optimizer."""
    calls: Seen = Counter()
    for each in record(job, device_type):
        calls[each.kind.name, each.kind.inputs[0].dtype] += each.calls
    return calls


def profiled_calls(job: Job, device: torch.device) -> Seen:
    """Of a step that runs on the device, every operator that PyTorch dispatches, those of the optimizer included."""
    with settings(job, device):
        trainer = Trainer(job, device)
        trainer.step()
        wait(device)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            trainer.step()
            wait(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return calls_of_trace(json.loads(path.read_bytes())["traceEvents"])


def calls_of_trace(events: Iterable[Mapping[str, Any]]) -> Seen:
    """Of the events of a trace in the Chrome format."""
    calls: Seen = Counter()
    for event in events:
        if event.get("cat") == "cpu_op":
            types = (DTYPES.get(text) for text in event.get("args", {}).get("Input type", ()))
            calls[str(event["name"]).replace("::", "."), next(filter(None, types), "")] += 1
    return calls


def compared(captured: Seen, profiled: Seen) -> list[dict[str, Any]]:
    """A row for each operator and dtype that was traced; those that the profiler names otherwise have no calls seen.

    An operator that was seen in a dtype in which it was never traced has a row with no traced calls.
    """
    names = {name for name, _ in captured}
    keys = [*captured, *(key for key in profiled if key[0] in names and key not in captured)]
    return [
        {"operator": name, "dtype": dtype, "traced_calls": captured[name, dtype], "seen_calls": profiled[name, dtype]}
        for name, dtype in sorted(set(keys))
    ]


def captured_task(job: Job, device: torch.device) -> Task:
    """The task that compares one job."""

    def run(_budget_s: float) -> Record:
        rows = compared(captured_calls(job, device.type), profiled_calls(job, device))
        return {"captured": [{"model": job.model, "precision": job.precision, **row} for row in rows]}

    return Task(f"captured {job.model} {job.precision}", run)
