"""What a GPU is needed for, in the 40 minutes that one may be there for: `python -m benchmarks.rigs.gpu_day`.

Measures, the most valuable first, into a folder that `precision-time fit --measured FOLDER` and `evaluate` read:

1. kernels of which published tables and open families say least (`gpu_kernels`);
2. training steps of twelve models in every precision and memory format, and one block of Llama 3 in all precisions;
3. training steps of image networks of all timm's families (gpu_networks.csv) and of other models of the zoo;
4. every operator of some of these steps with its kernels' time, by torch's profiler (`gpu_profile`);
5. operators and dtypes of traced steps beside those of torch's profiler (`gpu_captured`);
6. recorded operators of the models of the zoo.

The same command continues an interrupted run. It needs torch, numpy and PyYAML, and of this project the folders src and
benchmarks alone (PYTHONPATH=src:.); models that need torchvision or timm are refused where these are not installed, and
none of the twelve does. Without a GPU it runs on the CPU, and with --small a few tasks of each kind.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from benchmarks.rigs.gpu_captured import captured_task
from benchmarks.rigs.gpu_kernels import kernel_tasks
from benchmarks.rigs.gpu_profile import profile_task
from precision_time.capture.fp8 import cast_kind, product_kind
from precision_time.capture.graph import TensorSpec
from precision_time.errors import MeasureError, PrecisionTimeError
from precision_time.job.job import Job
from precision_time.journal import Journal, Record, held, read
from precision_time.measure.bench import Bench
from precision_time.measure.hosts import graph_launch_us, host_costs
from precision_time.measure.machine import header
from precision_time.measure.measurement import JOURNAL, write_tables
from precision_time.measure.scaled import SCALINGS, scaled_cast, scaled_mm
from precision_time.measure.session import NO_TIME, run_plan
from precision_time.measure.suite import Task, bench_task, limits_of
from precision_time.measure.whole_steps import gpu_name, step_task, trainable_job
from precision_time.measure.zoo_operators import zoo_benches
from precision_time.report.write import make_own_folder
from precision_time.zoo.catalog import ENTRIES

_DEAD = "CUDA error"
"""In the text of errors after which the process can use the GPU no more (out of memory is none of them)."""
COMMAND = "python -m benchmarks.rigs.gpu_day"
MODELS = (
    ("resnet50", 128), ("bert-large", 16), ("efficientnet-b0", 128), ("gpt2", 8), ("resnext101-32x4d", 64),
    ("unet3d", 2), ("t5-base", 8), ("ssd300-resnet50", 32), ("vit-b-16", 64), ("nnunet-2d", 32),
    ("mpt-125m", 8), ("waveglow", 10),
)  # fmt: skip
"""Models with their batches; none needs another library than torch."""
SMALL_MODELS: tuple[dict[str, Any], ...] = (
    {"model": "resnet50", "model_config": {"depth": 18}, "input": {"image_size": 32}, "batch_size": 2},
    {"model": "gpt", "model_config": {"layers": 1, "hidden": 64, "heads": 2, "vocab": 64}, "input": {"seq_len": 16},
     "batch_size": 2},
)  # fmt: skip
OTHERS = Path(__file__).with_name("gpu_models.csv")
"""Other models of the zoo; empty cells: the model's own."""
NETWORKS = Path(__file__).with_name("gpu_networks.csv")
"""Networks of timm with image size, batch, precision, and the memory format in which they run besides NCHW."""
PROFILED_NETWORKS = 30
"""Networks of NETWORKS that are profiled, about."""
PRECISIONS = ("amp-fp16", "amp-bf16", "tf32", "fp32", "fp16")
DOUBLE = ("resnet50", "bert-large")
"""Models that also run in fp64, at an eighth of the batch."""
STAGES = ("host", "kernels", "block", "steps", "networks", "zoo", "profiles", "dtypes", "operators")
BLOCK_PRECISIONS = ("amp-bf16", "bf16", "tf32", "fp32", "fp16", "amp-fp16")
BLOCK_TOKENS, HIDDEN, HEADS_OUT, FFN = 4096, 4096, 6144, 14336
"""One block of Llama 3 8B: tokens, width, outputs of the joint query-key-value product, width of the feed-forward."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks of one kind. `until`: the share of the whole budget that may be spent when the stage ends."""

    name: str
    tasks: Callable[[], list[Task]]
    until: float


