"""Memory and time of one process that predicts many distinct jobs: `python -m benchmarks.soak`.

Jobs are drawn over all models with a stored graph (so torch is never imported), GPUs, precisions and layouts, with
random batch, accumulation, counts, optimizers, recomputation and input sizes; no job is asked twice. Writes
benchmarks/results/soak.json, soak.md and soak.png. `tests/test_soak.py` runs the same and judges it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from precision_time.bounded_cache import BUDGET, STRUCTURES
from precision_time.errors import PrecisionTimeError
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.job.choices import OPTIMIZERS
from precision_time.job.precision import PRECISIONS
from precision_time.prediction import predict
from precision_time.zoo import tables
from precision_time.zoo.catalog import ENTRIES

RESULTS = Path(__file__).parent / "results"
STORED = {path.stem for path in (Path(tables.__file__).parents[1] / "data").glob("*.zip")}
DECODER = "models.decoder:build"
LAYOUTS = ("dp", "fsdp", "zero1", "zero2", "pp=2", "pp=4,zero=1")
DIVIDED = (*LAYOUTS, "tp=2", "tp=4,sp=1,zero=1", "tp=2,pp=2", "tp=8,sp=1")


@dataclass(frozen=True)
class Point:
    """State after so many jobs, with mean and median of the CPU milliseconds of each job since the point before."""

    jobs: int
    rss_mib: float
    cache_mib: float
    mean_ms: float
    median_ms: float


def models() -> list[str]:
    """Models that are predicted without torch, in every precision and layout drawn here."""
    return [
        name
        for name, entry in sorted(ENTRIES.items())
        if not entry.config.get("pattern") and (name in STORED or entry.builder == DECODER)
    ]


def jobs(seed: int) -> Iterator[Job]:
    """Distinct jobs without end; some are refused (a precision that the GPU lacks, a degree that divides nothing)."""
    draw = random.Random(seed)
    names = models()
    gpus = sorted(name for name, gpu in default_catalog().gpus.items() if gpu.device_type == "cuda")
    seen: set[str] = set()
    while True:
        name = draw.choice(names)
        entry = ENTRIES[name]
        sizes = {
            symbol.name: max(1, round(entry.input[symbol.name] * draw.uniform(0.5, 1.5) / symbol.multiple_of))
            * symbol.multiple_of
            for symbol in entry.symbols
            if symbol.name in entry.input and draw.random() < 0.2
        }
        fields: dict[str, Any] = {
            "input": sizes, "gpu": draw.choice(gpus), "precision": draw.choice(tuple(PRECISIONS)),
            "batch_size": draw.randint(1, 512), "grad_accum": draw.choice((1, 1, 2, 3, 8, 20)),
            "gpus": draw.choice((1, 2, 4, 8, 16, 64, 256)),
            "layout": draw.choice(DIVIDED if entry.builder == DECODER else LAYOUTS),
            "optimizer": draw.choice((None, *OPTIMIZERS)), "recompute": draw.choice(("none", "none", "full")),
        }  # fmt: skip
        try:
            job = Job(name, **fields)
        except PrecisionTimeError:
            continue
        text = repr(job)
        if text not in seen:
            seen.add(text)
            yield job


def soak(count: int, between: int, seed: int) -> Iterator[Point]:
    """Predict `count` distinct jobs; a point after every `between` of them."""
    spent: list[float] = []
    done = 0
    for job in jobs(seed):
        start = time.process_time()
        try:
            predict(job)
        except PrecisionTimeError:
            continue
        spent.append(1e3 * (time.process_time() - start))
        done += 1
        if len(spent) == between or done == count:
            ordered = sorted(spent)
            yield Point(
                done,
                rss_mib(),
                (BUDGET.held_bytes + STRUCTURES.held_bytes) / 2**20,
                sum(spent) / len(spent),
                ordered[len(spent) // 2],
            )
            spent = []
        if done == count:
            return


def rss_mib() -> float:
    """Resident memory of this process now; its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20


def draw_curve(points: list[Point], path: Path) -> None:
    """Memory and time over the number of jobs."""
    from precision_time.report.figure import new_figure

    figure, (memory, spent) = new_figure(8.0, 5.0, rows=2)
    at = [point.jobs for point in points]
    memory.plot(at, [point.rss_mib for point in points], label="resident")
    memory.plot(at, [point.cache_mib for point in points], label="caches, by their own count")
    memory.set(ylabel="MiB", ylim=(0, 400))
    memory.legend(frameon=False)
    spent.plot(at, [point.mean_ms for point in points], label="mean")
    spent.plot(at, [point.median_ms for point in points], label="median")
    spent.set(ylabel="ms of CPU a job", xlabel="distinct jobs predicted", ylim=(0, None))
    spent.legend(frameon=False)
    figure.savefig(path, dpi=110)


def document(points: list[Point], seed: int) -> dict[str, Any]:
    """What soak.json holds."""
    tenth = max(1, len(points) // 10)
    first, last = points[tenth : 2 * tenth] or points, points[-tenth:]
    return {
        "jobs": points[-1].jobs,
        "seed": seed,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "end_mib": points[-1].rss_mib,
        "median_ms": sorted(point.median_ms for point in points)[len(points) // 2],
        "mean_ms": sum(point.mean_ms for point in points) / len(points),
        "second_tenth_ms": sum(point.mean_ms for point in first) / len(first),
        "last_tenth_ms": sum(point.mean_ms for point in last) / len(last),
        "torch_imported": "torch" in sys.modules,
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "numpy": version("numpy"),
        "date": datetime.date.today().isoformat(),
        "points": [asdict(point) for point in points],
    }


def page(content: dict[str, Any]) -> str:
    """soak.md."""
    return f"""# Soak

{content["jobs"]:,} distinct jobs over {len(models())} models in one process: {content["end_mib"]:.0f} MiB at the end,
{content["peak_mib"]:.0f} MiB at most. A job takes {content["median_ms"]:.1f} ms of CPU in the median and
{content["mean_ms"]:.1f} ms on average: {content["second_tenth_ms"]:.1f} ms in the second tenth of the run,
{content["last_tenth_ms"]:.1f} ms in the last. Jobs that `predict` refuses do not count.

![memory and time over the number of jobs](soak.png)

{content["date"]}, {content["machine"]}, numpy {content["numpy"]}, seed {content["seed"]}: `python -m benchmarks.soak`.
Times depend on what else the machine does.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    points = []
    for point in soak(options.jobs, max(1, options.jobs // 100), options.seed):
        points.append(point)
        print(f"{point.jobs:6} jobs  {point.rss_mib:4.0f} MiB  {point.mean_ms:5.1f} ms", file=sys.stderr)
    content = document(points, options.seed)
    options.output.mkdir(exist_ok=True)
    (options.output / "soak.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (options.output / "soak.md").write_text(page(content), encoding="utf-8")
    draw_curve(points, options.output / "soak.png")


if __name__ == "__main__":
    main()
