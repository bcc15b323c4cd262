"""Runs a task in fresh processes, one per rank, and returns the result of rank 0.

Fresh processes keep the caller's threads, allocator and warm caches out of the measurement. They rendezvous through a
file in a temporary folder and, on a CPU, communicate over the loopback interface, so no port has to be chosen.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import MeasureError
from precision_time.processes import end_process, json_objects, start_module

Report = Callable[[int, int], None]
"""Called with the number of finished items and their total."""
_MALLOC_THRESHOLDS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_KEPT_BYTES = str(1 << 40)
"""More than any heap, so that the GNU C library keeps freed memory. By default it may return memory to the system and
fault it in again in the next step: about 4 us per page on a virtual machine, a tenth of a small step."""
_EXIT_TIMEOUT_S = 10.0
"""How long the other ranks may take to exit after rank 0."""


def no_report(done: int, total: int) -> None:
    """Report progress to nobody."""


def launch(
    task: Mapping[str, Any],
    ranks: int = 1,
    threads: int = 1,
    timeout_s: float = 1800.0,
    report: Report = no_report,
) -> Any:
    """The result of `task` (see `worker`) on `ranks` processes with `threads` threads each.

    Raises `MeasureError` with the message of the first failing rank, or when no result arrived within `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        errors = [(Path(folder) / f"rank{rank}.err").open("w+b") for rank in range(ranks)]
        processes = [_start(task, rank, ranks, threads, folder, errors[rank]) for rank in range(ranks)]
        try:
            result = _listen(processes, time.monotonic() + timeout_s, report)
            for process in processes[1:]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_TIMEOUT_S)
        finally:
            for process in processes:
                end_process(process)
        last_lines = [_last_line(file) for file in errors]
    if result is None:
        code = processes[0].returncode
        why = next((text for text in last_lines if text), f"rank 0 ended with code {code}")
        raise MeasureError(f"the measuring process gave no result: {why}")
    if "error" in result:
        raise MeasureError(str(result["error"]))
    return result["result"]


def _start(
    task: Mapping[str, Any], rank: int, ranks: int, threads: int, folder: str, errors: Any
) -> subprocess.Popen[bytes]:
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "PRECISION_TIME_STORE": str(Path(folder) / "store"),
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform.startswith("linux"):
        defaults = {"GLOO_SOCKET_IFNAME": "lo"} | dict.fromkeys(_MALLOC_THRESHOLDS, _KEPT_BYTES)
        environment |= {name: value for name, value in defaults.items() if name not in os.environ}
    process = start_module(
        "precision_time.measure.worker",
        environment=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        stderr=errors,
    )
    assert process.stdin is not None  # asked for above
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(dict(task)).encode())
        process.stdin.close()
    return process


def _listen(processes: list[subprocess.Popen[bytes]], end: float, report: Report) -> dict[str, Any] | None:
    """Read messages of rank 0 until its result. A watchdog kills rank 0 at time `end` or when another rank failed."""
    import threading

    def watch() -> None:
        while processes[0].poll() is None:
            failed = any(p.poll() not in (None, 0) for p in processes[1:])
            if failed or time.monotonic() > end:
                time.sleep(1.0)  # rank 0 may be about to report the error itself
                processes[0].kill()
                return
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
    stdout = processes[0].stdout
    assert stdout is not None  # rank 0 has a pipe
    result: dict[str, Any] | None = None
    for message in json_objects(stdout):
        if "progress" in message:
            report(*message["progress"])
        elif "result" in message or "error" in message:
            result = message
    return result


def _last_line(file: Any) -> str:
    """The last line that a rank wrote to stderr: Python prints the exception there."""
    file.seek(0)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    file.close()
    return lines[-1].strip() if lines else ""
