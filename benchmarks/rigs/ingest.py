"""Speed of the model of co-located jobs, a curve of 100 start offsets: `python -m benchmarks.rigs.ingest`.

Processor and wall seconds, each the median of several in one process, after one that is not counted. Writes
benchmarks/results/ingest.json and ingest.md. Leave the machine alone meanwhile: on a busy one only the processor
seconds mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed import RESULTS, machine
from precision_time.ingest.model.curve import stagger_curve
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns
from precision_time.units import human_seconds

POINTS = 100
PAIRS = {
    "deep queues": [JobRates("a", 10_000, 3, 0.001, 0.004), JobRates("b", 10_000, 3, 0.002, 0.004)],
    "one without prefetch": [
        JobRates("a", 10_000, 5, 0.001, 0.004, overlap=0.5),
        JobRates("b", 10_000, 2, 0.003, 0.006, overlap=0.0),
    ],
}
CACHES = {
    "holds all": SharedCache(),
    "half, no eviction": SharedCache(5000, "no-eviction"),
    "half, LRU": SharedCache(5000),
    "90 %, LRU": SharedCache(9000),
}


def seconds(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median processor and wall seconds."""
    work()
    processor, wall = [], []
    for _ in range(repeats):
        began, clock = time.process_time(), time.perf_counter()
        work()
        processor.append(time.process_time() - began)
        wall.append(time.perf_counter() - clock)
    return {"processor_s": statistics.median(processor), "wall_s": statistics.median(wall)}


def measured(repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for pair, jobs in PAIRS.items():
        longest = 1.2 * max(job.cold_epoch_s for job in jobs)
        offsets = np.stack([np.zeros(POINTS), np.linspace(0.0, longest, POINTS)], axis=1)
        for same_order in (False, True):
            slowdowns = Slowdowns.uniform(2, 2.0, same_order=same_order)
            for name, cache in CACHES.items():

                def curve(jobs: list[JobRates] = jobs, t: Slowdowns = slowdowns, c: SharedCache = cache) -> object:
                    return run(jobs, t, c, offsets)  # noqa: B023 - called at once

                def best(jobs: list[JobRates] = jobs, t: Slowdowns = slowdowns, c: SharedCache = cache) -> object:
                    return stagger_curve(jobs, t, c, POINTS)

                order = "one order" if same_order else "independent orders"
                results = {"curve": seconds(curve, repeats), "best": seconds(best, max(repeats // 2, 1))}
                rows.append({"jobs": pair, "order": order, "cache": name, **results})
                print(f"{pair}, {order}, {name}: {human_seconds(results['curve']['processor_s'])}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="times that each is run (default 7)")
    options = parser.parse_args()
    rows, where, load = measured(options.repeats), machine(), os.getloadavg()[0]
    lines = [
        "# Speed of the model of co-located jobs",
        "",
        f"A curve is {POINTS} offsets of two jobs in one order of starts (goal: < 50 ms); `stagger_curve` is both "
        "orders of starts, the plain ways, a search between the points and, with LRU, the same without eviction.",
        "",
        "| jobs | samples | cache | curve, processor | curve, wall | stagger_curve, processor | stagger_curve, wall |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['jobs']} | {row['order']} | {row['cache']} | {human_seconds(row['curve']['processor_s'])} | "
            f"{human_seconds(row['curve']['wall_s'])} | {human_seconds(row['best']['processor_s'])} | "
            f"{human_seconds(row['best']['wall_s'])} |"
            for row in rows
        ),
        "",
        f"{where['date']}, {where['cpu']}, load {load:.1f}; python {where['python']}, numpy {where['numpy']}; "
        f"median of {options.repeats}: `python -m benchmarks.rigs.ingest`.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    content = {"machine": where, "load": load, "points": POINTS, "repeats": options.repeats, "rows": rows}
    (RESULTS / "ingest.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "ingest.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
