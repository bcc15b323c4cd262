"""What stands in for torch._dynamo, SymPy and SciPy while a command traces: the same answers, the real ones on need."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from precision_time import predict_time
from precision_time.capture import deferred_imports
from precision_time.capture.deferred_imports import STAND_INS

torch = pytest.importorskip("torch")

SHAPES = STAND_INS[deferred_imports._SHAPES]
DECORATORS = STAND_INS["torch._dynamo"]
OWN = """
import torch
from torch import nn

def make_job(batch_size=4):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    return {"model": model, "inputs": torch.empty(batch_size, 8), "loss": lambda out: (out / 3).sum(0).float().mean()}
"""
HEAVY = ("torch._dynamo.convert_frame", "torch._inductor", "sympy.core", "scipy.optimize._optimize")


def fresh(code: str, folder: Path) -> str:
    """What a fresh process prints that runs this code."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", [name for name, found in SHAPES.items() if callable(found) and name[0].islower()])
def test_stand_ins_answer_as_the_real_functions(name: str) -> None:
    real = getattr(importlib.import_module(deferred_imports._SHAPES), name)
    tensors: list[tuple[Any, ...]] = [(torch.empty(2, 3, device="meta"),)] if name.endswith("unbacked_symbols") else []
    plain: list[tuple[Any, ...]] = [(True,), (False,), (0,), (7,), (3, 3), (3, 4), ((1, 2), [1, 2]), ((1,), (1, 2))]
    answered = 0
    for given in (*tensors, *plain, *itertools.product((True, False), repeat=2)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = real(*given)
        except Exception:  # no question for this function
            continue
        answered += 1
        found = SHAPES[name](*given)
        assert (list(found) == list(expected)) if name == "free_unbacked_symbols" else (found == expected)
    assert answered >= 2


def test_what_stands_in_for_decorators_is_what_they_are_outside_of_a_compiler() -> None:
    def function(value: int) -> int:
        return value + 1

    for name, stand_in in DECORATORS.items():
        assert stand_in(function) is function
        assert getattr(importlib.import_module("torch._dynamo"), name)(function)(1) == 2
    assert DECORATORS["disable"]()(function) is function
    assert DECORATORS["disable"](recursive=False)(function) is function


def test_every_name_exists_in_the_real_module() -> None:
    for module, names in STAND_INS.items():
        if module != "scipy.optimize":
            assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


def test_more_than_the_names_imports_the_real_module(tmp_path: Path) -> None:
    code = """
from precision_time.capture.deferred_imports import _StandIn, defer_imports
defer_imports()
import sys, torch
from torch._dynamo.utils import is_compile_supported
from torch.fx.experimental.symbolic_shapes import guard_or_false
assert isinstance(sys.modules["torch._dynamo"], _StandIn) and isinstance(torch._dynamo, _StandIn)
kept = torch._dynamo
assert "torch._dynamo.eval_frame" not in sys.modules
import torch._dynamo.config
assert torch._dynamo.config is kept.config and torch._dynamo.config.cache_size_limit > 0
assert not isinstance(torch._dynamo, _StandIn) and kept.optimize is torch._dynamo.optimize
assert is_compile_supported("meta") is False
compiled = torch.compile(lambda x: torch.nn.functional.gelu(x + 1), backend="eager")
assert compiled(torch.zeros(2)).shape == (2,)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
import sympy
assert sympy.Symbol("x") + 1 != 1
from torch.fx.experimental.proxy_tensor import make_fx
seen = []
make_fx(lambda x: x + (seen.append(x.shape[0] > 2) or guard_or_false(seen[0])), tracing_mode="symbolic")(torch.ones(3))
assert type(seen[0]) is torch.SymBool
print("well")
"""
    assert fresh(code, tmp_path) == "well\n"


def test_a_command_imports_less_and_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "precision_time",
        "predict",
        "own.py",
        "--precision=bf16",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch" in imported
    assert [name for name in HEAVY if name in imported] == []
    answer = json.loads(done.stdout)
    here = predict_time(f"{tmp_path / 'own.py'}:make_job", precision="bf16").to_dict()
    assert answer["step"] == json.loads(json.dumps(here))["step"]
