"""The cluster resource collector: what a node has, from this machine, a Slurm or a Kubernetes description of it.

The parsers are pure: they take the text of `scontrol show node` or of `kubectl get node -o json` and ask nobody.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_time.errors import CatalogError, DataError, nearest
from precision_time.hardware.catalog import Catalog, default_catalog

_KUBERNETES_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "google.com/tpu")
_BINARY = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class NodeResources:
    """One server. `gpu` is as the source names it, `gpu_memory_bytes` of one device; None and 0 where there is none."""

    name: str
    cores: int
    memory_bytes: int
    processor: str = ""
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int | None = None
    ready: bool = True

    def catalog_gpu(self, catalog: Catalog | None = None) -> str:
        """The name of its GPU in the catalog. Raises a `CatalogError` where none or several may be meant."""
        known = (catalog or default_catalog()).gpus
        if not self.gpu:
            raise CatalogError(
                f"node {self.name} has no GPU; give the job's gpu yourself, with a device file for its CPU"
            )
        said = re.sub(r"[^a-z0-9]+", "-", self.gpu.lower())
        if said in known:
            return said
        words = set(re.findall(r"[a-z]+\d*[a-z]*|\d+[a-z]*", said))
        if self.gpu_memory_bytes and not any(re.fullmatch(r"\d+gb", w) for w in words):
            words.add(f"{round(self.gpu_memory_bytes / 2**30)}gb")
        fits = [name for name in known if all(_says(words, part) for part in name.split("-"))]
        best = [name for name in fits if len(name.split("-")) == max(len(f.split("-")) for f in fits)]
        if len(best) != 1:
            raise CatalogError(
                f"gpu {self.gpu!r} of node {self.name} is {'several' if best else 'none'} of the catalog's; "
                f"nearest: {nearest(said, known)}; give the job's gpu yourself"
            )
        return best[0]


def _says(words: set[str], part: str) -> bool:
    return part in words or any(part.isalpha() and w.startswith(part) and w[len(part) :].isdigit() for w in words)


def job_words(nodes: Sequence[NodeResources], catalog: Catalog | None = None) -> dict[str, Any]:
    """`gpu`, `gpus` and `nodes` of a job that takes all of some equal nodes that are ready."""
    ready = [node for node in nodes if node.ready]
    if not ready:
        raise CatalogError(f"none of {len(nodes)} nodes is ready; give the nodes that the job is to run on")
    kinds = {(node.gpu, node.gpus) for node in ready}
    if len(kinds) > 1:
        said = ", ".join(sorted(f"{count} x {gpu}" for gpu, count in kinds))
        raise CatalogError(f"the nodes differ ({said}); give equal ones, since ranks wait for the slowest")
    first = ready[0]
    return {"gpu": first.catalog_gpu(catalog), "gpus": first.gpus * len(ready), "nodes": len(ready)}


def this_machine(proc: Path = Path("/proc")) -> NodeResources:
    """The machine this runs on: cores we may use, memory, processor, and its CUDA devices where torch sees some."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = NodeResources(os.uname().nodename, cores, _memory(proc), _processor(proc))
    try:
        import torch
    except ImportError:
        return found
    if not torch.cuda.is_available():
        return found
    device = torch.cuda.get_device_properties(0)
    return replace(found, gpu=device.name, gpus=torch.cuda.device_count(), gpu_memory_bytes=device.total_memory)


def _memory(proc: Path) -> int:
    match = re.search(r"MemTotal:\s+(\d+) kB", _text(proc / "meminfo"))
    return int(match[1]) * 1024 if match else 0


def _processor(proc: Path) -> str:
    match = re.search(r"model name\s*:\s*(.+)", _text(proc / "cpuinfo"))
    return match[1].strip() if match else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def from_slurm(text: str) -> tuple[NodeResources, ...]:
    """Nodes of `scontrol show node`: one block a node, KEY=VALUE. `RealMemory` is in MiB."""
    blocks = [block for block in re.split(r"(?m)^(?=NodeName=)", text) if block.startswith("NodeName=")]
    if not blocks:
        raise DataError("the text has no NodeName=, so it is no output of `scontrol show node`; give that output whole")
    return tuple(_slurm_node(dict(re.findall(r"(\w+)=(\S*)", block))) for block in blocks)


def _slurm_node(fields: Mapping[str, str]) -> NodeResources:
    name = fields["NodeName"]
    try:
        cores, memory = int(fields["CPUTot"]), int(fields["RealMemory"]) * 2**20
    except (KeyError, ValueError) as error:
        raise DataError(f"node {name}: CPUTot or RealMemory is missing or no number; give its whole block") from error
    gpu, gpus = None, 0
    for each in re.findall(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))", fields.get("Gres", "")):
        gpu, gpus = each[0] or gpu, gpus + int(each[1])
    state = fields.get("State", "").upper()
    ready = not any(word in state for word in ("DOWN", "DRAIN", "FAIL", "MAINT", "UNKNOWN"))
    return NodeResources(
        name, cores, memory, fields.get("Arch", ""), gpu or ("gpu" if gpus else None), gpus, ready=ready
    )


def from_kubernetes(text: str) -> tuple[NodeResources, ...]:
    """Nodes of `kubectl get node -o json`, a single one or a list. Allocatable resources count, not capacity."""
    try:
        document = json.loads(text)
        items = document["items"] if document.get("kind", "").endswith("List") else [document]
        return tuple(_kubernetes_node(item) for item in items)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the text is no Kubernetes node ({type(error).__name__}: {error}); give the output of "
            "`kubectl get node NAME -o json`"
        ) from error


def _kubernetes_node(item: Mapping[str, Any]) -> NodeResources:
    status, labels = item["status"], item["metadata"].get("labels", {})
    has = status.get("allocatable") or status["capacity"]
    kind = next((key for key in _KUBERNETES_GPUS if int(has.get(key, 0))), None)
    memory = labels.get("nvidia.com/gpu.memory")
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return NodeResources(
        name=item["metadata"]["name"],
        cores=int(_quantity(has["cpu"])),
        memory_bytes=int(_quantity(has["memory"])),
        processor=status.get("nodeInfo", {}).get("architecture", ""),
        gpu=(labels.get("nvidia.com/gpu.product") or kind) if kind else None,
        gpus=int(has[kind]) if kind else 0,
        gpu_memory_bytes=int(memory) * 2**20 if kind and memory else None,
        ready=conditions.get("Ready", "True") == "True" and not item.get("spec", {}).get("unschedulable", False),
    )


def _quantity(text: str) -> float:
    """A Kubernetes quantity: "64", "63800m", "527988868Ki"."""
    match = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", text)
    if match is None:
        raise ValueError(f"quantity {text!r}")
    number, unit = float(match[1]), match[2]
    return number / 1000.0 if unit == "m" else number * _BINARY[unit.lower()]
