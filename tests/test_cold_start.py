"""A question about a named model loads nothing heavy: asked of the running program, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TABLE = str(Path(__file__).parent.parent / "docs" / "examples" / "measured.csv")
HEAVY = ("torch", "torchvision", "timm", "transformers", "pandas", "scipy", "matplotlib")


def loaded_by(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after `code`."""
    question = f"{code}\nimport sys\nprint('\\n', *[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "from precision_time import *",
        "import precision_time.cli.main",
        "from precision_time import predict_time\nprint(predict_time(model='resnet50', precision='mixed', gpus=8))",
        "from precision_time.cli.main import main\nassert main(['predict', 'bert-large', '--json']) == 0",
        "from precision_time.cli.main import main\nassert main(['compare', 'resnet50', '--gpus', '1,8']) == 0",
        "from precision_time.cli.main import main\nassert main(['zoo']) == main(['gpus']) == 0",
        f"from precision_time.cli.main import main\nassert main(['evaluate', {TABLE!r}]) == 0",
        "from precision_time import Job, predict\n"
        "predict(Job('qwen3-235b-a22b', gpu='h100-80gb-sxm', gpus=64, layout='tp=2,dp=32,ep=32,etp=1,zero=1'))",
        "from precision_time import Job, predict\n"
        "predict(Job('deepseek-v3', gpu='h100-80gb-sxm', gpus=64, layout='ep=64,zero=1'))",
    ],
    ids=["names", "command", "predict_time", "predict", "compare", "lists", "evaluate", "experts", "latents"],
)
def test_no_heavy_import(code: str) -> None:
    assert loaded_by(code) == set()


def test_importing_the_package_is_instant() -> None:
    """Not even numpy: names load their module when they are first used."""
    question = "import precision_time, sys; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", question], capture_output=True, text=True).stdout.strip() == "False"
