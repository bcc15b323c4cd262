"""Fits the constants of `timing/collectives.py` to measured collectives.

    python -m precision_time.fit.collectives SHARED_DATA [--out collectives.json]

SHARED_DATA is the folder with `kernels/aic_nccl.parquet` and `published/collectives.csv`. Three steps: the
shared constants with the NVLink fabrics, then PCIe, then the network of p5.48xlarge. Errors are printed and
stored, also those on GPU types left out of the fit, whose fabric is then guessed from its link rate as a user
would. The bandwidths found belong into `hardware/data/fabrics.yaml` (a test compares the two). Three minutes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from precision_time.errors import DataError
from precision_time.fit.collective_cases import (
    MIB,
    NVLINK,
    PCIE,
    Array,
    Case,
    efa_cases,
    large_cases,
    table_cases,
)
from precision_time.hardware import fabric
from precision_time.hardware.fabric import Fabric, Group
from precision_time.timing.collectives import Constants, Fit, collective_seconds

OUT = Path(__file__).parents[1] / "timing" / "data" / "collectives.json"

LINK_GB_PER_S = {"nvlink3-switch": 300, "nvlink4-switch": 450, "nvlink5-switch": 900, "nvlink5-rack": 900}
# Hops of PCIe over those of NVLink, and of the network (the tree's, which small messages between nodes take):
# NCCL src/graph/tuning.cc.
PCIE_HOP_RATIO = {"LL": 1.0 / 0.6, "LL128": 2.5 / 1.9, "Simple": 5.7 / 3.4}
NETWORK_HOP_US = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}
# ---------------------------------------------------------------- model under fit


def as_fit(constants: Constants) -> Fit:
    return Fit(constants, {}, 0.0, 0.0)


def log_errors(
    cases: Sequence[Case], constants: Constants, fabrics: Mapping[str, Fabric], inter: Fabric | None = None
) -> list[Array]:
    """log(predicted / measured) of each case."""
    errors = []
    for case in cases:
        intra = fabrics[case.fabric]
        if not case.nvls:
            intra = replace(intra, nvls_bytes_per_s=0.0)
        network = 32 * inter.nic_bytes_per_s * inter.efficiency if inter else 0.0
        group = Group(case.ranks, case.domains, intra, inter, network)
        predicted = collective_seconds(case.collective, case.nbytes, group, as_fit(constants)).seconds
        errors.append(np.log(predicted / case.seconds))
    return errors


SHARED: dict[str, tuple[float, float]] = {  # start, upper bound
    "base LL": (6.6, 50), "base LL128": (9, 50), "base Simple": (8, 50),
    "hop LL": (1, 20), "hop LL128": (1.6, 20), "hop Simple": (2.5, 20),
    "efficiency LL": (0.7, 1), "efficiency LL128": (0.95, 1), "pipelining": (0.4, 2),
    "share all_gather": (0.96, 1), "share reduce_scatter": (0.97, 1), "share all_to_all": (0.88, 1),
    "copy all_reduce": (0.25, 3), "copy all_gather": (0.5, 3), "copy reduce_scatter": (0.5, 3),
    "copy all_to_all": (0.5, 3), "nvls": (39, 200), "peer base": (9, 50), "peer hop": (0.3, 10),
}  # fmt: skip


def constants_from(value: Mapping[str, float], peer_share: float = 0.1) -> Constants:
    protocols = ("LL", "LL128", "Simple")
    hop = {p: value[f"hop {p}"] for p in protocols}
    return Constants(
        base_us={p: value[f"base {p}"] for p in protocols},
        hop_us={
            "nvlink": hop,
            "pcie": {p: hop[p] * PCIE_HOP_RATIO[p] for p in protocols},
            "network": NETWORK_HOP_US,
        },
        efficiency={"LL": value["efficiency LL"], "LL128": value["efficiency LL128"], "Simple": 1.0},
        pipelining=value["pipelining"],
        bandwidth_share={k[6:]: v for k, v in value.items() if k.startswith("share ")},
        local_copy={k[5:]: v for k, v in value.items() if k.startswith("copy ")},
        nvls_us=value["nvls"],
        peer_base_us=value["peer base"],
        peer_hop_us=value["peer hop"],
        network_peer_share=peer_share,
    )


def solve(bounds: Mapping[str, tuple[float, float]], residual: Callable[[dict[str, float]], Array]) -> dict[str, float]:
    """Positive parameters below their bound that make the (robust) squared residuals least."""
    names = list(bounds)
    start = np.log([bounds[name][0] for name in names])
    upper = np.log([bounds[name][1] for name in names])
    found = least_squares(
        lambda x: residual(dict(zip(names, np.exp(x), strict=True))),
        np.minimum(start, upper - 1e-3),
        bounds=(np.full(len(names), -12.0), upper),
        loss="soft_l1",
        f_scale=0.1,
        x_scale=1.0,
        max_nfev=200,
    )
    return dict(zip(names, (float(v) for v in np.exp(found.x)), strict=True))


def weighted(errors: Sequence[Array], cases: Sequence[Case]) -> Array:
    return np.concatenate([error * case.weight for error, case in zip(errors, cases, strict=True)])


def tuned(name: str, value: Mapping[str, float], counts: Sequence[int] = ()) -> Fabric:
    """The catalog's fabric with the fitted figures put in."""
    base = fabric(name)
    table = {n: value[f"{name} bus {n}"] * 1e9 for n in counts} or {2: value[f"{name} bus"] * 1e9}
    nvls = value.get(f"{name} nvls", 0.0) * 1e9
    return replace(
        base,
        bus_bytes_per_s_by_gpus=MappingProxyType(table),
        latency_scale=value[f"{name} latency"],
        nvls_bytes_per_s=nvls,
    )


