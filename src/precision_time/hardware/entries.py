"""Builds `Gpu`, `Node` and `Fabric` from an entry of the data files or of a device file; errors name key and fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from precision_time import checks
from precision_time.checks import Entry
from precision_time.errors import CatalogError
from precision_time.hardware.calibration_entry import calibration_from_entry
from precision_time.hardware.fabric import INTRA_KINDS, KINDS, Fabric
from precision_time.hardware.gpu import DEVICE_TYPES, Gpu
from precision_time.hardware.node import Node

# Column of gpus.csv -> key of Gpu.peaks. int8 is in operations per second.
PEAK_COLUMNS = {
    "fp64_tflops": "fp64",
    "fp64_tensor_tflops": "fp64_matrix",
    "fp32_tflops": "fp32",
    "fp32_matrix_tflops": "fp32_matrix",
    "tf32_tflops": "tf32",
    "fp16_vector_tflops": "fp16_vector",
    "fp16_tflops": "fp16",
    "bf16_tflops": "bf16",
    "fp8_tflops": "fp8",
    "int8_tflops": "int8",
    "fp4_tflops": "fp4",
}
# Column -> (field of Gpu, factor to SI, largest plausible value, unit).
_NUMBERS: dict[str, tuple[str, float, float, str]] = {
    "mem_gb": ("memory_bytes", 2**30, 4096, "GiB as printed on the box"),
    "mem_bw_gbs": ("memory_bytes_per_s", 1e9, 1e5, "GB/s"),
    "sm_count": ("sm_count", 1, 4096, "multiprocessors"),
    "fp32_lanes_per_sm": ("fp32_lanes_per_sm", 1, 4096, "lanes"),
    "boost_mhz": ("boost_hz", 1e6, 1e4, "MHz"),
    "l2_mb": ("l2_bytes", 2**20, 4096, "MiB"),
    "tdp_w": ("tdp_w", 1, 1e4, "W"),
    "nvlink_gbs": ("nvlink_bytes_per_s", 1e9, 1e5, "GB/s, both directions"),
    "pcie_gen": ("pcie_gen", 1, 10, "generation"),
    "pcie_lanes": ("pcie_lanes", 1, 64, "lanes"),
}
_WHOLE = {"memory_bytes", "sm_count", "fp32_lanes_per_sm", "l2_bytes", "pcie_gen", "pcie_lanes"}
_TEXT = {"gpu": "kernel_name", "vendor": "vendor", "sources": "sources", "notes": "notes"}
_UNUSED = {"base_mhz", "mem_type", "smem_kb_per_sm", "regfile_kb_per_sm"}
_OTHERS = {"arch", "compute_capability", "based_on", "name", "device_type", "calibration"}
GPU_KEYS = {*PEAK_COLUMNS, *_NUMBERS, *_TEXT, *_UNUSED, *_OTHERS}

# "80 GB" of HBM or GDDR is 80 GiB to the driver (A100: 81920 MiB; allocators then see 79.15 GiB). Only the data sheets
# of these two count decimal gigabytes; their driver figures are in the notes of gpus.csv.
_DRIVER_MIB = {"b300-288gb-sxm": 275040, "gb300": 284208}


def gpu_from_entry(name: str, entry: Entry, where: str, base: Gpu | None = None) -> Gpu:
    """A `Gpu` from the columns of gpus.csv; with `base`, only what differs from that GPU need be given."""
    checks.known_keys(entry, GPU_KEYS, where)
    values = {key: value for key, value in entry.items() if value not in (None, "")}
    fields: dict[str, Any] = {"name": name}
    for column, (target, factor, largest, unit) in _NUMBERS.items():
        if column in values:
            value = checks.quantity(values[column], f"{where}: {column}", largest, unit) * factor
            fields[target] = int(value) if target in _WHOLE else value
    fields.update({target: str(values[key]) for key, target in _TEXT.items() if key in values})
    if "arch" in values:
        fields["arch"] = arch_family(str(values["arch"]))
    if "compute_capability" in values:
        fields["compute_capability"] = _capability(values["compute_capability"], where)
    if "device_type" in values:
        if values["device_type"] not in DEVICE_TYPES:
            raise CatalogError(f"{where}: device_type is {values['device_type']!r}; use {' or '.join(DEVICE_TYPES)}.")
        fields["device_type"] = values["device_type"]
    if "calibration" in values:
        fields["calibration"] = calibration_from_entry(values["calibration"], f"{where}: calibration")
    peaks = {
        math: checks.quantity(values[column], f"{where}: {column}", 1e5, "dense TFLOP/s") * 1e12
        for column, math in PEAK_COLUMNS.items()
        if column in values
    }
    if base is not None:
        peaks = {**base.peaks, **peaks}
        device = replace(base, **fields, peaks=MappingProxyType(peaks))
        _peaks_of_calibration(device, where)
        return device
    checks.required(fields, {"memory_bytes": "mem_gb", "memory_bytes_per_s": "mem_bw_gbs"}, where)
    if not peaks:
        raise CatalogError(f"{where}: no peak is given; add at least one of {', '.join(PEAK_COLUMNS)}.")
    if name in _DRIVER_MIB:
        fields["memory_bytes"] = _DRIVER_MIB[name] * 2**20
    defaults = {"kernel_name": name, "vendor": "unknown", "arch": "unknown"}
    device = Gpu(**{**defaults, **fields}, peaks=MappingProxyType(peaks))
    _peaks_of_calibration(device, where)
    return device


def _peaks_of_calibration(gpu: Gpu, where: str) -> None:
    """Check that every arithmetic (`math`) with measured points has a peak, of which utilisation is a share."""
    for math in gpu.calibration.kernels.maths if gpu.calibration else ():
        usable = gpu.has(math) or (math == "fp16" and gpu.has("fp16_vector"))
        if math != "vector" and not usable:
            raise CatalogError(
                f"{where}: calibration: kernels has rows in {math}, but {math}_tflops is missing;"
                " add the best rate seen."
            )


def arch_family(text: str) -> str:
    """'Ampere GA100' -> ampere; 'Blackwell Ultra' -> blackwell; 'TPU v4' -> tpu; 'Ampere GA102' -> ampere-ga10x.

    Ampere's graphics chips (GA10x) have other multiprocessors than the A100 (twice the float32 lanes, half the tensor
    rate, GDDR memory), so they form a family of their own.
    """
    name, *chip = text.lower().split()
    return f"{name}-ga10x" if chip and chip[0].startswith("ga10") and chip[0] != "ga100" else name


_NODE_NUMBERS = {
    "gpus_per_node",
    "nics",
    "domain_gpus",
    "clock_factor",
    "host_factor",
    "tdp_w",
    "oversubscription",
    "gpus_per_leaf",
}
_NETWORK_FACTS = ("oversubscription", "rail_optimised", "gpus_per_leaf")
_HOST_NUMBERS = {"cores", "host_memory_gib"}
NODE_KEYS = {
    *_NODE_NUMBERS,
    *_HOST_NUMBERS,
    "rail_optimised",
    "gpus",
    "intra",
    "inter",
    "default_for",
    "aliases",
    "source",
}


def node_from_entry(name: str, entry: Entry, where: str) -> Node:
    checks.known_keys(entry, NODE_KEYS, where)
    checks.required(entry, {"gpus_per_node": "gpus_per_node", "intra": "intra"}, where)
    limits = {"clock_factor": 3.0, "host_factor": 20.0, "tdp_w": 1e4, "oversubscription": 100.0}
    number: dict[str, Any] = {}
    for key in _NODE_NUMBERS & set(entry):
        value = checks.quantity(entry[key], f"{where}: {key}", limits.get(key, 4096), "count, factor or W")
        if key in limits and value == 0:
            raise CatalogError(f"{where}: {key} is 0; it is above 0 (a factor of 1 means no difference).")
        number[key] = value if key in limits else checks.whole(value, f"{where}: {key}")
    if number["gpus_per_node"] < 1:
        raise CatalogError(f"{where}: gpus_per_node is 0; it must be at least 1.")
    number.setdefault("domain_gpus", number["gpus_per_node"])
    if number["domain_gpus"] % number["gpus_per_node"]:
        raise CatalogError(
            f"{where}: domain_gpus={number['domain_gpus']} is not a multiple of"
            f" gpus_per_node={number['gpus_per_node']}."
        )
    if entry.get("cores") is not None:
        number["cores"] = checks.whole(
            checks.positive_quantity(entry["cores"], f"{where}: cores", 4096, "cores"), where
        )
    if entry.get("host_memory_gib") is not None:
        gib = checks.positive_quantity(entry["host_memory_gib"], f"{where}: host_memory_gib", 1e5, "GiB")
        number["host_memory_bytes"] = int(gib * 2**30)
    inter = entry.get("inter")
    if inter is not None and not number.get("nics"):
        raise CatalogError(f"{where}: inter is {inter} but nics is missing; give the number of ports of each node.")
    rails = _network_facts(entry, number, inter is not None, where)
    return Node(
        name=name,
        gpu_names=checks.names(entry, "gpus", where),
        intra=str(entry["intra"]),
        inter=None if inter is None else str(inter),
        default_for=checks.names(entry, "default_for", where),
        aliases=checks.names(entry, "aliases", where),
        source=str(entry.get("source", "")),
        rail_optimised=rails,
        **number,
    )


def _network_facts(entry: Entry, number: Mapping[str, Any], networked: bool, where: str) -> bool:
    """Checks the keys about the switches above a node's ports; returns whether they are wired in rails."""
    for key in _NETWORK_FACTS:
        if key in entry and not networked:
            raise CatalogError(f"{where}: {key} belongs to a network, but inter is missing; add inter.")
    rails = entry.get("rail_optimised", False)
    if not isinstance(rails, bool):
        raise CatalogError(f"{where}: rail_optimised is {rails!r}; use true or false.")
    ratio, leaf = number.get("oversubscription", 1.0), number.get("gpus_per_leaf", 0)
    if ratio < 1:
        raise CatalogError(
            f"{where}: oversubscription is {ratio:g}; it is bandwidth below the leaf switches over that above them,"
            " at least 1 (2 for 2:1)."
        )
    if ratio > 1 and not leaf and not rails:
        raise CatalogError(f"{where}: gpus_per_leaf is missing; give the number of GPUs that share a leaf switch.")
    if leaf and not rails and leaf % number["gpus_per_node"]:
        raise CatalogError(
            f"{where}: gpus_per_leaf={leaf} is not a multiple of gpus_per_node={number['gpus_per_node']};"
            " a leaf holds whole nodes unless rail_optimised is true."
        )
    return rails


