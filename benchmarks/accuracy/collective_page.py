"""The page benchmarks/results/collectives.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.accuracy.collectives import LARGE, SMALL
from precision_time.report.errors import percent
from precision_time.report.table import Table

_INSIDE = {"seen": "in_sample", "type out": "gpu_type_left_out", "link out": "link_left_out"}
_BETWEEN = {"seen": "p5_efa_in_sample", "GPU count out": "p5_efa_ranks_left_out", "network out": "p5_efa_left_out"}

_TEXT = """\
# Errors of collective times

Written by `make board`; do not edit. The shipped figures ({date}) are fitted to {points:,} measured messages: NCCL in
fp16, medians over repeated runs.

- **seen**: all data fitted.
- **type out**: one GPU type left out of every step. Its fabric keeps the figures of another type that has it (H200 for
  H100: one NVLink 4 switch).
- **link out**: the whole link generation left out. A100, L40S and RTX PRO 6000 are the only ones of theirs, so both are
  the same for them.

A fabric without any measurement is assumed from its datasheet: bus bandwidth is the link rate times the efficiency of
the other fabrics of its kind; latency is that of the other generations over the boost clock
(`src/precision_time/fit/held_out_fabrics.py`).

These rules take their numbers from the other fabrics, but they were chosen with all tables in view: that latency scales
with the clock (without it, H100 with its whole generation left out was 53 % off up to 1 MB), that a published PCIe
system gives the efficiency of 4 and 8 GPUs (without it, RTX PRO 6000 was 35 % off above 1 MB), that messages between
nodes are not pipelined, and that the unnamed system consists of A100 nodes (as H100 nodes, its small messages are up to
41 % too fast instead of 29 %).

## Fitted figures

{fabrics}

## One node

Median / 90th percentile of the absolute error in per cent. Targets: median at most 30 % up to 1 MB, 15 % above.

{gpus}

Type out: {type_missed}
Link out: {link_missed}

{collectives}

{ranks}

Messages of 512 MiB to 16 GiB on one node, seen, median: {large}.

## Between nodes

p5.48xlarge over EFA, 32 MiB to 8 GiB, 16 to 256 H100:

{efa}

An unnamed system of 4 nodes of 8 GPUs, 32 KiB to 16 GiB, to which nothing is fitted but its ports (four of 200 Gb/s,
inferred from its largest messages): median {unnamed}.

Published peaks of all-reduce bus bandwidth on 32 GPUs in GB/s. Held out: with the mean efficiency of the other
networks.

{peaks}
"""


def page(parameters: Mapping[str, Any], errors: Mapping[str, Any]) -> str:
    """The page from `timing/data/collectives.json` and what `collectives.judge` gives."""
    large = errors["in_sample"]["by_large_gpu"]
    return _TEXT.format(
        date=parameters["provenance"]["date"],
        points=parameters["provenance"]["points_fitted"],
        fabrics=_fabrics(parameters["fabrics"]),
        gpus=_table(errors, "by_gpu", "GPU", _INSIDE),
        type_missed=_missed(errors["gpu_type_left_out"]["misses"]),
        link_missed=_missed(errors["link_left_out"]["misses"]),
        collectives=_table(errors, "by_collective", "collective", _INSIDE),
        ranks=_table(errors, "by_ranks", "GPUs", _INSIDE),
        large=", ".join(f"{gpu} {percent(entry[LARGE]['median_ape'])}" for gpu, entry in large.items()),
        efa="\n\n".join(
            _table(errors, by, name, _BETWEEN, (LARGE,))
            for by, name in (("by_collective", "collective"), ("by_ranks", "GPUs"))
        ),
        unnamed=", ".join(
            f"{percent(entry['median_ape'])} ({label})" for label, entry in errors["unnamed_4_nodes"]["all"].items()
        ),
        peaks=_peaks(errors["peaks"]),
    )


def _missed(misses: list[str]) -> str:
    return f"targets missed by {'; '.join(misses)}." if misses else "all targets met."


def _table(
    errors: Mapping[str, Any], by: str, name: str, runs: Mapping[str, str], sizes: tuple[str, ...] = (SMALL, LARGE)
) -> str:
    columns = [name, *(f"{run}, {size}" for run in runs for size in sizes)]
    rows = [
        [group, *(_cell(errors[key][by].get(group, {}).get(size)) for key in runs.values() for size in sizes)]
        for group in errors[next(iter(runs.values()))][by]
    ]
    return Table(columns, rows).markdown()


def _cell(figures: Mapping[str, float] | None) -> str:
    return f"{100 * figures['median_ape']:.1f} / {100 * figures['p90_ape']:.0f}" if figures else ""


def _peaks(peaks: list[Mapping[str, Any]]) -> str:
    rows = [[peak["system"], *(f"{peak[key]:g}" for key in ("measured", "in_sample", "held_out"))] for peak in peaks]
    return Table(["system", "measured", "seen", "held out"], rows).markdown()


def _fabrics(fabrics: Mapping[str, Any]) -> str:
    rows = []
    for name, figures in fabrics.items():
        bus = figures.get("bus_gb_per_s", f"{figures.get('efficiency')} of the ports")
        if isinstance(bus, dict):
            bus = ", ".join(f"{rate} ({count} GPUs)" for count, rate in bus.items())
        latency = figures.get("latency_scale", f"hop {figures['hop_us']['Simple']} us" if "hop_us" in figures else "")
        rows.append([name, str(bus), str(figures.get("nvls_gb_per_s", "")), str(latency)])
    return Table(["fabric", "bus, GB/s", "in-switch, GB/s of buffer", "latency"], rows).markdown()
