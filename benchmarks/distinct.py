"""CPU time of a distinct job of a known model, by what it differs in: `python -m benchmarks.distinct`.

After one job of a model, jobs of that model follow in the same process that each differ from all before. Every stream
of jobs runs in several processes, and a job counts with the least CPU time of any, so that other work on the machine
weighs less. Writes benchmarks/results/distinct.json and distinct.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed import RESULTS, machine
from precision_time import Job, predict
from precision_time.errors import PrecisionTimeError
from precision_time.hardware.catalog import default_catalog
from precision_time.report.table import Table

GOAL_MS = 5.0
FIRST = "first job of a model"

MODELS: Mapping[str, dict[str, Any]] = {
    "resnet50": {},
    "bert-large": {},
    "gpt2": {},
    "t5-base": {},
    "llama3-8b": {"layout": "fsdp"},
    "ssd300-resnet34": {},
}
"""Models with the fields of their first job."""
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16", "fp16-master", "bf16-master", "fp64")
GPUS = sorted(name for name, gpu in default_catalog().gpus.items() if gpu.device_type == "cuda")


def _batches(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"batch_size": size} for size in draw.sample(range(2, 400), 40))


def _accumulations(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"grad_accum": size} for size in draw.sample(range(2, 64), 20))


def _precisions(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"precision": each} for each in draw.sample(PRECISIONS, len(PRECISIONS)))


def _gpus(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"gpu": each} for each in draw.sample(GPUS, len(GPUS)))


def _known_gpus(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Another GPU that has served another precision and batch of the model."""
    for gpu in draw.sample(GPUS, 12):
        yield {"gpu": gpu, "batch_size": draw.randint(400, 800)}


def _counts(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"gpus": each} for each in draw.sample(range(2, 600), 20))


def _optimizers(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"optimizer": each} for each in draw.sample(("sgd", "adam", "adamw", "lamb", "adagrad"), 5))


def _layouts(draw: random.Random) -> Iterator[dict[str, Any]]:
    return ({"gpus": 8, "layout": each} for each in ("dp", "fsdp", "zero1", "zero2", "pp=2", "pp=4,zero=1"))


def _any(draw: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(60):
        yield {
            "batch_size": draw.randint(2, 800),
            "precision": draw.choice(PRECISIONS),
            "gpu": draw.choice(GPUS),
            "gpus": draw.choice((1, 2, 4, 8, 16, 64)),
            "grad_accum": draw.choice((1, 2, 5, 8)),
        }


CHANGES: Mapping[str, Callable[[random.Random], Iterator[dict[str, Any]]]] = {
    "first job on a GPU": _gpus,
    "first job in a precision": _precisions,
    "batch size": _batches,
    "accumulation": _accumulations,
    "number of GPUs": _counts,
    "batch size, on another known GPU": _known_gpus,
    "optimizer": _optimizers,
    "layout": _layouts,
    "several at once": _any,
}
"""Kinds of change, in the order in which they are made."""


def measure(seed: int, models: Sequence[str]) -> dict[str, list[float]]:
    """CPU milliseconds of each job by kind of change. Jobs that are refused are left out."""
    predict(Job("vgg16", gpu="l4"))  # the package's tables are read
    draw = random.Random(seed)
    spent: dict[str, list[float]] = {FIRST: [], **{name: [] for name in CHANGES}}
    for model in models:
        base = Job(model, gpu="a100-40gb-sxm", gpus=8, precision="amp-fp16", batch_size=4, **MODELS[model])
        spent[FIRST] += _timed([base])
        for name, change in CHANGES.items():
            spent[name] += _timed(base.replace(**each) for each in change(draw))
    return spent


def _timed(jobs: Iterable[Job]) -> list[float]:
    found = []
    for job in jobs:
        start = time.process_time()
        try:
            predict(job)
        except PrecisionTimeError:
            continue
        found.append(1e3 * (time.process_time() - start))
    return found


def least(seed: int, models: Sequence[str], processes: int) -> dict[str, list[float]]:
    """As `measure`, the least of several processes."""
    command = [sys.executable, "-m", "benchmarks.distinct", "--seed", str(seed), "--once", "--models", *models]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(processes)]
    return {name: [min(times) for times in zip(*(run[name] for run in runs), strict=True)] for name in runs[0]}


def figures(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and the share of at most `GOAL_MS`."""
    return {
        "jobs": len(values),
        "median_ms": statistics.median(values),
        "p90_ms": statistics.quantiles(values, n=10)[-1],
        "within_goal": sum(value <= GOAL_MS for value in values) / len(values),
    }


def summary(spent: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Figures of every kind of change, and of all jobs of known models."""
    known = [value for name, values in spent.items() if name != FIRST for value in values]
    return {**{name: figures(values) for name, values in spent.items()}, "all but the first": figures(known)}


def page(content: Mapping[str, Mapping[str, float]], models: Sequence[str], where: Mapping[str, str]) -> str:
    """distinct.md."""
    rows = [
        (
            name,
            f"{of['jobs']:.0f}",
            f"{of['median_ms']:.1f} ms",
            f"{of['p90_ms']:.1f} ms",
            f"{of['within_goal']:.0%}",
        )
        for name, of in content.items()
    ]
    table = Table(["what differs", "jobs", "median", "P90", f"at most {GOAL_MS:.0f} ms"], rows)
    versions = ", ".join(f"{k} {v}" for k, v in where.items() if k not in ("date", "cpu", "system"))
    return f"""# A distinct job of a known model

CPU time of `predict` for a job that differs from all before it in one process, by what it differs in; models:
{", ".join(models)}. The first job in a precision may need another graph of the model.

{table.markdown()}

{where["date"]}, {where["cpu"]}, {where["system"]}; {versions}. Least of several processes for each job:
`python -m benchmarks.distinct`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--processes", type=int, default=5, help="that each run all jobs (default 5)")
    parser.add_argument("--once", action="store_true", help="print the times of this process as JSON, write no file")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.seed, options.models)))
        return 0
    content = summary(least(options.seed, options.models, options.processes))
    where = machine()
    text = page(content, options.models, where)
    print(text)
    document = {"machine": where, "processes": options.processes, "seed": options.seed, "results": content}
    (RESULTS / "distinct.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "distinct.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
