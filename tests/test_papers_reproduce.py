"""`python -m benchmarks.papers`: its command line, failures of a study, and the report."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import code_digest
from benchmarks.papers import __main__ as papers
from benchmarks.papers import reproduce
from benchmarks.papers.report import Report, page
from benchmarks.papers.study import Claim, Context, Figure, Section, Table, Verdict, large_caches
from precision_time.bounded_cache import BUDGET
from precision_time.errors import DataError, PredictorError
from precision_time.reading import to_json
from precision_time.report.errors import ErrorStatistics


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


def test_an_error_of_no_rows_is_null_in_the_files() -> None:
    data = {"mape": float("nan"), "by": [{"fp32": (0.5, float("inf"))}]}
    section = Section("ernest", "Ernest", (), data=data)
    again = json.loads(to_json(section.to_dict()))
    assert again["data"] == {"mape": None, "by": [{"fp32": [0.5, None]}]}
    assert Section.from_dict(again).data["by"] == [{"fp32": [0.5, None]}]


def test_caches_are_large_only_during_a_study() -> None:
    usual = BUDGET.limit_bytes
    with large_caches():
        assert BUDGET.limit_bytes > 10 * usual
    assert BUDGET.limit_bytes == usual


def test_a_report_that_was_interrupted_goes_on(studies: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished study is not run again, unless tables, shipped data, code, versions or settings differ."""
    journal, names = tmp_path / "studies.jsonl", ["ernest", "cherrypick"]
    before = reproduce.reproduce(names, workers=1, journal=journal)

    def runs_again(context: Context) -> Section:
        raise AssertionError("ernest was finished")

    monkeypatch.setattr(sys.modules["benchmarks.papers.ernest"], "study", runs_again)
    again = reproduce.reproduce(names, workers=1, journal=journal)
    assert again.sections == before.sections
    assert again.failed == before.failed
    with pytest.raises(DataError, match="was begun with made from"):
        reproduce.reproduce(names, workers=1, journal=journal, seed=5)


def test_a_report_is_not_continued_on_other_data_or_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of file that a study reads changes what the journal was made from."""
    data, package, papers_code = tmp_path / "data", tmp_path / "package", tmp_path / "papers"
    for module in (reproduce, code_digest):
        monkeypatch.setattr(module, "ROOT", package)
    monkeypatch.setattr(reproduce, "__file__", str(papers_code / "reproduce.py"))
    files = [
        data / "published" / "measurements.csv", data / "traced" / "facts.parquet", package / code_digest.MANIFEST,
        package / "predictors" / "trained" / "trees.txt", package / "job" / "job.py", papers_code / "ernest.py",
    ]  # fmt: skip
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before", encoding="utf-8")
    about = {"versions": "1", "rows": "2", "seed": "0"}
    made_from = reproduce._digest(data, None, about)
    assert reproduce._digest(data, None, about) == made_from
    for file in files:
        file.write_text("after", encoding="utf-8")
        assert reproduce._digest(data, None, about) != made_from, file
        file.write_text("before", encoding="utf-8")
    assert reproduce._digest(data, None, {**about, "seed": "1"}) != made_from


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
def test_bad_arguments_are_refused_before_the_work(
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
