"""The fields of device files, storage files and prices: unit, range, meaning, and the field of the noun that they set.

Limits are ten or more times beyond known hardware: above them a unit is wrong, below them times overflow. `Gpu`,
`Node`, `Fabric` and `Storage` check wider ranges when they are built in Python, in SI units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import (
    MOST_GPUS,
    NAME,
    SWITCH,
    USD_PER_HOUR,
    FieldType,
    choice,
    number,
    structured,
    whole,
)
from precision_time.job.data import BANDWIDTH, READERS_SHARE, REQUESTS, STREAM


@dataclass(frozen=True, slots=True)
class EntryField:
    """One key of an entry: its type, its meaning, the noun's field that it sets, and the factor to that field's unit.

    An int as factor means a whole number of it.
    """

    type: FieldType
    meaning: str
    target: str = ""
    factor: float = 1

    def value(self, given: Any, where: str) -> Any:
        """The checked value in the unit of the noun's field. Raises `CatalogError`."""
        checked = self.type.entry(given, where)
        if self.factor == 1:
            return checked
        return int(checked * self.factor) if isinstance(self.factor, int) else checked * self.factor


def _note(field: str, value: Any) -> str:
    """Text of any number of lines, as one line."""
    line = " ".join(value.split()) if isinstance(value, str) else str(value) if type(value) in (int, float) else None
    if line is None or len(line) > 4096 or not line.isprintable():
        raise JobError(f"{field} must be text of at most 4,096 characters, not {show(value)}")
    return line


