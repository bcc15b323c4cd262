"""Fits the constants of `timing/collectives.py` and the bandwidths of fabrics to measured collectives.

Reads `data/kernels/aic_nccl.parquet` and `data/published/collectives.csv`, writes `timing/data/collectives.json`. Three
steps: the shared constants with the NVLink fabrics, then PCIe, then the network of p5.48xlarge. Then every link
generation is left out in turn: those errors set the spread of fabrics that nobody measured. The fitted bandwidths
belong into `hardware/data/fabrics.yaml` (a test compares the two). About four minutes.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from precision_time.errors import DataError
from precision_time.fit.collective_cases import (
    NVLINK,
    PCIE,
    Array,
    Case,
    efa_cases,
    large_cases,
    table_cases,
)
from precision_time.fit.held_out_fabrics import (
    LINK_GB_PER_S,
    ConstantsAndFabrics,
    held_out,
    link_generations,
)
from precision_time.fit.provenance import sha256
from precision_time.hardware import fabric
from precision_time.hardware.fabric import Fabric, Group
from precision_time.reading import to_json
from precision_time.shipped import write_shipped
from precision_time.timing.collectives import Constants, Fit, collective_seconds

OUTPUT = Path(__file__).parents[1] / "timing" / "data" / "collectives.json"
TABLES = ("kernels/aic_nccl.parquet", "published/collectives.csv")
"""Below the data folder."""

# Hops of PCIe over those of NVLink, and of the network (the tree's, which small messages between nodes take):
# NCCL src/graph/tuning.cc.
PCIE_HOP_RATIO = {"LL": 1.0 / 0.6, "LL128": 2.5 / 1.9, "Simple": 5.7 / 3.4}
NETWORK_HOP_US = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}


def as_fit(constants: Constants) -> Fit:
    """Constants without a spread, as `collective_seconds` takes them."""
    return Fit(constants, {}, 0.0, 0.0)


def log_errors(
    cases: Sequence[Case],
    constants: Constants,
    fabrics: Mapping[str, Fabric],
    inter: Fabric | None = None,
    ports: int = 32,
) -> list[Array]:
    """log(predicted / measured) of each case. `ports`: of `inter`, on each node."""
    errors = []
    for case in cases:
        intra = fabrics[case.fabric]
        if not case.nvls:
            intra = replace(intra, nvls_bytes_per_s=0.0)
        network = ports * inter.nic_bytes_per_s * inter.efficiency if inter else 0.0
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
    """Constants from the parameters `SHARED` by name; `peer_share` is that of a far peer of an all-to-all."""
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
    """Positive parameters below their bounds with the smallest residuals (soft L1)."""
    names = list(bounds)
    start = np.log([bounds[name][0] for name in names])
    upper = np.log([bounds[name][1] for name in names])
    result = least_squares(
        lambda x: residual(dict(zip(names, np.exp(x), strict=True))),
        np.minimum(start, upper - 1e-3),
        bounds=(np.full(len(names), -12.0), upper),
        loss="soft_l1",
        f_scale=0.1,
        x_scale=1.0,
        max_nfev=200,
    )
    return dict(zip(names, (float(v) for v in np.exp(result.x)), strict=True))


def weighted(errors: Sequence[Array], cases: Sequence[Case]) -> Array:
    """All errors, each times the weight of its case."""
    return np.concatenate([error * case.weight for error, case in zip(errors, cases, strict=True)])


def tuned(name: str, value: Mapping[str, float], counts: Sequence[int] = ()) -> Fabric:
    """The fabric `name` of the catalog with the fitted bandwidths (GB/s) and latency scale."""
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
    """Shared parameters by name, and the NVLink fabrics, fitted together."""
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
    """Each PCIe fabric, with the shared constants fixed."""
    fabrics = {}
    for name in sorted({case.fabric for case in cases}):
        members = [case for case in cases if case.fabric == name]
        counts = sorted({case.ranks for case in members})
        bounds = {f"{name} bus {n}": (25.0, 64.0) for n in counts} | {f"{name} latency": (1.0, 5.0)}

        def residual(
            value: dict[str, float], name: str = name, members: list[Case] = members, counts: list[int] = counts
        ) -> Array:
            return weighted(log_errors(members, constants, {name: tuned(name, value, counts)}), members)

        fabrics[name] = tuned(name, solve(bounds, residual), counts)
    return fabrics


def fit_efa(cases: Sequence[Case], shared: Mapping[str, float], fabrics: Mapping[str, Fabric]) -> tuple[Fabric, float]:
    """The network of p5.48xlarge, and the share of a far peer of its all-to-all."""
    base = fabric("efa-100")
    bounds = {"efficiency": (0.9, 1.0), "hop": (50.0, 500.0), "peer": (0.1, 1.0)}

    def network(value: Mapping[str, float]) -> Fabric:
        hops = dict.fromkeys(("LL", "LL128", "Simple"), value["hop"])  # no message is small enough to differ
        return replace(base, efficiency=value["efficiency"], hop_us=hops)

    def residual(value: dict[str, float]) -> Array:
        constants = constants_from(shared, value["peer"])
        return weighted(log_errors(cases, constants, fabrics, network(value)), cases)

    value = solve(bounds, residual)
    return network(value), value["peer"]


class FitInside:
    """Constants and fabrics inside a node, fitted to any subset of the cases. NVLink fits are kept by GPU types."""

    def __init__(self) -> None:
        self.done: dict[frozenset[str], tuple[dict[str, float], dict[str, Fabric]]] = {}

    def __call__(self, cases: Sequence[Case]) -> ConstantsAndFabrics:
        nvlink = [case for case in cases if case.fabric in NVLINK.values()]
        key = frozenset(case.gpu for case in nvlink)
        if key not in self.done:
            self.done[key] = fit_nvlink(nvlink)
        value, fabrics = self.done[key]
        constants = constants_from(value)
        return constants, fabrics | fit_pcie([case for case in cases if case.fabric in PCIE.values()], constants)


def rms(errors: Sequence[Array]) -> float:
    """Root mean square of all errors."""
    return float(np.sqrt(np.mean(np.concatenate(list(errors)) ** 2)))


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Measured collectives by what is fitted to them: `small` messages on NVLink, `large` ones, PCIe, EFA."""

    small: list[Case]
    large: list[Case]
    pcie: list[Case]
    efa: list[Case]

    @classmethod
    def read(cls, tables: Path) -> Cases:
        """Raises `DataError` where a table is missing."""
        for name in TABLES:
            if not (tables / name).is_file():
                raise DataError(f"{tables / name} does not exist; name the folder data/ of a clone of the repository")
        table, published = pd.read_parquet(tables / TABLES[0]), pd.read_csv(tables / TABLES[1])
        return cls(table_cases(table, NVLINK), large_cases(published), table_cases(table, PCIE), efa_cases(published))

    @property
    def one_node(self) -> list[Case]:
        """All cases inside a node."""
        return [*self.small, *self.large, *self.pcie]


