"""Fits of collectives without some GPU types, and what is assumed of a fabric that nobody measured.

Two ways to leave out: one GPU *type*, whose fabric another type may still carry (H200 for H100: one NVLink 4 switch),
and a whole *link* generation with all its GPUs. A fabric without any measurement is assumed as for a new device: bus
bandwidth is the link rate of the datasheet times the mean efficiency of the measured fabrics of that kind; latency is
theirs over the clock of the datasheet, because the steps of a collective are loops on the multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from precision_time.fit.collective_cases import NVLINK, PCIE, Array, Case
from precision_time.hardware import fabric
from precision_time.hardware.fabric import Fabric
from precision_time.timing.collectives import Constants

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
FABRIC_OF_GPU = {**NVLINK, **PCIE}
ConstantsAndFabrics = tuple[Constants, dict[str, Fabric]]


@dataclass(frozen=True, slots=True, eq=False)
class CaseErrors:
    """A case with log(predicted / measured) of each of its messages, under a fit that saw it or did not."""

    case: Case
    errors: Array


def case_errors(cases: Sequence[Case], errors: Sequence[Array]) -> list[CaseErrors]:
    """Each case with its errors."""
    return [CaseErrors(case, error) for case, error in zip(cases, errors, strict=True)]


def assumed_fabric(name: str, known: Mapping[str, Fabric]) -> Fabric:
    """The fabric `name` from its datasheet and the measured fabrics of its kind."""
    base = fabric(name)
    kind = {n: f for n, f in known.items() if f.is_through_host == base.is_through_host}
    shares = {2: [f.bus_bytes_per_s(2) / LINK_GB_PER_S[n] / 1e9 for n, f in kind.items()]}
    if base.is_through_host:
        for count, share in PCIE_SHARES.items():
            measured = [(LINK_GB_PER_S[n], f.bus_bytes_per_s_by_gpus.get(count)) for n, f in kind.items()]
            shares[count] = [share, *(rate / link / 1e9 for link, rate in measured if rate)]
    in_switch = [f.nvls_bytes_per_s / LINK_GB_PER_S[n] / 1e9 for n, f in kind.items() if f.nvls_bytes_per_s]
    # Mean over generations, because the two fabrics of NVLink 5 are one technology.
    latencies = [
        np.mean([np.log(known[n].latency_scale * CLOCK_GHZ[n]) for n in names if n in known])
        for names in GENERATIONS.values()
        if any(n in known for n in names)
    ]
    link = LINK_GB_PER_S[name] * 1e9
    return replace(
        base,
        bus_bytes_per_s_by_gpus=MappingProxyType({n: float(np.mean(each)) * link for n, each in shares.items()}),
        latency_scale=float(np.exp(np.mean(latencies))) / CLOCK_GHZ[name],
        nvls_bytes_per_s=float(np.mean(in_switch)) * link if base.nvls_bytes_per_s and in_switch else 0.0,
    )


def held_out(
    cases: Sequence[Case],
    left: Mapping[str, Iterable[str]],
    fit: Callable[[Sequence[Case]], ConstantsAndFabrics],
    errors: Callable[[Sequence[Case], Constants, Mapping[str, Fabric]], list[Array]],
) -> dict[str, list[CaseErrors]]:
    """For each name of `left`, the errors of the cases on its GPU types under a fit to all other cases.

    `fit` gives constants and fabrics from cases, `errors` log(predicted / measured) of cases under them.
    """
    judged: dict[str, list[CaseErrors]] = {}
    for name, gpus in left.items():
        out = set(gpus)
        constants, fabrics = fit([case for case in cases if case.gpu not in out])
        members = [case for case in cases if case.gpu in out and case.weight == 1.0]
        missing = sorted({case.fabric for case in members} - set(fabrics))
        known = fabrics | {each: assumed_fabric(each, fabrics) for each in missing}
        judged[name] = case_errors(members, errors(members, constants, known))
    return judged


def gpu_types() -> dict[str, list[str]]:
    """Each GPU type alone, by its name."""
    return {gpu: [gpu] for gpu in FABRIC_OF_GPU}


def link_generations() -> dict[str, list[str]]:
    """The GPU types of each link generation."""
    return {
        name: [gpu for gpu, fabric_name in FABRIC_OF_GPU.items() if fabric_name in links]
        for name, links in GENERATIONS.items()
    }