def fit_nvlink(cases: Sequence[Case]) -> tuple[dict[str, float], dict[str, Fabric]]:
    names = sorted({case.fabric for case in cases})
    bounds = dict(SHARED)
    for name in names:
        link = LINK_GB_PER_S[name]
        bounds |= {f"{name} bus": (0.8 * link, link), f"{name} latency": (1.0, 5)}
        if name in ("nvlink4-switch", "nvlink5-switch"):
            bounds[f"{name} nvls"] = (0.6 * link, link)

    def residual(value: dict[str, float]) -> Array:
        fabrics = {name: tuned(name, value) for name in names}
        # Hops and scales multiply, so one must be fixed: the mean scale is held at one.
        scales = np.log([value[f"{name} latency"] for name in names])
        errors = weighted(log_errors(cases, constants_from(value), fabrics), cases)
        return np.append(errors, 10 * scales.mean())

    value = solve(bounds, residual)
    return value, {name: tuned(name, value) for name in names}


def fit_pcie(cases: Sequence[Case], constants: Constants) -> dict[str, Fabric]:
    found = {}
    for name in sorted({case.fabric for case in cases}):
        mine = [case for case in cases if case.fabric == name]
        counts = sorted({case.ranks for case in mine})
        bounds = {f"{name} bus {n}": (25.0, 64.0) for n in counts} | {f"{name} latency": (1.0, 5.0)}

        def residual(
            value: dict[str, float], name: str = name, mine: list[Case] = mine, counts: list[int] = counts
        ) -> Array:
            return weighted(log_errors(mine, constants, {name: tuned(name, value, counts)}), mine)

        found[name] = tuned(name, solve(bounds, residual), counts)
    return found


def fit_efa(cases: Sequence[Case], shared: Mapping[str, float], fabrics: Mapping[str, Fabric]) -> tuple[Fabric, float]:
    base = fabric("efa-100")
    bounds = {"efficiency": (0.9, 1.0), "hop": (50.0, 500.0), "small hop": (25.0, 500.0), "peer": (0.1, 1.0)}

    def network(value: Mapping[str, float]) -> Fabric:
        hops = {"LL": value["small hop"], "LL128": value["small hop"], "Simple": value["hop"]}
        return replace(base, efficiency=value["efficiency"], hop_us=hops)

    def residual(value: dict[str, float]) -> Array:
        constants = constants_from(shared, value["peer"])
        return weighted(log_errors(cases, constants, fabrics, network(value)), cases)

    value = solve(bounds, residual)
    return network(value), value["peer"]


# ---------------------------------------------------------------- errors


def error_report(cases: Sequence[Case], errors: Sequence[Array]) -> dict[str, dict[str, float | int]]:
    """By GPU type: median absolute error below and from 1 MiB, and the median signed one."""
    report: dict[str, dict[str, float | int]] = {}
    for gpu in sorted({case.gpu for case in cases}):
        pairs = [(c.nbytes, e) for c, e in zip(cases, errors, strict=True) if c.gpu == gpu]
        nbytes, error = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        ratio = np.expm1(error)
        entry: dict[str, float | int] = {"n": len(ratio)}
        for label, mask in (("below_1mib", nbytes < MIB), ("from_1mib", nbytes >= MIB)):
            if mask.any():
                entry[f"median_ape_{label}"] = round(float(np.median(np.abs(ratio[mask]))), 4)
                entry[f"median_error_{label}"] = round(float(np.median(ratio[mask])), 4)
        report[gpu] = entry
    return report


