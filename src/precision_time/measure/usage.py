"""What steps on a GPU use besides time: memory, energy, clock, and the time of the host thread that launches them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from precision_time.measure.train import wait

_WINDOW_S = 0.4
"""Seconds of steps over which power is averaged; counters of energy advance every 20 to 100 ms."""
_LEAST_STEPS, _HOST_STEPS = 3, 2


def usage(step: Callable[[], None], device: torch.device, step_s: float) -> dict[str, Any]:
    """Of a training step that takes `step_s` seconds, after warm-up; empty on a CPU.

    allocated_bytes, reserved_bytes  most that tensors and torch's allocator held since the peak was last reset
    host_s                           until the host has launched a step and may go on; a step that waits for the GPU
                                     (a loss scaler does) takes its whole time
    power_w, clock_mhz               mean power, and clock of the multiprocessors at the end of the window; only where
                                     NVIDIA's library (nvidia-ml-py) is installed
    """
    if device.type != "cuda":
        return {}
    used: dict[str, Any] = {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }
    launches = []
    for _ in range(_HOST_STEPS):
        wait(device)
        begin = time.perf_counter()
        step()
        launches.append(time.perf_counter() - begin)
    used["host_s"] = float(f"{min(launches):.4g}")
    return used | _power(step, device, step_s)


def _power(step: Callable[[], None], device: torch.device, step_s: float) -> dict[str, Any]:
    try:
        import pynvml  # type: ignore[import-not-found]  # of no extra: whoever has nvidia-ml-py gets power
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        wait(device)
        before_mj, begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), time.perf_counter()
        for _ in range(max(_LEAST_STEPS, int(_WINDOW_S / step_s))):
            step()
        clock_mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        wait(device)
        spent_j = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj) / 1e3
    except pynvml.NVMLError:
        return {}
    return {"power_w": round(spent_j / (time.perf_counter() - begin), 1), "clock_mhz": clock_mhz}
