"""What can be measured of the device beside step times: peak memory, steps that it finished early, its clock."""

from __future__ import annotations

import contextlib
import platform
import sys
from typing import Any


class DeviceProbe:
    """Reads the device that trains; on anything but CUDA only the memory of the process."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._steps = self._finished_early = 0
        self._clocks_mhz: list[float] = []
        self._torch: Any = None
        if device_type == "cuda":
            import torch

            self._torch = torch
            torch.cuda.reset_peak_memory_stats()

    def step_begins(self) -> None:
        """Nothing is read here that would make the host wait for the device."""

    def step_ends(self) -> None:
        """Note whether the device has nothing left to do when the host has launched a step."""
        if self._torch is None:
            return
        event = self._torch.cuda.Event()
        event.record()
        self._steps += 1
        self._finished_early += bool(event.query())
        if self._steps % 50 == 0:
            with contextlib.suppress(Exception):  # needs pynvml
                self._clocks_mhz.append(float(self._torch.cuda.clock_rate()))

    def reasons(self, idle_share: float) -> list[str]:
        """What was measured that makes steps slow, one phrase each; nothing on a CPU."""
        found = []
        if self._steps and self._finished_early > idle_share * self._steps:
            found.append(
                f"in {self._finished_early} of {self._steps} steps the GPU had finished when the host had launched "
                "them: the host is the limit"
            )
        if self._clocks_mhz:
            found.append(f"the clock of the GPU was {min(self._clocks_mhz):,.0f} MHz at its lowest")
        return found

    def peak_memory(self) -> dict[str, Any]:
        """Bytes at the fullest moment, and of what; the caching allocator's on CUDA, else those of the process."""
        if self._torch is not None:
            return {"bytes": int(self._torch.cuda.max_memory_reserved()), "of": "memory reserved by PyTorch"}
        try:
            import resource
        except ImportError:  # Windows
            return {"bytes": None, "of": "not measured on this system"}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"bytes": peak * (1 if sys.platform == "darwin" else 1024), "of": "resident memory of the process"}

    def machine(self) -> dict[str, Any]:
        """What the run trained on, and the versions of PyTorch and CUDA."""
        torch = sys.modules.get("torch")
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
        versions = {"torch": getattr(torch, "__version__", None), "cuda": cuda}
        name = self._torch.cuda.get_device_name() if self._torch is not None else platform.processor() or "CPU"
        machine = {"device_type": self.device_type, "device": name, "host": platform.platform()}
        return {**machine, "hostname": platform.node(), **{key: str(value) for key, value in versions.items() if value}}