_INTRA_KEYS = {"bus_gb_per_s", "nvls_gb_per_s"}
_NETWORK_KEYS = {"nic_gbit_per_s", "efficiency"}
FABRIC_KEYS = {*_INTRA_KEYS, *_NETWORK_KEYS, "kind", "latency_scale", "hop_us", "ll128", "source"}


def fabric_from_entry(name: str, entry: Entry, where: str) -> Fabric:
    checks.known_keys(entry, FABRIC_KEYS, where)
    kind = entry.get("kind")
    if kind not in KINDS:
        raise CatalogError(f"{where}: kind is {kind!r}; use one of {', '.join(KINDS)}.")
    intra = kind in INTRA_KINDS
    for key in set(entry) & (_NETWORK_KEYS if intra else _INTRA_KEYS):
        other = "bus_gb_per_s" if intra else "nic_gbit_per_s and efficiency"
        raise CatalogError(f"{where}: {key} does not belong to a fabric of kind {kind}; give {other}.")
    needed = "bus_gb_per_s" if intra else "nic_gbit_per_s"
    checks.required(entry, {needed: needed}, where)
    bus: dict[int, float] = {}
    if intra:
        table = entry["bus_gb_per_s"]
        for count, value in (table if isinstance(table, Mapping) else {2: table}).items():
            bus[checks.whole(checks.quantity(count, f"{where}: a GPU count of bus_gb_per_s", 4096, "GPUs"), where)] = (
                checks.positive_quantity(value, f"{where}: bus_gb_per_s", 1e5, "GB/s") * 1e9
            )
        if not bus:
            raise CatalogError(f"{where}: bus_gb_per_s is empty; give one figure or a table by GPU count.")
    hops = entry.get("hop_us")
    if hops is not None:
        hops = checks.mapping(hops, f"{where}: hop_us")
        if set(hops) != {"LL", "LL128", "Simple"}:
            raise CatalogError(f"{where}: hop_us must give microseconds for exactly LL, LL128 and Simple.")
        hops = MappingProxyType({k: checks.quantity(v, f"{where}: hop_us {k}", 1e5, "us") for k, v in hops.items()})
    ll128 = entry.get("ll128", True)
    if not isinstance(ll128, bool):
        raise CatalogError(f"{where}: ll128 is {ll128!r}; use true or false.")
    rate = (
        0.0 if intra else checks.positive_quantity(entry["nic_gbit_per_s"], f"{where}: nic_gbit_per_s", 1e5, "Gbit/s")
    )
    share = entry.get("efficiency", 1.0)
    nvls = checks.quantity(entry.get("nvls_gb_per_s", 0.0), f"{where}: nvls_gb_per_s", 1e5, "GB/s")
    scale = checks.positive_quantity(entry.get("latency_scale", 1.0), f"{where}: latency_scale", 100, "a factor")
    return Fabric(
        name=name,
        kind=str(kind),
        bus_bytes_per_s_by_gpus=MappingProxyType(bus),
        nic_bytes_per_s=rate * 1e9 / 8,
        efficiency=checks.positive_quantity(share, f"{where}: efficiency", 1.0, "share of the line rate"),
        nvls_bytes_per_s=nvls * 1e9,
        latency_scale=scale,
        hop_us=hops,
        ll128=ll128,
        source=str(entry.get("source", "")),
    )


def entries(document: Entry, section: str, where: str) -> dict[str, Entry]:
    """The named entries of one section; an absent section is empty."""
    section_entries = document.get(section) or {}
    return {
        str(name): checks.mapping(entry, f"{where}: {section}: {name}")
        for name, entry in checks.mapping(section_entries, f"{where}: {section}").items()
    }


def _capability(value: object, where: str) -> tuple[int, int]:
    try:
        major, minor = (int(part) for part in str(value).split("."))
    except ValueError:
        raise CatalogError(f"{where}: compute_capability is {value!r}; write it as '8.0'.") from None
    return major, minor
