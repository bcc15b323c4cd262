"""`stagger` from end to end: real jobs, real files over HTTP from an nginx of limited speed, a real cache folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_time.cli.main import main
from precision_time.errors import IngestError
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns
from precision_time.ingest.stagger.calibration import Calibration, calibrate
from precision_time.ingest.stagger.inversion import PairRates, SoloRates
from precision_time.ingest.stagger.jobs_file import jobs_of
from precision_time.ingest.stagger.staggered_run import Measured, run_jobs
from precision_time.ingest.stagger.staggering import Staggering, stagger
from precision_time.ingest.stagger.staggering_text import describe_start, measured_text, sparkline, text
from precision_time.ingest.stagger.trace_rates import Rate

SAMPLES, PER_S = 240, 150
JOB = Path(__file__).parent / "stagger_job.py"

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None and not Path("/usr/sbin/nginx").exists(), reason="nginx serves the files; install it"
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    from benchmarks.rigs.local_server import LocalServer

    data = tmp_path / "data"
    data.mkdir()
    for index in range(SAMPLES):
        (data / f"{index}.bin").write_bytes(b"x" * 1000)
    with LocalServer(data, requests_per_s=PER_S) as server:
        yield server.url


def function_job(name: str, url: str, epochs: int, **arguments: Any) -> dict[str, Any]:
    return {
        "name": name, "run": f"python:{JOB}:train", "epochs": epochs,
        "arguments": {"root": url, "cache": "cache", **arguments},
    }  # fmt: skip


def command_job(name: str, url: str, epochs: int, more: str = "", progress: str | None = None) -> dict[str, Any]:
    words = "--samples {samples} --first {first} --epochs {epochs}"
    return {
        "name": name, "run": f"{sys.executable} {JOB} --root {url} --cache cache {words} {more}", "epochs": epochs,
        "progress": progress,
    }  # fmt: skip


def write(folder: Path, *jobs: dict[str, Any], **words: Any) -> Path:
    content = {
        "samples": SAMPLES, "cache": {"reset": {"folder": "cache"}}, "calibration": {"samples": 48},
        "jobs": list(jobs), **words,
    }  # fmt: skip
    path = folder / "jobs.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
@needs_nginx
def test_from_calibration_to_a_measured_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that waits for its data beside one whose work is slow, told by its log lines."""
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path,
        function_job("reader", url, 3),
        command_job("thinker", url, 2, "--work-s 0.008 --log", r"samples=(?P<samples>\d+)"),
    )
    assert main(["stagger", str(path), "--run", "--json", "--plot", "curve.png"]) == 0
    answer = json.loads(capsys.readouterr().out)
    reader, thinker = answer["calibration"]["jobs"]
    assert reader["storage_s"] == pytest.approx(1 / PER_S, rel=0.3)
    assert reader["hot_s"] < 0.7 / PER_S
    assert thinker["hot_s"] == pytest.approx(0.008, rel=0.6)
    assert reader["bytes_per_sample"] == pytest.approx(1000)
    # predicted in a minute's calibration, run for real: the model is judged elsewhere, here only that it is meant
    assert answer["run"]["makespan_s"] == pytest.approx(answer["advised"]["makespan_s"], rel=0.6)
    assert answer["run"]["offsets_s"] == list(answer["advised"]["offsets_s"].values())
    assert (tmp_path / "curve.png").stat().st_size > 10_000

    # again: nothing is measured twice, and the text says so
    assert main(["stagger", str(path), "--offset", "1.5"]) == 0
    said = capsys.readouterr().out
    for words in ("calibration took", "of one makespan", "reader first, thinker later:", "P10 - P90", "asked for:",
                  "one after the other", "after a full first epoch", "best"):  # fmt: skip
        assert words in said
    cost = answer["calibration"]["cost_s"]
    assert f"({said.split('calibration took ')[1].split(' (')[0]} of it earlier)" in said
    assert cost > 0


@needs_nginx
def test_a_job_that_dies_in_calibration_leaves_what_was_measured(url: str, tmp_path: Path) -> None:
    bad = function_job("bad", url, 2, die_at=60, batch_size=3)  # in the second epoch of its first window
    file = jobs_of(json.loads(write(tmp_path, function_job("good", url, 2), bad).read_text()), tmp_path)
    with pytest.raises(IngestError, match=r"job 'bad' died in calibration, with exit code 1.*the loss is not a number"):
        calibrate(file, tmp_path / "out")
    kept = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()[1:]  # after the header
    assert {name for line in kept for name in json.loads(line)["jobs"]} == {"good"}
    bad["arguments"].pop("die_at")
    file = jobs_of(json.loads(write(tmp_path, function_job("good", url, 2), bad).read_text()), tmp_path)
    found = calibrate(file, tmp_path / "out")
    assert found.reused_s == pytest.approx(sum(json.loads(line)["cost_s"] for line in kept))
    assert found.cost_s > found.reused_s


