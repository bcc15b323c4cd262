"""Real runs of small networks: the plan, the table by hand, the command killed and continued, the committed runs."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precision_time.cli.main import main  # noqa: E402
from precision_time.errors import DataError, MeasureError, PredictorError  # noqa: E402
from precision_time.job.datasets import find_dataset  # noqa: E402
from precision_time.journal import Journal, read  # noqa: E402
from precision_time.measure import kernel_support, small_runs  # noqa: E402
from precision_time.measure.calibrate import Machine  # noqa: E402
from precision_time.measure.runs_table import CARD, TABLE, drift_of, write_table  # noqa: E402
from precision_time.measure.small_runs import (  # noqa: E402
    LONG_PASS_S,
    NETWORKS,
    Configuration,
    collect,
    configurations,
    turn_label,
)
from precision_time.predictors.interface import steps_of  # noqa: E402
from precision_time.predictors.runs import DEVICE, read_runs  # noqa: E402

COMMITTED = Path(__file__).parents[1] / "data" / "small_networks"
HERE = Machine("cpu", 2, 1)
ONE = Configuration("small-lenet5", "cifar-10", 32, 10, "fp32", 2, 16, 128)
HEAD = {"machine": "a box", "torch": "9", "threads": 1, "warmup_steps": 2}


# --- the plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_every_pass_is_a_whole_number_of_steps(device_type: str) -> None:
    plan = configurations(NETWORKS, (1, 2), device_type)
    assert len({each.label for each in plan}) == len(plan) == len(NETWORKS) * 2 * 2 * 2 * 5
    assert all(each.samples % (each.batch_size * each.workers) == 0 for each in plan)
    kinds = {(e.dataset, e.image_size, e.classes) for e in plan}
    assert kinds == {("cifar-10", 32, 10), ("tiny-imagenet", 64, 200)}
    for dataset, *_ in kinds:
        largest = max(e.samples for e in plan if e.dataset == dataset)
        assert {largest // e.samples for e in plan if e.dataset == dataset} == {1, 2, 4, 8}
        assert largest <= find_dataset(dataset).size


def test_a_short_budget_leaves_equally_many_passes_per_network() -> None:
    plan = configurations(NETWORKS, (1, 2), "cpu")
    for length in range(1, len(plan), 7):
        counts = Counter(each.model for each in plan[:length])
        assert max(counts.values()) - min(counts.get(name, 0) for name in NETWORKS) <= 1


def test_long_passes_are_measured_twice_and_refused_ones_never_again() -> None:
    short, long = {"pass_s": 0.9 * LONG_PASS_S}, {"pass_s": 1.1 * LONG_PASS_S}
    lacks = lambda turn, *records: small_runs._lacks(  # noqa: E731
        ONE, turn, {turn_label(ONE, t): record for t, record in enumerate(records)}
    )
    assert [lacks(0), lacks(1, short), lacks(2, short, short)] == [True, True, True]
    assert [lacks(0, short), lacks(1, short, short)] == [False, False]
    assert [lacks(1, long), lacks(2, long, long)] == [True, False]
    assert not lacks(1, {"refused": "no"})


def test_a_configuration_is_a_job() -> None:
    job = ONE.job()
    assert (job.model, job.gpus, job.batch_size, job.optimizer) == ("small-lenet5", 2, 16, "sgd")
    assert (job.run.samples, job.run.dataset) == (128, "cifar10")
    assert steps_of(job) == 4


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_by_hand(tmp_path: Path) -> None:
    records = {
        turn_label(ONE, turn): {"pass_s": seconds, "cost_s": 1.5, "at": f"2026-01-0{turn + 1}T00:00:00"}
        for turn, seconds in enumerate((0.2, 0.1, 0.4))
    }
    found = write_table(tmp_path, HERE, HEAD, configurations(["small-lenet5"], (1, 2), "cpu"), records, 7)
    (row,) = csv.DictReader((tmp_path / TABLE).read_text(encoding="utf-8").splitlines())
    # four steps of 2 x 16; logs of 0.1, 0.2, 0.4 are ln 2 apart, so their standard deviation is ln 2
    assert (float(row["pass_s"]), float(row["step_time_s"]), float(row["cost_s"])) == (0.2, 0.05, 4.5)
    assert float(row["spread"]) == pytest.approx(math.log(2), rel=1e-3)
    assert (row["repeats"], row["samples"], row["gpus"], row["gpu"]) == ("3", "128", "2", "this-cpu")
    assert (found.rows, found.networks, found.passes, found.lacking) == (1, 1, 3, 7)
    assert "7 passes found no time; the same command again continues" in str(found)
    card = (tmp_path / CARD).read_text(encoding="utf-8")
    for words in ("a box", "torch 9", "2026-01-01 to 2026-01-03", "1 rows of 1 networks, 3 passes", "differ by 69.3%"):
        assert words in card
    (measured,) = read_runs(tmp_path)
    assert (measured.seconds, measured.cost_s, measured.family, measured.dataset) == (0.2, 4.5, "lenet", "cifar-10")
    assert measured.log_spread == pytest.approx(math.log(2), rel=1e-3)
    assert measured.job == ONE.job().replace(gpu="this-cpu")  # no device file there


def test_drift_of_the_machine_is_detected() -> None:
    import random

    chance = random.Random(3)
    steady, slow = {}, {}
    for turn in (1, 2):
        for row in range(400):
            noise = math.exp(chance.gauss(0.0, 0.1))
            bad_minute = 1.5 if turn == 2 and 100 <= row < 200 else 1.0
            steady[f"r{row} turn {turn}"] = {"pass_s": (row + 1) * noise}
            slow[f"r{row} turn {turn}"] = {"pass_s": (row + 1) * noise * bad_minute}
    drifts = [drift_of(steady), drift_of(slow)]
    assert drifts[0] == pytest.approx(0.0, abs=0.15)
    assert drifts[1] is not None
    assert drifts[1] > 0.6
    assert drift_of({"r turn 1": {"pass_s": 1.0}, "r turn 2": {"pass_s": 2.0}}) is None


# --- for real -------------------------------------------------------------------------------------------------------


def _quick(folder: Path) -> list[str]:
    return [
        "runs",
        "--quick",
        "--on",
        "cpu",
        "--ranks",
        "2",
        "--only",
        "small-lenet5,small-mlp",
        "--output",
        str(folder),
    ]


@pytest.mark.slow
def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command in this process with one worker: stopped after three passes, then run again."""
    stop_after = 3

    def launch(task: dict[str, Any], *_: Any, report: Any, **__: Any) -> None:
        def stop(done: int, total: int) -> None:
            report(done, total)
            if done == stop_after:
                raise KeyboardInterrupt

        small_runs.runs_task(task, torch.device("cpu"), stop)

    monkeypatch.setattr(small_runs, "launch", launch)
    monkeypatch.setattr(small_runs.gc, "freeze", lambda: None)  # this process goes on with other tests
    here, networks = Machine("cpu", 1, 1), ["small-lenet5", "small-mlp"]
    journal = tmp_path / small_runs.JOURNAL
    with pytest.raises(KeyboardInterrupt):
        collect(here, tmp_path, 1e6, networks, quick=True)
    with journal.open("ab") as file:
        file.write(b'{"label": "half a li')
    before = read(journal)[1]
    assert len(before) == 3
    stop_after = 99
    table = collect(here, tmp_path, 1e6, networks, quick=True)
    records = read(journal)[1]
    assert {label: records[label] for label in before} == before  # nothing was measured again
    assert (table.rows, table.networks, table.passes, table.lacking) == (4, 2, 4, 0)
    rows = read_runs(tmp_path)
    assert {row.job.run.samples for row in rows} == {32, 64}
    assert all(0 < row.seconds < row.cost_s for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg") or (os.cpu_count() or 1) < 2, reason="needs two cores and signals")
def test_a_killed_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    command = [sys.executable, "-m", "precision_time.cli.main", *_quick(folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    journal = folder / small_runs.JOURNAL
    try:
        end = time.monotonic() + 1800
        while not (journal.exists() and b"turn 1" in journal.read_bytes()):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with journal.open("ab") as file:
        file.write(b'{"label": "half a li')
    before = read(journal)[1]
    assert before
    assert main([*_quick(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    head, records, _ = read(journal)
    assert {label: records[label] for label in before} == before  # nothing was measured again
    assert head["threads"] == 1
    assert (said["rows"], said["networks"], said["passes"], said["lacking"]) == (8, 2, 8, 0)
    rows = read_runs(folder)
    assert {row.job.gpus for row in rows} == {1, 2}
    assert {row.job.run.samples for row in rows} == {32, 64}
    assert all(0 < row.seconds < row.cost_s for row in rows)


def test_a_network_that_the_cpu_cannot_train_is_refused_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank alike, as on a CPU without AVX-512; the command's text and the data card say so."""
    monkeypatch.setattr(kernel_support, "autocast_lstm_error", lambda dtype: f"no {dtype} primitive")
    plan = [replace(ONE, model=model, precision="amp-bf16", workers=1) for model in ("small-lstm", "small-mlp")]
    journal = tmp_path / small_runs.JOURNAL
    task = {"journal": str(journal), "turn": 0, "end": 1e12, "configurations": [asdict(each) for each in plan]}
    ranks = SimpleNamespace(
        is_initialized=lambda: True, get_rank=lambda: 0, get_world_size=lambda: 1, ReduceOp=torch.distributed.ReduceOp,
        broadcast=lambda *_: None, barrier=lambda: None, all_reduce=lambda *_: None,
    )  # fmt: skip
    monkeypatch.setattr(small_runs, "dist", ranks)
    monkeypatch.setattr(small_runs.gc, "freeze", lambda: None)  # this process goes on with other tests
    small_runs.runs_task(task, torch.device("cpu"), lambda done, total: None)
    head, records, _ = read(journal)
    refused, passed = (records[turn_label(each, 0)] for each in plan)
    assert "small-lstm cannot be trained in amp-bf16 on this CPU" in refused["refused"]
    assert passed["pass_s"] > 0
    table = write_table(tmp_path, Machine("cpu", 1, 1), head, plan, records, 0)
    assert (table.rows, len(table.refused)) == (1, 1)
    assert "1 were refused, the first: small-lstm-cifar-10-amp-bf16" in str(table)
    card = (tmp_path / CARD).read_text(encoding="utf-8")
    assert "because this device refused:\n- small-lstm-cifar-10-amp-bf16" in card
    assert "needs AVX-512" in card


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or (os.cpu_count() or 1) < 2, reason="needs two cores, x86")
def test_runs_go_on_where_onednn_has_no_lstm_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN told to use no more than AVX2, as on a CPU that has no more."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    plan = [replace(ONE, model=model, precision="amp-bf16", samples=32) for model in ("small-lstm", "small-mlp")]
    monkeypatch.setattr(small_runs, "configurations", lambda *_: plan)
    table = collect(HERE, tmp_path, 600.0, ["small-lstm", "small-mlp"], quick=True)
    assert (table.rows, table.lacking) == (1, 0)
    assert "small-lstm cannot be trained in amp-bf16 on this CPU" in table.refused[0]


def test_a_journal_of_another_machine_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / small_runs.JOURNAL, {"machine": "another box"})
    with pytest.raises(MeasureError, match="was begun with machine 'another box'"):
        collect(Machine("cpu", 1, 1), tmp_path, 60.0, ["small-mlp"], quick=True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--only", "small-resnet21"], "nearest: small-resnet20"),
        (["--budget", "3h"], "give seconds or minutes"),
        (["--budget", "300min"], "between 60s and 120min"),
        (["--output", "nowhere/at/all"], "make it first"),
        (["--on", "tpu"], "use cpu or cuda"),
    ],
)
def test_bad_arguments_are_one_sentence(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert why in said
    assert said.count("\n") == 0


# --- the reader and what ships --------------------------------------------------------------------------------------


def test_the_reader_names_the_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: no such file"):
        read_runs(tmp_path)
    text = (COMMITTED / TABLE).read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.csv").write_text("id,model\nx,y\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no column model_config"):
        read_runs(tmp_path / "a.csv")
    for cell, why in (
        ("0", "pass_s must be a number"),
        ("soon", "line 2: pass_s must be a number"),
        ("inf", "not 'inf'"),
    ):
        names, values = text[0].split(","), text[1].split(",")
        values[names.index("pass_s")] = cell
        (tmp_path / "b.csv").write_text(f"{text[0]}\n{','.join(values)}\n", encoding="utf-8")
        with pytest.raises(PredictorError, match=why):
            read_runs(tmp_path / "b.csv")


@pytest.fixture(scope="module")
def committed() -> list[dict[str, Any]]:
    return list(csv.DictReader((COMMITTED / TABLE).read_text(encoding="utf-8").splitlines()))


def test_the_committed_runs_cover_what_they_should(committed: list[dict[str, Any]]) -> None:
    assert {row["model"] for row in committed} == set(NETWORKS)
    kinds: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    for row in committed:
        key = tuple(row[word] for word in ("model", "dataset", "precision", "gpus"))
        kinds[key].add((row["batch_size"], row["samples"]))
    assert len(kinds) == len(NETWORKS) * 2 * 2 * 2
    assert all(len(found) == 5 for found in kinds.values())
    assert all(int(row["repeats"]) >= 2 for row in committed)
    short = [row for row in committed if float(row["pass_s"]) < 0.8 * LONG_PASS_S and row["dataset"] == "cifar-10"]
    assert statistics.mean(int(row["repeats"]) >= 3 for row in short) > 0.95  # time ran out for some of the others


def test_the_committed_figures_hang_together(committed: list[dict[str, Any]]) -> None:
    ratios = []
    by_label = {row["id"]: row for row in committed}
    for row in committed:
        steps = math.ceil(int(row["samples"]) / (int(row["batch_size"]) * int(row["gpus"])))
        assert float(row["step_time_s"]) == pytest.approx(float(row["pass_s"]) / steps, rel=1e-4)
        assert float(row["cost_s"]) > float(row["pass_s"]) * int(row["repeats"]) * 0.5
        half = by_label.get(re.sub(r"n(\d+)$", lambda n: f"n{int(n[1]) // 2}", row["id"]))
        if half is not None:
            ratios.append(float(row["pass_s"]) / float(half["pass_s"]))
    assert 1.8 < statistics.median(ratios) < 2.1  # twice the data
    measured = read_runs()
    assert [m.id for m in measured] == [row["id"] for row in committed]
    assert all(m.job.device == str(COMMITTED / DEVICE) and m.job.gpu == "this-cpu" for m in measured)


def test_the_card_agrees_with_the_table(committed: list[dict[str, Any]]) -> None:
    card = (COMMITTED / CARD).read_text(encoding="utf-8")
    said = re.search(r"- ([\d,]+) rows of (\d+) networks, ([\d,]+) passes in all, ([\d,]+) s", card)
    assert said is not None
    numbers = [int(text.replace(",", "")) for text in said.groups()]
    passes, cost_s = sum(int(row["repeats"]) for row in committed), sum(float(row["cost_s"]) for row in committed)
    assert numbers == [len(committed), len({row["model"] for row in committed}), passes, round(cost_s)]
    spreads = [float(row["spread"]) for row in committed if row["spread"]]
    assert f"differ by {statistics.median(spreads):.1%} (median of `spread`)" in card
    for count, times in Counter(row["repeats"] for row in committed).items():
        assert f"{times:,} rows of {count}" in card
    for row in committed[:1] + committed[-1:]:
        assert row["dataset"] in card
    assert "Known faults" in card
    assert sum((COMMITTED / name).stat().st_size for name in (TABLE, DEVICE, CARD)) < 900_000


def test_the_product_predicts_a_committed_run() -> None:
    from precision_time.prediction import predict

    (run,) = [m for m in read_runs() if m.id == "small-vgg11-cifar-10-fp32-w2-b16-n256"]
    estimate = predict(run.job.replace(start_up_s=0))  # it was measured from the first step on
    assert estimate.run is not None
    assert 0.2 * run.seconds < estimate.run.p50 < 5.0 * run.seconds
