"""Processor time and memory of one job whose model torch traces: `python -m benchmarks.traced_limits`.

Each row is a fresh `precision-time predict`, imports included: the least processor time of `--repeats` processes, since
other work on the machine only adds to it, and the highest peak of memory. "import torch" says how fast the machine is.
Writes benchmarks/results/traced_limits.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed import OWN_MODEL, RESULTS, machine
from precision_time.report.table import Table

_DECODER = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "vocab_size": 32000}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_DECODER},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **_DECODER, "num_experts": 128,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_hidden_layers": 48},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **_DECODER, "num_local_experts": 8},
    "bert": {"architectures": ["BertForMaskedLM"], "model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024,
             "num_attention_heads": 16, "intermediate_size": 4096},
    "vit": {"architectures": ["ViTForImageClassification"], "model_type": "vit"},
    "whisper": {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "encoder_layers": 32,
                "decoder_layers": 32, "d_model": 1280, "encoder_attention_heads": 20, "decoder_attention_heads": 20},
    "gemma3n": {"architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text"},
    "jamba": {"architectures": ["JambaForCausalLM"], "model_type": "jamba"},
    "qwen2_5_vl": {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"},
    "detr": {"architectures": ["DetrForObjectDetection"], "model_type": "detr"},
}  # fmt: skip
MANY_OPERATORS = """
import torch
from torch import nn

class Long(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        for _ in range(30_000):
            x = x + 1
        return x

def make_job(batch_size=4):
    return {"model": Long(8, 8), "inputs": torch.empty(batch_size, 8), "loss": lambda out: out.mean()}
"""
MODELS: tuple[tuple[str, ...], ...] = (
    *((f"hf:{name}.json", "--precision=bf16") for name in CONFIGS),
    ("timm:resnet50",), ("timm:maxvit_xlarge_tf_512", "--batch-size=1"), ("torchvision:resnet152",), ("own.py",),
    ("many_operators.py:make_job",),
)  # fmt: skip


def once(command: Sequence[str], folder: str) -> tuple[float, float, int]:
    """(seconds of processor time, peak MiB, exit code) of a fresh process in `folder`."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes for each figure (default 3)")
    options = parser.parse_args()
    program = [sys.executable, "-m", "precision_time", "predict"]
    commands = {"import torch": [sys.executable, "-c", "import torch"]} | {
        f"predict {' '.join(model)}": [*program, *model] for model in MODELS
    }
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, config in CONFIGS.items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        (Path(folder) / "own.py").write_text(OWN_MODEL, encoding="utf-8")
        (Path(folder) / "many_operators.py").write_text(MANY_OPERATORS, encoding="utf-8")
        for _ in range(options.repeats):
            for name, command in commands.items():
                found[name].append(once(command, folder))
    rows = [
        (name, f"{min(seconds for seconds, _, _ in each):.2f} s", f"{max(peak for _, peak, _ in each):.0f} MiB",
         "refused" if each[0][2] else "answered")
        for name, each in found.items()
    ]  # fmt: skip
    where = machine()
    text = (
        f"# Jobs whose model is traced\n\n`python -m benchmarks.traced_limits --repeats {options.repeats}`: least "
        f"processor time of {options.repeats} fresh processes each, imports included, and highest memory.\n\n"
        f"{Table(['job', 'processor time', 'peak memory', ''], rows, left=1).markdown()}\n\n"
        f"{', '.join(f'{key} {value}' for key, value in where.items())}, load before {load:.1f}.\n"
    )
    (RESULTS / "traced_limits.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
