"""Commands that measure, ended at any moment by any signal: what they started ends too, and the next call goes on.

The moments of the slow tests are random, from a seed that is printed; PRECISION_TIME_SEED repeats one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import precision_time
from precision_time import shipped
from precision_time.journal import read
from precision_time.predictors import store
from precision_time.predictors.store import load_trained

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

MAIN = "precision_time.cli.main"
SOURCE = str(Path(precision_time.__file__).parents[1])
REPOSITORY = Path(__file__).parents[1]
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TRAINING = """
import subprocess, sys, time

def train(progress, samples, first, epochs):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])  # as a loader's worker
    for _ in range(epochs * samples // 4):
        time.sleep(0.004)
        progress(4)
"""
JOBS = {
    "samples": 256, "cache": {"reset": {"command": "true"}}, "calibration": {"samples": 96},
    "jobs": [{"name": name, "run": "python:training.py:train", "epochs": 2} for name in "ab"],
}  # fmt: skip


def parents() -> dict[int, int]:
    """Parent of every process that runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found


def descendants(root: int) -> set[int]:
    all_parents, found = parents(), {root}
    while more := {pid for pid, parent in all_parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def start(folder: Path, command: str, source: str = SOURCE) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{source}:{REPOSITORY}"}
    module, _, rest = command.partition(" ") if command.startswith("benchmarks.") else (MAIN, "", command)
    words = [sys.executable, "-m", module, *rest.split()]
    with (folder / "errors.txt").open("wb") as errors:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def end(process: subprocess.Popen[bytes], number: int, folder: Path) -> None:
    """Send the signal and check that all that the process started is gone two seconds later, without a traceback."""
    started = descendants(process.pid)
    process.send_signal(number)
    code = process.wait(60)
    if number == signal.SIGKILL:
        assert wait_until(lambda: not started & set(parents()), 2.0), "children go on"
        return
    assert wait_until(lambda: not started & set(parents()), 2.0)
    if code != 0:  # it may have been done
        assert code in (128 + number, -number)
        assert "Traceback" not in (folder / "errors.txt").read_text()


def in_use(lock: Path) -> bool:
    """Whether a process holds it; see proc(5) for the fields."""
    inodes = {int(line.split()[5].rpartition(":")[2]) for line in Path("/proc/locks").read_text().splitlines()}
    return lock.exists() and lock.stat().st_ino in inodes


def prepare(folder: Path) -> None:
    (folder / "training.py").write_text(TRAINING)
    (folder / "jobs.json").write_text(json.dumps(JOBS))


def labels(path: Path) -> Counter[str]:
    """How often each label stands in a journal, apart from the probes of the machine."""
    complete = path.read_bytes().rpartition(b"\n")[0].splitlines()[1:]
    names = [json.loads(line).get("label") for line in complete]
    return Counter(name for name in names if not name.startswith("probe"))


@pytest.mark.parametrize(
    ("command", "journal"),
    [
        ("calibrate --budget 60s --ranks 1 --output d.json", "d.points.jsonl"),
        ("stagger jobs.json --folder there --allow-code", "there/journal.jsonl"),
    ],
)
def test_a_killed_command_leaves_no_process(command: str, journal: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    process, path = start(tmp_path, command), tmp_path / journal
    try:
        assert wait_until(
            lambda: path.exists() and b"\n" in path.read_bytes() and descendants(process.pid) != set(), 120
        )
        end(process, signal.SIGKILL, tmp_path)
        assert read(path)[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("command", "lock"),
    [
        (f"train boosting --output there --rows {REPOSITORY}/data/published/measurements.csv", f"there/{store.LOCK}"),
        (f"fit collectives --tables {REPOSITORY}/data", f"source/precision_time/{shipped.LOCK}"),
    ],
)
def test_a_command_without_a_journal_keeps_others_out_until_it_is_killed(
    command: str, lock: str, tmp_path: Path
) -> None:
    """It writes nothing before it is done; afterwards the same command runs again."""
    pytest.importorskip("pandas")
    source, path = tmp_path / "source", tmp_path / lock
    shutil.copytree(Path(SOURCE) / "precision_time", source / "precision_time")
    before = {each: each.read_bytes() for each in source.rglob("*.json")}
    first = start(tmp_path, command, str(source))
    try:
        assert wait_until(lambda: path.exists() or first.poll() is not None, 120)
        assert path.exists(), (tmp_path / "errors.txt").read_text()
        first.send_signal(signal.SIGSTOP)  # it keeps the lock and computes nothing
        second = start(tmp_path, command, str(source))
        assert second.wait(120) == 2
        assert "is in use by another process" in (tmp_path / "errors.txt").read_text()
        end(first, signal.SIGKILL, tmp_path)
        assert path.exists()
        assert {each: each.read_bytes() for each in source.rglob("*.json")} == before
        again = start(tmp_path, command, str(source))
        try:
            assert wait_until(lambda: in_use(path) or again.poll() is not None, 120)
            assert again.poll() is None, (tmp_path / "errors.txt").read_text()
            end(again, signal.SIGTERM, tmp_path)
            assert not path.exists()
        finally:
            again.kill()
            again.wait()
    finally:
        first.kill()
        first.wait()


@pytest.mark.slow
def test_training_killed_at_random_moments_leaves_whole_predictors(tmp_path: Path) -> None:
    seed = int(os.environ.get("PRECISION_TIME_SEED") or time.time_ns() % 10**6)
    print(f"PRECISION_TIME_SEED={seed}")
    chance = random.Random(seed)
    names, out = ("ernest", "boosting"), tmp_path / "there"
    command = f"train {' '.join(names)} --output there --rows {REPOSITORY}/data/published/measurements.csv"
    for _ in range(5):
        process = start(tmp_path, command)
        time.sleep(chance.uniform(0.1, 20.0))
        end(process, chance.choice(SIGNALS), tmp_path)
        for name in names:
            if (out / name).exists():
                assert load_trained(name, out)
    last = start(tmp_path, command)
    assert last.wait(600) == 0, (tmp_path / "errors.txt").read_text()
    assert {path.name for path in out.iterdir()} == set(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "journal", "written", "longest_s"),
    [
        ("calibrate --budget 20s --ranks 1 --output d.json", "d.points.jsonl", "d.json", 20.0),
        ("measure --budget 30s --output there", "there/journal.jsonl", "there/README.md", 30.0),
        ("runs --quick --budget 40s --output there", "there/journal.jsonl", "there/runs.csv", 40.0),
        ("stagger jobs.json --folder there --allow-code --run", "there/journal.jsonl", None, 20.0),
        ("benchmarks.papers ernest additive --quick --output there", "there/studies.jsonl", "there/report.html", 40.0),
    ],
)
def test_killed_at_random_moments_and_continued(
    command: str, journal: str, written: str | None, longest_s: float, tmp_path: Path
) -> None:
    """No finished point is measured twice, no torn line is read, and the last call ends well."""
    seed = int(os.environ.get("PRECISION_TIME_SEED") or time.time_ns() % 10**6)
    print(f"PRECISION_TIME_SEED={seed}")
    chance = random.Random(seed)
    prepare(tmp_path)
    path = tmp_path / journal
    for _ in range(4):
        process = start(tmp_path, command)
        if command.startswith("benchmarks."):  # Python answers a signal while it imports
            assert wait_until(path.exists, 60)
        time.sleep(chance.uniform(0.1, longest_s))
        end(process, chance.choice(SIGNALS), tmp_path)
        if path.exists() and b"\n" in path.read_bytes():
            read(path)
            assert max(labels(path).values(), default=1) == 1
    last = start(tmp_path, command)
    assert last.wait(600) == 0, (tmp_path / "errors.txt").read_text()
    if path.exists():  # a finished calibration has none
        assert max(labels(path).values(), default=1) == 1
    if written:
        assert (tmp_path / written).stat().st_size
