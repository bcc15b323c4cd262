"""Faults from outside: a full disk, a second process on the same folder, a budget that ends within a point."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import precision_time
from precision_time import journal as journal_module
from precision_time import shipped
from precision_time.cli import fitting
from precision_time.cli.main import main
from precision_time.errors import DataError
from precision_time.journal import Journal, begin_again, held, read
from precision_time.predictors import store
from precision_time.processes import end_process
from precision_time.report.write import PART

SOURCE = str(Path(precision_time.__file__).parents[1])
FEW = str(Path(__file__).parent.parent / "docs" / "examples" / "measured.csv")
HEADER = {"machine": "a"}
HOLDER = """
import sys, time
from precision_time.journal import held
with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(300)
"""


def start_holder(path: Path) -> subprocess.Popen[bytes]:
    """A process that holds the journal until it is killed."""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


# --- a journal and its disk -----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes some bytes of the line and then no more."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEADER)
    journal.add("one", {"n": 1})
    before, write = path.read_bytes(), os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 10:
            return write(handle, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"journal '.*' cannot be used: no space left on device; name another output"):
        journal.add("two", {"n": "a line that is longer than what the disk takes"})
    assert path.read_bytes() == before
    assert "two" not in journal
    monkeypatch.undo()
    journal.add("three", {"n": 3})
    assert list(read(path)[1]) == ["one", "three"]


def test_a_signal_in_the_middle_of_a_line_takes_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEADER)
    before, write, calls = path.read_bytes(), os.write, []

    def interrupted(handle: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return write(handle, data[:7])

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.add("one", {"n": 1})
    assert path.read_bytes() == before


# --- one process a journal ------------------------------------------------------------------------------------------


def test_a_journal_is_held_by_one_process_at_a_time_and_free_when_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    holder = start_holder(path)
    try:
        with pytest.raises(DataError, match=r"is in use by another process; wait for its end, or name another"):  # noqa: SIM117
            with held(path):
                pass
    finally:
        end_process(holder)
    with held(path), held(path):
        Journal(path, HEADER).add("one", {})
    assert "one" in Journal(path, HEADER)


def test_threads_hold_a_journal_by_turns_and_an_empty_one_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    said: list[str] = []

    def other() -> None:
        try:
            with held(path):
                said.append("held")
        except DataError:
            said.append("refused")

    for inside in (True, False):
        thread = threading.Thread(target=other)
        if inside:
            with held(path):
                thread.start()
                thread.join()
        else:
            thread.start()
            thread.join()
    assert said == ["refused", "held"]
    assert not path.exists()
    with pytest.raises(DataError, match="cannot be used"), held(tmp_path / "none" / "journal.jsonl"):
        pass


def test_a_journal_that_is_begun_again_is_still_held(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    begin_again(path)
    Journal(path, HEADER).add("one", {})
    with held(path):
        begin_again(path)
        assert len(Journal(path, {"machine": "b"})) == 0


@pytest.mark.parametrize(
    ("words", "journal"),
    [
        (["measure", "--budget", "30s", "--output", "there"], "there/journal.jsonl"),
        (["runs", "--budget", "60s", "--output", "there"], "there/journal.jsonl"),
        (["calibrate", "--budget", "30s", "--output", "there/device.json"], "there/device.points.jsonl"),
    ],
)
def test_a_second_process_on_a_folder_is_refused(
    words: list[str],
    journal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    holder = start_holder(tmp_path / journal)
    try:
        assert main(words) == 2
    finally:
        end_process(holder)
    said = capsys.readouterr().err
    assert "is in use by another process" in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in (tmp_path / "there").iterdir()] == [Path(journal).name]


def test_a_second_training_into_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "there"
    out.mkdir()
    holder = start_holder(out / store.LOCK)
    words = ["train", "ernest", "--output", str(out), "--rows", FEW]
    try:
        assert main(words) == 2
    finally:
        end_process(holder)
    said = capsys.readouterr().err
    assert said.endswith(
        f"output {str(out)!r} is in use by another process; wait for its end, or name another output\n"
    )
    assert [path.name for path in out.iterdir()] == [store.LOCK]
    (out / f"{PART}killed").mkdir()
    assert main(words) == 0
    assert [path.name for path in out.iterdir()] == ["ernest"]


def test_a_second_fit_of_an_installation_is_refused_and_judging_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    ran: list[list[str]] = []
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    monkeypatch.setattr(fitting, "_run", lambda arguments, show: ran.append(arguments))
    holder = start_holder(tmp_path / shipped.LOCK)
    try:
        assert main(["fit", "collectives"]) == 2
        assert capsys.readouterr().err.endswith(
            "the installation's folder of parameters is in use by another process; wait for its end\n"
        )
        assert not ran
        assert main(["fit", "steps", "--report"]) == 0
    finally:
        end_process(holder)
    assert main(["fit", "collectives"]) == 0
    assert [arguments[0] for arguments in ran] == ["steps", "collectives"]
    assert not list(tmp_path.iterdir())


def test_a_file_that_its_holder_removes_meanwhile_is_held_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened before the holder removed it, and locked after that."""
    path, lock, calls = tmp_path / "lock", journal_module._lock, []

    def late(handle: int, what: str, instead: str) -> None:
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()
        lock(handle, what, instead)

    monkeypatch.setattr(journal_module, "_lock", late)
    with held(path):
        assert len(calls) == 2
        assert path.exists()
    assert not path.exists()


