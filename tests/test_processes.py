"""Modules of the package as processes of their own: started from any folder, ended for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import precision_time
from precision_time.processes import end_process, json_objects, run_command, start_module
from precision_time.signals import Stopped, stop_signals


def test_a_module_starts_in_any_folder_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.py").write_text(
        "import os, sys, precision_time\n"
        "print(sys.argv[1], os.environ['WORD'], precision_time.__file__.endswith('__init__.py'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = start_module("asked", "one", environment={"WORD": "two"}, cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0].split() == [b"one", b"two", b"True"]
    end_process(process)


def test_a_process_that_goes_on_is_killed_and_one_that_ends_is_not() -> None:
    code = "import sys, time\nprint('up', flush=True)\nsys.stdin.read()\ntime.sleep(float(sys.argv[1]))"
    begin = time.monotonic()
    for seconds, ended in (("0", 0), ("600", -9)):
        process = subprocess.Popen([sys.executable, "-c", code, seconds], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        end_process(process, 30.0 if ended == 0 else 0.2)
        assert process.returncode == ended
    assert time.monotonic() - begin < 300


def test_objects_among_other_lines() -> None:
    lines = [b'{"a": 1}\n', b"warning: {\n", b"[1]\n", b"\xff\n", b'{"b": 2}']
    assert list(json_objects(lines)) == [{"a": 1}, {"b": 2}]


# --- ends ------------------------------------------------------------------------------------------------------------

PARENT = """
import subprocess, sys, threading, time
from precision_time.processes import run_command, start_module
what = sys.argv[1]
if what == "modules":
    child = start_module("asked", "child")
    print(child.pid, flush=True)
elif what == "command":
    threading.Thread(target=run_command, args=("sleep 300 & echo $$ $! > pids; sleep 300; true", ".", 300)).start()
time.sleep(300)
"""
CHILD = """
import sys, time
from precision_time.processes import start_module
if sys.argv[1] == "child":
    open("pids", "w").write(str(start_module("asked", "grandchild").pid))
time.sleep(300)
"""


def runs(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to ask for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def start_parent(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    (folder / "parent.py").write_text(PARENT)
    (folder / "asked.py").write_text(CHILD)
    path = os.pathsep.join([str(Path(precision_time.__file__).parents[1]), str(folder)])
    return subprocess.Popen(
        [sys.executable, "parent.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("what", ["modules", "command"])
def test_whatever_ends_a_process_ends_those_that_it_started(what: str, how: int, tmp_path: Path) -> None:
    """Children of children, and what a shell left in the background, too."""
    parent = start_parent(tmp_path, what)
    pids = tmp_path / "pids"
    assert wait_until(lambda: pids.exists() and pids.read_text().strip() != "", 60)
    started = [int(pid) for pid in pids.read_text().split()]
    if what == "modules":
        assert parent.stdout is not None
        started.append(int(parent.stdout.readline()))
    assert all(runs(pid) for pid in started)
    parent.send_signal(how)
    end_process(parent, 60.0)
    assert wait_until(lambda: not any(runs(pid) for pid in started), 2.0)


def test_a_command_gives_its_code_and_its_output(tmp_path: Path) -> None:
    assert run_command("echo one; echo two >&2; exit 3", tmp_path, 60) == (3, "one\ntwo\n")
    assert run_command("pwd; kill -9 $$", tmp_path, 60) == (137, f"{tmp_path}\n")
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not done after 0\.5 s"):
        run_command("sleep 300 & wait", tmp_path, 0.5)
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_once_and_its_handlers_come_back(number: int) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def work() -> None:
        with stop_signals():
            os.kill(os.getpid(), number)
            time.sleep(10)

    with pytest.raises(Stopped) as stop:
        work()
    assert stop.value.exit_code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    code = (
        "import time\nfrom precision_time.signals import stop_signals\n"
        "with stop_signals():\n"
        "  try:\n    print('up', flush=True)\n    time.sleep(300)\n"
        "  finally:\n    print('closing', flush=True)\n    time.sleep(300)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(precision_time.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    for line in (b"up\n", b"closing\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 130


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
