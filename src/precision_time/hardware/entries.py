"""Builds `Gpu`, `Node` and `Fabric` from an entry of the data files or of a device file; errors name key and fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from precision_time import checks
from precision_time.checks import Entry
from precision_time.errors import CatalogError
from precision_time.field_types import NAME
from precision_time.hardware.calibration_entry import calibration_from_entry
from precision_time.hardware.fabric import Fabric
from precision_time.hardware.fields import (
    BUS,
    BUS_GPUS,
    FABRIC,
    GPU,
    HOP,
    INTRA_KINDS,
    NODE,
    PEAKS,
    PROTOCOLS,
    values_of,
)
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node

# "80 GB" of HBM or GDDR is 80 GiB to the driver (A100: 81920 MiB; allocators then see 79.15 GiB). Only the data sheets
# of these two count decimal gigabytes; their driver figures are in the notes of gpus.csv.
_DRIVER_MIB = {"b300-288gb-sxm": 275040, "gb300": 284208}


def gpu_from_entry(name: str, entry: Entry, where: str, base: Gpu | None = None) -> Gpu:
    """A `Gpu` from the columns of gpus.csv; with `base`, only what differs from that GPU need be given."""
    checks.known_keys(entry, set(GPU), where)
    NAME.entry(name, f"{where}: the name")
    given = {key: value for key, value in entry.items() if value not in (None, "")}
    fields = {"name": name, **values_of(GPU, given, where)}
    if "calibration" in given:
        fields["calibration"] = calibration_from_entry(given["calibration"], f"{where}: calibration")
    peaks = {math: GPU[key].value(given[key], f"{where}: {key}") for key, math in PEAKS.items() if key in given}
    if base is not None:
        device = replace(base, **fields, peaks=MappingProxyType({**base.peaks, **peaks}))
        _peaks_of_calibration(device, where)
        return device
    checks.required(fields, {"memory_bytes": "mem_gb", "memory_bytes_per_s": "mem_bw_gbs"}, where)
    if not peaks:
        raise CatalogError(f"{where}: no peak is given; add at least one of {', '.join(PEAKS)}.")
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


_NETWORK_FACTS = ("oversubscription", "rail_optimised", "gpus_per_leaf")


def node_from_entry(name: str, entry: Entry, where: str) -> Node:
    checks.known_keys(entry, set(NODE), where)
    checks.required(entry, {"gpus_per_node": "gpus_per_node", "intra": "intra"}, where)
    NAME.entry(name, f"{where}: the name")
    fields = values_of(NODE, entry, where)
    fields.setdefault("domain_gpus", fields["gpus_per_node"])
    if fields["domain_gpus"] % fields["gpus_per_node"]:
        raise CatalogError(
            f"{where}: domain_gpus={fields['domain_gpus']} is not a multiple of"
            f" gpus_per_node={fields['gpus_per_node']}."
        )
    inter = fields.get("inter")
    if inter is not None and not fields.get("nics"):
        raise CatalogError(f"{where}: inter is {inter} but nics is missing; give the number of ports of each node.")
    _check_network(entry, fields, where)
    return Node(name=name, **{"gpu_names": (), **fields})


def _check_network(entry: Entry, fields: Mapping[str, Any], where: str) -> None:
    """Checks the keys about the switches above a node's ports."""
    for key in _NETWORK_FACTS:
        if key in entry and fields.get("inter") is None:
            raise CatalogError(f"{where}: {key} belongs to a network, but inter is missing; add inter.")
    rails, leaf = fields.get("rail_optimised", False), fields.get("gpus_per_leaf", 0)
    if fields.get("oversubscription", 1.0) > 1 and not leaf and not rails:
        raise CatalogError(f"{where}: gpus_per_leaf is missing; give the number of GPUs that share a leaf switch.")
    if leaf and not rails and leaf % fields["gpus_per_node"]:
        raise CatalogError(
            f"{where}: gpus_per_leaf={leaf} is not a multiple of gpus_per_node={fields['gpus_per_node']};"
            " a leaf holds whole nodes unless rail_optimised is true."
        )


_INTRA_KEYS = {"bus_gb_per_s", "nvls_gb_per_s"}
_NETWORK_KEYS = {"nic_gbit_per_s", "efficiency"}


def fabric_from_entry(name: str, entry: Entry, where: str) -> Fabric:
    checks.known_keys(entry, set(FABRIC), where)
    NAME.entry(name, f"{where}: the name")
    checks.required(entry, {"kind": "kind"}, where)
    fields = values_of(FABRIC, entry, where)
    intra = fields["kind"] in INTRA_KINDS
    for key in set(entry) & (_NETWORK_KEYS if intra else _INTRA_KEYS):
        other = "bus_gb_per_s" if intra else "nic_gbit_per_s and efficiency"
        raise CatalogError(f"{where}: {key} does not belong to a fabric of kind {fields['kind']}; give {other}.")
    needed = "bus_gb_per_s" if intra else "nic_gbit_per_s"
    checks.required(entry, {needed: needed}, where)
    bus = _bus(entry["bus_gb_per_s"], f"{where}: bus_gb_per_s") if intra else {}
    if entry.get("hop_us") is not None:
        fields["hop_us"] = _hops(entry["hop_us"], f"{where}: hop_us")
    return Fabric(name=name, bus_bytes_per_s_by_gpus=MappingProxyType(bus), **fields)


def _bus(table: Any, where: str) -> dict[int, float]:
    """Bytes per second by the number of GPUs, from one figure or a mapping."""
    by_gpus = table if isinstance(table, Mapping) else {2: table}
    if not by_gpus:
        raise CatalogError(f"{where} is empty; give one figure or a table by GPU count.")
    return {
        BUS_GPUS.entry(count, f"{where}: a number of GPUs"): BUS.entry(rate, where) * 1e9
        for count, rate in by_gpus.items()
    }


def _hops(value: Any, where: str) -> Mapping[str, float]:
    hops = checks.mapping(value, where)
    if set(hops) != set(PROTOCOLS):
        raise CatalogError(f"{where} must give microseconds for exactly LL, LL128 and Simple.")
    return MappingProxyType({key: HOP.entry(hops[key], f"{where}: {key}") for key in PROTOCOLS})


def entries(document: Entry, section: str, where: str) -> dict[str, Entry]:
    """The named entries of one section; an absent section is empty."""
    section_entries = document.get(section) or {}
    return {
        NAME.entry(name, f"{where}: {section}: a name"): checks.mapping(entry, f"{where}: {section}: {name}")
        for name, entry in checks.mapping(section_entries, f"{where}: {section}").items()
    }
