"""`reproduce`, `train` and `predict --predictor`: the frame around the predictors, with one made for the test."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.papers import __main__ as papers
from benchmarks.papers import reproduce
from benchmarks.papers.report import Report, page
from benchmarks.papers.study import Claim, Context, Figure, Section, Table, Verdict
from precision_time.cli.main import main
from precision_time.errors import MissingExtraError, PredictorError
from precision_time.job import Job
from precision_time.predictors import registry, store
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, global_batch_size, steps_of
from precision_time.predictors.registry import predictor_class
from precision_time.report.errors import ErrorStatistics


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

    def cost(self) -> Cost:
        return Cost(len(self.seen), sum(m.cost_s for m in self.seen), 0.0)


@pytest.fixture
def mean(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("precision_time.predictors.mean")
    module.Mean = Mean  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "precision_time.predictors.mean", module)
    monkeypatch.setitem(registry.PREDICTORS, "mean", "mean:Mean")
    monkeypatch.setitem(store.LEARNS_FROM, "mean", ("runs",))


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


def test_a_predictor_without_its_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
    folder = tmp_path / "trained"
    assert main(["train", "mean", "--output", str(folder), "--json"]) == 0
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


def test_what_is_not_trained_says_how(mean: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main(["train", "mean", "--output", str(tmp_path)]) == 0
    before = (tmp_path / "mean" / "mean.json").read_text()

    def fails(self: Mean, folder: Path) -> None:
        (folder / "half.json").write_text("{")
        raise PredictorError("the disk is full")

    monkeypatch.setattr(Mean, "save", fails)
    assert main(["train", "mean", "--output", str(tmp_path)]) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert (tmp_path / "mean" / "mean.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mean"]


# --- reproduce


@pytest.mark.parametrize("words", [[], ["ernest"], ["--shared", "x"], ["--seed", "3", "--quick", "--json"]])
def test_the_former_command_says_where_it_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words]) == 2
    assert "`make reproduce` in a checkout" in capsys.readouterr().err


def _study(context: Context) -> Section:
    context.progress("counting", 1, 2)
    errors = {"all": ErrorStatistics.of([0.5, -0.1]), "fp32": ErrorStatistics.of([0.5])}
    return Section(
        "ernest", "Ernest & friends", ("First <words>.",),
        (Claim("error", "<= 10 %", "12 %", False, "too few runs"), Claim("ratio", "9.8x", "3x", None)),
        (Table("By network", ("network", "MAPE"), (("a", "1 %"), ("b", "2 %"))),),
        (Figure("A line", "<svg xmlns='http://www.w3.org/2000/svg'></svg>"),),
        (Verdict("ernest", "real runs", "job", errors, 90.0, None),),
        {"rows": len(context.runs), "seed": context.seed, "quick": context.quick},
    )  # fmt: skip


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(context: Context) -> Section:
        raise PredictorError("it has no rows")

    for name, study in (("ernest", _study), ("cherrypick", refuses)):
        module = ModuleType(f"benchmarks.papers.{name}")
        module.study = study  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_study_that_fails_does_not_end_the_others(studies: None) -> None:
    heard: list[tuple[Any, ...]] = []
    found = reproduce.reproduce(["cherrypick", "ernest"], seed=3, workers=1, progress=lambda *what: heard.append(what))
    assert [s.key for s in found.sections] == ["ernest"]
    assert found.failed == {"cherrypick": "it has no rows"}
    data = found.to_dict()["studies"]["ernest"]
    assert data["data"]["seed"] == 3
    assert data["data"]["rows"] > 100
    assert data["claims"][0]["met"] is False
    assert "too few runs" in str(found)
    assert all(what[0] in ("ernest", "cherrypick") for what in heard)


def test_all_stand_in_one_table(studies: None) -> None:
    found = reproduce.reproduce(["ernest"], workers=1)
    table = found.side_by_side
    assert table is not None
    assert dict(zip(table.header, table.rows[0], strict=True)) == {
        "predictor": "ernest", "rows": "real runs", "held out": "job", "n": "2", "MAPE": "30.0%", "median": "30.0%",
        "P90": "46.0%", "signed": "+20.0%", "fp32": "50.0%", "measured": "90.0 s", "call": "-",
    }  # fmt: skip
    assert found.to_dict()["side_by_side"][0]["errors"]["fp32"]["n"] == 1
    assert "46.0%" in str(found)


def test_the_command_writes_page_and_data(
    studies: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "cores", lambda: 1)
    assert papers.main(["ernest", "--quick", "--output", str(tmp_path / "out")]) == 0
    assert "missed" in capsys.readouterr().out
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["studies"]["ernest"]["data"]["quick"] is True
    text = (tmp_path / "out" / "report.html").read_text()
    assert "First &lt;words&gt;." in text
    assert "<figure><svg" in text
    lines = (tmp_path / "out" / "report.md").read_text().splitlines()
    assert "| network | MAPE |" in lines
    assert lines[lines.index("| network | MAPE |") + 1] == "| --- | ---: |"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["earnest"], "study 'earnest' is unknown; nearest: ernest"),
     (["--data", "/nowhere"], "has no published"), (["--output", __file__], "is a file; name a folder"),
     (["--real-runs", "/nowhere"], "cannot be read")],
)  # fmt: skip
def test_wrong_words_are_said_before_the_work(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert papers.main(words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class _Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    section = _study(Context((), (), ()))
    text = page(Report((section,), {"ernest": 2.0}, {"additive": "no <device>"}, {"date": "today"}))
    parser = _Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "src=" not in text
    assert "no &lt;device&gt;" in text
    assert text.count("too few runs") == 2  # in the summary and in its section
