"""Spells of spot instances from published traces of one instance (`data/published/spot_traces.csv`)."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precision_time.fit.provenance import provenance
from precision_time.plan.spot import PARAMETERS, Zone, published_zones
from precision_time.shipped import ROOT, write_shipped

TABLE = "published/spot_traces.csv"


@dataclass(frozen=True, slots=True)
class Trace:
    """Whether an instance (all `nodes` of them) was there, every `gap_h` hours."""

    name: str
    nodes: int
    gap_h: float
    there: tuple[bool, ...]

    @property
    def hours(self) -> float:
        return len(self.there) * self.gap_h


def traces(tables: Path) -> Iterator[Trace]:
    """All traces of the table; entries are run-length coded, `VxN` being V instances for N ticks."""
    with (tables / TABLE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            nodes = int(row["nodes"])
            there = []
            for run in row["runs"].split():
                value, _, ticks = run.partition("x")
                there += [int(value) >= nodes] * int(ticks)
            yield Trace(row["source"], nodes, float(row["gap_s"]) / 3600.0, tuple(there))


def zone(trace: Trace) -> Zone | None:
    """The zone that a trace is of."""
    return Zone.of_trace(trace.name.rpartition("/")[2].removesuffix(".json"), trace.there, trace.gap_h)


def run(tables: Path) -> None:
    """Fit and write the zones of one instance."""
    known = [each for trace in traces(tables) if trace.nodes == 1 and (each := zone(trace)) is not None]
    content = {
        "provenance": provenance("spot", tables / TABLE, len(known)),
        "zones": [each.to_dict() for each in known],
    }
    write_shipped(ROOT / PARAMETERS, json.dumps(content, indent=1) + "\n")
    published_zones.cache_clear()
    print(f"{len(known)} zones, available {min(z.availability for z in known):.0%} to "
          f"{max(z.availability for z in known):.0%} of the time", file=sys.stderr)  # fmt: skip
