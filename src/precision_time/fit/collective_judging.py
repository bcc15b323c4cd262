"""Judges the model of collectives on GPU types and networks that its fit has not seen.

Two ways to leave out: one GPU *type*, whose fabric its kin may still carry (H200 for H100, one NVLink 4 switch), and
a whole *link* generation with all its GPUs. A fabric that nobody carries any more is guessed as a new device's is:
bus bandwidth from the link rate of the datasheet x the efficiency of the other fabrics of that kind, latency from the
other fabrics' over the clock of the datasheet (the steps of a collective are loops on the multiprocessors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from precision_time.fit.collective_cases import MIB, NVLINK, PCIE, Array, Case
from precision_time.hardware import cluster, fabric
from precision_time.hardware.fabric import Fabric
from precision_time.timing.collectives import Constants, collective_seconds

LINK_GB_PER_S = {
    "nvlink3-switch": 300, "nvlink4-switch": 450, "nvlink5-switch": 900, "nvlink5-rack": 900, "pcie4": 32, "pcie5": 64
}  # fmt: skip
"""One direction, datasheet."""
CLOCK_GHZ = {
    "nvlink3-switch": 1.41, "nvlink4-switch": 1.98, "nvlink5-switch": 1.98, "nvlink5-rack": 1.98, "pcie4": 2.52,
    "pcie5": 2.43
}  # fmt: skip
"""Boost clock of the GPUs measured there, gpus.csv (A100, H100 and H200, B200, L40S, RTX PRO 6000)."""
PCIE_SHARES = {2: 0.75, 4: 35 / 64, 8: 28 / 64}
"""Bus bandwidth over the link rate on other PCIe boxes. 2: published/collectives.csv, Gen4, Gen5 and Gen6 nodes: 24, 48
and 96 GB/s of 32, 64 and 128. 4 and 8, where host bridges and the CPUs' memory set the pace: github.com/NVIDIA/nccl
issue 1639, RTX 5090 on PCIe 5 and two Xeon 8480+, 35 and 28 GB/s."""
GENERATIONS = {
    "NVLink 3": ("nvlink3-switch",), "NVLink 4": ("nvlink4-switch",), "NVLink 5": ("nvlink5-switch", "nvlink5-rack"),
    "PCIe 4": ("pcie4",), "PCIe 5": ("pcie5",),
}  # fmt: skip
TARGETS = {"<= 1 MB": 0.30, "> 1 MB": 0.15}
Fitted = tuple[Constants, dict[str, Fabric]]


@dataclass(frozen=True)
class Judged:
    """One case with its errors, log(predicted / measured), under a fit that saw it or did not."""

    case: Case
    errors: Array

    def sizes(self, label: str) -> Array:
        small = self.case.nbytes <= MIB
        return np.expm1(self.errors[small if label == "<= 1 MB" else ~small])


def guessed(name: str, known: Mapping[str, Fabric]) -> Fabric:
    """What a user knows of a fabric nobody measured: the datasheet, and how the measured ones fare."""
    base = fabric(name)
    kind = {n: f for n, f in known.items() if f.is_through_host == base.is_through_host}
    shares = {2: [f.bus_bytes_per_s(2) / LINK_GB_PER_S[n] / 1e9 for n, f in kind.items()]}
    if base.is_through_host:
        for count, share in PCIE_SHARES.items():
            measured = [(LINK_GB_PER_S[n], f.bus_bytes_per_s_by_gpus.get(count)) for n, f in kind.items()]
            shares[count] = [share, *(rate / link / 1e9 for link, rate in measured if rate)]
    in_switch = [f.nvls_bytes_per_s / LINK_GB_PER_S[n] / 1e9 for n, f in kind.items() if f.nvls_bytes_per_s]
    # One vote for each generation: the two fabrics of NVLink 5 are one technology.
    paces = [
        np.mean([np.log(known[n].latency_scale * CLOCK_GHZ[n]) for n in names if n in known])
        for names in GENERATIONS.values()
        if any(n in known for n in names)
    ]
    link = LINK_GB_PER_S[name] * 1e9
    return replace(
        base,
        bus_bytes_per_s_by_gpus=MappingProxyType({n: float(np.mean(each)) * link for n, each in shares.items()}),
        latency_scale=float(np.exp(np.mean(paces))) / CLOCK_GHZ[name],
        nvls_bytes_per_s=float(np.mean(in_switch)) * link if base.nvls_bytes_per_s and in_switch else 0.0,
    )


def held_out(
    cases: Sequence[Case],
    left: Mapping[str, Iterable[str]],
    fit: Callable[[Sequence[Case]], Fitted],
    errors: Callable[[Sequence[Case], Constants, Mapping[str, Fabric]], list[Array]],
) -> dict[str, list[Judged]]:
    """For each name of `left`, the cases of its GPU types under a fit to all others."""
    found: dict[str, list[Judged]] = {}
    for name, gpus in left.items():
        out = set(gpus)
        constants, fabrics = fit([case for case in cases if case.gpu not in out])
        mine = [case for case in cases if case.gpu in out and case.weight == 1.0]
        missing = sorted({case.fabric for case in mine} - set(fabrics))
        known = fabrics | {each: guessed(each, fabrics) for each in missing}
        found[name] = judged(mine, errors(mine, constants, known))
    return found


def judged(cases: Sequence[Case], errors: Sequence[Array]) -> list[Judged]:
    return [Judged(case, error) for case, error in zip(cases, errors, strict=True)]


def types() -> dict[str, list[str]]:
    return {gpu: [gpu] for gpu in {**NVLINK, **PCIE}}


def generations() -> dict[str, list[str]]:
    homes = {**NVLINK, **PCIE}
    return {name: [gpu for gpu in homes if homes[gpu] in links] for name, links in GENERATIONS.items()}


def figures(parts: Iterable[Judged]) -> dict[str, Any]:
    """Points, median and 90th percentile of the absolute error and the median signed one, by size class."""
    parts, found = list(parts), {}
    for label in TARGETS:
        error = np.concatenate([np.zeros(0), *(part.sizes(label) for part in parts)])
        if len(error):
            found[label] = {
                "n": len(error),
                "median_ape": round(float(np.median(np.abs(error))), 4),
                "p90_ape": round(float(np.quantile(np.abs(error), 0.9)), 4),
                "median_error": round(float(np.median(error)), 4),
            }
    return found


def split(parts: Sequence[Judged], by: Callable[[Case], object]) -> dict[str, Any]:
    """`figures` of each class of cases."""
    classes: dict[str, list[Judged]] = {}
    for part in parts:
        classes.setdefault(str(by(part.case)), []).append(part)
    return {name: figures(classes[name]) for name in classes}


def misses(by_gpu: Mapping[str, Any]) -> list[str]:
    """Where the target is missed, as 'GPU, size class: figure'."""
    return [
        f"{gpu}, {label}: {entry[label]['median_ape']:.1%}"
        for gpu, entry in by_gpu.items()
        for label, limit in TARGETS.items()
        if label in entry and entry[label]["median_ape"] > limit
    ]


# Published peaks of all-reduce bus bandwidth on several nodes: rows of collectives.csv, and the box they ran on.
_PEAKS = {
    "DGX A100 multi-node, 8x 200Gb": ("a100", "dgx-a100"),
    "DGX H100 multi-node, 8x 400Gb": ("h100", "dgx-h100"),
}
_NETWORK_SHARES = {"infiniband-200": 192 / 200, "infiniband-400": 375 / 400}


def peaks(published: pd.DataFrame, efa_share: float) -> list[dict[str, Any]]:
    """Large all-reduces between nodes against published peaks, the network's own efficiency left out."""
    rows = []
    for system, (gpu, box) in _PEAKS.items():
        measured = published[(published.system == system)].busbw_gbps
        where = cluster(gpu, 32, box)
        own = fabric(str(where.node.inter))
        others = [share for name, share in {**_NETWORK_SHARES, "efa-100": efa_share}.items() if name != own.name]
        blind = replace(where, inter=replace(own, efficiency=float(np.mean(others))))
        known, guess = (
            2**34 * 2 * 31 / 32 / float(collective_seconds("all_reduce", 2**34, each)) / 1e9 for each in (where, blind)
        )
        rows.append(
            {
                "system": system,
                "measured": round(float(measured.mean()), 1),
                "in_sample": round(known, 1),
                "held_out": round(guess, 1),
            }
        )
    return rows
