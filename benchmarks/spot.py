"""Runs on spot instances, judged by replaying traces that were not fitted.

    python -m benchmarks.spot

Published traces are replayed tick by tick from many moments, stated by the other traces (a new zone), and the second
half of each by its first half (a trace of one's own). Two statements are judged: the probability that a run on spot
alone is done by a deadline, and P10 to P90 of the hours on demand of a run that goes over to on-demand at the point of
no return. Writes benchmarks/results/spot.json and spot.md.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.fit.spot import Trace, traces, zone
from precision_time.measurements.repository import required_data_folder
from precision_time.plan.spot import Zone, played
from precision_time.report.table import Table
from precision_time.report.write import compact_json, write_whole

RESULTS = Path(__file__).parent / "results"
WORK_H = (1.0, 3.0, 8.0, 20.0)
SLACK = (1.2, 1.5, 2.0, 4.0)
"""Deadline over the hours of work."""
START_H, CHECKPOINT_H = 0.05, 0.25
EVERY_H = 5.0
"""Hours between two moments of a replay."""
PATHS = 2000
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Replay:
    """One run on a real trace, and what was stated of it."""

    zone: str
    work_h: float
    deadline_h: float
    stated: float
    done: bool
    met: bool
    demand_h: float
    stated_demand_h: tuple[float, float, float]


def replayed(trace: Trace, begin: int, work_h: float, deadline_h: float, fallback: bool) -> tuple[float, float] | None:
    """Hours until the run is done and hours on demand, tick by tick; None where the trace ends before."""
    left, waits, on_demand = work_h, 0.0, False
    running, since = False, 0.0
    clock, demand = 0.0, 0.0
    first = True
    for there in trace.there[begin:]:
        last = deadline_h - left - 2.0 * START_H - CHECKPOINT_H
        if fallback and not on_demand and not running and clock >= last:
            on_demand, waits = True, 0.0 if first else START_H
            demand = left + waits
            return clock + demand, demand
        if there and not running:
            running, since, waits, first = True, 0.0, 0.0 if first else START_H, False
        if not there and running:
            running = False
            left += min(0.5 * CHECKPOINT_H, since)
        if running:
            work = max(trace.gap_h - waits, 0.0)
            waits = max(waits - trace.gap_h, 0.0)
            if work >= left:
                return clock + (trace.gap_h - work) + left, demand
            left, since = left - work, since + work
        clock += trace.gap_h
    return None


def replays(trace: Trace, others: tuple[Zone, ...]) -> Iterator[Replay]:
    """All runs of a trace, stated by zones of the others."""
    ticks = max(1, round(EVERY_H / trace.gap_h))
    for work_h in WORK_H:
        alone = played(np.full(PATHS, work_h), others, None, START_H, CHECKPOINT_H)
        for slack in SLACK:
            deadline_h = work_h * slack
            stated = float((alone.finish_h <= deadline_h).mean())
            both = played(np.full(PATHS, work_h), others, deadline_h, START_H, CHECKPOINT_H)
            low, middle, high = (float(v) for v in np.quantile(both.demand_h, (0.1, 0.5, 0.9)))
            for begin in range(0, len(trace.there) - int(deadline_h / trace.gap_h) - 1, ticks):
                spot = replayed(trace, begin, work_h, deadline_h, False)
                safe = replayed(trace, begin, work_h, deadline_h, True)
                if safe is None:
                    continue
                done = spot is not None and spot[0] <= deadline_h
                met = safe[0] <= deadline_h + 2.0 * trace.gap_h
                yield Replay(trace.name, work_h, deadline_h, stated, done, met, safe[1], (low, middle, high))


NEW, OWN = "new zone", "own trace"


def main() -> None:
    """Judge and write both pages."""
    known = [(t, z) for t in traces(required_data_folder()) if t.nodes == 1 and (z := zone(t)) is not None]
    found = {
        NEW: [r for trace, own in known for r in replays(trace, tuple(z for _, z in known if z is not own))],
        OWN: [r for trace, _ in known for r in _second_half(trace)],
    }  # fmt: skip
    content: dict[str, Any] = {name: _judged(runs) for name, runs in found.items()}
    content |= {"traces": len(known), "date": datetime.date.today().isoformat()}
    write_whole(RESULTS / "spot.json", compact_json(content))
    write_whole(RESULTS / "spot.md", page(content))
    print(page(content))


def _second_half(trace: Trace) -> Iterator[Replay]:
    """The second half of a trace, stated by its first half; nothing where that has too few spells."""
    middle = len(trace.there) // 2
    first = zone(replace(trace, there=trace.there[:middle]))
    if first is not None:
        yield from replays(replace(trace, there=trace.there[middle:]), (first,))


def _judged(found: list[Replay]) -> dict[str, Any]:
    """Statements against replays; every trace counts equally, however long it is."""
    counts = Counter(r.zone for r in found)
    weights = np.array([1.0 / counts[r.zone] for r in found])
    stated, done = np.array([r.stated for r in found]), np.array([r.done for r in found])
    rows = []
    for low, high in pairwise(BINS):
        inside = (stated >= low) & ((stated < high) | (high == 1.0))
        if inside.any():
            means = [float(np.average(v[inside], weights=weights[inside])) for v in (stated, done)]
            zones = len({r.zone for r, chosen in zip(found, inside, strict=True) if chosen})
            rows.append([low, high, int(inside.sum()), zones, *(round(m, 3) for m in means)])
    covered = [r.stated_demand_h[0] - 1e-9 <= r.demand_h <= r.stated_demand_h[2] + 1e-9 for r in found]
    figures = {
        "stated": stated,
        "done": done,
        "met": np.array([r.met for r in found]),
        "covered": np.array(covered),
        "demand_share": np.array([r.demand_h / r.work_h for r in found]),
    }
    means_of = {name: round(float(np.average(values, weights=weights)), 4) for name, values in figures.items()}
    return {"replays": len(found), "traces": len(counts), "reliability": rows, **means_of}


def page(content: Mapping[str, Any]) -> str:
    """The page of results."""
    parts = []
    for name, text in ((NEW, "by the zones of all other traces"), (OWN, "second halves of traces, by their first")):
        judged = content[name]
        rows = [
            [f"{low:.0%} to {high:.0%}", f"{n:,}", f"{zones}", f"{stated:.0%}", f"{done:.0%}"]
            for low, high, n, zones, stated, done in judged["reliability"]
        ]
        table = Table(["stated", "replays", "zones", "stated, mean", "done in time"], rows).markdown()
        parts.append(
            f"## {name.capitalize()}: {text}\n\n{judged['replays']:,} replays of {judged['traces']} traces. On spot "
            f"alone {judged['stated']:.0%} are stated to be done by the deadline, and {judged['done']:.0%} are:\n\n"
            f"{table}\n\n"
            f"With on-demand from the point of no return {judged['met']:.1%} meet the deadline. Hours on demand lie in "
            f"the stated P10 to P90 in {judged['covered']:.0%}; they are {judged['demand_share']:.0%} of the work."
        )
    return _TEXT.format(
        date=content["date"],
        traces=content["traces"],
        work=", ".join(f"{w:g}" for w in WORK_H),
        slack=", ".join(f"{s:g}" for s in SLACK),
        parts="\n\n".join(parts),
    )


_TEXT = """\
# Spot instances

Written by `python -m benchmarks.spot`, {date}; do not edit. {traces} published traces of single instances, replayed
every five hours with {work} hours of work and deadlines of {slack} times as much; every trace counts equally.

{parts}

Traces differ: instances are there 19 to 94 % of the time, so a trace of the zone at hand says more than six of others.
"""


if __name__ == "__main__":
    main()
