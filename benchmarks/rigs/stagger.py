"""How near predicted makespans of staggered jobs come to real ones: `python -m benchmarks.rigs.stagger`.

Makes pictures, serves them with nginx at a limited rate, and for every pair of jobs: calibrates, predicts the makespan
over offsets in both orders, then really runs the pair at a grid of offsets (0 to 1.2 cold epochs of the first), several
times in shuffled turns, and at the offset the model chose. Writes benchmarks/results/stagger.json, .md and a picture.
Every run is kept in `--folder`, so that an interrupted evaluation goes on where it stopped. Leave the machine alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rigs import stagger_report
from benchmarks.rigs.local_server import LocalServer
from precision_time.cli.progress import Progress
from precision_time.errors import IngestError
from precision_time.ingest.model.fluid import run
from precision_time.ingest.stagger.calibration import Calibration, calibrate
from precision_time.ingest.stagger.jobs_file import JobsFile, jobs_of
from precision_time.ingest.stagger.processes import hosts
from precision_time.ingest.stagger.staggered_run import run_jobs
from precision_time.ingest.stagger.staggering import stagger
from precision_time.ingest.storage.pictures import Recipe, make

RESULTS = Path(__file__).parents[1] / "results"
ROOT = Path(__file__).parents[2]
SAMPLES, SIZE, REQUESTS_PER_S = 800, 160, 200
"""Pictures of 16 kB, so that a cold epoch of a job that only reads takes four seconds."""
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
"""Offsets in cold epochs of the job that starts first."""
COARSE = (0.0, 0.4, 0.8, 1.2)

READER = {"width": 4, "workers": 1}
OTHER_READER = {"width": 8, "workers": 2, "batch_size": 32}
TRAINER = {"width": 32, "steps": 4, "workers": 1}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two jobs: what each does, and their cache. `share` of the data that an LRU cache holds; None: all of it."""

    name: str
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    epochs: tuple[int, int]
    share: float | None = None
    same_order: bool = False
    grid: tuple[float, ...] = GRID


PAIRS = (
    Pair("two that wait for data", READER, OTHER_READER, (4, 4)),
    Pair("one waits for data, one trains", READER, TRAINER, (4, 2)),
    Pair("two equal jobs", READER, READER, (3, 3)),
    Pair("unequal epochs", READER, READER, (2, 10)),
    Pair("a cache of half the data", READER, OTHER_READER, (3, 3), share=0.5, grid=COARSE),
    Pair("the same order", READER, {"width": 16, "workers": 1}, (3, 3), same_order=True, grid=COARSE),
)


def jobs_file(pair: Pair, url: str, folder: Path, bytes_per_sample: float) -> JobsFile:
    """The pair as a jobs file says it."""
    cache = folder / "cache"
    capacity = None if pair.share is None else pair.share * SAMPLES * bytes_per_sample
    arguments: dict[str, Any] = {"root": url, "cache": str(cache)}
    if capacity is not None:
        arguments["cache_mib"] = capacity / 2**20
    fields = [
        {
            "name": name,
            "run": "python:examples/stagger/train.py:train",
            "epochs": epochs,
            "arguments": {**arguments, **dict(kind), "seed": 0 if pair.same_order else number},
        }
        for number, (name, kind, epochs) in enumerate(zip("ab", (pair.first, pair.second), pair.epochs, strict=True))
    ]
    return jobs_of(
        {
            "samples": SAMPLES,
            "bytes_per_sample": bytes_per_sample,
            "jobs": fields,
            "cache": {"reset": {"folder": str(cache)}, **({"capacity": capacity} if capacity else {})},
            "order": "same" if pair.same_order else "independent",
            "calibration": {"samples": 240, "repeats": 3},
        },
        ROOT,
    )


def lanes(calibration: Calibration, grid: Sequence[float]) -> list[tuple[tuple[int, int], float, tuple[float, float]]]:
    """Order, offset in cold epochs of the first, and offsets by job, of every point of the grid."""
    points: list[tuple[tuple[int, int], float, tuple[float, float]]] = []
    for order in ((0, 1), (1, 0)):
        cold = calibration.jobs[order[0]].start_up_s + calibration.jobs[order[0]].cold_epoch_s
        for share in grid:
            if share == 0.0 and order == (1, 0):
                continue  # both at once has no order
            at = share * cold
            points.append((order, share, (0.0, at) if order == (0, 1) else (at, 0.0)))
    return points


def evaluate(
    pair: Pair, url: str, folder: Path, bytes_per_sample: float, repeats: int, grid: Sequence[float], turns: int
) -> Any:
    """Calibrate, predict, run; everything about one pair as plain values."""
    file = jobs_file(pair, url, folder, bytes_per_sample)
    with Progress("calibrating") as progress:
        calibration = calibrate(file, folder, report=lambda _, done, total: progress(done, total))
    start = time.perf_counter()
    answer = stagger(calibration)
    model_s = time.perf_counter() - start
    plan = lanes(calibration, grid)
    offsets = [each[2] for each in plan]
    starts_by_name = {"best": answer.best.offsets_s, "serial": answer.others[-1].offsets_s}
    predicted = run(
        calibration.jobs,
        calibration.slowdowns,
        calibration.cache,
        [*offsets, *starts_by_name.values()],
        count_start_up=True,
    )
    names = [*(f"{order[0]}{order[1]}:{share:g}" for order, share, _ in plan), *starts_by_name]
    starts = dict(zip(names, [*offsets, *starts_by_name.values()], strict=True))
    measured = measure(file, starts, folder, repeats)
    rows = [
        {
            "name": name,
            "offsets_s": list(starts[name]),
            "predicted_s": float(predicted.makespan_s[at]),
            "predicted_finish_s": [float(s) for s in predicted.finish_s[at]],
            "measured_s": [each["makespan_s"] for each in measured[name]],
            "finish_s": [each["finish_s"] for each in measured[name]],
            "first_epoch_s": [each["first_epoch_s"] for each in measured[name]],
        }
        for at, name in enumerate(names)
    ]
    return {
        "pair": pair.name,
        "words": dataclasses.asdict(pair),
        "rows": rows,
        "model_s": model_s,
        "staggering": answer.to_dict(),
        "paired_runs": paired_runs(file, rows, folder, turns),
    }


