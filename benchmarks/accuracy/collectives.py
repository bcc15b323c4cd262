"""Errors of collective times, with GPU types, link generations and networks left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from precision_time.fit.collective_cases import MIB, Case, unnamed_cases
from precision_time.fit.collectives import (
    TABLES,
    Cases,
    FitInside,
    FittedCollectives,
    constants_from,
    fit_collectives,
    fit_efa,
    log_errors,
)
from precision_time.fit.held_out_fabrics import CaseErrors, case_errors, gpu_types, held_out, link_generations
from precision_time.hardware import cluster, fabric
from precision_time.report.errors import percent
from precision_time.timing.collectives import collective_seconds

SMALL, LARGE = "<= 1 MB", "> 1 MB"
TARGETS = {SMALL: 0.30, LARGE: 0.15}
"""Goal for the median absolute error, by size of the message."""
_PEAKS = {
    "DGX A100 multi-node, 8x 200Gb": ("a100", "dgx-a100"),
    "DGX H100 multi-node, 8x 400Gb": ("h100", "dgx-h100"),
}
"""Published peaks of all-reduce bus bandwidth on several nodes: system in collectives.csv -> GPU and node type."""
_NETWORK_SHARES = {"infiniband-200": 192 / 200, "infiniband-400": 375 / 400}
"""Share of the line rate that the peaks of these systems reach."""


def judge(tables: Path) -> dict[str, Any]:
    """Errors by run, grouping, group and size class, as benchmarks/results/collectives.json holds them."""
    cases, inside = Cases.read(tables), FitInside()
    fitted = fit_collectives(cases, inside)
    published = pd.read_csv(tables / TABLES[1])
    small = [*cases.small, *cases.pcie]
    by_type = held_out(cases.one_node, gpu_types(), inside, log_errors)
    by_link = held_out(cases.one_node, link_generations(), inside, log_errors)
    all_types, all_links = ([part for parts in runs.values() for part in parts] for runs in (by_type, by_link))
    large = case_errors(cases.large, log_errors(cases.large, fitted.constants, fitted.fabrics))
    seen = case_errors(small, log_errors(small, fitted.constants, fitted.fabrics))
    far = case_errors(cases.efa, log_errors(cases.efa, fitted.constants, fitted.fabrics, fitted.network))
    return {
        "in_sample": {**_every_grouping(seen), "by_large_gpu": grouped(large, _gpu)},
        "gpu_type_left_out": {**_every_grouping(all_types), "misses": misses(grouped(all_types, _gpu))},
        "link_left_out": {**_every_grouping(all_links), "misses": misses(grouped(all_links, _gpu))},
        "p5_efa_in_sample": _every_grouping(far),
        "p5_efa_ranks_left_out": _every_grouping(_ranks_left_out(cases.efa, fitted)),
        "p5_efa_left_out": _every_grouping(_network_left_out(cases.efa, fitted)),
        "unnamed_4_nodes": {"all": figures(_unnamed(published, fitted))},
        "peaks": _peaks(published, fitted.network.efficiency),
    }


def figures(parts: Iterable[CaseErrors]) -> dict[str, dict[str, float]]:
    """Messages, median and 90th percentile of the absolute error, and median error, by size class."""
    parts = list(parts)
    result = {}
    for label in TARGETS:
        errors = np.concatenate([np.zeros(0), *(_of_size(part, label) for part in parts)])
        if len(errors):
            result[label] = {
                "n": len(errors),
                "median_ape": round(float(np.median(np.abs(errors))), 4),
                "p90_ape": round(float(np.quantile(np.abs(errors), 0.9)), 4),
                "median_error": round(float(np.median(errors)), 4),
            }
    return result


def _of_size(part: CaseErrors, label: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    small = part.case.nbytes <= MIB
    return np.expm1(part.errors[small if label == SMALL else ~small])


def grouped(parts: Sequence[CaseErrors], group: Callable[[Case], object]) -> dict[str, Any]:
    """`figures` of each group of cases."""
    groups: dict[str, list[CaseErrors]] = {}
    for part in parts:
        groups.setdefault(str(group(part.case)), []).append(part)
    return {name: figures(members) for name, members in groups.items()}


def _gpu(case: Case) -> str:
    return case.gpu


def _every_grouping(parts: Sequence[CaseErrors]) -> dict[str, Any]:
    return {
        "all": figures(parts),
        "by_gpu": grouped(parts, _gpu),
        "by_collective": grouped(parts, lambda case: case.collective),
        "by_ranks": grouped(sorted(parts, key=lambda part: part.case.ranks), lambda case: case.ranks),
    }


def misses(by_gpu: dict[str, Any]) -> list[str]:
    """Where the target is missed, as "GPU, size class: median error"."""
    return [
        f"{gpu}, {label}: {percent(entry[label]['median_ape'])}"
        for gpu, entry in by_gpu.items()
        for label, limit in TARGETS.items()
        if label in entry and entry[label]["median_ape"] > limit
    ]


def _network_left_out(cases: Sequence[Case], fitted: FittedCollectives) -> list[CaseErrors]:
    """p5.48xlarge as if its network were unmeasured: the efficiency of InfiniBand and NCCL's own hop latencies."""
    base = fabric("efa-100")
    network = replace(base, efficiency=fabric("infiniband-400").efficiency, hop_us=None, latency_scale=1.0)
    return case_errors(cases, log_errors(cases, constants_from(fitted.shared), fitted.fabrics, network))


def _ranks_left_out(cases: Sequence[Case], fitted: FittedCollectives) -> list[CaseErrors]:
    """Each number of GPUs left out of the fit of the network."""
    result: list[CaseErrors] = []
    for ranks in sorted({case.ranks for case in cases}):
        judged = [case for case in cases if case.ranks == ranks]
        network, peer = fit_efa([case for case in cases if case.ranks != ranks], fitted.shared, fitted.fabrics)
        constants = constants_from(fitted.shared, peer)
        result += case_errors(judged, log_errors(judged, constants, fitted.fabrics, network))
    return result


def _unnamed(published: pd.DataFrame, fitted: FittedCollectives) -> list[CaseErrors]:
    """The unnamed system as A100 nodes with four 200 Gb/s ports, inferred from its largest messages."""
    cases = unnamed_cases(published)
    network = fabric("infiniband-200")
    return case_errors(cases, log_errors(cases, fitted.constants, fitted.fabrics, network, ports=4))


def _peaks(published: pd.DataFrame, efa_share: float) -> list[dict[str, Any]]:
    """Large all-reduces between nodes against published peaks, with the network's own efficiency and without it."""
    rows = []
    for system, (gpu, box) in _PEAKS.items():
        measured = published[published.system == system].busbw_gbps
        nodes = cluster(gpu, 32, box)
        network = fabric(str(nodes.node.inter))
        others = [share for name, share in {**_NETWORK_SHARES, "efa-100": efa_share}.items() if name != network.name]
        assumed = replace(nodes, inter=replace(network, efficiency=float(np.mean(others))))
        known_gb_per_s, held_out_gb_per_s = (
            2**34 * 2 * 31 / 32 / float(collective_seconds("all_reduce", 2**34, each)) / 1e9
            for each in (nodes, assumed)
        )
        rows.append(
            {
                "system": system,
                "measured": round(float(measured.mean()), 1),
                "in_sample": round(known_gb_per_s, 1),
                "held_out": round(held_out_gb_per_s, 1),
            }
        )
    return rows