@needs_nginx
def test_a_job_that_dies_in_the_run_does_not_harm_the_other(url: str, tmp_path: Path) -> None:
    file = jobs_of(
        json.loads(write(tmp_path, function_job("a", url, 1), function_job("b", url, 1, die_at=100)).read_text()),
        tmp_path,
    )
    with pytest.raises(IngestError, match=r"job 'b' died in the staggered run.*job 'a' ran on to its end"):
        run_jobs(file, [0.0, 0.1], tmp_path / "out")


def test_a_storage_that_refuses_and_data_that_is_not_there(tmp_path: Path) -> None:
    refusing = function_job("a", "http://127.0.0.1:9", 1)  # nobody listens on the discard port
    file = jobs_of(json.loads(write(tmp_path, refusing, refusing | {"name": "b"}).read_text()), tmp_path)
    with pytest.raises(IngestError, match=r"job 'a' died in calibration.*Connection refused"):
        calibrate(file, tmp_path / "out")


@needs_nginx
def test_an_empty_data_set_or_one_that_is_smaller_than_said(url: str, tmp_path: Path) -> None:
    job = {"run": f"{sys.executable} {JOB} --root {url} --cache cache --samples 0", "name": "a"}
    file = jobs_of(json.loads(write(tmp_path, job, job | {"name": "b"}).read_text()), tmp_path)
    with pytest.raises(IngestError, match=r"job 'a' died.*no files in the data set"):
        calibrate(file, tmp_path / "out")
    one = function_job("a", url, 1)
    given = json.loads(write(tmp_path, one, one | {"name": "b"}, samples=2000).read_text())
    given["calibration"]["samples"] = 400
    with pytest.raises(IngestError, match=r"job 'a' died.*404"):
        calibrate(jobs_of(given, tmp_path), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
@needs_nginx
def test_commands_that_cannot_read_a_subset(url: str, tmp_path: Path) -> None:
    """Windows of seconds from an empty cache; hot ones after a full first epoch, whose cost is said."""
    words = f"{sys.executable} {JOB} --root {url} --cache cache --samples {SAMPLES} --epochs 6"
    jobs = [
        {"name": "a", "run": words, "epochs": 6},
        {"name": "b", "run": f"{words} --work-s 0.002", "epochs": 6},
    ]
    given = json.loads(write(tmp_path, *jobs).read_text())
    given["calibration"] = {"window_s": 0.6}
    found = calibrate(jobs_of(given, tmp_path), tmp_path / "out")
    assert [seen.cold.seconds for seen in found.solo] == pytest.approx([1 / PER_S] * 2, rel=0.5)
    assert found.solo[1].hot.seconds == pytest.approx(0.002, rel=0.6)
    assert any("took a full first epoch" in note for note in found.notes)
    assert any("cannot read a half-cached subset" in note for note in found.notes)
    answer = stagger(found)
    assert answer.best.makespan_s <= answer.together.makespan_s


def calibration(error: float = 0.0, jobs: int = 2, capacity: float | None = None, storage: float = 4.0) -> Calibration:
    """Made up: two readers and, on request, more; rates with this error, as a share."""
    rates = tuple(
        JobRates(name, 1000, epochs, hot_s=hot, storage_s=0.01)
        for name, epochs, hot in (("a", 2, 0.001), ("b", 4, 0.009), ("c", 1, 0.004))[:jobs]
    )
    effects = Slowdowns.uniform(jobs, storage=storage)  # 4: it hates two readers, so that staggering pays

    def rate(seconds: float) -> Rate:
        return Rate(seconds, error * seconds)

    seen = tuple(SoloRates(j.name, rate(j.time_s(1.0)), rate(j.hot_s), None) for j in rates)
    pair = PairRates((rate(0.04), rate(0.04)), (rate(0.001), rate(0.009)))
    chance = np.random.default_rng(0)
    draws = tuple(
        (
            tuple(
                JobRates(j.name, j.samples, j.epochs, hot_s=j.hot_s * float(np.exp(error * chance.normal())),
                         storage_s=j.storage_s * float(np.exp(error * chance.normal())))
                for j in rates
            ),
            effects,
        )
        for _ in range(12)
    )  # fmt: skip
    pairs = {(i, j): pair for i in range(jobs) for j in range(i + 1, jobs)}
    cache = SharedCache(capacity)
    return Calibration(rates, effects, cache, seen, pairs, draws, 10.0, 0.0, ("a note",))


def test_the_best_start_beats_all_plain_ones() -> None:
    answer = stagger(calibration(error=0.01))
    assert all(answer.best.makespan_s <= way.makespan_s for way in answer.others)
    assert answer.sure
    assert answer.advised is answer.best
    assert answer.launch is answer.best
    for curve in answer.curves:
        assert (curve.low_s <= curve.makespan_s).all()
        assert (curve.makespan_s <= curve.high_s).all()
        assert len(curve.offsets_s) == 100
    said = text(answer)
    assert "less than together" in said
    assert "note: a note" in said


def test_a_gain_within_the_uncertainty_is_not_advised() -> None:
    answer = stagger(calibration(error=0.2, storage=1.5))
    assert answer.gain_s > 0
    assert not answer.sure
    assert answer.advised is answer.together
    assert "within the uncertainty" in text(answer)
    assert "start them together" in text(answer)


def test_orders_and_an_offset_of_the_user() -> None:
    found = calibration()
    both = stagger(found)
    given, back = stagger(found, orders="given"), stagger(found, orders="reversed")
    assert [curve.order for curve in (*given.curves, *back.curves)] == [(0, 1), (1, 0)]
    assert both.best.makespan_s == pytest.approx(min(given.best.makespan_s, back.best.makespan_s), rel=0.01)
    assert back.best.offsets_s[1] == 0.0
    asked = stagger(found, offset_s=3.0)
    assert asked.chosen is not None
    assert asked.launch is asked.chosen
    assert max(asked.chosen.offsets_s) == 3.0


def test_three_jobs() -> None:
    answer = stagger(calibration(jobs=3))
    assert answer.curves == ()
    assert all(answer.best.makespan_s <= way.makespan_s * 1.001 for way in answer.others)
    assert min(answer.best.offsets_s) == 0.0
    assert all(name in text(answer) for name in "abc")
    with pytest.raises(IngestError, match="one offset is not enough for more than two jobs"):
        stagger(calibration(jobs=3), offset_s=1.0)
    with pytest.raises(IngestError, match="at least two jobs"):
        stagger(calibration(jobs=1))


def test_a_cache_that_is_too_small_brings_the_no_eviction_cache_up() -> None:
    small = replace(calibration(capacity=400.0), draws=())
    names = [way.name for way in stagger(small, points=20).alternatives]
    assert any(name.startswith("no-eviction cache") for name in names)
    names = [way.name for way in stagger(calibration(capacity=4000.0)).alternatives]
    assert not any(name.startswith("no-eviction cache") for name in names)


def test_words_of_the_answer() -> None:
    answer: Staggering = stagger(calibration(), offset_s=2.5)
    assert describe_start(answer, answer.together) == "all together"
    assert describe_start(answer, answer.launch) in ("a first, b 2.500 s later", "a first, b 2.50 s later",
                                                  "b first, a 2.50 s later")  # fmt: skip
    measured = Measured(answer.launch.offsets_s, answer.launch.finish_s, (None, None))
    assert measured_text(answer, measured).count("+0.0%") == 3
    assert sparkline(np.array([1.0, 2.0, 3.0])) == "▁▅█"
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
@needs_nginx
def test_the_example_of_a_data_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/stagger/train.py: real JPEG pictures, a real DataLoader with workers, a real file cache."""
    pytest.importorskip("torch")
    pytest.importorskip("fsspec")
    from benchmarks.rigs.local_server import LocalServer
    from precision_time.ingest.storage.pictures import Recipe, make

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("precision_time.ingest.stagger.sample_rates.MOST_REPEATS", 1)
    make(tmp_path / "pictures", 120, Recipe(size=32))
    train = Path(__file__).parent.parent / "examples" / "stagger" / "train.py"
    with LocalServer(tmp_path / "pictures", requests_per_s=100) as server:
        jobs = [
            {"name": name, "run": f"python:{train}:train", "epochs": epochs,
             "arguments": {"root": server.url, "cache": "cache", "batch_size": 4, "workers": 1, "seed": epochs}}
            for name, epochs in (("a", 2), ("b", 3))
        ]  # fmt: skip
        given = json.loads(write(tmp_path, *jobs, samples=120, calibration={"samples": 72}).read_text())
        file = jobs_of(given, tmp_path)
        found = calibrate(file, tmp_path / "out")
        answer = stagger(found)
        measured = run_jobs(file, answer.launch.offsets_s, tmp_path / "out")
    assert [job.storage_s for job in found.jobs] == pytest.approx([0.01, 0.01], rel=0.4)
    assert found.slowdowns.storage[0][1] == pytest.approx(2.0, rel=0.5)
    assert answer.launch.makespan_s == pytest.approx(measured.makespan_s, rel=0.8)
