"""Speed of plans, and the plans of four usual jobs: `python -m benchmarks.plans` (about six minutes).

Counts candidates a second with one and two processes, and with as many workers of a Dask cluster on this machine, over
searches of some thousand candidates each, in a process of its own per measurement, and writes the plans as text. Writes
benchmarks/results/plans.json and plans.md.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from benchmarks.speed import RESULTS, machine
from precision_time import Job
from precision_time.plan import Goal, Plan, Space, plan
from precision_time.processes import Workers
from precision_time.report.table import Table
from precision_time.report.write import compact_json, write_whole

_STORED = {"checkpoint_storage": "parallel-fs", "checkpoint_every_s": 1800, "failure_prior": "published"}
JOBS: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "resnet50 on ImageNet": (
        {"model": "resnet50", "batch_size": 256, "gpus": 8, "precision": "amp-fp16", "run": {"epochs": 90}},
        {"deadline_hours": 12, "budget_usd": 300},
        {"providers": "aws,gcp", "precision": "tf32,amp-fp16,amp-bf16", "gpus": "8..64"},
    ),
    "bert-large on SQuAD": (
        {"model": "bert-large", "batch_size": 32, "precision": "amp-bf16", "run": {"epochs": 3, "dataset": "squad"}},
        {"deadline_hours": 1},
        {"providers": "any", "precision": "amp-fp16,amp-bf16", "gpus": "1..8"},
    ),
    "llama3-8b, fine-tuning": (
        {"model": "llama3-8b", "precision": "bf16-master", "framework": "torchtitan",
         "run": {"steps": 2000, **_STORED}},
        {"deadline_hours": 48, "budget_usd": 5000},
        {"providers": "aws,azure", "gpu": "a100-80gb-sxm,h100-80gb-sxm", "gpus": "8..32", "layout": "auto",
         "global_batch_size": 128},
    ),
    "llama3.1-70b, pre-training": (
        {"model": "llama3.1-70b", "precision": "bf16-master", "framework": "megatron",
         "run": {"samples": 10**7, **_STORED}},
        {"deadline_hours": 24 * 30},
        {"providers": "any", "gpu": "h100-80gb-sxm", "gpus": "256,512", "layout": "auto", "global_batch_size": 1024},
    ),
}  # fmt: skip
"""Job, goal and space of each plan."""


WAYS = {"1": "one process", "2": "two processes", "dask-1": "one Dask worker", "dask-2": "two Dask workers"}


def made(name: str, way: str) -> tuple[Plan, float]:
    """The plan, and the seconds that it took, without those that a Dask cluster takes to start."""
    job, goal, space = JOBS[name]
    kind, _, count = way.rpartition("-")
    with _cluster(int(count)) if kind else nullcontext(int(count)) as workers:
        start = time.perf_counter()
        found = plan(Job.from_dict(job), Goal(**goal), Space(**space), workers=workers)
        return found, time.perf_counter() - start


@contextmanager
def _cluster(count: int) -> Iterator[Workers]:
    from distributed import Client, LocalCluster

    local = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None)
    with local, Client(local) as client:
        yield client.get_executor()


def _measure(name: str, way: str) -> dict[str, Any]:
    """One plan in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plans", "--one", name, way]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def main() -> None:
    """All plans in all ways."""
    if sys.argv[1:2] == ["--one"]:
        found, seconds = made(sys.argv[2], sys.argv[3])
        print(json.dumps({"tried": found.tried, "seconds": seconds, "text": str(found)}))
        return
    results = {name: {way: _measure(name, way) for way in WAYS} for name in JOBS}
    content = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "plans": [
            {
                "plan": name,
                "candidates": each["1"]["tried"],
                "seconds": {way: round(each[way]["seconds"], 2) for way in each},
            }
            for name, each in results.items()
        ],
    }
    write_whole(RESULTS / "plans.json", compact_json(content))
    texts = {name: each["1"]["text"] for name, each in results.items()}
    write_whole(RESULTS / "plans.md", page(content, texts))
    print(page(content, texts))


def page(content: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """The page of results."""
    rows = [
        [
            each["plan"],
            f"{each['candidates']:,}",
            *(
                f"{seconds:.1f} s ({each['candidates'] / seconds:,.0f} a second)"
                for seconds in each["seconds"].values()
            ),
        ]
        for each in content["plans"]
    ]
    table = Table(["plan", "candidates", *WAYS.values()], rows).markdown()
    plans = "\n\n".join(f"## {name}\n\n```\n{text}\n```" for name, text in texts.items())
    about = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
    return (
        f"# Plans\n\nWritten by `python -m benchmarks.plans`, {content['date']}; do not edit. {about}. Seconds include "
        f"starting the processes, but not a Dask cluster.\n\n{table}\n\n{plans}\n"
    )


if __name__ == "__main__":
    main()
