"""Outputs of every command are checked before the work: never an input, never another output, never no file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from precision_time.cli.main import main

JOB = "model: resnet50\ndevice: device.json\nanchors: [anchors.csv]\ndata: {storage: storage.yaml}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    for name in ("device.json", "anchors.csv", "storage.yaml", "model.py", "config.json", "nodes.txt", "job.toml"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "link.svg").symlink_to("job.yaml")
    (tmp_path / "hard.html").hardlink_to("model.py")
    (tmp_path / "folder.json").mkdir()
    return tmp_path


INPUTS = [
    "predict job.yaml --trace job.yaml",
    "predict job.yaml --trace ./../{folder}/job.yaml",
    "predict job.yaml --trace link.svg",
    "predict job.yaml --trace device.json",
    "predict job.yaml --trace anchors.csv",
    "predict job.yaml --trace storage.yaml",
    "predict model.py:f --trace model.py",
    "predict --model model.py --trace model.py",
    "predict hf:config.json --trace config.json",
    "predict resnet50 --import job.toml --trace job.toml",
    "predict resnet50 --cluster nodes.txt --trace nodes.txt",
    "predict resnet50 --anchors anchors.csv --trace anchors.csv",
    "predict resnet50 --data storage=storage.yaml --trace storage.yaml",
    "compare resnet50 model.py:f --plot hard.html",
    "compare job.yaml --plot link.svg",
    "evaluate anchors.csv --csv anchors.csv",
    "stagger job.yaml --plot link.svg",
    "calibrate config.json --output config.json",
    "calibrate --storage storage.yaml --output storage.yaml",
    "verify --device device.json --save device.json",
]


@pytest.mark.parametrize("command", INPUTS)
def test_an_input_is_never_replaced(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert main(command.format(folder=folder.name).split()) == 2
    assert "is an input of this command; give another path" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("command", [
    "predict resnet50 --trace {}", "compare resnet50 --plot {}", "evaluate anchors.csv --csv {}",
    "evaluate anchors.csv --html {}", "stagger job.yaml --plot {}", "calibrate --output {}",
    "calibrate --storage . --output {}", "verify --save {}",
])  # fmt: skip
@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout", "/proc/self/fd/1", "folder.json", "no/such.json", ""])
@pytest.mark.usefixtures("folder")
def test_no_file_is_refused_before_the_work(command: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path if word == "{}" else word for word in command.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(("command", "mine"), [
    ("measure --output . --budget 60s", "device.json"), ("runs --output . --budget 60s", "storage.yaml"),
    ("train ernest --output .", "ernest/precious"),
])  # fmt: skip
def test_a_folder_of_other_files_is_refused(
    command: str, mine: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (folder / "README.md").write_text("mine")
    (folder / "ernest").mkdir()
    (folder / "ernest" / "precious").write_text("mine")
    before = sorted(folder.rglob("*"))
    assert main(command.split()) == 2
    assert "name" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
    assert (folder / mine).exists()


@pytest.mark.usefixtures("folder")
def test_two_outputs_are_two_files(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("anchors.csv", "table.csv")
    Path("out.csv").symlink_to("out.html")
    assert main("evaluate table.csv --csv out.csv --html out.html".split()) == 2
    assert "--csv 'out.csv' is the file of --html too" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["measure --output", "runs --output", "train --output", "stagger j.yaml --folder"])
@pytest.mark.parametrize("path", ["/dev/null", "/proc/x", "job.yaml", "link.svg", "\0"])
@pytest.mark.usefixtures("folder")
def test_a_folder_for_output(command: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), path]) == 2
    assert capsys.readouterr().err.count("\n") == 1