def stages(device: torch.device, small: bool) -> list[Stage]:
    """What runs, in order. Tasks are made when their stage begins."""

    return [
        Stage("host", lambda: [Task("host", lambda _: _host(device))], 0.1),
        Stage("kernels", lambda: kernel_tasks(device, small), 0.3),
        Stage("block", lambda: list(_block(device, small)), 0.36),
        Stage("steps", lambda: [_step(job, device) for job in step_jobs(small)], 0.55),
        Stage("networks", lambda: [] if small else [_step(job, device) for job in network_jobs()], 0.8),
        Stage("zoo", lambda: [] if small else [_step(job, device) for job in other_jobs()], 0.85),
        Stage("profiles", lambda: [profile_task(job, device) for job in _profiled_jobs(small)], 0.9),
        Stage("dtypes", lambda: [captured_task(job, device) for job in _captured_jobs(small)], 0.95),
        Stage("operators", lambda: _zoo(device)[: 2 if small else None], 1.0),
    ]


def _step(job: Job, device: torch.device) -> Task:
    """Steps of a GPU differ little: more models say more than more steps."""
    return step_task(job, device, warmup=3, steps=6)


def _host(device: torch.device) -> Record:
    return {"host": {**host_costs(device), **graph_launch_us(device)}}


def step_jobs(small: bool = False) -> list[Job]:
    """Every model in every precision and, where it has images, memory format; the first precision of all first."""
    models = SMALL_MODELS if small else tuple({"model": name, "batch_size": batch} for name, batch in MODELS)
    jobs = []
    for precision in ("amp-bf16",) if small else (*PRECISIONS, "fp64"):
        for fields in models:
            if precision == "fp64" and fields["model"] not in DOUBLE:
                continue
            batch = int(str(fields["batch_size"])) // (8 if precision == "fp64" else 1)
            images = ENTRIES[str(fields["model"])].has_images
            for order in ("nhwc", "nchw") if images and precision != "fp64" else ("nchw",):
                words = {**fields, "batch_size": batch, "precision": precision, "memory_format": order}
                jobs.append(trainable_job(words))
    return jobs


def network_jobs() -> list[Job]:
    """The networks of NETWORKS in NCHW and, where it differs, NHWC, both one after the other."""
    with NETWORKS.open(newline="") as file:
        return [
            Job(
                line["model"],
                input={"image_size": int(line["image_size"])},
                batch_size=int(line["batch_size"]),
                precision=line["precision"],
                memory_format=order,
                optimizer="sgd",
            )
            for line in csv.DictReader(file)
            for order in filter(None, ("nchw", line["also"]))
        ]


def other_jobs() -> list[Job]:
    """The models of OTHERS."""
    jobs = []
    with OTHERS.open(newline="") as file:
        for line in csv.DictReader(file):
            sizes = {name: {name: int(line[name])} if line[name] else {} for name in ("layers", "seq_len")}
            fields = {name: line[name] for name in ("model", "precision", "memory_format") if line[name]}
            batch = {"batch_size": int(line["batch_size"])} if line["batch_size"] else {}
            jobs.append(trainable_job({**fields, **batch, "model_config": sizes["layers"], "input": sizes["seq_len"]}))
    return jobs


