"""Runs a task in fresh processes, one a rank, and gives back what rank 0 says.

Fresh processes keep the caller's threads, allocator and warm caches out of the measurement. They meet through a file in
a temporary folder and, on a CPU, speak over the loopback interface: no ports to choose, no privileges.
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

Report = Callable[[int, int], None]
_KEPT_BYTES = str(1 << 40)
"""More than any heap: with it the GNU C library keeps freed memory. By default it returns some and takes it again in
the next step, or not, as the heap happens to lie; at four microseconds a page (a virtual machine) that is a tenth of a
small step."""
_PATIENCE_S = 10.0
"""How long the other ranks may take to end after rank 0."""


def launch(
    task: Mapping[str, Any],
    ranks: int = 1,
    threads: int = 1,
    timeout_s: float = 1800.0,
    report: Report = lambda done, total: None,
) -> Any:
    """The result of `task` (see `worker`) on `ranks` processes with `threads` threads each.

    Raises `MeasureError` with the first failing rank's sentence, or when nothing came back in time.
    """
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        errors = [(Path(folder) / f"rank{rank}.err").open("w+b") for rank in range(ranks)]
        processes = [_start(task, rank, ranks, threads, folder, errors[rank]) for rank in range(ranks)]
        try:
            result = _listen(processes, time.monotonic() + timeout_s, report)
            for process in processes[1:]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
        said = [_last_line(file) for file in errors]
    if result is None:
        code = processes[0].returncode
        why = next((text for text in said if text), f"rank 0 ended with code {code}")
        raise MeasureError(f"the measuring process gave no result: {why}")
    if "error" in result:
        raise MeasureError(str(result["error"]))
    return result["result"]


def _start(
    task: Mapping[str, Any], rank: int, ranks: int, threads: int, folder: str, errors: Any
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "PRECISION_TIME_STORE": str(Path(folder) / "store"),
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform.startswith("linux"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("MALLOC_TRIM_THRESHOLD_", _KEPT_BYTES)
        environment.setdefault("MALLOC_MMAP_THRESHOLD_", _KEPT_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-m", "precision_time.measure.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        stderr=errors,
        env=environment,
    )
    assert process.stdin is not None  # asked for above
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(dict(task)).encode())
        process.stdin.close()
    return process


def _listen(processes: list[subprocess.Popen[bytes]], end: float, report: Report) -> dict[str, Any] | None:
    """Lines of rank 0 until its result. A watchdog ends everything when time is up or another rank has failed."""
    import threading

    def watch() -> None:
        while processes[0].poll() is None:
            failed = any(p.poll() not in (None, 0) for p in processes[1:])
            if failed or time.monotonic() > end:
                time.sleep(1.0)  # rank 0 may be about to say why
                processes[0].kill()
                return
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
    stdout = processes[0].stdout
    assert stdout is not None  # rank 0 has a pipe
    result: dict[str, Any] | None = None
    for line in stdout:
        with contextlib.suppress(json.JSONDecodeError):
            said = json.loads(line)
            if isinstance(said, dict) and "progress" in said:
                report(*said["progress"])
            elif isinstance(said, dict) and ("result" in said or "error" in said):
                result = said
    return result


def _last_line(file: Any) -> str:
    """The last line a rank wrote to stderr, which is where Python puts the exception."""
    file.seek(0)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    file.close()
    return lines[-1].strip() if lines else ""
