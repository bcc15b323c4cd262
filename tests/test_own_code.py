"""Own code that misbehaves: one `CaptureError` that names the file, whatever it raises and wherever it does."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from precision_time import Job, predict_time  # noqa: E402
from precision_time.capture.own_code import own_code  # noqa: E402
from precision_time.cli.main import main  # noqa: E402
from precision_time.errors import CaptureError, Interrupted, JobError  # noqa: E402

GOOD = """
import os, sys, torch
from torch import nn
{top}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        {forward}
        return self.layer(x)
    {method}
def make_job(batch_size=2):
    {make}
    inputs = torch.empty(batch_size, 4)
    return {{"model": Net(), "inputs": inputs, "loss": lambda output: output.sum(), "optimizer": {optimizer}}}
"""
DEFAULTS = {"top": "", "forward": "pass", "method": "", "make": "pass", "optimizer": "'sgd'"}
BAD = "type('Bad', (Exception,), {'__str__': lambda self: 1 / 0})()"
CASES = [
    ("top", "sys.exit()", r"called sys\.exit\(None\)"),
    ("top", "sys.exit(0)", r"called sys\.exit\(0\) \(model\.py, line 4\)"),
    ("top", "sys.exit('bye')", r"called sys\.exit\('bye'\)"),
    ("top", "raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    ("top", "raise BaseException('x')", "raised BaseException: x"),
    ("top", "raise GeneratorExit", "raised GeneratorExit"),
    ("top", "def f(): f()\nf()", "calls itself without end"),
    ("top", "raise " + BAD, "raised Bad: its message cannot be read"),
    ("top", "import no_such_module", "raised ModuleNotFoundError"),
    ("top", "x = = 1", "raised SyntaxError"),
    ("top", "1 / 0", r"raised ZeroDivisionError: division by zero \(model\.py, line 4\)"),
    ("make", "sys.exit(7)", r"called sys\.exit\(7\)"),
    ("make", "raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    ("make", "return make_job()", "calls itself without end"),
    ("make", "raise " + BAD, "raised Bad when traced: its message cannot be read"),
    ("forward", "sys.exit(0)", r"called sys\.exit\(0\)"),
    ("forward", "return self.forward(x)", "calls itself without end"),
    ("forward", "raise " + BAD, "raised"),
    ("method", "def __repr__(self): raise SystemExit(3)", ""),
    ("method", "def named_parameters(self, *a, **k): raise SystemExit(3)", r"called sys\.exit\(3\)"),
    ("method", "def __getattr__(self, name): raise SystemExit(4)", r"called sys\.exit\(4\)"),
    ("optimizer", "type('O', (), {'defaults': property(lambda self: sys.exit(5))})()", "optimizer O has no operator"),
]  # fmt: skip


def write(folder: Path, **parts: str) -> Path:
    path = folder / "model.py"
    path.write_text(GOOD.format(**{**DEFAULTS, **parts}))
    return path


@pytest.mark.parametrize(("part", "code", "message"), CASES)
def test_everything_own_code_raises_is_an_error_that_names_it(
    part: str, code: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, **{part: code})
    returned = main(["predict", str(path), "--json"])
    printed = capsys.readouterr()
    if not message:
        assert returned == 0
        return
    assert (returned, printed.out) == (2, "")
    assert printed.err.count("\n") == 1
    assert str(path) in printed.err or "optimizer" in printed.err
    assert re.search(message, printed.err), printed.err
    if "KeyboardInterrupt" not in code:  # in Python it may be Ctrl-C, at the command line it is not
        with pytest.raises(CaptureError, match=message):
            predict_time(str(path))


def test_ctrl_c_stays_ctrl_c() -> None:
    for error in (Interrupted, KeyboardInterrupt):
        with pytest.raises(error), own_code("model.py"):
            raise error


def test_evaluate_goes_on_with_the_next_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, top="sys.exit(0)")
    table = tmp_path / "table.csv"
    row = {"gpu": "a100-80gb-sxm", "gpus": "1", "precision": "fp32", "batch_size": "32", "step_time_s": "0.1"}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "model", *row])
        writer.writeheader()
        writer.writerows([{"id": "own", "model": str(path), **row}, {"id": "resnet", "model": "resnet50", **row}])
    assert main(["evaluate", str(table), "--allow-code", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "called sys.exit(0)" in json.dumps(answer)
    assert "resnet" in json.dumps(answer)


def test_what_own_code_changes_is_put_back(tmp_path: Path) -> None:
    folder, search = os.getcwd(), list(sys.path)
    path = write(
        tmp_path,
        top="os.chdir('/'); torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); sys.path.clear()",
        make="torch.set_default_dtype(torch.float32); torch.set_grad_enabled(True)",
    )
    predict_time(str(path))
    assert (os.getcwd(), sys.path, torch.get_default_dtype(), torch.is_grad_enabled()) == (
        folder, search, torch.float32, True,
    )  # fmt: skip
    assert Job(str(path)).model == str(path)


def test_prints_of_own_code_leave_json_alone(tmp_path: Path) -> None:
    noise = "print('noise'); os.write(1, b'bytes'); os.system('echo child'); sys.stdout.flush()"
    noise += "; import atexit; atexit.register(print, 'at exit')"
    path = write(
        tmp_path, top=noise, forward="print('forward')", make="sys.stdout.close(); sys.stdout = sys.__stdout__"
    )
    command = [sys.executable, "-m", "precision_time.cli.main", "predict", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"]["model"] == str(path)
    for word in ("noise", "bytes", "child", "at exit"):
        assert word in done.stderr


def test_errors_are_told_where_own_code_closed_the_streams(tmp_path: Path) -> None:
    path = write(tmp_path, top="sys.stderr = None; sys.stdout = None; sys.exit(0)")
    command = [sys.executable, "-m", "precision_time.cli.main", "predict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "called sys.exit(0)" in done.stderr


ALONE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(30, 10)
    def forward(self, x):
        return {"logits": self.last(self.conv(x))}
def make():
    return Net()
class Wrong(Net):
    def forward(self, x):
        return self.last(x)
"""


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_module_alone_with_the_shape_of_a_sample(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(ALONE)
    estimate = predict_time(f"{path}:{name}", input="3x32x32", batch_size=16, optimizer="adamw", gpu="a100-80gb-sxm")
    assert estimate.job.input["shape"] == (3, 32, 32)
    assert "loss of a module alone: the mean of what it returns" in estimate.assumptions
    with pytest.raises(JobError, match="is a module alone; give the shape of one sample"):
        predict_time(f"{path}:{name}", gpu="a100-80gb-sxm")


def test_an_error_of_shapes_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(ALONE)
    with pytest.raises(CaptureError, match=r"traced without data: .*\(net\.py, line 13\)"):
        predict_time(f"{path}:Wrong", input="3x32x32", batch_size=16, gpu="a100-80gb-sxm")


def test_a_missing_file_is_named_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(JobError, match=r"there is no file .*missing\.py; give path/to/file\.py:function"):
        predict_time(f"{tmp_path / 'missing.py'}:make_job")


DEVICES = """
import torch
from torch import nn
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rates = [rate.item() for rate in torch.linspace(0, 0.1, 3, device="cpu")]
class Net(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.layer, self.place = nn.Linear(16, 16, **where), where.get("device", "meta")
    def forward(self, x):
        return self.layer(x) * torch.arange(16, device=self.place) * rates[1]
def job(model, x):
    return {"model": model, "inputs": x, "loss": lambda output: output.mean(), "optimizer": "sgd"}
def plain(batch_size=8):
    return job(Net({}), torch.randn(batch_size, 16))
def cuda(batch_size=8):
    return job(Net({}).cuda(), torch.randn(batch_size, 16).cuda(non_blocking=True))
def made(batch_size=8):
    return job(Net({"device": "cuda:0"}), torch.randn(batch_size, 16, device="cuda"))
def moved(batch_size=8):
    return job(Net({}).to(device), torch.randn(batch_size, 16).pin_memory().to(device, torch.float32))
def numbered(batch_size=8):
    return job(Net({}).to(0), torch.randn(batch_size, 16).to(device="cuda"))
"""


def test_models_that_move_to_a_gpu_need_none(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(DEVICES)
    plain = predict_time(f"{path}:plain")
    for name in ("cuda", "made", "moved", "numbered"):
        found = predict_time(f"{path}:{name}")
        assert (found.step, found.memory.peak_bytes) == (plain.step, plain.memory.peak_bytes), name


def test_one_size_is_a_shape(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(784, 10)\n")
    job = predict_time(f"{tmp_path}/net.py:net", input="784", batch_size=32).job
    assert job.input == {"shape": 784}
    with pytest.raises(JobError, match="'shape' is not an input size of resnet50; nearest: image_size"):
        predict_time("resnet50", input="224")
