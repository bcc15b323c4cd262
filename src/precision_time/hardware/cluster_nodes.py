"""The nodes of a cluster as Slurm (`scontrol show node`) or Kubernetes (`kubectl get node -o json`) describes them.

The readers take the text of those commands; they contact no scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import CatalogError, DataError, nearest
from precision_time.hardware.aliases import GKE_GPUS, plain
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.reading import named, parse_json, read_text

_KUBERNETES_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "google.com/tpu")
_BINARY = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class NodeResources:
    """One node of a cluster. `memory_bytes` is host memory.

    `gpu` is the name that the scheduler gives the device, and None on a node without one; `gpu_memory_bytes` is the
    memory of one device, where the scheduler states it.
    """

    name: str
    cores: int
    memory_bytes: int
    processor: str = ""
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int | None = None
    ready: bool = True

    def catalog_gpu(self, catalog: Catalog | None = None) -> str:
        """The catalog name of its GPU. Raises `CatalogError` if no entry or several entries match."""
        known = (catalog or default_catalog()).gpus
        if not self.gpu:
            raise CatalogError(
                f"node {self.name} has no GPU; give the job's gpu yourself, with a device file for its CPU"
            )
        hyphenated = plain(self.gpu)
        hyphenated = GKE_GPUS.get(hyphenated, hyphenated)
        if hyphenated in known:
            return hyphenated
        parts = set(re.findall(r"[a-z]+\d*[a-z]*|\d+[a-z]*", hyphenated))
        if self.gpu_memory_bytes and not any(re.fullmatch(r"\d+gb", part) for part in parts):
            parts.add(f"{round(self.gpu_memory_bytes / 2**30)}gb")
        if "hbm3" in parts:  # nvidia-h100-80gb-hbm3; the PCIe card has HBM2e
            parts.add("sxm")
        fits = [name for name in known if all(_matches(parts, part) for part in name.split("-"))]
        best = [name for name in fits if len(name.split("-")) == max(len(f.split("-")) for f in fits)]
        if len(best) != 1:
            raise CatalogError(
                f"gpu {show(self.gpu)} of node {self.name} is {'several' if best else 'none'} of the catalog's; "
                f"nearest: {nearest(hyphenated, known)}; give the job's gpu yourself"
            )
        return best[0]


def _matches(parts: set[str], part: str) -> bool:
    """Whether a part of a catalog name is a part of a scheduler's name; "sxm" matches "sxm4" too."""
    return part in parts or any(part.isalpha() and p.startswith(part) and p[len(part) :].isdigit() for p in parts)


def job_fields(nodes: Sequence[NodeResources], catalog: Catalog | None = None) -> dict[str, Any]:
    """The fields `gpu`, `gpus` and `nodes` of a job on all nodes that are ready and have GPUs, which must be equal."""
    ready = [node for node in nodes if node.ready]
    if not ready:
        raise CatalogError(f"none of {len(nodes)} nodes is ready; give the nodes that the job is to run on")
    ready = [node for node in ready if node.gpus] or ready
    kinds = {(node.gpu, node.gpus) for node in ready}
    if len(kinds) > 1:
        listed = ", ".join(sorted(f"{count} x {gpu}" for gpu, count in kinds))
        raise CatalogError(f"the nodes differ ({listed}); give equal ones, since ranks wait for the slowest")
    first = ready[0]
    return {"gpu": first.catalog_gpu(catalog), "gpus": first.gpus * len(ready), "nodes": len(ready)}


def read_nodes(path: str | Path) -> tuple[NodeResources, ...]:
    """The nodes in a file with the output of either command. Raises `DataError` naming the file."""
    text = read_text(path, "cluster file")
    try:
        return from_kubernetes(text) if text.lstrip().startswith("{") else from_slurm(text)
    except DataError as error:
        raise DataError(f"{named('cluster file', path)}: {error}") from error


def from_slurm(text: str) -> tuple[NodeResources, ...]:
    """The nodes of `scontrol show node`: blocks of KEY=VALUE, one for each node. `RealMemory` is in MiB."""
    blocks = [block for block in re.split(r"(?m)^(?=NodeName=)", text) if block.startswith("NodeName=")]
    if not blocks:
        raise DataError("the text has no NodeName=, so it is no output of `scontrol show node`; give that output whole")
    return tuple(_slurm_node(dict(re.findall(r"(?<!\w)(\w+)=(\S*)", block))) for block in blocks)


def _slurm_node(fields: Mapping[str, str]) -> NodeResources:
    name = fields["NodeName"]
    try:
        cores, memory = int(fields["CPUTot"]), int(fields["RealMemory"]) * 2**20
    except (KeyError, ValueError) as error:
        raise DataError(f"node {name}: CPUTot or RealMemory is missing or no number; give its whole block") from error
    gpu, gpus = None, 0
    for name_of_gpu, number in re.findall(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d{1,6}))(?!\d)", fields.get("Gres", "")):
        gpu, gpus = name_of_gpu or gpu, gpus + int(number)
    state = fields.get("State", "").upper()
    ready = not any(problem in state for problem in ("DOWN", "DRAIN", "FAIL", "MAINT", "UNKNOWN"))
    return NodeResources(
        name, cores, memory, fields.get("Arch", ""), gpu or ("gpu" if gpus else None), gpus, ready=ready
    )


def from_kubernetes(text: str) -> tuple[NodeResources, ...]:
    """The nodes of `kubectl get node -o json`, one or a list. Allocatable resources count, not capacity."""
    try:
        document = parse_json(text, "the output of `kubectl get node -o json`")
        items = document["items"] if document.get("kind", "").endswith("List") else [document]
        return tuple(_kubernetes_node(item) for item in items)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"the text is no Kubernetes node ({type(error).__name__}: {str(error)[:100]}); give the output of "
            "`kubectl get node NAME -o json`"
        ) from error


def _kubernetes_node(item: Mapping[str, Any]) -> NodeResources:
    status, labels = item["status"], item["metadata"].get("labels", {})
    resources = status.get("allocatable") or status["capacity"]
    kind = next((key for key in _KUBERNETES_GPUS if int(resources.get(key, 0))), None)
    memory, product = labels.get("nvidia.com/gpu.memory"), labels.get("nvidia.com/gpu.product")
    name, processor = item["metadata"]["name"], status.get("nodeInfo", {}).get("architecture", "")
    if not all(isinstance(text, str) for text in (name, processor, product or "")):
        raise TypeError("a name is no text")
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return NodeResources(
        name=name,
        cores=int(_quantity(resources["cpu"])),
        memory_bytes=int(_quantity(resources["memory"])),
        processor=processor,
        gpu=(product or kind) if kind else None,
        gpus=int(resources[kind]) if kind else 0,
        gpu_memory_bytes=int(memory) * 2**20 if kind and memory else None,
        ready=conditions.get("Ready", "True") == "True" and not item.get("spec", {}).get("unschedulable", False),
    )


def _quantity(text: str) -> float:
    """A Kubernetes quantity: "64", "63800m", "527988868Ki"."""
    match = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", text)
    if match is None:
        raise ValueError(f"quantity {show(text)}")
    number, unit = float(match[1]), match[2]
    return number / 1000.0 if unit == "m" else number * _BINARY[unit.lower()]
