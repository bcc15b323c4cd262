"""State of a device at a moment: date, system load, clock, power and temperature."""

from __future__ import annotations

import datetime
import os
import shutil
import statistics
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

_QUERIES = {"clock_mhz": "clocks.sm", "power_w": "power.draw", "temperature_c": "temperature.gpu"}
"""Field of a record -> query of nvidia-smi."""


def conditions(device: torch.device) -> dict[str, Any]:
    """{"at": time in UTC, "load": system load, "clock_mhz" ...}; values that need privileges are left out."""
    state: dict[str, Any] = {"at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if hasattr(os, "getloadavg"):
        state["load"] = round(os.getloadavg()[0], 2)
    return {**state, **(_gpu(device) if device.type == "cuda" else _cpu())}


def _cpu() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        clocks = [float(line.partition(":")[2]) for line in lines if line.lower().startswith("cpu mhz")]
    except (OSError, ValueError):
        return {}
    return {"clock_mhz": round(statistics.mean(clocks))} if clocks else {}


@cache
def _nvidia_smi() -> str | None:
    return shutil.which("nvidia-smi")


def _gpu(device: torch.device) -> dict[str, Any]:
    program = _nvidia_smi()
    if program is None:
        return {}
    index = str(torch.cuda.get_device_properties(device).uuid)
    command = [program, f"--query-gpu={','.join(_QUERIES.values())}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            [*command, f"--id=GPU-{index}"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        values = [float(cell) for cell in answer.strip().split(",")]
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERIES, values, strict=False))
