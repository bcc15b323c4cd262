"""`train`, `predict --predictor` and the interface of every predictor, with a predictor made for the test."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precision_time.cli.main import main
from precision_time.errors import MissingExtraError, PredictorError
from precision_time.job import Job
from precision_time.measurements.repository import STEPS, required_data_folder
from precision_time.predictors import registry
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, global_batch_size, steps_of
from precision_time.predictors.registry import predictor_class

FEW = str(Path(__file__).parent.parent / "docs" / "examples" / "measured.csv")


class Mean:
    """Predicts the mean of what it saw, per step."""

    name = "mean"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.seen: list[MeasuredJob] = []

    def fit(self, measured: Any) -> None:
        self.seen = list(measured)
        self.seconds = sum(m.seconds / steps_of(m.job) for m in measured) / len(measured)

    def predict(self, job: Job) -> Forecast:
        return Forecast.spread(self.seconds * steps_of(job), 0.1, confidence=0.25, notes=("a mean",))

    def save(self, folder: Path) -> None:
        (folder / "mean.json").write_text(json.dumps(self.seconds))

    @classmethod
    def load(cls, folder: Path) -> Mean:
        found = cls()
        found.seconds = json.loads((folder / "mean.json").read_text())
        return found

    def held_out(self) -> dict[str, float]:
        return {"job": 0.125}

    def cost(self) -> Cost:
        return Cost(len(self.seen), sum(m.cost_s for m in self.seen), 0.0)


@pytest.fixture
def mean(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("precision_time.predictors.mean")
    module.Mean = Mean  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "precision_time.predictors.mean", module)
    monkeypatch.setitem(registry.PREDICTORS, "mean", "mean:Mean")


# --- the interface


def test_the_time_of_a_job_is_that_of_its_run_or_of_a_step() -> None:
    job = Job("resnet50", batch_size=32, gpus=2, grad_accum=2)
    assert global_batch_size(job) == 128
    assert steps_of(job) == 1.0
    assert steps_of(job.replace(run={"steps": 7})) == 7.0
    assert steps_of(job.replace(run={"samples": 129})) == 2.0  # a part of a step counts as a whole
    assert steps_of(job.replace(run={"epochs": 1.5, "dataset_size": 1000})) == 12.0  # 8 steps an epoch
    assert steps_of(job.replace(run={"epochs": 1, "dataset": "imagenet"})) == -(-1_281_167 // 128)
    with pytest.raises(Exception, match=r"run\.dataset"):
        steps_of(job.replace(run={"epochs": 1}))
    with pytest.raises(Exception, match="batch_size"):
        global_batch_size(Job("resnet50"))


def test_deciles_lie_at_equal_ratios() -> None:
    found = Forecast.spread(2.0, 0.1)
    assert found.p90_s / found.seconds == pytest.approx(found.seconds / found.p10_s) == pytest.approx(1.1367, rel=1e-4)


def test_an_unknown_predictor_names_the_nearest(mean: None) -> None:
    with pytest.raises(PredictorError, match="'meen' is unknown; nearest: mean"):
        predictor_class("meen")
    with pytest.raises(PredictorError, match="'mean' has no blind twin"):
        predictor_class("mean", blind=True)


def test_a_predictor_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.PREDICTORS, "absent", "no_such_module:Absent")
    with pytest.raises(MissingExtraError, match=r"precision-time\[predictors\]"):
        predictor_class("absent")


@pytest.mark.parametrize("name", sorted(registry.PREDICTORS))
def test_every_predictor_keeps_to_the_interface(name: str) -> None:
    found = predictor_class(name)
    assert isinstance(found(), Predictor)
    assert found.name == name


# --- train and predict --predictor


def test_train_then_predict(mean: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one of the published tables; tests/test_shipped_predictors.py reads all of them."""
    folder, tables = tmp_path / "trained", tmp_path / "data"
    (tables / STEPS).parent.mkdir(parents=True)
    shutil.copy(required_data_folder() / STEPS, tables / STEPS)
    assert main(["train", "mean", "--output", str(folder), "--tables", str(tables), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)["mean"]
    assert card["rows"] == card["runs_charged"] > 100
    words = ["predict", "resnet50", "--batch-size", "8", "--predictor", "mean", "--trained", str(folder)]
    assert main([*words, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert main([*words, "--steps", "10"]) == 0
    text = capsys.readouterr().out
    assert "run of 10 steps" in text
    assert "25%" in text
    assert "a mean" in text
    assert "published rows" in text
    assert "mean error held out, by job 12.5%" in text
    assert step["steps"] == 1
    assert step["p10_s"] < step["seconds"] == step["step_s"] < step["p90_s"]


def test_the_former_name_of_the_simulator_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "resnet50", "--batch-size", "8", "--json"]
    assert main([*words, "--predictor", "line"]) == 0
    former = capsys.readouterr()
    assert "now --predictor simulator" in former.err
    assert main([*words, "--predictor", "simulator"]) == 0
    present = capsys.readouterr()
    assert present.err == ""
    assert json.loads(former.out) == json.loads(present.out)
    assert predictor_class("line") is predictor_class("simulator")


def test_untrained_names_the_command(mean: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "resnet50", "--predictor", "mean"]) == 2
    assert "precision-time train mean --output FOLDER" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--predictor", "mean", "--trained", str(tmp_path)]) == 2
    assert "holds no trained 'mean' (it holds: none)" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--predictor", "mean", "--trace", "t.json"]) == 2
    assert "--trace needs the timeline of predictor simulator" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--predictor", "boosting", "--data", "storage=nfs-10gbe"]) == 2
    assert "data is known to predictor simulator only, not to boosting" in capsys.readouterr().err
    assert main(["train", "line"]) == 2  # the former name of the simulator
    assert "'simulator' needs no training" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["train", "mean", "--output", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_training_that_fails_leaves_what_was_there(
    mean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "mean", "--output", str(tmp_path), "--rows", FEW]
    assert main(words) == 0
    before = (tmp_path / "mean" / "mean.json").read_text()

    def fails(self: Mean, folder: Path) -> None:
        (folder / "half.json").write_text("{")
        raise PredictorError("the disk is full")

    monkeypatch.setattr(Mean, "save", fails)
    assert main(words) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert (tmp_path / "mean" / "mean.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mean"]
