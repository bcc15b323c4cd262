"""Random settings of commands that take several values, filters, outputs and folders: compare, evaluate, gpus, predict.

As in `inputs`, an input is an answer or one sentence. What is written goes to `out` and names beside it.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import tempfile
from contextlib import redirect_stdout
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from benchmarks.attack import import_files, samples
from benchmarks.attack.input import as_argument
from benchmarks.attack.jobs import LAYOUTS, Fields, gpus, models, random_fields
from benchmarks.attack.mutate import bad_value, mutated, mutated_text, near_value
from precision_time.hardware.calibration import TEXT_COLUMNS
from precision_time.job.precision import PRECISIONS

COUNTS = ("1", "2", "7", "8", "16", "1024", "1048576", "0", "-1", "8.0", "1e3", "1_0", "１６", "", " ", "8 ", "1048577")
BATCHES = ("1", "3", "16", "16777216", "0", "1.5", "nan", "16777217")
OUTPUTS = ("out.svg", "out.html", "out.csv", "out.json", "out", "", ".", "/dev/null", "missing/out.svg", "job.yaml",
           "a\nb.svg", "$x^2$.svg", "out.svg/", "\u202eout.svg", "x" * 300 + ".svg")  # fmt: skip
_DATA = Path(__file__).parents[2] / "data"


def planning(source: random.Random, folder: Path) -> tuple[str, ...]:
    """A command line of plan, layouts or walltime, with one to three wrong values."""
    command = source.choice(("plan", "plan", "plan", "layouts", "walltime"))
    given = {"model": "resnet50", "steps": "1000", "batch-size": "32"}
    if command == "plan":
        entry = {"name": "ours", "gpu": "h100", "gpus": 16, "usd_per_gpu_hour": 2.5, "as_of": "2026-01-01"}
        (folder / "ours.yaml").write_text(
            json.dumps(mutated(source, entry, True) if source.random() < 0.5 else entry), encoding="utf-8"
        )
        text = mutated_text(source, samples.SKYPILOT) if source.random() < 0.5 else samples.SKYPILOT
        (folder / "vms.csv").write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
        trace = {"metadata": {"gap_seconds": 600}, "data": [2] * 9 + [0] * 4 + [1] * 8 + [0] * 3 + [2] * 5 + [1]}
        (folder / "trace.json").write_text(
            json.dumps(mutated(source, trace, True) if source.random() < 0.5 else trace), encoding="utf-8"
        )
        given |= {
            "gpu": source.choice(("a100-40gb-sxm", "h100", "v100-16gb-sxm,l4")),
            "gpus": source.choice(("8", "4,8", "8..16")),
            "provider": source.choice(("aws", "any", "ours.yaml", "vms.csv", "gcp,ours.yaml")),
            "precision": source.choice(("amp-fp16", "fp32,amp-fp16")),
        }
        others = {
            "deadline": "36h", "budget": "300", "confidence": "0.8", "objective": "energy", "grid": "france",
            "pue": "1.3", "layout": "auto", "global-batch-size": "256", "queue-s": "60", "workers": "1",
            "plot": source.choice(("out.svg", "out.html", "ours.yaml")), "checkpoint-storage": "nvme-gen4",
            "spot": source.choice(("published", "trace.json")), "checkpoint-every-s": "600", "reserved": "",
            "schedule": source.choice(("fp32:N%..amp-fp16", "fp32:30%..amp-fp16", "fp32:200%..tf32", "fp32..tf32")),
        }  # fmt: skip
    elif command == "layouts":
        given |= {"model": source.choice(("gpt2", "resnet50")), "gpus": source.choice(("1", "8", "12"))}
        others = {"global-batch-size": "96", "top": "3", "workers": "1", "gpu": "h100", "precision": "bf16-master"}
    else:
        others = {"confidence": "0.9", "format": source.choice(("slurm", "kueue", "trainjob", "job")), "queue-s": "5"}
    given |= {name: others[name] for name in source.sample(sorted(others), source.choice((1, 2, 3)))}
    for _ in range(source.choice((0, 1, 1, 2))):
        name = source.choice(sorted(given))
        if name not in ("gpus", "workers"):
            given[name] = as_argument(bad_value(source))
    model = given.pop("model")
    flags = (f"--{name}" if name == "reserved" else f"--{name}={value}" for name, value in given.items())
    return tuple(text.replace("\x00", "") for text in (command, model, *flags))


def time_limits(source: random.Random, folder: Path) -> tuple[str, ...]:
    """A command line of slurm or kubernetes on a damaged script or manifest."""
    name = source.choice(("run.sbatch", "manifest.yaml"))
    text = import_files.FILES[name][0]
    text = mutated_text(source, text) if source.random() < 0.8 else text
    (folder / name).write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    fits = source.random() < 0.9
    command = "slurm" if (name == "run.sbatch") == fits else "kubernetes"
    flags = [f"--{flag}" for flag in ("gpu=h100", "steps=100", "rewrite", "gpus=16") if source.random() < 0.5]
    if source.random() < 0.2:
        flags.append(f"--confidence={as_argument(bad_value(source))}".replace("\x00", ""))
    return (command, name, "bert-large", *flags)


def comparison(source: random.Random, folder: Path) -> tuple[str, ...]:
    """Arguments of `compare`: models and job files, lists of values, good and bad, and sometimes a picture."""
    arguments = ["compare"]
    for number in range(source.choice((1, 1, 1, 2, 3, 0))):
        if source.random() < 0.25:
            (folder / f"job{number}.json").write_text(json.dumps(random_fields(source)), encoding="utf-8")
            arguments.append(f"job{number}.json")
        else:
            arguments.append(source.choice(models()) if source.random() < 0.9 else text_of(bad_value(source)))
    for flag, known in (("gpus", COUNTS), ("batch-size", BATCHES), ("gpu", gpus()), ("precision", tuple(PRECISIONS))):
        if source.random() < 0.45:
            arguments += _lists(source, flag, known)
    for _ in range(source.choice((0, 0, 1, 2))):
        arguments.append(f"--layout={source.choice((*LAYOUTS, 'tp=0', 'dp=2,dp=2', 'pp=2,vpp=0', ''))}")
    for flag, known in (("sort", ("cost", "step", "best")), ("best", ("3", "0")), ("global-batch-size", ("96", "7"))):
        if source.random() < 0.1:
            arguments.append(f"--{flag}={source.choice(known)}")
    if source.random() < 0.04:  # drawing takes a second
        arguments.append(f"--plot={source.choice(OUTPUTS)}")
    if source.random() < 0.02:  # far more than anyone can read
        many = ",".join(str(n) for n in range(1, source.choice((200, 2000))))
        arguments += [f"--gpus={many}", f"--batch-size={many}", "--precision=fp32,tf32,bf16,amp-bf16"]
    return tuple(arguments)


def _lists(source: random.Random, flag: str, known: tuple[str, ...]) -> list[str]:
    """A flag with one to four values, in one list or by repeating it."""
    values = [source.choice(known) for _ in range(source.choice((1, 2, 2, 3, 4)))]
    if source.random() < 0.15:
        values.append(text_of(bad_value(source)))
    if source.random() < 0.3:
        return [f"--{flag}={value}" for value in values]
    return [f"--{flag}={source.choice((',', ',', ', ', ',,')).join(values)}"]


def text_of(value: Any) -> str:
    """A value as an argument, without the byte that no argument can hold."""
    text = "9" * 5000 if isinstance(value, int) and abs(value) > 10**300 else str(value)
    return text.replace("\x00", "")[:100_000]


def wide_job(source: random.Random) -> Fields:
    """A job with the sections that few jobs have: a schedule, anchors, degrees, ranges, a loader, prices, systems."""
    fields = random_fields(source)
    sections: Fields = {
        "schedule": [{"from_step": 0, "precision": "amp-bf16"}, {"from_step": 100, "precision": "fp32"}],
        "anchors": [
            "published",
            {"step_time_s": 0.31, "gpus": 1, "precision": "fp32", "batch_size": 64},
            "step_time_s=0.2,gpus=8",
        ],
        "layout": {"tp": 2, "pp": 2, "vpp": 2, "sp": True, "zero": 1, "schedule": "interleaved", "cp_comm": "ring"},
        "input": source.choice(({"seq_len": "96..128"}, {"image_size": "128..224"}, {"seq_len": 4096})),
        "data": {
            "storage": "nfs-10gbe", "workers": 8, "format": "jpeg", "bytes_per_sample": 110_000, "samples": 1_281_167,
            "cache": "explicit", "cache_gib": 100, "cache_policy": "lru", "cached": 0.5, "decode_ms": 4, "keep_ms": 0.1,
            "prefetch_factor": 2, "cores": 64, "shared": True, "samples_per_read": 1, "prepared_bytes": 602_112,
        },
        "run": {
            "epochs": 2, "dataset": "imagenet", "evaluation_samples": 50_000, "evaluation_every_epochs": 1,
            "start_up_s": 60, "price": "any", "compile_s": 30, "queue_s": 600, "restart_s": 300,
            **source.choice((
                {"checkpoint_every_steps": 1000, "checkpoint_s": 20}, {"checkpoint_every_s": 600, "checkpoint_s": 5},
                {"checkpoint_storage": "nvme-gen4", "checkpoint_async": True, "checkpoint_every_s": 600},
            )),
            **source.choice((
                {"gpu_hours_per_failure": 1e4}, {"failure_prior": "published"},
                {"failures_seen": 3, "failures_gpu_hours": 1e5}, {},
            )),
        },
        "model_config": {"layers": 4, "hidden": 256, "heads": 4, "head_dim": 64, "ffn": 512, "vocab": 1000},
        "node": "dgx-a100", "nodes": 2, "system": "dgx2h", "clip_norm": 1.0, "no_sync": False, "loss_scale": "static",
        "communication_dtype": "bfloat16", "recompute_layers": 2, "optimizer_impl": "fused",
        "torch": "1.11",
    }  # fmt: skip
    for name in source.sample(sorted(sections), source.choice((1, 1, 2, 3))):
        given = sections[name]
        fields[name] = given if source.random() < 0.5 else changed(source, given)
    if isinstance(fields.get("schedule"), list):
        del fields["precision"]
    if isinstance(fields.get("layout"), dict):
        fields["gpus"] = source.choice((8, 16, 64))
    return fields


def changed(source: random.Random, value: Any) -> Any:
    """A section with one to three changes, of which most stay near to what was valid."""
    if not isinstance(value, (dict, list)) or source.random() < 0.3:
        return bad_value(source, True) if source.random() < 0.5 else mutated(source, value, True)
    result = json.loads(json.dumps(value))
    for _ in range(source.choice((1, 1, 2, 3))):
        key = source.choice(sorted(result)) if isinstance(result, dict) else source.randrange(len(result))
        result[key] = near_value(source, result[key])
    return result


def evaluation(source: random.Random, folder: Path) -> tuple[str, ...]:
    """Arguments of `evaluate`: a table of all columns with some wrong cells, filters and outputs."""
    header = samples.WIDE_TABLE.splitlines()[0].split(",")
    rows = [line.split(",") for line in samples.WIDE_TABLE.strip().splitlines()[1:]]
    for _ in range(source.choice((0, 1, 2, 4))):
        row = source.choice(rows)
        at = source.randrange(len(row))
        row[at] = (
            text_of(bad_value(source))[:500] if source.random() < 0.5 else text_of(near_value(source, row[at]))[:500]
        )
    if source.random() < 0.2:
        header[source.randrange(len(header))] = source.choice((*header, "", "unknown", "=1+1", "STEP_TIME_S"))
    rows = [[cell.replace("\n", " ").replace(",", ";") for cell in row] for row in rows]
    text = "\n".join(",".join(row) for row in [header, *rows * source.choice((1, 1, 2, 50))])
    (folder / "table.csv").write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    arguments = ["evaluate", "table.csv"]
    filters = {
        "trust": "AB",
        "precision": [*PRECISIONS],
        "gpu": gpus(),
        "model": models(),
        "framework": ["pytorch", "megatron"],
    }
    for flag, known in filters.items():
        if source.random() < 0.15:
            arguments += _lists(source, flag, tuple(known))
    if source.random() < 0.2:
        arguments.append(f"--blind={source.choice((*PRECISIONS, 'x', ''))}")
    if source.random() < 0.3:
        arguments.append(f"--anchors={source.choice(('all', 'other-families', 'none', 'x', 'table.csv'))}")
    if source.random() < 0.2:
        arguments.append(f"--worst={source.choice(('0', '1', '1000000', '-1', 'x', '1e9'))}")
    if source.random() < 0.2:
        arguments.append(f"--csv={source.choice(('out', 'out.csv', 'table.csv', '/dev/null', 'missing/out.csv', ''))}")
    return tuple(arguments)


def catalog(source: random.Random, folder: Path) -> tuple[str, ...]:
    """Arguments of `gpus`: a device file, and what its entries are called."""
    document = mutated(source, dict(samples.DEVICE), True)
    (folder / "device.json").write_text(json.dumps(document), encoding="utf-8")
    arguments = ["gpus", "--device=device.json"]
    if source.random() < 0.5:
        arguments.append("--prices")
    if source.random() < 0.3:
        arguments.append(source.choice(("acme", "rack", "a100", "x", "")))
    return tuple(arguments)


def trained(source: random.Random, folder: Path) -> tuple[str, ...]:
    """Arguments of `predict --predictor` with a damaged folder of trained predictors."""
    shutil.copytree(_trained(), folder / "trained", dirs_exist_ok=True)
    name = source.choice(("trained.json", "ernest.json"))
    path = folder / "trained" / "ernest" / name
    text = path.read_text(encoding="utf-8")
    if source.random() < 0.5:
        text = json.dumps(mutated(source, json.loads(text), True))
    elif source.random() < 0.9:
        text = mutated_text(source, text)
    path.write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    if name == "ernest.json" and source.random() < 0.8:  # damaged before it was saved
        card = path.with_name("trained.json")
        content = json.loads(card.read_text(encoding="utf-8"))
        content["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
        card.write_text(json.dumps(content), encoding="utf-8")
    model = source.choice(("small-resnet", "small-vgg", "resnet50", "small-mlp"))
    device = ("--gpu=this-cpu",) if source.random() < 0.5 else ()
    return (
        "predict",
        model,
        "--predictor=ernest",
        "--trained=trained",
        f"--batch-size={source.choice((1, 16, 64))}",
        *device,
    )


EXTREMES = (1e-9, 1e-6, 1e-3, 0.5, 1, 2, 1e3, 1e6, 1e9, 1e12, 1e15)


def calibration(source: random.Random) -> Any:
    """A device file of `runs` with few of its points, of which some are extreme or wrong."""
    document = json.loads(_device_text())
    found = next(iter(document["gpus"].values()))["calibration"]
    rows = found["kernels"]["rows"]
    found["kernels"]["rows"] = rows = source.sample(rows, source.choice((1, 5, 40, 200, len(rows))))
    first = len([name for name in found["kernels"]["columns"] if name in TEXT_COLUMNS])
    for _ in range(source.choice((0, 1, 5, 40))):
        row = source.choice(rows)
        at = source.randrange(first, len(row))
        row[at] = source.choice(EXTREMES) * source.choice((1, 1, row[at]))
    if source.random() < 0.4:
        section = source.choice(("host", "crowding", "collectives", "noise", "kernels", "versions", "threads"))
        found[section] = changed(source, found.get(section))
    if source.random() < 0.15:
        return mutated(source, document, True)
    return document


@cache
def _device_text() -> str:
    return (_DATA / "small_networks" / "device.json").read_text(encoding="utf-8")


@cache
def _trained() -> Path:
    """A folder with the predictor `ernest`, trained once in this process."""
    from precision_time.cli.main import main

    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)  # in a worker of a pool, too, unlike atexit
    arguments = ["train", "ernest", "--tables", str(_DATA), "--real-runs", str(_DATA / "small_networks")]
    with redirect_stdout(io.StringIO()):
        code = main([*arguments, "--output", str(folder / "trained")])
    if code:
        raise RuntimeError("the predictor for the attack cannot be trained")
    return folder / "trained"