def paired_runs(file: JobsFile, rows: Sequence[Mapping[str, Any]], folder: Path, turns: int) -> dict[str, Any] | None:
    """The chosen start against the one that was least in the grid, turn by turn: new runs, so that the rival's luck in
    the grid does not count, and side by side in time, so that the machine's drift does not."""
    chosen = next(row for row in rows if row["name"] == "best")
    others = [row for row in rows if row["offsets_s"] != chosen["offsets_s"]]
    if not turns or not others:
        return None
    rival = min(others, key=lambda row: statistics.median(row["measured_s"]))
    starts = {"paired: chosen": tuple(chosen["offsets_s"]), "paired: rival": tuple(rival["offsets_s"])}
    calibration = measure(file, starts, folder, turns)
    times = {name: [each["makespan_s"] for each in runs] for name, runs in calibration.items()}
    return {
        "rival": rival["name"],
        "rival_offsets_s": rival["offsets_s"],
        "chosen_s": times["paired: chosen"],
        "rival_s": times["paired: rival"],
    }


def measure(
    file: JobsFile, starts: Mapping[str, tuple[float, ...]], folder: Path, repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """Runs of every start, in shuffled turns, so that a slow minute hits all alike. Kept as they come."""
    journal = folder / "measured.jsonl"
    calibration: dict[str, list[dict[str, Any]]] = {name: [] for name in starts}
    if journal.is_file():
        for line in journal.read_text().splitlines():
            row = json.loads(line)
            if row["name"] in calibration and row["offsets_s"] == list(starts[row["name"]]):
                calibration[row["name"]].append(row)
    total = sum(repeats - min(repeats, len(rows)) for rows in calibration.values())
    done = 0
    with Progress("runs") as progress, hosts(file) as points, journal.open("a") as file_kept:
        for turn in range(repeats):
            names = [name for name in starts if len(calibration[name]) <= turn]
            random.Random(turn).shuffle(names)
            for name in names:
                progress(done, total)
                one = run_jobs(file, starts[name], folder, on=points)
                row = {"name": name, **one.to_dict()}
                calibration[name].append(row)
                file_kept.write(json.dumps(row) + "\n")
                file_kept.flush()
                done += 1
    return calibration


@contextlib.contextmanager
def storage(folder: Path) -> Iterator[tuple[str, float]]:
    """Address of the served pictures and their mean size in bytes."""
    pictures = folder / "pictures"
    with Progress("pictures") as progress:
        make(pictures, SAMPLES, Recipe(size=SIZE), report=progress)
    sizes = [row[1] for row in json.loads((pictures / "index.json").read_text())["files"]]
    # The same port each time, since the address is an argument of the jobs, and what was measured is kept by them.
    with LocalServer(pictures, requests_per_s=REQUESTS_PER_S, port=int(os.environ.get("STAGGER_PORT", "8947"))) as one:
        yield one.url, statistics.fmean(sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/stagger-evaluation"), help="what was measured")
    parser.add_argument("--repeats", type=int, default=2, help="runs of every point")
    parser.add_argument(
        "--paired-runs", type=int, default=5, help="runs of the chosen start against the best of the grid"
    )
    parser.add_argument("--pairs", default="", help="numbers of pairs, from 1, with commas (default: all)")
    parser.add_argument("--points", default="", help="offsets in cold epochs, with commas (default: each pair's own)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the report goes")
    options = parser.parse_args()
    numbers = [int(word) - 1 for word in options.pairs.split(",") if word] or range(len(PAIRS))
    points = [float(word) for word in options.points.split(",") if word]
    pairs = []
    try:
        with storage(options.folder) as (url, size):
            for number in numbers:
                print(f"{number + 1}. {PAIRS[number].name}", file=sys.stderr)
                place = options.folder / f"pair-{number + 1}"
                place.mkdir(parents=True, exist_ok=True)
                pair = PAIRS[number]
                pairs.append(
                    evaluate(pair, url, place, size, options.repeats, points or pair.grid, options.paired_runs)
                )
    except IngestError as error:
        print(f"stagger: {error}", file=sys.stderr)
        return 2
    content = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "samples": SAMPLES,
        "bytes_per_sample": size,
        "requests_per_s": REQUESTS_PER_S,
        "pairs": pairs,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "stagger.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.output / "stagger.md").write_text(stagger_report.text(content))
    stagger_report.picture(content, options.output / "stagger.svg")
    print(stagger_report.text(content))
    return 0


def machine() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':')[1].strip()}, {os.cpu_count()} logical cores, {platform.system()}"
    return f"{platform.machine()}, {os.cpu_count()} logical cores, {platform.system()}"


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {"python": platform.python_version(), "numpy": numpy.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    sys.exit(main())
