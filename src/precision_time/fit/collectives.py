"""Fits the constants of `timing/collectives.py` to measured collectives.

    python -m precision_time.fit.collectives --shared DIR [--report docs/collectives.md] [--out collectives.json]

DIR/data holds `kernels/aic_nccl.parquet` and `published/collectives.csv`. Three steps: the shared constants with
the NVLink fabrics, then PCIe, then the network of p5.48xlarge. Errors are stored, also those on GPU types and link
generations left out of the fit (`collective_judging.py`), and written between the marks of the report. The
bandwidths found belong into `hardware/data/fabrics.yaml` (a test compares the two). About six minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.fit.collective_cases import (
    NVLINK,
    PCIE,
    Array,
    Case,
    efa_cases,
    large_cases,
    table_cases,
    unnamed_cases,
)
from precision_time.fit.collective_judging import (
    LINK_GB_PER_S,
    Fitted,
    Judged,
    figures,
    generations,
    held_out,
    judged,
    misses,
    peaks,
    split,
    types,
)
from precision_time.fit.collective_report import section, written
from precision_time.fit.provenance import sha256
from precision_time.hardware import fabric
from precision_time.hardware.fabric import Fabric, Group
from precision_time.timing.collectives import Constants, Fit, collective_seconds

OUT = Path(__file__).parents[1] / "timing" / "data" / "collectives.json"

# Hops of PCIe over those of NVLink, and of the network (the tree's, which small messages between nodes take):
# NCCL src/graph/tuning.cc.
PCIE_HOP_RATIO = {"LL": 1.0 / 0.6, "LL128": 2.5 / 1.9, "Simple": 5.7 / 3.4}
NETWORK_HOP_US = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}
# ---------------------------------------------------------------- model under fit


def as_fit(constants: Constants) -> Fit:
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
    bounds = {"efficiency": (0.9, 1.0), "hop": (50.0, 500.0), "peer": (0.1, 1.0)}

    def network(value: Mapping[str, float]) -> Fabric:
        hops = dict.fromkeys(("LL", "LL128", "Simple"), value["hop"])  # no row is small enough to tell
        return replace(base, efficiency=value["efficiency"], hop_us=hops)

    def residual(value: dict[str, float]) -> Array:
        constants = constants_from(shared, value["peer"])
        return weighted(log_errors(cases, constants, fabrics, network(value)), cases)

    value = solve(bounds, residual)
    return network(value), value["peer"]


# ---------------------------------------------------------------- errors


class FitInside:
    """Constants and fabrics inside a node, from cases that may lack some. Equal NVLink cases are fitted once."""

    def __init__(self) -> None:
        self.done: dict[frozenset[str], tuple[dict[str, float], dict[str, Fabric]]] = {}

    def __call__(self, cases: Sequence[Case]) -> Fitted:
        near = [case for case in cases if case.fabric in NVLINK.values()]
        key = frozenset(case.gpu for case in near)
        if key not in self.done:
            self.done[key] = fit_nvlink(near)
        value, fabrics = self.done[key]
        constants = constants_from(value)
        return constants, fabrics | fit_pcie([case for case in cases if case.fabric in PCIE.values()], constants)


def efa_held_out(cases: Sequence[Case], shared: Mapping[str, float], fabrics: Mapping[str, Fabric]) -> list[Judged]:
    """p5.48xlarge as if its network were unmeasured: the efficiency of InfiniBand, NCCL's own hops."""
    blind = replace(fabric("efa-100"), efficiency=fabric("infiniband-400").efficiency, hop_us=None, latency_scale=1.0)
    return judged(cases, log_errors(cases, constants_from(shared), fabrics, blind))


def unnamed(published: pd.DataFrame, constants: Constants, fabrics: Mapping[str, Fabric]) -> list[Judged]:
    """The nameless system as A100 nodes with four 200 Gb ports, read off its largest messages: shape and latency."""
    cases = unnamed_cases(published)
    return judged(cases, log_errors(cases, constants, fabrics, fabric("infiniband-200"), ports=4))


def within_efa(cases: Sequence[Case], shared: Mapping[str, float], fabrics: Mapping[str, Fabric]) -> list[Judged]:
    """Each number of GPUs left out of the fit of the network."""
    found: list[Judged] = []
    for ranks in sorted({case.ranks for case in cases}):
        mine = [case for case in cases if case.ranks == ranks]
        network, peer = fit_efa([case for case in cases if case.ranks != ranks], shared, fabrics)
        found += judged(mine, log_errors(mine, constants_from(shared, peer), fabrics, network))
    return found


