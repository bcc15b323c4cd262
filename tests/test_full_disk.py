"""Every command that writes files, on a disk that takes no more: old files stay whole, one sentence, exit code 2."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precision_time.cli.main import main
from precision_time.journal import read

resource = pytest.importorskip("resource")

TABLE = (
    "id,model,gpu,gpus,precision,batch_size,step_time_s\n"
    "a,resnet50,a100-80gb-sxm,1,fp32,32,0.1\nb,resnet50,a100-80gb-sxm,1,tf32,32,0.08\n"
)
STEPS = "".join(
    f"{model} {gpu} {batch},{model},{gpu},1,fp32,{batch},{batch / 300}\n"
    for model in ("resnet50", "vgg16", "bert-base")
    for gpu in ("a100-80gb-sxm", "v100-16gb-sxm")
    for batch in (4, 8, 16, 32)
)
"""Enough rows to train on."""
TRAINING = """
import time

def train(progress, samples, first, epochs):
    for _ in range(epochs * samples // 4):
        time.sleep(0.002)
        progress(4)
"""
JOBS = {
    "samples": 256, "cache": {"reset": {"command": "true"}}, "calibration": {"samples": 96},
    "jobs": [{"name": name, "run": "python:training.py:train", "epochs": 1} for name in "ab"],
}  # fmt: skip


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within the block a file that would grow beyond `size` bytes cannot be written, in children neither."""
    if signal.getsignal(signal.SIGXFSZ) is not signal.SIG_IGN:
        pytest.skip("this Python is ended by a file that grows too large")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("JOBLIB_MULTIPROCESSING", "0")  # its semaphore is a file, too
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "steps.csv").write_text(TABLE.splitlines()[0] + "\n" + STEPS)
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "jobs.json").write_text(json.dumps(JOBS))
    (tmp_path / "files").mkdir()
    for number in range(8):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes(1000))
    for ending in ("json", "html", "svg", "png", "csv", "yaml"):
        (tmp_path / f"old.{ending}").write_text("old")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(command: str, size: int, folder: Path, capsys: pytest.CaptureFixture[str], kept: str | None = None) -> None:
    """The command fails in one sentence (after notes of what it does) and leaves what was there, and `kept`."""
    before = contents(folder)
    with largest_file(size):
        assert main(command.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("precision-time: error: ")
    assert not any("Traceback" in line for line in lines[:-1])
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before
    new = set(after) - set(before)
    assert all(kept and name.startswith(kept) for name in new), new
    for name in new:
        if name.endswith(".jsonl") and after[name]:
            read(folder / name)
            assert after[name].endswith(b"\n"), "the journal ends in the middle of a line"


@pytest.mark.parametrize("command", [
    "predict resnet50 --trace old.json", "predict resnet50 --trace new.json", "compare resnet50 --plot old.html",
    "compare resnet50 --plot old.svg", "compare resnet50 --plot old.png", "evaluate table.csv --csv old.csv",
    "evaluate table.csv --html old.html", "train ernest --rows steps.csv --output trained",
])  # fmt: skip
def test_a_file_that_does_not_fit(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "--plot" in command or "--html" in command:
        pytest.importorskip("matplotlib")
    for size in (0, 100):
        check(command, size, folder, capsys)


@pytest.mark.parametrize("size", [0, 600, 3000])
def test_a_journal_that_does_not_fit(size: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("stagger jobs.json --folder there --allow-code", size, folder, capsys, "there/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("calibrate --storage files --budget 5s --output old.yaml", None),
        ("calibrate --budget 6s --ranks 1 --output old.json", "old.points.jsonl"),
        ("measure --budget 6s --ranks 1 --output there", "there/journal.jsonl"),
        ("runs --quick --budget 15s --ranks 1 --output there", "there/journal.jsonl"),
        ("train boosting --rows steps.csv --output trained", None),
    ],
)
def test_measurements_that_do_not_fit(
    command: str, kept: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    for size in (0, 100 if "--storage" in command else 300):  # a storage file has some 300 bytes
        check(command, size, folder, capsys, kept)