def _profiled_jobs(small: bool) -> list[Job]:
    """The twelve models in the first precision and, in turn, networks spread over NETWORKS."""
    if small:
        return step_jobs(small)[:1]
    networks = network_jobs()
    chosen = networks[:: max(1, len(networks) // PROFILED_NETWORKS)]
    first = [job for job in step_jobs() if job.precision in PRECISIONS[:1]]
    return [job for pair in zip_longest(first, chosen) for job in pair if job is not None]


def _captured_jobs(small: bool) -> list[Job]:
    if small:
        return [trainable_job({**SMALL_MODELS[1], "precision": "amp-bf16"})]
    names = ("resnet50", "bert-large", "gpt2", "efficientnet-b0", "unet3d", "t5-base")
    batches = dict(MODELS)
    return [
        trainable_job({"model": name, "batch_size": max(batches[name] // 8, 1), "precision": precision})
        for precision in ("amp-fp16", "amp-bf16", "fp16", "fp32")
        for name in names
    ]


def _block(device: torch.device, small: bool) -> Iterator[Task]:
    """One block of Llama 3 8B: whole steps, then its products and casts in fp8."""
    config = {"layers": 1, "vocab": 1024, **({"hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 128} if small else {})}
    tokens = 32 if small else BLOCK_TOKENS
    for precision in BLOCK_PRECISIONS[:1] if small else BLOCK_PRECISIONS:
        yield step_task(
            Job(
                "llama3-8b",
                model_config=config,
                input={"seq_len": tokens},
                batch_size=1,
                precision=precision,
                optimizer="adamw",
            ),
            device,
        )
    scale = 64 if small else 1
    hidden, outputs, ffn = HIDDEN // scale, HEADS_OUT // scale, FFN // scale
    for scaling in SCALINGS:
        for inner, outer in ((hidden, outputs), (hidden, hidden), (hidden, 2 * ffn), (ffn, hidden)):
            for bench in _scaled_layer(tokens, inner, outer, scaling):
                yield bench_task(bench, device)


def _scaled_layer(tokens: int, inner: int, outer: int, scaling: str) -> Iterator[Bench]:
    """The three products of a linear layer in fp8, and the casts of its input and of its gradient."""
    for layout, (m, n, k) in (
        ("nt", (tokens, outer, inner)),
        ("nn", (tokens, inner, outer)),
        ("tn", (outer, inner, tokens)),
    ):
        gradient = layout != "nt"
        casts = [cast_kind(TensorSpec((m, k), "bfloat16"), scaling, gradient),
                 cast_kind(TensorSpec((k, n), "bfloat16"), scaling, False)]  # fmt: skip
        kind = product_kind([cast.outputs[0] for cast in casts], TensorSpec((m, n), "bfloat16"), scaling)
        label = f"scaled_mm {scaling} {layout} {m}x{n}x{k}"
        yield Bench(kind.name, label, scaled_mm(m, n, k, scaling, gradient), written=kind)
    for rows, columns, gradient in ((tokens, inner, False), (tokens, outer, True)):
        kind = cast_kind(TensorSpec((rows, columns), "bfloat16"), scaling, gradient)
        label = f"quantize {scaling} {kind.outputs[0].dtype} {rows}x{columns}"
        yield Bench(kind.name, label, scaled_cast(rows, columns, scaling, gradient), written=kind)


def _zoo(device: torch.device) -> list[Task]:
    """Recorded operators of the zoo in half precision, of all models in turn."""
    dtype = torch.bfloat16 if device.type == "cpu" else torch.float16
    return [bench_task(bench, device) for bench in zoo_benches(dtype, False, limits_of(device, dtype), device)]


def measure_day(
    folder: Path, budget_s: float, device: torch.device, small: bool = False, chosen: Sequence[str] = ()
) -> list[str]:
    """Run all stages within the budget, continuing the folder's journal; "label: reason" of each task left out.

    The `chosen` ones alone run one after the other, each until all time is spent. The folder's tables are written anew
    after every stage, so that a run which is cut off leaves whole ones.
    """
    begin = time.monotonic()
    target = make_own_folder(folder, [JOURNAL])
    left_out: list[str] = []
    with held(target / JOURNAL):
        journal = Journal(target / JOURNAL, {**header(device), "gpu": gpu_name(device)})
        for stage in stages(device, small):
            if chosen and stage.name not in chosen:
                continue
            print(f"{stage.name} ...", file=sys.stderr, flush=True)
            left_s = begin + (1.0 if chosen else stage.until) * budget_s - time.monotonic()
            plan = [_guarded(task, journal) for task in _once(stage.tasks())]
            left_out += run_plan(plan, journal, device, left_s, _report)
            print(file=sys.stderr)
            head, records, _ = read(target / JOURNAL)
            write_tables(target, head, records, COMMAND)
    return left_out


def _guarded(task: Task, journal: Journal) -> Task:
    """The task, whose errors of any kind are refusals: one bad task must not end the day.

    After an error of the GPU itself nothing more runs in this process, so the run ends; that task is not tried again.
    """

    def run(budget_s: float) -> Record:
        try:
            return task.run(budget_s)
        except Exception as error:
            text = next(iter(str(error).splitlines()), type(error).__name__)
            if _DEAD in text:
                journal.add(task.label, {"refused": text})
                raise SystemExit(f"{task.label}: {text}; the same command again continues after it") from error
            raise MeasureError(text) from error

    return replace(task, run=run)


def _once(tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those whose label an earlier one has."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.label, task)
    return list(first.values())


def _report(done: int, total: int) -> None:
    print(f"\r{done}/{total}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder to write; the same one continues")
    parser.add_argument("--minutes", type=float, default=40.0, help="time in all (default 40)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a few small tasks of each kind")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=(), help="only these, in their usual order")
    parser.add_argument("--tuned", action="store_true", help="with torch.backends.cudnn.benchmark, into another folder")
    given = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = given.tuned
    try:
        device = torch.device(given.device)
        left_out = measure_day(given.output, 60.0 * given.minutes, device, given.small, given.stages)
    except (PrecisionTimeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    unfinished = sum(text.endswith(NO_TIME) for text in left_out)
    print(f"{given.output}: {unfinished} tasks found no time, {len(left_out) - unfinished} were refused; see README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