def rms(errors: Sequence[Array]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(list(errors)) ** 2)))


def run(shared_folder: Path) -> dict[str, Any]:
    data = shared_folder / "data"
    files = [data / "kernels" / "aic_nccl.parquet", data / "published" / "collectives.csv"]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} does not exist; give the folder that holds data/kernels and data/published.")
    table, published = pd.read_parquet(files[0]), pd.read_csv(files[1])

    small, large = table_cases(table, NVLINK), large_cases(published)
    pcie_cases, far_cases = table_cases(table, PCIE), efa_cases(published)
    fit = FitInside()
    _, fabrics = fit([*small, *large, *pcie_cases])
    shared = fit.done[frozenset(NVLINK)][0]
    efa, peer_share = fit_efa(far_cases, shared, fabrics)
    constants = constants_from(shared, peer_share)

    one_node = [*small, *pcie_cases]
    seen = judged(one_node, log_errors(one_node, constants, fabrics))
    far = judged(far_cases, log_errors(far_cases, constants, fabrics, efa))
    everything = [*small, *large, *pcie_cases]
    by_type = held_out(everything, types(), fit, log_errors)
    by_link = held_out(everything, generations(), fit, log_errors)
    all_types = [part for parts in by_type.values() for part in parts]
    all_links = [part for parts in by_link.values() for part in parts]
    most: dict[str, int] = {}
    for case in one_node:
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
            "learned": round(rms([part.errors for part in [*seen, *far]]), 3),
            "assumed": round(rms([part.errors for part in all_links]), 3),
        },
        "errors": {
            "in_sample": {**_every_way(seen), "by_large_gpu": split(_large(large, constants, fabrics), _gpu)},
            "gpu_type_left_out": {**_every_way(all_types), "misses": misses(split(all_types, _gpu))},
            "link_left_out": {**_every_way(all_links), "misses": misses(split(all_links, _gpu))},
            "p5_efa_in_sample": _every_way(far),
            "p5_efa_ranks_left_out": _every_way(within_efa(far_cases, shared, fabrics)),
            "p5_efa_left_out": _every_way(efa_held_out(far_cases, shared, fabrics)),
            "unnamed_4_nodes": {"all": figures(unnamed(published, constants, fabrics))},
            "peaks": peaks(published, efa.efficiency),
        },
        "provenance": {
            "command": "python -m precision_time.fit.collectives --shared DIR --report docs/collectives.md",
            "date": datetime.date.today().isoformat(),
            "files": [
                {"name": f.name, "sha256": sha256(f), "rows": len(rows)}
                for f, rows in zip(files, (table, published), strict=True)
            ],
            "points_fitted": sum(len(c.nbytes) for c in [*small, *large, *pcie_cases, *far_cases]),
            "measured_by": "aiconfigurator (Apache-2.0, NVIDIA), Azure AI-benchmarking-guide,"
            " stas00/ml-engineering, crazyguitar/aws-gpu-communication-benchmark; see the data's own README",
        },
    }


def _gpu(case: Case) -> str:
    return case.gpu


def _large(cases: Sequence[Case], constants: Constants, fabrics: Mapping[str, Fabric]) -> list[Judged]:
    return judged(cases, log_errors(cases, constants, fabrics))


def _every_way(parts: Sequence[Judged]) -> dict[str, Any]:
    return {
        "all": figures(parts),
        "by_gpu": split(parts, _gpu),
        "by_collective": split(parts, lambda case: case.collective),
        "by_ranks": split(sorted(parts, key=lambda part: part.case.ranks), lambda case: case.ranks),
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


def as_json(document: Mapping[str, Any]) -> str:
    """Indented, with the figures of one class of errors on one line."""
    text = json.dumps(document, indent=1) + "\n"
    return re.sub(r'\{\s+("n": [^{}]*?)\s+\}', lambda found: "{" + " ".join(found[1].split()) + "}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit.collectives", description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/kernels and data/published")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--report", type=Path, help="page whose marked part to write, docs/collectives.md")
    options = parser.parse_args(arguments)
    try:
        page = options.report.read_text(encoding="utf-8") if options.report else None
        document = run(options.shared)
        text = section(document)
        new_page = None if page is None else written(page, text, str(options.report))
    except (OSError, PrecisionTimeError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    options.out.write_text(as_json(document), encoding="utf-8")
    if new_page is not None:
        options.report.write_text(new_page, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
