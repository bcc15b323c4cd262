"""A grid of jobs whose predictions are on file: did a change move predictions, and where?

python tests/golden/grid.py             show what moved against predictions.json
python tests/golden/grid.py --update    accept the moves (say why in CHANGELOG.md)
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

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


def predictions() -> dict[str, float]:
    """Seconds of the P50 step by job; jobs whose device lacks the precision are left out."""
    found = {}
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


def main() -> int:
    new = predictions()
    old = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for line in moved(old, new):
        print(line)
    if "--update" in sys.argv[1:]:
        FILE.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