def _names(field: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise JobError(f"{field} is {show(value)}; give a list of names")
    return tuple(NAME(field, name) for name in value)


NOTE = structured("text", _note)
NAMES = structured("list", _names)
ARCHITECTURES = (
    "pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada", "hopper", "blackwell", "blackwell-gb20x", "cdna1",
    "cdna2", "cdna3", "cdna4", "xe2", "gaudi", "tpu", "cpu", "x86-64", "x86_64", "aarch64", "arm64", "unknown",
)  # fmt: skip
DEVICE_TYPES = ("cuda", "cpu")
TRUSTS = ("looked up", "recalled")


def _architecture(field: str, value: Any) -> str:
    return _ARCHITECTURE(field, arch_family(NAME(field, value)))  # type: ignore[no-any-return]


def arch_family(text: str) -> str:
    """'Ampere GA100' -> ampere; 'Blackwell Ultra' -> blackwell; 'TPU v4' -> tpu; 'Ampere GA102' -> ampere-ga10x.

    Graphics chips of Ampere (GA10x) and Blackwell (GB20x) have other multiprocessors than the A100 and the B200
    (another tensor rate and compute capability, GDDR memory), so they form architectures of their own.
    """
    name, *chip = text.lower().split()
    of_graphics = next((kind for kind in ("ga10", "gb20") if chip and chip[0].startswith(kind)), "")
    return f"{name}-{of_graphics}x" if of_graphics and not chip[0].endswith("00") else name


def _capability(field: str, value: Any) -> tuple[int, int]:
    major, _, minor = str(value).partition(".") if type(value) in (int, float, str) else ("", "", "")
    if not (major.isdecimal() and len(major) <= 2 and (minor or "0").isdecimal() and len(minor) <= 2):
        raise JobError(f"{field} is {show(value)}; write it as '8.0'")
    return int(major), int(minor or 0)


_ARCHITECTURE = choice(ARCHITECTURES)
_TFLOPS = number(1e-6, 1e6, "dense TFLOP/s")

PEAKS: Mapping[str, str] = {
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
"""Column of gpus.csv -> key of Gpu.peaks. int8 is in operations per second."""

GPU: Mapping[str, EntryField] = {
    **{key: EntryField(_TFLOPS, f"peak of {math}", factor=1e12) for key, math in PEAKS.items()},
    "mem_gb": EntryField(number(1e-3, 1e5, "GiB as printed on the box"), "memory", "memory_bytes", 2**30),
    "mem_bw_gbs": EntryField(number(1e-3, 1e6, "GB/s"), "memory bandwidth", "memory_bytes_per_s", 1e9),
    "mem_type": EntryField(NAME, "kind of memory, as HBM3 or GDDR6X", "memory_type"),
    "sm_count": EntryField(whole(1, 10**5, "multiprocessors"), "multiprocessors, or cores", "sm_count"),
    "fp32_lanes_per_sm": EntryField(whole(1, 10**5, "lanes"), "fp32 lanes of one", "fp32_lanes_per_sm"),
    "boost_mhz": EntryField(number(1, 1e6, "MHz"), "boost clock", "boost_hz", 1e6),
    "max_mhz": EntryField(
        number(1, 1e6, "MHz"),
        "highest clock, as nvidia-smi -q -d CLOCK prints it; absent: the boost clock",
        "max_hz",
        1e6,
    ),
    "l2_mb": EntryField(number(1e-3, 1e6, "MiB"), "last-level cache", "l2_bytes", 2**20),
    "tdp_w": EntryField(number(1e-3, 1e5, "W"), "power limit", "tdp_w"),
    "nvlink_gbs": EntryField(
        number(1e-3, 1e6, "GB/s, both directions", zero=True), "NVLink; 0: none", "nvlink_bytes_per_s", 1e9
    ),
    "pcie_gen": EntryField(whole(1, 20), "PCIe generation", "pcie_gen"),
    "pcie_lanes": EntryField(whole(1, 256, "lanes"), "PCIe lanes", "pcie_lanes"),
    "gpu": EntryField(NAME, "name in the kernel tables", "kernel_name"),
    "vendor": EntryField(NAME, "maker", "vendor"),
    "sources": EntryField(NOTE, "origin of the figures", "sources"),
    "notes": EntryField(NOTE, "remarks", "notes"),
    "arch": EntryField(
        structured("text", _architecture, ARCHITECTURES), "architecture; unknown for one not listed", "arch"
    ),
    "compute_capability": EntryField(structured("text", _capability), "as '8.0'", "compute_capability"),
    "based_on": EntryField(NAME, "GPU of the catalog whose fields hold where this entry has none"),
    "device_type": EntryField(choice(DEVICE_TYPES), "as torch names it", "device_type"),
    "calibration": EntryField(structured("mapping", lambda _, value: value), "what calibrate measured"),
    "name": EntryField(NAME, "not read"),
    "base_mhz": EntryField(number(1, 1e6, "MHz"), "not read"),
    "smem_kb_per_sm": EntryField(number(1, 1e6, "KiB"), "not read"),
    "regfile_kb_per_sm": EntryField(number(1, 1e6, "KiB"), "not read"),
}

NODE: Mapping[str, EntryField] = {
    "gpus_per_node": EntryField(whole(1, MOST_GPUS, "GPUs"), "GPUs of one node", "gpus_per_node"),
    "domain_gpus": EntryField(whole(1, MOST_GPUS, "GPUs"), "GPUs joined by `intra`", "domain_gpus"),
    "nics": EntryField(whole(0, 10**4, "ports"), "network ports of one node", "nics"),
    "gpus_per_leaf": EntryField(whole(0, MOST_GPUS, "GPUs"), "GPUs below one leaf switch; 0: all", "gpus_per_leaf"),
    "oversubscription": EntryField(
        number(1, 1e3), "bandwidth below the leaf switches over that above them (2 for 2:1)", "oversubscription"
    ),
    "rail_optimised": EntryField(SWITCH, "GPU i of every node is wired to leaf switch i", "rail_optimised"),
    "clock_factor": EntryField(number(0.01, 100), "speed of the GPU here over its catalog entry", "clock_factor"),
    "host_factor": EntryField(number(0.01, 1000), "host time here over a DGX A100", "host_factor"),
    "tdp_w": EntryField(number(1e-3, 1e5, "W"), "power limit of the GPU here", "tdp_w"),
    "cores": EntryField(whole(1, 10**5, "cores"), "CPU cores", "cores"),
    "host_memory_gib": EntryField(number(1e-3, 1e6, "GiB"), "memory of the CPUs", "host_memory_bytes", 2**30),
    "host_memory_gb_per_s": EntryField(
        number(1e-3, 1e6, "GB/s"), "bandwidth of the memory of the CPUs", "host_bytes_per_s", 1e9
    ),
    "gpus": EntryField(NAMES, "GPUs that it is sold with", "gpu_names"),
    "intra": EntryField(NAME, "fabric inside a node", "intra"),
    "inter": EntryField(NAME, "fabric between nodes", "inter"),
    "default_for": EntryField(NAMES, "GPUs for which it is the usual node", "default_for"),
    "aliases": EntryField(NAMES, "other names", "aliases"),
    "source": EntryField(NOTE, "origin of the figures", "source"),
}

INTRA_KINDS = ("nvlink", "nvswitch", "pcie", "shared-memory")
NETWORK_KINDS = ("infiniband", "roce", "ethernet", "efa")
KINDS = (*INTRA_KINDS, *NETWORK_KINDS)
PROTOCOLS = ("LL", "LL128", "Simple")
BUS = number(1e-3, 1e6, "GB/s")
BUS_GPUS = whole(1, MOST_GPUS, "GPUs")
HOP = number(1e-3, 1e6, "microseconds", zero=True)

FABRIC: Mapping[str, EntryField] = {
    "kind": EntryField(choice(KINDS), "kind of link", "kind"),
    "bus_gb_per_s": EntryField(
        structured("mapping", lambda _, value: value), f"{BUS.range}, or a mapping of counts of GPUs to them"
    ),
    "nvls_gb_per_s": EntryField(
        number(1e-3, 1e6, "GB/s", zero=True), "all-reduce in the switch; 0: none", "nvls_bytes_per_s", 1e9
    ),
    "nic_gbit_per_s": EntryField(number(1e-3, 1e6, "Gbit/s"), "line rate of a port", "nic_bytes_per_s", 1e9 / 8),
    "efficiency": EntryField(number(1e-3, 1), "share of the line rate that is reached", "efficiency"),
    "latency_scale": EntryField(number(1e-3, 1e3), "latency over NCCL's own constants", "latency_scale"),
    "hop_us": EntryField(structured("mapping", lambda _, value: value), f"{HOP.range} for each of LL, LL128, Simple"),
    "ll128": EntryField(SWITCH, "NCCL may use the protocol LL128", "ll128"),
    "source": EntryField(NOTE, "origin of the figures", "source"),
}

STORAGE: Mapping[str, EntryField] = {
    "name": EntryField(NAME, "name", "name"),
    "bandwidth_gb_per_s": EntryField(BANDWIDTH, "of one node (shared: of all)", "bytes_per_s", 1e9),
    "stream_mb_per_s": EntryField(STREAM, "of one reader", "stream_bytes_per_s", 1e6),
    "latency_ms": EntryField(
        number(1e-6, 1e6, "milliseconds", zero=True), "to the first byte of a read", "latency_s", 1e-3
    ),
    "requests_per_s": EntryField(REQUESTS, "reads that are answered per second", "requests_per_s"),
    "reader_efficiency": EntryField(READERS_SHARE, "share left when two jobs read at once", "reader_efficiency"),
    "shared": EntryField(SWITCH, "all nodes share it", "shared"),
    "page_cache": EntryField(SWITCH, "the kernel keeps what was read", "page_cache"),
    "source": EntryField(NOTE, "origin of the figures", "source"),
}

PRICE: Mapping[str, EntryField] = {
    "provider": EntryField(NAME, "cloud", "provider"),
    "gpu": EntryField(NAME, "GPU of the catalog", "gpu"),
    "gpus": EntryField(whole(1, 10**5, "GPUs"), "GPUs of one instance", "gpus"),
    "usd_per_hour": EntryField(USD_PER_HOUR, "of the whole instance, per hour", "usd_per_hour"),
    "spot_usd_per_hour": EntryField(USD_PER_HOUR, "the same on the spot market", "spot_usd_per_hour"),
    "reserved_usd_per_hour": EntryField(USD_PER_HOUR, "the same for a reserved instance", "reserved_usd_per_hour"),
    "region": EntryField(NAME, "region of the price", "region"),
    "as_of": EntryField(structured("text", lambda field, value: NAME(field, str(value))), "day of the price", "as_of"),
    "trust": EntryField(choice(TRUSTS), "how the price is known", "trust"),
    "source": EntryField(NOTE, "where the price was read", "source"),
}

CLUSTER: Mapping[str, EntryField] = {
    "name": EntryField(NAME, "name of the cluster", "name"),
    "gpu": EntryField(NAME, "GPU of the catalog", "gpu"),
    "gpus": EntryField(whole(1, MOST_GPUS, "GPUs"), "GPUs there are", "gpus"),
    "node": EntryField(NAME, "node type", "node"),
    "usd_per_gpu_hour": EntryField(USD_PER_HOUR, "of one GPU, per hour (default: nothing)", "usd_per_gpu_hour"),
    "as_of": EntryField(structured("text", lambda field, value: NAME(field, str(value))), "day of the price", "as_of"),
}
"""A cluster of one's own, for `plan --provider FILE`."""

_MICROSECONDS = number(1e-6, 1e7, "microseconds", zero=True)
HOST: Mapping[str, EntryField] = {
    **{
        f"{name}_us": EntryField(_MICROSECONDS, f"host time of one {name}", f"{name}_us")
        for name in ("operator", "view", "kernel", "sweep", "list", "tensor", "step")
    },
    "backward_share": EntryField(number(1e-3, 100, zero=True), "backward over forward", "backward_share"),
    "log_spread": EntryField(number(1e-6, 5, zero=True), "spread of log(time)", "log_spread"),
}
MOST_NOISE = 10.0
"""Of equal measurements; `calibrate` writes no more."""
CALIBRATION: Mapping[str, EntryField] = {
    "made": EntryField(structured("text", lambda field, value: NAME(field, str(value))), "day", "made"),
    "noise": EntryField(number(1e-6, MOST_NOISE, zero=True), "spread of equal measurements: 0.04 is 4 %", "noise"),
    "command": EntryField(NOTE, "command that measured", "command"),
    "machine": EntryField(NOTE, "machine that was measured", "machine"),
    "threads": EntryField(whole(1, 10**5, "threads"), "threads of each process", "threads"),
}
RANKS = whole(1, 65536, "ranks")
SLOWDOWN = number(1e-3, 1e3, "times")
MESSAGE = number(1, 1e15, "bytes")
MESSAGE_SECONDS = number(1e-9, 1e6, "seconds")
POINT = number(1e-12, 1e24, zero=True)
POINT_SECONDS = number(1e-9, 1e6, "seconds")
POINT_SIZE = number(1e-12, 1e15, zero=True)
"""A dimension of an operator."""
POINT_SPREAD = number(1e-12, 10, zero=True)
"""Standard deviation of repeats over their median."""


WIDER, WIDER_STORAGE = 1e6, 1e30
"""Factors by which nouns that are derived from checked ones may leave their range: a clock's factor, or the storage
that would be fast enough for a job."""


def values_of(fields: Mapping[str, EntryField], entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked values of the keys of an entry that set a field of the noun, by that field; None is not set."""
    return {
        fields[key].target: fields[key].value(given, f"{where}: {key}")
        for key, given in entry.items()
        if fields[key].target and given is not None
    }


def check_noun(noun: Any) -> None:
    """Raise `CatalogError` if a field of a `Gpu`, `Node`, `Fabric` or `Storage` is outside its range, in SI units."""
    where = f"{type(noun).__name__} {show(noun.name)}"
    NAME.entry(noun.name, f"{where}: name")
    for name, of, default in _si_types(noun.__class__):
        value = getattr(noun, name)
        if value != default:
            of.entry(value, f"{where}: {name}")


@cache
def _si_types(noun: type) -> tuple[tuple[str, FieldType, Any], ...]:
    """Field, type and default of every field of a class that has a range."""
    fields = {"Gpu": GPU, "Node": NODE, "Fabric": FABRIC, "Storage": STORAGE}[noun.__name__]
    plain = ("whole", "number", "choice", "switch")
    defaults = {item.name: item.default for item in dataclasses.fields(noun)}
    return tuple(
        (f.target, si_type(f, WIDER_STORAGE if noun.__name__ == "Storage" else WIDER), defaults[f.target])
        for f in fields.values()
        if f.target and f.type.kind in plain
    )


def si_type(field: EntryField, wider: float = WIDER) -> FieldType:
    """The range of a field in the unit of the noun, on both sides `wider` than that of its entry."""
    of = field.type
    if (of.kind == "whole" and field.factor == 1) or of.kind not in ("whole", "number"):
        return of
    low, high = of.least * field.factor / wider, of.most * field.factor * wider
    return dataclasses.replace(of, kind="number", least=low, most=high, unit="")
