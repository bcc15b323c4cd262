"""Data runs no code: every file that can name a Python file or a command is refused unless code is allowed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import precision_time
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.job.code import check_code
from precision_time.job.job import Job
from precision_time.processes import start_module

MODEL = """
from pathlib import Path
Path("ran").touch()
import torch
from torch import nn
def main(batch_size):
    return make_job(batch_size)
def make_job(batch_size=2):
    return nn.Linear(4, 4), torch.empty(batch_size, 4), lambda output: output.sum(), "sgd"
"""
HEAD = "id,model,gpu,gpus,precision,batch_size,step_time_s"
ROW = "r,evil.py,a100-80gb-sxm,1,fp32,2,0.1"
FILES = {
    "evil.py": MODEL,
    "job.yaml": "model: evil.py\n",
    "job.json": '{"model": "evil.py:make_job"}',
    "torchtitan.toml": '[model]\nname = "evil.py:main"\n[training]\nlocal_batch_size = 2\n',
    "table.csv": f"{HEAD}\n{ROW}\n",
    "anchors.yaml": "model: resnet50\nanchors: [table.csv]\n",
    "line.yaml": "model: resnet50\nanchors: ['model=evil.py,step_time_s=0.1']\n",
    "own.yaml": "model: evil.py\nanchors: [table.csv, 'step_time_s=0.1']\n",
    "published/measurements.csv": f"{HEAD},trust\n{ROW},A\n",
}
REFUSED = [
    "predict job.yaml", "predict job.json --gpus 8", "predict --import torchtitan.toml", "compare job.yaml",
    "predict resnet50 --anchors table.csv", "predict anchors.yaml", "predict line.yaml", "predict own.yaml",
    "evaluate table.csv", "train boosting --tables .", "train additive --tables .", "calibrate job.yaml",
    "measure job.yaml", "verify job.yaml", "predict job.yaml --largest-batch",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "published").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("command", REFUSED)
def test_no_command_runs_the_code_of_a_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    main(command.split())
    printed = capsys.readouterr()
    assert not Path("ran").exists()
    if "anchor" not in command and "line" not in command and "train" not in command:  # anchors of another family
        assert "evil.py" in printed.out + printed.err
        assert "--allow-code" in printed.out + printed.err


@pytest.mark.parametrize("command", [
    "predict evil.py", "predict evil.py:make_job", "predict --model evil.py", "predict job.yaml --model evil.py",
    "predict resnet50 --model evil.py --allow-code", "predict job.yaml --allow-code", "evaluate table.csv --allow-code",
    "predict --import torchtitan.toml --allow-code", "predict own.yaml --allow-code", "predict evil.py --import t.toml",
    "predict evil.py --anchors table.csv",
])  # fmt: skip
def test_code_of_the_command_line_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    Path("t.toml").write_text("[parallelism]\ntensor_parallel_degree = 1\n[training]\nlocal_batch_size = 2\n")
    code = main([word for word in command.split() if word != "resnet50"])
    assert code == 0, capsys.readouterr().err
    assert Path("ran").exists()


def test_in_python() -> None:
    pytest.importorskip("torch")
    refused = [
        Job.from_file("job.yaml"), Job.from_dict({"model": "evil.py"}), Job.from_dict(Job("evil.py").to_dict()),
        Job.from_file("job.yaml").replace(precision="bf16", gpus=2),
    ]  # fmt: skip
    for job in refused:
        with pytest.raises(JobError, match=r"model 'evil\.py' is code, and data runs none by itself; add --allow-code"):
            precision_time.predict(job)
    assert not Path("ran").exists()
    for job in (Job("evil.py"), Job("resnet50").replace(model="evil.py"), Job.from_file("job.yaml", allow_code=True),
                Job.from_file("job.yaml").replace(model="evil.py")):  # fmt: skip
        Path("ran").unlink(missing_ok=True)
        precision_time.predict(job)
        assert Path("ran").exists()
    estimate = precision_time.predict_time("evil.py", anchors="table.csv")
    with pytest.raises(JobError, match="--allow-code"):
        check_code(precision_time.Estimate.from_dict(estimate.to_dict()).job.code, "evil.py")


def test_an_allowed_job_does_not_allow_the_code_of_its_anchors() -> None:
    """An anchor of the job's own model may run; another Python file of the table, or of a line, may not."""
    from precision_time.anchors.sources import given_anchors

    Path("EVIL.py").write_text(MODEL)  # of the same family, by its name
    Path("table.csv").write_text(f"{HEAD}\n{ROW}\n{ROW.replace('evil', 'EVIL').replace('r,', 's,', 1)}\n")
    entries = ("table.csv", "model=EVIL.py,step_time_s=0.1", "step_time_s=0.2")
    refused = {each.id: bool(each.job.code.refused) for each in given_anchors(Job("evil.py", anchors=entries))}
    assert refused == {"r": False, "s": True, "model=EVIL.py,step_time_s=0.1": True, "step_time_s=0.2": False}
    allowed = Job.from_dict({"model": "evil.py", "anchors": entries}, allow_code=True)
    assert not any(each.job.code.refused for each in given_anchors(allowed))