# --- a budget -------------------------------------------------------------------------------------------------------


def test_a_task_is_cut_off_when_the_budget_ends_unless_it_is_required() -> None:
    torch = pytest.importorskip("torch")
    from precision_time.measure import session
    from precision_time.measure.suite import Task

    cpu, begin = torch.device("cpu"), time.monotonic()

    def work(seconds: float) -> Callable[[float], dict[str, int]]:
        def run(_budget_s: float) -> dict[str, int]:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    time.sleep(0.01)
                except Exception:  # what swallows exceptions does not swallow this one
                    continue
            return {"n": 1}

        return run

    journal = Journal()
    plan = [Task("quick", work(0.0)), Task("endless", work(600.0)), Task("must", work(0.1), required=True)]
    left_out = session.run_plan([*plan, Task("late", work(0.0))], journal, cpu, 0.5)
    assert left_out == ["endless: no time left", "late: no time left"]
    assert {label for label in journal.records if not label.startswith("probe")} == {"quick", "must"}
    assert time.monotonic() - begin < 300


def test_a_plan_that_is_continued_has_the_sizes_of_the_first_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine measures another rate each time; tasks of other sizes would all be measured anew."""
    torch = pytest.importorskip("torch")
    from precision_time.measure import suite

    rates = iter([1e9, 3e9, 5e9])
    monkeypatch.setattr(suite, "rate", lambda *_: next(rates))
    cpu = torch.device("cpu")
    labels = [
        [task.label for task in suite.family_tasks(cpu, [torch.float32], journal=Journal(tmp_path / "j", HEADER))]
        for _ in range(2)
    ]
    assert labels[0] == labels[1]
    assert [task.label for task in suite.family_tasks(cpu, [torch.float32])] != labels[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["calibrate", "--budget", "4s"], "give between 5s and 10min"),
        (["measure", "--budget", "14s", "--ranks", "2"], "give between 15s and 10min with 2 ranks, or --ranks 1"),
        (["runs", "--budget", "59s"], "give between 60s and 120min"),
        (["runs", "--budget", "14s", "--quick"], "give between 15s and 120min"),
        (["verify", "--budget", "nan"], "give seconds or minutes"),
    ],
)
def test_a_budget_too_short_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    if "--ranks" in words and (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    assert main(words) == 2
    assert why in capsys.readouterr().err
