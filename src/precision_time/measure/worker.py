"""One rank of a measurement: reads a task from stdin, runs it, and (rank 0 only) writes JSON lines to stdout.

Lines: {"progress": [done, total]} any number of times, then {"result": ...} or {"error": "one sentence"}.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from precision_time.errors import PrecisionTimeError

TASKS = {
    "interference": "rank_interference:interference_task",
    "kernels": "session:kernels_task",
    "measure": "measurement:measure_task",
    "profile": "profile:profile_task",
    "runs": "small_runs:runs_task",
    "train": "train:train_task",
}
"""Value of the field `task` -> module and function, called with the task, the device and a progress callback."""


def run_task(task: dict[str, Any], device: torch.device, report: Callable[[int, int], None]) -> Any:
    """The JSON result of the function that `TASKS` names."""
    module, _, function = TASKS[task["task"]].partition(":")
    return getattr(importlib.import_module(f"precision_time.measure.{module}"), function)(task, device, report)


def _send(message: dict[str, Any]) -> None:
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(message), file=_messages, flush=True)


def _device(kind: str) -> torch.device:
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return torch.device("cpu")


def _init_process_group(device: torch.device) -> None:
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{os.environ['PRECISION_TIME_STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=world,
            timeout=datetime.timedelta(minutes=10),
        )


def main() -> int:
    task = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")  # warnings of models and torch would hide the last line of a failure
    try:
        device = _device(task["device"])
        _init_process_group(device)
        try:
            result = run_task(task, device, lambda done, total: _send({"progress": [done, total]}))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        _send({"result": result})
    except PrecisionTimeError as error:
        _send({"error": str(error)})
        print(error, file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        _send({"error": "the device ran out of memory; lower the batch size"})
        return 1
    return 0


if __name__ == "__main__":
    _messages = os.fdopen(os.dup(1), "w")  # output of libraries must not mix with the messages
    os.dup2(2, 1)
    sys.exit(main())
