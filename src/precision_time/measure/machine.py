"""Description of this machine for device files and reports."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from precision_time.errors import CatalogError
from precision_time.hardware.catalog import default_catalog


def cores() -> int:
    """Logical cores that this process may use; a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Name of the processor as the operating system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def memory_bytes() -> int:
    """Physical memory in bytes; 8 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def versions() -> dict[str, str]:
    """Versions of Python, torch and precision-time."""
    packages = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        packages["precision-time"] = version("precision-time")
    except PackageNotFoundError:
        packages["precision-time"] = "source"
    return packages


def header(device: torch.device) -> dict[str, Any]:
    """Header of a journal: machine, threads and torch version. A journal with another header is not continued."""
    return {"machine": description(device.type), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "precision-time": versions()["precision-time"]}  # fmt: skip


def description(device_type: str) -> str:
    """One line that names the devices, the processor and the operating system."""
    if device_type == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {cpu_name()} host, {sys.platform}"
    return f"{cpu_name()}, {cores()} logical cores, {sys.platform}"


def facts(device_type: str, ranks: int) -> dict[str, Any]:
    """Fields of a device-file entry that need no measurement; a GPU of the catalog is entered as based on it."""
    if device_type == "cpu":
        vendor = next((v for v in ("AMD", "Intel", "Apple", "ARM") if v.lower() in cpu_name().lower()), "unknown")
        return {"vendor": vendor, "arch": "cpu", "mem_gb": round(memory_bytes() / ranks / 2**30, 2)}
    known = torch.cuda.get_device_name()
    try:
        return {"based_on": default_catalog().gpu(known).name}
    except CatalogError:
        properties = torch.cuda.get_device_properties(0)
        capability = f"{properties.major}.{properties.minor}"
        arch = _ARCHITECTURES.get(capability) or _ARCHITECTURES.get(str(properties.major), "unknown")
        return {
            "vendor": "NVIDIA",
            "arch": arch,
            "mem_gb": round(properties.total_memory / 2**30, 2),
            "sm_count": properties.multi_processor_count,
            "compute_capability": capability,
        }


_ARCHITECTURES = {
    "6": "pascal", "7": "volta", "7.5": "turing", "8": "ampere", "8.6": "ampere-ga10x", "8.9": "ada", "9": "hopper",
    "10": "blackwell", "12": "blackwell-gb20x",
}  # fmt: skip
"""Compute capability to architecture (NVIDIA's CUDA GPU table)."""
