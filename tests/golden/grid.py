"""A grid of jobs whose predictions are on file: did a change move predictions, and where?

python tests/golden/grid.py                     show what moved against predictions.json
python tests/golden/grid.py --against HEAD~3    ... against that file as a commit has it
python tests/golden/grid.py --against FILE      ... against another such file
python tests/golden/grid.py --update            accept the moves (say why in CHANGELOG.md)
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import MissingPeakError
from precision_time.job import Job
from precision_time.prediction import predict

FILE = Path(__file__).with_name("predictions.json")
MODELS = (
    "resnet50", "efficientnet-b4", "nnunet-3d", "ssd300-resnet50", "bert-large", "transformer-xl-base", "gpt2-xl",
    "llama3-8b", "jasper-10x5dr", "waveglow", "ncf", "vit-b-16",
)  # fmt: skip
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16-master", "fp8")
PLACES = (("v100-16gb-sxm", 1), ("a100-80gb-sxm", 8), ("h100-80gb-sxm", 64))
_MEGATRON = {"framework": "megatron", "gpu": "h100-80gb-sxm"}
LAYOUTS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("mpt-7b", "fsdp", 64, {"recompute": "full", "batch_size": 8, "framework": "llm-foundry"}),
    ("llama3-8b", "hsdp=8", 32, {"gpu": "h100-80gb-sxm"}),
    ("llama3-70b", "tp=8,pp=4,vpp=5,sp=1,zero=1", 256, {"grad_accum": 16, **_MEGATRON}),
    ("llama3.1-405b", "tp=8,pp=16,cp=2,vpp=7,sp=1,zero=1", 16384, {"grad_accum": 32, **_MEGATRON}),
    ("gpt3-175b", "tp=8,pp=8", 512, {"grad_accum": 64, "recompute": "full", "framework": "megatron-deepspeed"}),
    ("mixtral-8x7b", "ep=8,zero=1", 64, {"grad_accum": 4, **_MEGATRON}),
    ("deepseek-v3", "tp=2,pp=8,ep=64,etp=1,vpp=4,sp=1,zero=1", 1024, {"grad_accum": 32, **_MEGATRON}),
    ("llama2-70b-lora", "tp=4,sp=1", 8, _MEGATRON),
    ("resnet50", "fsdp", 16, {"batch_size": 128}),
    ("t5-large", "pp=2", 8, {"grad_accum": 8}),
)
"""Model, layout, GPUs and what else the job says; all with master weights in bf16, the 70B model in fp8 as well."""


def predictions() -> dict[str, float]:
    """Seconds of the P50 step by job; jobs whose device lacks the precision are left out."""
    found = {}
    for name, layout, gpus, words in LAYOUTS:
        for precision in ("bf16-master", "fp8") if name == "llama3-70b" else ("bf16-master",):
            job = Job(name, precision=precision, gpus=gpus, layout=layout, **words)
            found[f"{name} {precision} {layout} on {gpus}"] = float(f"{predict(job).step.p50:.5g}")
    for model, precision, (gpu, gpus) in itertools.product(MODELS, PRECISIONS, PLACES):
        try:
            estimate = predict(Job(model, precision=precision, gpu=gpu, gpus=gpus))
        except MissingPeakError:
            continue
        found[f"{model} {precision} {gpus} x {gpu}"] = float(f"{estimate.step.p50:.5g}")
    return found


def moved(old: dict[str, float], new: dict[str, float], tolerance: float = 1e-3) -> list[str]:
    """One line for each job that moved by more than `tolerance`, appeared or vanished."""
    lines = [f"{job}: new" for job in new.keys() - old.keys()] + [f"{job}: gone" for job in old.keys() - new.keys()]
    for job in sorted(old.keys() & new.keys()):
        change = new[job] / old[job] - 1
        if abs(change) > tolerance:
            lines.append(f"{job}: {old[job]:.4g} s -> {new[job]:.4g} s ({change:+.1%})")
    return sorted(lines)


def summary(old: Mapping[str, float], new: Mapping[str, float], tolerance: float = 1e-3) -> str:
    """How many jobs moved, and by how much: in all, by model and by precision, those that moved most first."""
    changes = {job: new[job] / old[job] - 1 for job in sorted(old.keys() & new.keys())}
    changes = {job: change for job, change in changes.items() if abs(change) > tolerance}
    lines = [f"{len(changes)} of {len(old.keys() & new.keys())} jobs moved{_sizes(list(changes.values()))}"]
    for place, title in enumerate(("model", "precision")):
        groups: dict[str, list[float]] = {}
        for job, change in changes.items():
            groups.setdefault(job.split()[place], []).append(change)
        said = [
            f"{name} {len(found)}{_sizes(found)}"
            for name, found in sorted(groups.items(), key=lambda item: -max(map(abs, item[1])))
        ]
        lines += [f"by {title}: {'; '.join(said)}"] if said else []
    return "\n".join(lines)


def _sizes(changes: list[float]) -> str:
    return f" (median {statistics.median(changes):+.1%}, largest {max(changes, key=abs):+.1%})" if changes else ""


def on_file(where: str | None = None) -> dict[str, float]:
    """The predictions in FILE, in another file, or in FILE as a git revision has it; none when there is no FILE yet."""
    if where is None:
        text = FILE.read_text(encoding="utf-8") if FILE.exists() else "{}"
    elif Path(where).is_file():
        text = Path(where).read_text(encoding="utf-8")
    else:
        command = ["git", "show", f"{where}:./{FILE.name}"]
        shown = subprocess.run(command, cwd=FILE.parent, capture_output=True, text=True, check=False)
        if shown.returncode:
            sys.exit(f"--against {where}: neither a file nor a revision that has {FILE.name}: {shown.stderr.strip()}")
        text = shown.stdout
    found: dict[str, float] = json.loads(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Did predictions change, and where?")
    parser.add_argument("--against", metavar="FILE|REVISION", help=f"compare with this instead of {FILE.name}")
    parser.add_argument("--update", action="store_true", help=f"write {FILE.name}")
    given = parser.parse_args()
    old, new = on_file(given.against), predictions()
    for line in moved(old, new):
        print(line)
    print(summary(old, new))
    if given.update:
        FILE.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
