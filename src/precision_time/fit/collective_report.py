"""The part of docs/collectives.md that `fit/collectives.py` writes, from what `timing/data/collectives.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.fit.kernel_report import as_text

BEGIN, END = "<!-- collectives:begin -->", "<!-- collectives:end -->"
_CLASSES = ("<= 1 MB", "> 1 MB")
_INSIDE = {"seen": "in_sample", "type out": "gpu_type_left_out", "link out": "link_left_out"}
_BETWEEN = {"seen": "p5_efa_in_sample", "GPU count out": "p5_efa_ranks_left_out", "network out": "p5_efa_left_out"}

_TEXT = """\
`{command}` ({date}) fits {points} points.

### Fitted figures

{fabrics}

### One node

Median / 90th percentile of the absolute error. Targets: median at most 30 % up to 1 MB, 15 % above.

{gpus}

Type out: {type_missed}
Link out: {link_missed}

{collectives}

{ranks}

Messages of 512 MiB to 16 GiB on one node, seen: {large}.

### Between nodes

p5.48xlarge over EFA, 32 MiB to 8 GiB, 16 to 256 H100:

{efa}

A nameless system of 4 nodes of 8 GPUs, 32 KiB to 16 GiB, nothing fitted to it but its ports (four of 200 Gb, read off
its largest messages): {unnamed}.

Published peaks of all-reduce bus bandwidth on 32 GPUs, GB/s; *held out*: the efficiency of the other networks.

{peaks}
"""


def section(document: Mapping[str, Any]) -> str:
    """Tables of the fitted figures and their errors."""
    errors = document["errors"]
    large = ", ".join(
        f"{gpu} {100 * entry['> 1 MB']['median_ape']:.1f} %"
        for gpu, entry in errors["in_sample"]["by_large_gpu"].items()
    )
    return _TEXT.format(
        command=document["provenance"]["command"],
        date=document["provenance"]["date"],
        points=document["provenance"]["points_fitted"],
        fabrics=_fabrics(document["fabrics"]),
        gpus=_table(errors, "by_gpu", "GPU", _INSIDE),
        type_missed=_missed(errors["gpu_type_left_out"]["misses"]),
        link_missed=_missed(errors["link_left_out"]["misses"]),
        collectives=_table(errors, "by_collective", "collective", _INSIDE),
        ranks=_table(errors, "by_ranks", "GPUs", _INSIDE),
        large=large,
        efa="\n\n".join(
            _table(errors, by, name, _BETWEEN, _CLASSES[1:])
            for by, name in (("by_collective", "collective"), ("by_ranks", "GPUs"))
        ),
        unnamed=", ".join(
            f"{label} {100 * entry['median_ape']:.1f} %" for label, entry in errors["unnamed_4_nodes"]["all"].items()
        ),
        peaks=as_text([{key.replace("_", " "): str(value) for key, value in row.items()} for row in errors["peaks"]]),
    )


def written(page: str, text: str, where: str) -> str:
    """The page with its marked part replaced."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise DataError(f"{where} does not have one {BEGIN} and one {END}; put the two marks on lines of their own.")
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{text}{END}{rest.split(END)[1]}"


def _missed(misses: list[str]) -> str:
    return f"targets missed by {'; '.join(misses)}." if misses else "all targets met."


def _table(
    errors: Mapping[str, Any], by: str, name: str, ways: Mapping[str, str], classes: tuple[str, ...] = _CLASSES
) -> str:
    rows = []
    for case in errors[next(iter(ways.values()))][by]:
        row = {name: case}
        for way, key in ways.items():
            for label in classes:
                entry = errors[key][by].get(case, {}).get(label)
                row[f"{way}, {label}"] = _cell(entry)
        rows.append(row)
    return as_text(rows)


def _cell(entry: Mapping[str, float] | None) -> str:
    return f"{100 * entry['median_ape']:.1f} / {100 * entry['p90_ape']:.0f}" if entry else ""


def _fabrics(fabrics: Mapping[str, Any]) -> str:
    rows = []
    for name, found in fabrics.items():
        bus = found.get("bus_gb_per_s", f"{found.get('efficiency')} of the ports")
        if isinstance(bus, dict):
            bus = ", ".join(f"{rate} ({count} GPUs)" for count, rate in bus.items())
        latency = found.get("latency_scale", f"hop {found['hop_us']['Simple']} us" if "hop_us" in found else "")
        in_switch = str(found.get("nvls_gb_per_s", ""))
        rows.append(
            {"fabric": name, "bus, GB/s": str(bus), "in-switch, GB/s of buffer": in_switch, "latency": str(latency)}
        )
    return as_text(rows)
