"""The measured collectives that `fit/collectives.py` fits, read from the tables of `data/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIB = 2**20

NVLINK = {
    "A100-SXM4-80GB": "nvlink3-switch",
    "H100-SXM-80GB": "nvlink4-switch",
    "H200-SXM": "nvlink4-switch",
    "B200-SXM": "nvlink5-switch",
    "B300-SXM": "nvlink5-switch",
    "GB200": "nvlink5-rack",
    "GB300": "nvlink5-rack",
}
"""GPU of the tables -> fabric. GPU types that share a fabric are fitted together."""
PCIE = {"L40S": "pcie4", "RTX-PRO-6000-Server": "pcie5"}
LARGE_WEIGHT = 5.0
"""Weight of messages from 512 MiB on: they determine the asymptotic bandwidth, and the kernel table has few of them."""


@dataclass(frozen=True)
class Case:
    """Measured times of one collective on one communicator."""

    gpu: str
    collective: str
    fabric: str
    ranks: int
    nbytes: Array
    seconds: Array
    weight: float = 1.0
    nvls: bool = True
    domains: int = 1


def table_cases(table: pd.DataFrame, fabrics: Mapping[str, str]) -> list[Case]:
    """One case for each GPU type of `fabrics`, collective and number of GPUs."""
    medians = table[table.gpu.isin(list(fabrics))]
    return [
        Case(
            str(gpu),
            str(collective),
            fabrics[str(gpu)],
            int(ranks),
            part.bytes.to_numpy(dtype=np.float64),
            part.latency_us.to_numpy(dtype=np.float64) * 1e-6,
        )
        for (gpu, collective, ranks), part in medians.groupby(["gpu", "collective", "num_gpus"])
    ]


def large_cases(published: pd.DataFrame) -> list[Case]:
    """One-node messages of at least 512 MiB, and the published peaks of B200, taken as messages of 16 GiB."""

    def case(gpu: str, collective: str, rows: pd.DataFrame, nvls: bool = True) -> Case:
        size = rows.bytes.fillna(2.0**34).to_numpy(dtype=np.float64)
        traffic = (7 / 4) if collective == "all_reduce" else 7 / 8
        seconds = size * traffic / (rows.busbw_gbps.to_numpy(dtype=np.float64) * 1e9)
        return Case(gpu, collective, NVLINK[gpu], 8, size, seconds, LARGE_WEIGHT, nvls)

    system = published.system
    azure = published[system.str.startswith("ND A100") & (published.bytes >= 512 * MIB)]
    h200 = published[system.str.startswith("8x H200")]
    off = h200.system.str.contains("NVLS off")
    b200 = published[system.str.contains("(B200)", regex=False)]
    sharp = b200.system.str.contains("SHARP")
    return [
        case("A100-SXM4-80GB", "all_reduce", azure),
        case("H200-SXM", "all_reduce", h200[off & (h200.collective == "all_reduce")], False),
        case("H200-SXM", "all_reduce", h200[~off & (h200.collective == "all_reduce")]),
        case("H200-SXM", "all_gather", h200[h200.collective == "all_gather"]),
        case("H200-SXM", "reduce_scatter", h200[h200.collective == "reduce_scatter"]),
        case("B200-SXM", "all_reduce", b200[~sharp], False),
        case("B200-SXM", "all_reduce", b200[sharp]),
    ]


def efa_cases(published: pd.DataFrame) -> list[Case]:
    """Collectives between nodes of p5.48xlarge."""
    rows = published[published.system == "p5.48xlarge EFA"]
    return [
        Case(
            "H100-SXM-80GB",
            str(collective).replace("alltoall", "all_to_all"),
            "nvlink4-switch",
            int(ranks),
            part.bytes.to_numpy(dtype=np.float64),
            part.time_us.to_numpy(dtype=np.float64) * 1e-6,
            domains=int(ranks) // 8,
        )
        for (collective, ranks), part in rows.groupby(["collective", "gpus"])
    ]


def unnamed_cases(published: pd.DataFrame) -> list[Case]:
    """All-reduce over 4 nodes of 8 GPUs that the source does not name, 32 KiB to 16 GiB."""
    rows = published[published.system.str.startswith("4 nodes of 8 GPUs")]
    nbytes, seconds = (rows[column].to_numpy(dtype=np.float64) for column in ("bytes", "time_us"))
    return [Case("unnamed", "all_reduce", "nvlink3-switch", 32, nbytes, seconds * 1e-6, domains=4)]
