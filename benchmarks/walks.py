"""Six kinds of new user, from what they have to their first right answer: `python -m benchmarks.walks`.

Each walk starts in an empty folder with one file of its user, and runs the commands that README.md, the pages it names
and `--help` lead to, in fresh processes. An answer is right where the job that was predicted is the one of the user's
file. Writes benchmarks/results/walks.json and the table of docs/first-answers.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed import RESULTS, machine
from precision_time.report.page import fill_markers
from precision_time.report.table import Table
from precision_time.report.write import write_whole

PAGE = Path(__file__).parents[1] / "docs" / "first-answers.md"
SCRIPT = """\
import torch
from torch import nn
from torchvision import datasets, models, transforms

model = nn.parallel.DistributedDataParallel(models.resnet50(weights=None).cuda())
data = datasets.ImageFolder("/data/imagenet/train", transforms.ToTensor())
loader = torch.utils.data.DataLoader(data, batch_size=128, num_workers=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler()
for epoch in range(90):
    for images, labels in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
ARGUMENTS = """\
{"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "bf16": true,
 "gradient_checkpointing": true, "num_train_epochs": 3, "learning_rate": 2e-5, "optim": "adamw_torch_fused",
 "fsdp": "full_shard auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
"""
SBATCH = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8   # one rack, was --nodes=4
#SBATCH --time=00:30:00 --job-name="gpt -N 4"
srun torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
    --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304 \\
    --micro-batch-size 4 --global-batch-size 512 --bf16 --train-iters 5000
"""
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  runPolicy: {activeDeadlineSeconds: 1800}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}
          containers:
            - name: pytorch
              image: registry.example/train:1
              command: [torchrun, --nproc-per-node, "8", run_mlm.py]
              args: [--per_device_train_batch_size, "32", --bf16, --max_steps, "20000", --model_name_or_path,
                bert-large-uncased]
              resources: {limits: {nvidia.com/gpu: 8}}
"""
NOTEBOOK = """\
import json
from precision_time import predict_time
estimate = predict_time("resnet50", gpu="a100", gpus=8, batch_size=256, precision="amp-bf16", epochs=90)
print(json.dumps(estimate.to_dict()))
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """One user.

    commands   arguments of precision-time, `> FILE` for its output, or `python FILE`; the last answers in JSON
    right      fields of the predicted job, as the user's file says
    before     what stood in the way when it was first walked, and what was changed
    """

    user: str
    has: Mapping[str, str]
    commands: tuple[str, ...]
    right: Mapping[str, Any]
    before: str


WALKS = (
    Walk(
        "researcher", {"train.py": SCRIPT},
        ("skeleton train.py > job.yaml", "predict job.yaml --gpu a100 --gpus 8 --json"),
        {"model": "resnet50", "batch_size": 128, "precision": "amp-fp16", "optimizer": "sgd", "gpus": 8},
        "`skeleton` refused a script whose model is torchvision's; it now prints a job file",
    ),
    Walk(
        "ML engineer", {"training_args.json": ARGUMENTS},
        ("predict meta-llama/Llama-3.1-8B --import training_args.json --gpu h100 --gpus 8 --dataset-size 52000 "
         "--json",),
        {"batch_size": 4, "grad_accum": 8, "precision": "bf16-master", "recompute": "full", "gpus": 8},
        "a note asked for --dataset-size although it was given; notes that flags answer are left out",
    ),
    Walk(
        "LLM engineer", {"train.toml": TORCHTITAN},
        ("layouts --import train.toml --gpu h100 --gpus 64 --top 5",
         "predict --import train.toml --gpu h100 --gpus 64 --json"),
        {"model": "llama3-8b", "batch_size": 1, "execution": "compile", "recompute": "selective", "gpus": 64},
        "nothing",
    ),
    Walk(
        "platform engineer", {"train.sbatch": SBATCH},
        ("slurm train.sbatch --gpu h100 --rewrite", "slurm train.sbatch --gpu h100 --json"),
        {"batch_size": 4, "gpus": 16, "nodes": 2, "precision": "bf16-master"},
        "a comment behind an option and a job's name in quotes changed the nodes; read as Slurm does",
    ),
    Walk(
        "platform engineer, Kubernetes", {"job.yaml": MANIFEST},
        ("kubernetes job.yaml", "kubernetes job.yaml --json"),
        {"batch_size": 32, "gpus": 16, "precision": "amp-bf16", "gpu": "a100-80gb-sxm"},
        "nothing (YAML anchors are refused, with the line)",
    ),
    Walk(
        "notebook user", {"cells.py": NOTEBOOK}, ("python cells.py",),
        {"model": "resnet50", "batch_size": 256, "precision": "amp-bf16", "gpus": 8},
        "a module without a loss was refused without a word about `loss`",
    ),
    Walk(
        "buyer", {},
        ("gpus --prices h100",
         "compare llama3-8b --gpu a100,h100,b200,mi300x --gpus 8 --layout fsdp --precision bf16-master "
         "--recompute full --largest-batch --global-batch-size 512 --samples 100000 --price any --sort cost --json"),
        {"model": "llama3-8b", "gpus": 8, "precision": "bf16-master"},
        "a GPU that no cloud offers had no estimate with --price any; it now has one without a cost",
    ),
)  # fmt: skip


def walk(one: Walk) -> dict[str, Any]:
    """Seconds of each command, and whether the answer is right. Raises `RuntimeError` for a command that fails."""
    seconds: list[float] = []
    out = ""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in one.has.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        for command in one.commands:
            words, _, target = command.partition(" > ")
            python = words.startswith("python ")
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *([] if python else ["-m", "precision_time"]), *words.removeprefix("python ").split()],
                cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ),
            )  # fmt: skip
            seconds.append(time.perf_counter() - started)
            if done.returncode:
                raise RuntimeError(f"{one.user}: {command}: {done.stderr.strip()}")
            out = done.stdout
            if target:
                Path(folder, target).write_text(out, encoding="utf-8")
    return {"user": one.user, "seconds": seconds, "right": _right(one, json.loads(out)), "before": one.before}


def _right(one: Walk, content: Mapping[str, Any]) -> bool:
    """Whether the answer is for the user's job; of a comparison the first row, whose cost is known."""
    if "rows" in content:
        estimates = [row["estimate"] for row in content["rows"]]
        if any(each is None for each in estimates):
            return False
        content = estimates[0]
    job = content.get("estimate", content)["job"]
    return all(job.get(name) == value for name, value in one.right.items())


def table(rows: list[dict[str, Any]]) -> str:
    """The Markdown table of the walks."""
    cells = [
        [
            one.user, " ".join(f"`{name}`" for name in one.has) or "a question",
            "<br>".join(f"`{command.removesuffix(' --json')}`" for command in dict.fromkeys(one.commands)),
            f"{sum(row['seconds']):.1f}", "yes" if row["right"] else "NO", one.before,
        ]
        for one, row in zip(WALKS, rows, strict=True)
    ]  # fmt: skip
    heads = ["user", "has", "commands to the first right answer", "seconds", "right", "stood in the way before"]
    return Table(heads, cells, left=6).markdown()


def main() -> None:
    """Walk all and write the results; a wrong answer ends it with exit code 1."""
    rows = [walk(one) for one in WALKS]
    stamp = machine()
    write_whole(RESULTS / "walks.json", json.dumps({"machine": stamp, "walks": rows}, indent=1) + "\n")
    versions = f"python {stamp['python']}, precision-time {stamp['precision-time']}"
    foot = f"{stamp['date']}, {stamp['cpu']}; {versions}. Seconds of all commands of a walk, in fresh processes."
    text = fill_markers(PAGE.read_text(encoding="utf-8"), "walks", f"{table(rows)}\n\n{foot}", str(PAGE))
    write_whole(PAGE, text)
    print(table(rows))
    if not all(row["right"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