def left_out(cases: Sequence[Case]) -> tuple[dict[str, dict[str, float | int]], list[Array]]:
    """Each fabric predicted from constants fitted on the others and its link rate alone."""
    report: dict[str, dict[str, float | int]] = {}
    all_errors: list[Array] = []
    for name in sorted({case.fabric for case in cases}):
        # The two NVLink 5 fabrics are one technology: neither may tell about the other.
        kin = {other for other in LINK_GB_PER_S if LINK_GB_PER_S[other] == LINK_GB_PER_S[name]}
        value, fabrics = fit_nvlink([case for case in cases if case.fabric not in kin])
        ratios = [f.bus_bytes_per_s(2) / LINK_GB_PER_S[n] / 1e9 for n, f in fabrics.items()]
        in_switch = [f.nvls_bytes_per_s / LINK_GB_PER_S[n] / 1e9 for n, f in fabrics.items() if f.nvls_bytes_per_s]
        link = LINK_GB_PER_S[name] * 1e9
        has_nvls = fabric(name).nvls_bytes_per_s > 0
        guess = replace(
            fabric(name),
            bus_bytes_per_s_by_gpus=MappingProxyType({2: float(np.mean(ratios)) * link}),
            latency_scale=1.0,
            nvls_bytes_per_s=float(np.mean(in_switch)) * link if has_nvls and in_switch else 0.0,
        )
        mine = [case for case in cases if case.fabric == name and case.weight == 1.0]
        errors = log_errors(mine, constants_from(value), {name: guess})
        report |= error_report(mine, errors)
        all_errors += errors
    return report, all_errors


def rms(errors: Sequence[Array]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(list(errors)) ** 2)))


def run(data: Path) -> dict[str, Any]:
    files = [data / "kernels" / "aic_nccl.parquet", data / "published" / "collectives.csv"]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} does not exist; give the folder that holds kernels/ and published/.")
    table, published = pd.read_parquet(files[0]), pd.read_csv(files[1])

    small, large = table_cases(table, NVLINK), large_cases(published)
    shared, fabrics = fit_nvlink([*small, *large])
    pcie_cases, far_cases = table_cases(table, PCIE), efa_cases(published)
    fabrics |= fit_pcie(pcie_cases, constants_from(shared))
    efa, peer_share = fit_efa(far_cases, shared, fabrics)
    constants = constants_from(shared, peer_share)

    near = log_errors(small, constants, fabrics)
    over_pcie = log_errors(pcie_cases, constants, fabrics)
    far = log_errors(far_cases, constants, fabrics, efa)
    held_out, held_out_errors = left_out([*small, *large])
    network = error_report(far_cases, far)["H100-SXM-80GB"]
    most: dict[str, int] = {}
    for case in [*small, *pcie_cases]:
        most[case.fabric] = max(case.ranks, most.get(case.fabric, 0))
    return {
        "constants": _rounded(asdict(constants)),
        "fabrics": {
            **{n: {**_figures(f), "measured_gpus": most[n]} for n, f in sorted(fabrics.items())},
            efa.name: {
                "measured_gpus": max(case.ranks for case in far_cases),
                "efficiency": round(efa.efficiency, 3),
                "hop_us": _rounded(dict(efa.hop_us or {})),
            },
        },
        "log_std": {
            "learned": round(rms([*near, *over_pcie, *far]), 3),
            "assumed": round(rms(held_out_errors), 3),
        },
        "errors": {
            "in_sample": error_report([*small, *pcie_cases], [*near, *over_pcie]),
            "large_one_node": error_report(large, log_errors(large, constants, fabrics)),
            "gpu_type_left_out": held_out,
            "p5_efa_16_to_256_gpus": network,
        },
        "provenance": {
            "command": "python -m precision_time.fit.collectives SHARED_DATA",
            "date": datetime.date.today().isoformat(),
            "files": [
                {"name": f.name, "sha256": hashlib.sha256(f.read_bytes()).hexdigest(), "rows": len(rows)}
                for f, rows in zip(files, (table, published), strict=True)
            ],
            "points_fitted": sum(len(c.nbytes) for c in [*small, *large, *pcie_cases, *far_cases]),
            "measured_by": "aiconfigurator (Apache-2.0, NVIDIA), Azure AI-benchmarking-guide,"
            " stas00/ml-engineering, crazyguitar/aws-gpu-communication-benchmark; see the data's own README",
        },
    }


def _figures(found: Fabric) -> dict[str, Any]:
    table = {str(n): round(rate / 1e9, 1) for n, rate in found.bus_bytes_per_s_by_gpus.items()}
    figures: dict[str, Any] = {"bus_gb_per_s": table if len(table) > 1 else next(iter(table.values()))}
    if found.nvls_bytes_per_s:
        figures["nvls_gb_per_s"] = round(found.nvls_bytes_per_s / 1e9, 1)
    return {**figures, "latency_scale": round(found.latency_scale, 3)}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fit the collective model.")
    parser.add_argument("data", type=Path, help="folder with kernels/ and published/")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    document = run(options.data)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: document[k] for k in ("constants", "fabrics", "log_std", "errors")}, indent=1))


if __name__ == "__main__":
    main()
