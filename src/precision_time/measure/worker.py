"""One rank of a measurement: reads its task from stdin, does it, and (rank 0) writes JSON lines to stdout.

Lines: {"progress": [done, total]} any number of times, then {"result": ...} or {"error": "one sentence"}.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist

from precision_time.errors import PrecisionTimeError


def _say(message: dict[str, Any]) -> None:
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(message), file=_answer, flush=True)


def _progress(done: int, total: int) -> None:
    _say({"progress": [done, total]})


def _device(kind: str) -> torch.device:
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return torch.device("cpu")


def _join(device: torch.device) -> None:
    """The process group of all ranks; nothing for one rank."""
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{os.environ['PRECISION_TIME_STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=world,
            timeout=datetime.timedelta(minutes=10),
        )


def _run(task: dict[str, Any]) -> Any:
    device = _device(task["device"])
    _join(device)
    try:
        if task["task"] == "train":
            from precision_time.measure.train import train_task

            return train_task(task, device)
        if task["task"] == "runs":
            from precision_time.measure.small_runs import runs_task

            return runs_task(task, device, _progress)
        if task["task"] == "measure":
            from precision_time.measure.measurement import measure_task

            return measure_task(task, device, _progress)
        if task["task"] == "profile":
            from precision_time.measure.profile import profile_task

            return profile_task(task, device, _progress)
        if task["task"] == "kernels":
            from precision_time.measure.session import kernels_task

            return kernels_task(task, device, _progress)
        from precision_time.measure.rank_interference import together_task

        return together_task(task, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> int:
    task = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")  # of the models and of torch; they would drown a failure's last line
    try:
        _say({"result": _run(task)})
    except PrecisionTimeError as error:
        _say({"error": str(error)})
        print(error, file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        _say({"error": "the device ran out of memory; lower the batch size"})
        return 1
    return 0


if __name__ == "__main__":
    _answer = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with the answer
    os.dup2(2, 1)
    sys.exit(main())