@dataclass(frozen=True, slots=True, eq=False)
class FittedCollectives:
    """`shared`: parameters of the NVLink fit by name; `fabrics` inside a node; `network` of p5.48xlarge."""

    constants: Constants
    shared: dict[str, float]
    fabrics: dict[str, Fabric]
    network: Fabric


def fit_collectives(cases: Cases, inside: FitInside) -> FittedCollectives:
    """Constants, fabrics and network from all cases."""
    _, fabrics = inside(cases.one_node)
    shared = inside.done[frozenset(NVLINK)][0]
    network, peer_share = fit_efa(cases.efa, shared, fabrics)
    return FittedCollectives(constants_from(shared, peer_share), shared, fabrics, network)


def document(tables: Path) -> dict[str, Any]:
    """What `timing/data/collectives.json` holds, fitted to the tables below `tables`."""
    cases, inside = Cases.read(tables), FitInside()
    fitted = fit_collectives(cases, inside)
    seen = [
        *log_errors([*cases.small, *cases.pcie], fitted.constants, fitted.fabrics),
        *log_errors(cases.efa, fitted.constants, fitted.fabrics, fitted.network),
    ]
    unseen = held_out(cases.one_node, link_generations(), inside, log_errors)
    most_gpus: dict[str, int] = {}
    for case in (*cases.small, *cases.pcie):
        most_gpus[case.fabric] = max(case.ranks, most_gpus.get(case.fabric, 0))
    return {
        "constants": _rounded(asdict(fitted.constants)),
        "fabrics": {
            **{n: {**_figures(f), "measured_gpus": most_gpus[n]} for n, f in sorted(fitted.fabrics.items())},
            fitted.network.name: {
                "measured_gpus": max(case.ranks for case in cases.efa),
                "efficiency": round(fitted.network.efficiency, 3),
                "hop_us": _rounded(dict(fitted.network.hop_us or {})),
            },
        },
        "log_std": {
            "learned": round(rms(seen), 3),
            "assumed": round(rms([part.errors for parts in unseen.values() for part in parts]), 3),
        },
        "provenance": {
            "command": "precision-time fit collectives",
            "date": datetime.date.today().isoformat(),
            "files": [{"name": Path(name).name, "sha256": sha256(tables / name)} for name in TABLES],
            "points_fitted": sum(len(case.nbytes) for case in [*cases.one_node, *cases.efa]),
            "measured_by": "aiconfigurator (Apache-2.0, NVIDIA), Azure AI-benchmarking-guide,"
            " stas00/ml-engineering, crazyguitar/aws-gpu-communication-benchmark; see data/README.md",
        },
    }


def _figures(fabric: Fabric) -> dict[str, Any]:
    table = {str(n): round(rate / 1e9, 1) for n, rate in fabric.bus_bytes_per_s_by_gpus.items()}
    figures: dict[str, Any] = {"bus_gb_per_s": table if len(table) > 1 else next(iter(table.values()))}
    if fabric.nvls_bytes_per_s:
        figures["nvls_gb_per_s"] = round(fabric.nvls_bytes_per_s / 1e9, 1)
    return {**figures, "latency_scale": round(fabric.latency_scale, 3)}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}")


def run(tables: Path, output: Path = OUTPUT) -> None:
    """Fit the tables below `tables` and write the parameters to `output`."""
    content = document(tables)
    write_shipped(output, to_json(content, indent=1) + "\n")
    points = content["provenance"]["points_fitted"]
    print(f"{points:,} points, {len(content['fabrics'])} fabrics -> {output}", file=sys.stderr)
