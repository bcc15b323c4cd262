"""The command `search`: what it prints and keeps, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attack.mutate import bad_value, mutated, mutated_text
from precision_time.cli.main import main
from precision_time.errors import DataError
from precision_time.predictors.search_state import State, read_state
from precision_time.predictors.search_table import MOST_CONFIGURATIONS, MOST_RESULTS, read_search_table

pytest.importorskip("scipy")

TABLE = """id,machine,machines,off,price_per_hour
a,m4,2,-1,0.4
b,m4,4,0,0.8
c,m4,8,2,1.6
d,c4,2,1,0.35
e,c4,4,0,0.7
f,r3,8,0,1.4
"""
SECONDS = {"a": 900.0, "b": 460.0, "c": 260.0, "d": 800.0, "e": 410.0, "f": 300.0}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text(TABLE, encoding="utf-8")
    return "table.csv"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["search", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["search", *words]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    return out.err


def test_features_of_a_table(table: str) -> None:
    found = read_search_table(table).configurations
    assert found.feature_names == ("machine c4", "machine m4", "machine r3", "log machines", "off")
    assert list(found.features[2]) == [0.0, 1.0, 0.0, math.log(8.0), 2.0]
    assert found.price_per_s[0] == pytest.approx(0.4 / 3600)
    assert list(read_search_table(table, "time").configurations.price_per_s) == [1.0] * 6


def test_a_search_goes_on_from_its_state_as_if_it_had_not_stopped(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = asked(capsys, table, "--state", "state.json", "--deadline", "500s", "--seed", "3")
    assert first["next"]["expected_improvement"] is None
    results: list[str] = []
    answer = first
    while answer["next"] is not None:
        name = answer["next"]["id"]
        results += ["--result", f"{name}={SECONDS[name]}"]
        answer = asked(capsys, table, "--state", "state.json", *results[-2:])
        assert answer["deadline_s"] == 500.0
        assert answer["best"] is None or answer["best"]["seconds"] <= 500.0
    at_once = asked(capsys, table, "--deadline", "500", "--seed", "3", *results)
    assert at_once == answer
    assert answer["stopped"]
    assert (
        answer["best"]["id"]
        == min((each for each in answer["results"] if each["meets_deadline"]), key=lambda each: each["cost"])["id"]
    )


def test_the_text_says_why(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", table]) == 0
    text = capsys.readouterr().out
    assert "quasi-random start 1 of 3" in text
    assert "=SECONDS', or =failed" in text
    told = ["--result", "a=900", "--result", "b=460", "--result", "f=failed", "--result", "d=800"]
    assert main(["search", table, *told, "--deadline", "500"]) == 0
    text = capsys.readouterr().out
    assert "failed: f\n" in text
    assert "best so far: b in 7.67 min, cost 0.1022" in text
    assert "likely to meet the deadline: the largest for its cost" in text
    assert main(["search", table, *told, "--deadline", "1"]) == 0
    assert "no run has met the deadline so far" in capsys.readouterr().out
    everything = [word for name, seconds in SECONDS.items() for word in ("--result", f"{name}={seconds}")]
    assert main(["search", table, *everything, "--objective", "time"]) == 0
    text = capsys.readouterr().out
    assert "best so far: c in 4.33 min\n" in text
    assert text.endswith("stop: all 6 measured\n")


def test_results_of_the_table_count_and_later_ones_replace_them(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = TABLE.splitlines()
    cells = ["seconds", "900", "", "failed", "", "", ""]
    Path(table).write_text("\n".join(f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)))
    answer = asked(capsys, table)
    assert ([each["id"] for each in answer["results"]], answer["failed"]) == (["a"], ["c"])
    assert main(["search", table, "--result", "c=260", "--state", "s.json"]) == 0
    assert "the result of c was failed and is now 260 s" in capsys.readouterr().err
    answer = asked(capsys, table, "--state", "s.json")
    assert {each["id"]: each["seconds"] for each in answer["results"]} == {"a": 900.0, "c": 260.0}


def test_the_grid_around_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("model: resnet50\nrun: {samples: 1000000}\n", encoding="utf-8")
    axes = ["--gpu", "t4", "--gpus", "1,4", "--precision", "amp-fp16", "--batch-size", "32,64"]
    answer = asked(capsys, "job.yaml", *axes, "--result", "4 x t4, amp-fp16, batch 64=3000")
    assert answer["configurations"] == 4
    assert answer["best"]["cost"] == pytest.approx(3000 * 3.912 / 3600, rel=0.2)  # four T4 of AWS
    assert "whole numbers" in refused(capsys, "job.yaml", *axes, "--gpus", "0")
    Path("job.yaml").write_text("model: resnet50\n", encoding="utf-8")
    assert "no length" in refused(capsys, "job.yaml", *axes)


WRONG_TABLES = [
    ("", "no column id"),
    ("id,n\n", "has no configurations"),
    ("n,price_per_hour\n1,2\n", "no column id"),
    ("id,n,price_per_hour\na,1,1\na,2,1\n", "the id 'a' again"),
    ("id,n,price_per_hour\n,1,1\n", "has no id"),
    ("id,n\na,1\n", "no column price_per_hour"),
    ("id,n,price_per_hour,price_per_s\na,1,1,1\n", "both"),
    *[
        (f"id,n,price_per_hour\na,1,{price}\n", "must be a number")
        for price in ("nan", "inf", "-1", "0", "x", "", "1e-200")
    ],
    *[(f"id,n,price_per_hour,seconds\na,1,1,{s}\n", "is no result") for s in ("nan", "inf", "-1", "0", "x", "1e300")],
    ("id,n,price_per_hour\na,,1\n", "has no n"),
    ("id,price_per_hour\na,1\n", "tells configurations apart"),
    ("id,n,price_per_hour\n" + "".join(f"{i},t{i},1\n" for i in range(51)), "51 different texts"),
    ("id,n,price_per_hour\n" + "".join(f"{i},{i},1\n" for i in range(MOST_CONFIGURATIONS + 1)), "more than 1,000"),
    ("id,n,price_per_hour,seconds\n" + "".join(f"{i},{i},1,1\n" for i in range(MOST_RESULTS + 1)), "more than 100"),
    ("id,n,price_per_hour\na,1,1,1\n", "4 cells for 3"),
    ("id,n,n,price_per_hour\na,1,1,1\n", "twice"),
]


@pytest.mark.parametrize(("text", "said"), WRONG_TABLES)
def test_wrong_tables(text: str, said: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(table).write_text(text, encoding="utf-8")
    assert said in refused(capsys, table, "--state", "s.json")
    assert not Path("s.json").exists()


WRONG_WORDS = [
    ([], "no table is given"),
    (["none.csv"], "cannot be read"),
    (["table.csv", "--result", "a"], "write ID=SECONDS"),
    (["table.csv", "--result", "a=nan"], "is no result"),
    (["table.csv", "--result", "a=-3"], "is no result"),
    (["table.csv", "--result", "a=1", "--result", "a=2"], "twice"),
    (["table.csv", "--result", "z=1"], "unknown; nearest"),
    (["table.csv", "--deadline", "0"], "deadline 0.0 must be"),
    (["table.csv", "--deadline", "-1"], "deadline -1.0 must be"),
    (["table.csv", "--deadline", "soon"], "--deadline is 'soon'"),
    (["table.csv", "--objective", "costs"], "nearest: cost"),
    (["table.csv", "--setting", "paper"], "is unknown"),
    (["table.csv", "--seed", "-1"], "--seed is '-1'"),
    (["table.csv", "--gpu", "t4"], "is for a job file"),
    (["table.csv", "--price", "aws"], "is for a job file"),
    (["table.csv", "--state", "table.csv"], "is an input"),
    (["table.csv", "--state", "no/state.json"], "make it first"),
]


@pytest.mark.parametrize(("words", "said"), WRONG_WORDS)
def test_wrong_words(words: list[str], said: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *words)
    assert sorted(each.name for each in Path().iterdir()) == ["table.csv"]


def test_a_refused_result_leaves_the_state_as_it_was(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked(capsys, table, "--state", "s.json", "--result", "a=900")
    before = Path("s.json").read_bytes()
    assert "unknown" in refused(capsys, table, "--state", "s.json", "--result", "b=460", "--result", "z=1")
    assert "begun with objective cost, not time" in refused(capsys, table, "--state", "s.json", "--objective", "time")
    assert "begun with deadline_s None" in refused(capsys, table, "--state", "s.json", "--deadline", "3")
    assert Path("s.json").read_bytes() == before
    assert sorted(each.name for each in Path().iterdir()) == ["s.json", "table.csv"]


GOOD = {"search": 1, "objective": "cost", "deadline_s": 5.0, "setting": "improved", "seed": 0, "results": []}
WRONG_STATES = [
    ("[]", "no state of a search"),
    ("{}", "no state of a search"),
    ("{", "not valid JSON"),
    (json.dumps({"search": 1}), "has no deadline_s"),
    (json.dumps({**GOOD, "seed": "1"}), "seed '1'"),
    (json.dumps({**GOOD, "seed": True}), "seed True"),
    (json.dumps({**GOOD, "deadline_s": -5}), "deadline -5"),
    (json.dumps({**GOOD, "objective": ["cost"]}), "objective ['cost'] is unknown"),
    (json.dumps({**GOOD, "results": {}}), "must be a list"),
    (json.dumps({**GOOD, "results": [{"id": "a"}]}), "must have id and seconds"),
    (json.dumps({**GOOD, "results": [{"id": 1, "seconds": 1}]}), "must have id and seconds"),
    (json.dumps({**GOOD, "results": [{"id": "a", "seconds": -1}]}), "must be above 0"),
    (json.dumps({**GOOD, "results": [{"id": "a", "seconds": "1"}]}), "must be above 0"),
    (json.dumps({**GOOD, "results": [{"id": "a", "seconds": 1}] * 2}), "again"),
    (json.dumps({**GOOD, "results": [{"id": "gone", "seconds": 1}]}), "'gone' is unknown"),
    (json.dumps(GOOD).replace("5.0", "NaN"), "NaN"),
    (json.dumps(GOOD).replace("5.0", "1e999"), "no number"),
]


@pytest.mark.parametrize(("text", "said"), WRONG_STATES)
def test_wrong_states(text: str, said: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.json").write_text(text, encoding="utf-8")
    assert said in refused(capsys, table, "--state", "s.json", "--result", "a=900")
    assert Path("s.json").read_text() == text


def test_a_state_is_what_was_written(tmp_path: Path) -> None:
    state = State("time", 3.5, "authors", 7, {"a": 1.0, "b": None})
    state.write(tmp_path / "s.json")
    assert read_state(tmp_path / "s.json") == state
    assert read_state(tmp_path / "none.json") is None
    with pytest.raises(DataError, match="more than the 100"):
        state.with_results({str(i): 1.0 for i in range(MOST_RESULTS)})


def test_mutated_tables_and_states(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = random.Random(5)
    for _ in range(60):
        text = mutated_text(source, TABLE + "g,r3,2,1,0.6\n")
        Path(table).write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
        full = {**GOOD, "results": [{"id": "a", "seconds": 900.0}]}
        state = mutated(source, full, True) if source.random() < 0.5 else full
        Path("s.json").write_text(json.dumps(state), encoding="utf-8")
        word = str(bad_value(source)).replace("\x00", "")
        code = main(
            ["search", table, "--state", "s.json", *(["--result", f"b={word}"] if source.random() < 0.3 else [])]
        )
        out = capsys.readouterr()
        assert code in (0, 2), text
        assert code == 0 or (out.out == "" and out.err.count("\n") == 1), out.err
        assert "nan" not in out.out


def test_without_scipy_it_says_what_to_install(table: str) -> None:
    program = (
        "import sys\nfor name in ('scipy', 'sklearn'): sys.modules[name] = None\n"
        "from precision_time.cli.main import main\nsys.exit(main(['search', 'table.csv', '--state', 's.json']))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "a search needs scipy: pip install 'precision-time[predictors]'" in found.stderr
    assert found.stderr.count("\n") == 1
    assert not Path("s.json").exists()


# --- runs of a command --------------------------------------------------------------------------------------------

JOB = """import sys, time
open("order", "a").write(sys.argv[1] + "\\n")
if sys.argv[1] == "d":
    sys.exit(3)