def test_the_commands_of_a_jobs_file_run_only_when_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"run": "touch ran; sleep 0.1", "progress": r"(?P<samples>\d+)"}
    (folder / "cache").mkdir()
    for reset in ({"folder": "cache"}, {"command": "touch ran"}):
        Path("jobs.json").write_text(json.dumps({"samples": 9, "cache": {"reset": reset}, "jobs": [job, job]}))
        before = sorted(folder.rglob("*"))
        assert main(["stagger", "jobs.json"]) == 2
        assert "run of job 'job-1' 'touch ran; sleep 0.1' is code" in capsys.readouterr().err
        assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("config", "runs"), [({"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}, False)]
)
def test_a_hugging_face_config_fetches_no_code(config: dict[str, object], runs: bool) -> None:
    pytest.importorskip("transformers")
    sizes = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 16, "n_positions": 16}
    Path("config.json").write_text(json.dumps({**sizes, **config, "trust_remote_code": True}))
    precision_time.predict_time("hf:config.json", input={"seq_len": 8}, batch_size=1)
    assert Path("ran").exists() == runs


def test_data_is_never_given_as_a_job_of_the_user() -> None:
    """`Job(...)` and `replace(model=...)` mean code that a user names, so readers of data use `from_fields`."""
    source = Path(precision_time.__file__).parent
    given = set()
    texts = {path: path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    for path in (path for path, text in texts.items() if "Job(" in text):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Job":
                model = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "model"), None)
                safe = isinstance(model, ast.Constant) or any(k.arg == "code" for k in node.keywords)
                given |= set() if safe else {path.relative_to(source).as_posix()}
    named = {"fit/measured_points.py", "measure/optimizers.py", "measure/small_runs.py", "measure/zoo_operators.py"}
    assert given == named, "each of these takes the model from a list of the package"


def test_errors_name_the_file_and_the_row() -> None:
    from precision_time.measurements.table import read_table

    (row,) = read_table("table.csv").rows
    assert row.job is not None
    with pytest.raises(JobError, match=r"^row 'r' of table\.csv: model 'evil\.py' is code"):
        check_code(row.job.code, row.job.model)
    with pytest.raises(JobError, match=r"^job file 'job\.yaml': model 'evil\.py' is code"):
        precision_time.predict(Job.from_file("job.yaml"))
    with pytest.raises(DataError):
        Job.from_file("table.csv.yaml")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no -P")
def test_children_import_nothing_of_the_current_folder() -> None:
    for name in ("json", "random", "threading", "numpy"):
        Path(f"{name}.py").write_text("open('ran', 'w')\n")
    with start_module("precision_time.fit", "--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        output, errors = child.communicate(timeout=60)
    assert b"usage" in output, errors
    assert not Path("ran").exists()