time.sleep({"a": 0.09, "b": 0.05, "c": 0.03, "e": 0.04, "f": 0.03}[sys.argv[1]])
"""


def test_a_command_is_run_until_the_search_stops_and_goes_on_after_an_end(table: str, capfd: Any) -> None:
    Path("job.py").write_text(JOB, encoding="utf-8")
    words = ("search", table, "--state", "state.json", "--run", f"{sys.executable} job.py {{id}}", "--json")
    assert main([*words, "--most-runs", "2"]) == 0
    first = json.loads(capfd.readouterr().out)
    assert first["tried"] == 2
    assert main([*words]) == 0
    content = json.loads(capfd.readouterr().out)
    order = Path("order").read_text(encoding="utf-8").split()
    assert len(order) == len(set(order)) == content["tried"]
    assert content["stopped"]
    assert content["next"] is None
    assert content["failed"] == (["d"] if "d" in order else [])
    state = read_state("state.json")
    assert state is not None
    assert list(state.results) == order
    assert all(0.02 < seconds < 30 for seconds in state.results.values() if seconds is not None)


@pytest.mark.parametrize(("words", "reason"), [
    (("--run", "true {id}"), "needs --state FILE"),
    (("--run", "true", "--state", "s.json"), "does not say where the configuration goes; write {id} there"),
    (("--run", "true '{id}", "--state", "s.json"), "cannot be split into words"),
    (("--run", "true {id}", "--state", "s.json", "--most-runs", "0"), "--most-runs is '0'"),
    (("--most-runs", "2"), "is for --run COMMAND"),
])  # fmt: skip
def test_commands_that_cannot_be_run(table: str, capsys: Any, words: tuple[str, ...], reason: str) -> None:
    assert reason in refused(capsys, table, *words)
    assert not Path("s.json").exists()


def test_a_command_that_does_not_start_says_so_and_keeps_the_state(table: str, capsys: Any) -> None:
    assert main(["search", table, "--state", "s.json", "--run", "./no-such-program {id}"]) == 2
    assert "cannot be started" in capsys.readouterr().err
    assert read_state("s.json") == State()
