"""Launching jobs: progress from files and log lines, deaths, silence, and that nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import precision_time
from precision_time.errors import DataError, IngestError
from precision_time.ingest.stagger import cache_state
from precision_time.ingest.stagger.calibration_windows import Launch, Launcher
from precision_time.ingest.stagger.host import Counter
from precision_time.ingest.stagger.jobs_file import JobsFile, jobs_of
from precision_time.ingest.stagger.processes import Host, hosts, watch
from precision_time.ingest.stagger.staggered_run import earlier_runs, run_jobs
from precision_time.ingest.stagger.windows_journal import key_of, open_journal

FUNCTION = """
import os, subprocess, sys, time
def train(progress, *, samples, first, epochs, die=False, pid_file=None, sleep_s=0.002):
    child = subprocess.Popen(["sleep", "60"])  # as a loader worker that is left behind
    if pid_file:
        open(pid_file, "w").write(f"{os.getpid()} {child.pid}")
    print("begun with", first, flush=True)
    progress(0)
    for k in range(samples * epochs // 2):
        time.sleep(2 * sleep_s)
        progress(2)
        if die and k == 5:
            raise ValueError("labels out of range")
"""
LOOP = "import time\nfor k in range(1, 11):\n    time.sleep(0.01)\n    print('done', 4 * k, 'samples', flush=True)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(FUNCTION)
    (tmp_path / "loop.py").write_text(LOOP)
    return tmp_path


def file_of(folder: Path, *jobs: dict[str, Any], **words: Any) -> JobsFile:
    cache = {"reset": {"folder": "cache"}}
    return jobs_of({"samples": 20, "cache": cache, "jobs": list(jobs), **words}, folder)


def python_job(name: str = "a", **arguments: Any) -> dict[str, Any]:
    return {"name": name, "run": "python:job.py:train", "arguments": arguments}


def gone(pid: int) -> bool:
    """Ended, or a zombie that waits for a parent to look."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_function_runs_again_and_again_and_leaves_nothing(folder: Path) -> None:
    file = file_of(folder, python_job(pid_file=str(folder / "pids")))
    with hosts(file) as (host,):
        for first in (0, 10):
            running = host.launch(10, first, 2, folder / "run")
            watch([running])
            trace = running.trace()
            assert (trace.samples[0], trace.samples[-1], len(trace.samples)) == (0, 20, 11)
            assert trace.ended_s is not None
            assert 0.04 <= trace.seconds[-1] <= trace.ended_s
            assert running.log.read_text() == f"begun with {first}\n"
            assert all(gone(int(pid)) for pid in (folder / "pids").read_text().split())


def test_a_death_names_job_code_log_and_last_words(folder: Path) -> None:
    file = file_of(folder, python_job(die=True))
    with hosts(file) as (host,), pytest.raises(IngestError) as caught:
        watch([host.launch(20, 0, 1, folder / "run")])
    says = str(caught.value)
    assert "job 'a' died in calibration, with exit code 1" in says
    assert "ValueError: labels out of range" in says
    assert "run.log" in says


def test_an_import_that_fails_says_where(folder: Path) -> None:
    (folder / "job.py").write_text("import torchh\n")
    file = file_of(folder, python_job())
    with (
        pytest.raises(IngestError, match=r"job 'a' cannot run .*named 'torchh' \(job.py, line 1\)"),
        hosts(file),
    ):
        pass
    (folder / "job.py").write_text("def trian(): ...\n")
    with pytest.raises(IngestError, match="has no function train"), hosts(file):
        pass


def test_a_function_that_cannot_be_called_so_is_never_launched(folder: Path) -> None:
    for job, says in (
        ({**python_job(), "run": "python:job.py:trian"}, "cannot run .* it has no function trian; nearest: train;"),
        (python_job(sleeps_s=1), r"train\(progress, .*\) takes no argument 'sleeps_s' by name; nearest: sleep_s"),
        ({**python_job(), "run": "python:need.py:train"}, "missing a required argument: 'root'; correct the job"),
    ):
        (folder / "need.py").write_text("def train(progress, samples, first, epochs, *, root): ...")
        with pytest.raises(IngestError, match=says), hosts(file_of(folder, job)):
            pass


def test_what_a_function_exits_with_is_in_its_log(folder: Path) -> None:
    (folder / "job.py").write_text("def train(progress, **_):\n    raise SystemExit('no GPU found')")
    says = "died in calibration, with exit code 1; its log .* ends: no GPU found; correct the job"
    with hosts(file_of(folder, python_job())) as (host,), pytest.raises(IngestError, match=says):
        watch([host.launch(10, 0, 1, folder / "run")])


def test_a_file_that_is_no_python_says_where(folder: Path) -> None:
    (folder / "job.py").write_text("import os\ndef train(:\n")
    with (
        pytest.raises(IngestError, match=r"SyntaxError: invalid syntax \(job.py, line 2\); correct"),
        hosts(file_of(folder, python_job())),
    ):
        pass


def test_what_a_file_prints_when_imported_is_no_answer(folder: Path) -> None:
    job = folder / "job.py"
    job.write_text("import os\nprint('loading ...', end='', flush=True)\nos.write(1, b'more ...')\n" + job.read_text())
    with hosts(file_of(folder, python_job())) as (host,):
        running = host.launch(10, 0, 1, folder / "run")
        watch([running])
        assert running.samples == 10


def test_names_with_dots_have_logs_of_their_own(folder: Path) -> None:
    jobs = [{**python_job(f"r1.{number}"), "epochs": number} for number in (1, 2)]
    found = run_jobs(file_of(folder, *jobs), [0.0, 0.0], folder / "kept")
    assert [trace.samples[-1] for trace in found.traces] == [20, 40]
    assert sorted(path.name for path in (folder / "kept" / "runs").iterdir()) == [
        "r1.1.log", "r1.1.progress", "r1.2.log", "r1.2.progress"
    ]  # fmt: skip


def test_a_job_that_ends_without_a_word(folder: Path) -> None:
    says = r"job 'b' ended after .* s and reported no progress: give a pattern"
    with hosts(file_of(folder, {"name": "b", "run": "true"})) as (host,), pytest.raises(IngestError, match=says):
        watch([host.launch(20, 0, 1, folder / "run")])


def test_log_lines_become_progress(folder: Path) -> None:
    command = f"{sys.executable} loop.py"
    file = file_of(folder, {"run": command, "progress": r"done (?P<samples>\d+)"})
    with hosts(file) as (host,):
        running = host.launch(20, 0, 1, folder / "run")
        watch([running])
    trace = running.trace()
    assert list(trace.samples) == [4.0 * k for k in range(1, 11)]
    assert 0.08 <= trace.seconds[-1] - trace.seconds[0] <= 5
    assert running.log.read_text().count("done") == 10


def test_a_pattern_that_never_matches(folder: Path) -> None:
    file = file_of(folder, {"run": f"{sys.executable} loop.py", "progress": r"step (?P<batch>\d+)", "batch_size": 4})
    with hosts(file) as (host,), pytest.raises(IngestError) as caught:
        watch([host.launch(20, 0, 1, folder / "run")])
    assert "no line of its log matches progress" in str(caught.value)
    assert "done 40 samples" in str(caught.value), "the last lines show what it does print"


def test_a_job_that_hangs_is_ended(folder: Path) -> None:
    file = file_of(folder, {"run": "echo begun; sleep 60"}, calibration={"patience_s": 2})
    with hosts(file) as (host,):
        running = host.launch(20, 0, 1, folder / "run")
        with pytest.raises(IngestError, match=r"reported no progress in 2 s: give a pattern .*ends: begun"):
            watch([running], patience_s=file.calibration.patience_s)
        assert running.pid is not None
        assert gone(running.pid)


def test_a_command_that_is_not_there(folder: Path) -> None:
    file = file_of(folder, {"run": "no-such-program --fast"})
    with pytest.raises(IngestError, match="there is no program no-such-program"), hosts(file):
        pytest.fail("the hosts are ready")
    with hosts(file_of(folder, {"run": "echo {samples}"}, {"run": "X=1 no-such-program"}, {"run": "sleep 0"})):
        pass  # a word of the shell's own syntax is left to the shell


@pytest.mark.parametrize(
    ("pattern", "batch", "lines", "more"),
    [
        (r"n=(?P<samples>[\d,]+)", None, ["n=4", "loss 3", "n=1,008", "n=4"], [4, 0, 1004, 4]),
        (r"(?P<batch>\d+)/30", 8, ["1/30", "3/30", "30/30", "1/30"], [8, 16, 216, 8]),
        (r"\+(?P<more>\d+)", None, ["+4", "+4"], [4, 4]),
    ],
)
def test_counting_log_lines(pattern: str, batch: int | None, lines: list[str], more: list[int]) -> None:
    count = Counter(pattern, batch)
    assert [count(line) for line in lines] == more


def test_the_other_job_is_not_harmed(folder: Path) -> None:
    file = file_of(folder, python_job("a", die=True), python_job("b", sleep_s=0.01))
    with pytest.raises(IngestError) as caught:
        run_jobs(file, [0.0, 0.05], folder / "out")
    assert "job 'a' died in the staggered run, with exit code 1" in str(caught.value)
    assert "job 'b' ran on to its end" in str(caught.value)
    assert earlier_runs(file, folder / "out") == []
    (entry,) = open_journal(folder / "out").records.values()
    assert entry["codes"] == {"a": 1, "b": 0}
    assert entry["traces"]["run"][1]["samples"][-1] == 20


def test_a_run_keeps_its_offsets(folder: Path) -> None:
    file = file_of(folder, python_job("a"), python_job("b"))
    found = run_jobs(file, [0.3, 0.0], folder / "out")
    assert found.finish_s[0] - found.finish_s[1] == pytest.approx(0.3, abs=0.15)
    assert found.makespan_s == found.finish_s[0]
    assert earlier_runs(file, folder / "out")[0].offsets_s == (0.3, 0.0)


def test_an_interrupt_ends_every_process(folder: Path) -> None:
    """Ctrl-C, and worse: also when the measuring program is killed, its jobs do not outlive it."""
    code = (
        # A test that runs in the background of a shell inherits that interrupts are ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from pathlib import Path; from precision_time.ingest.stagger.jobs_file import jobs_of;"
        "from precision_time.ingest.stagger.staggered_run import run_jobs;"
        "job = lambda n: dict(name=n, run='python:job.py:train', arguments=dict(pid_file=n + '.pid', sleep_s=0.5));"
        "words = dict(samples=20, cache=dict(reset=dict(folder='cache')), jobs=[job('a'), job('b')]);"
        "file = jobs_of(words, Path('.'));"
        "run_jobs(file, [0, 0], 'out')"
    )
    for how in (signal.SIGINT, signal.SIGKILL):
        for name in "ab":
            (folder / f"{name}.pid").unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(Path(precision_time.__file__).parents[1])}
        process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stderr=subprocess.DEVNULL, env=environment)
        try:
            pids = [int(pid) for name in "ab" for pid in _wait_for(folder / f"{name}.pid").split()]
            process.send_signal(how)
            assert process.wait(20) != 0
        finally:
            process.kill()
            process.wait()
        assert all(gone(pid) for pid in pids), how.name


def _wait_for(path: Path) -> str:
    for _ in range(200):
        if path.exists() and len(path.read_text().split()) == 2:
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written")


def test_a_journal_is_continued_or_begun_again(tmp_path: Path) -> None:
    open_journal(tmp_path / "kept").add("a", {"n": 1})
    assert open_journal(tmp_path / "kept").get("a") == {"n": 1}
    assert open_journal(tmp_path / "kept", fresh=True).get("a") is None


def test_what_changes_a_key(folder: Path) -> None:
    def key(job: dict[str, Any], **words: Any) -> str:
        file = file_of(folder, job, **words)
        return key_of(file, list(file.jobs), {"n": 1})

    first = key(python_job("a", sleep_s=1))
    assert key(python_job("b", sleep_s=1)) == first, "its name is not part of it"
    assert key({**python_job("a", sleep_s=1), "epochs": 7}) == first, "nor how long it runs"
    assert key(python_job("a", sleep_s=2)) != first
    assert key(python_job("a", sleep_s=1), samples=30) != first
    (folder / "job.py").write_text(FUNCTION + "\n# changed\n")
    assert key(python_job("a", sleep_s=1)) != first


@pytest.fixture
def cache(folder: Path) -> Path:
    (folder / "cache" / "sub").mkdir(parents=True)
    (folder / "cache" / "sub" / "x").write_bytes(b"12345")
    return folder / "cache"


def test_a_cache_folder_is_weighed_and_emptied(folder: Path, cache: Path) -> None:
    file = file_of(folder, python_job())
    assert cache_state.weight(file) == 5
    with pytest.raises(IngestError, match=r"cache.reset.folder .* is not empty and was not made by stagger"):
        cache_state.empty(file)
    assert (cache / "sub" / "x").exists()
    cache_state.empty(replace(file, emptied=cache))
    (cache / "more").write_text("ours")
    cache_state.empty(file)  # marked now
    assert [entry.name for entry in cache.iterdir()] == [cache_state.MARK]
    assert cache_state.weight(file) == 0
    shutil.copytree(cache, folder / "copy")
    (folder / "copy" / "precious").touch()
    with pytest.raises(IngestError, match="was not made by stagger"):
        cache_state.empty(file_of(folder, python_job(), cache={"reset": {"folder": "copy"}}))
    (folder / "link").symlink_to(cache)
    with pytest.raises(IngestError, match="is a symbolic link"):
        cache_state.empty(file_of(folder, python_job(), cache={"reset": {"folder": "link"}}))
    assert (folder / "job.py").exists()
    for wrong in (".", "..", "/"):
        with pytest.raises(IngestError, match="holds more than a cache"):
            cache_state.empty(file_of(folder, {"run": "true"}, cache={"reset": {"folder": wrong}}))


def test_a_reset_command_that_fails(folder: Path) -> None:
    file = file_of(folder, python_job(), cache={"reset": {"command": "echo no rights >&2; exit 3"}})
    with pytest.raises(IngestError, match=r"cache.reset.command .* ended with exit code 3: no rights"):
        cache_state.empty(file)


def test_a_page_cache_that_may_not_be_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_state, "DROP", folder / "no" / "drop_caches")
    with pytest.raises(IngestError, match=r"page_cache cannot be done: .*; run as root, or give cache.reset.command"):
        cache_state.empty(file_of(folder, python_job(), cache={"reset": "page_cache"}))


def test_a_host_that_is_gone(folder: Path) -> None:
    host = Host(file_of(folder, python_job()), file_of(folder, python_job()).jobs[0])
    host.ready()
    os.kill(host._process.pid, signal.SIGKILL)
    host._process.wait()
    with pytest.raises(IngestError, match="has ended; call again"):
        host.launch(10, 0, 1, folder / "run")
    host.close()


def test_a_job_that_stops_early_has_not_ended_well(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP.replace("11", "6"))
    command = {"name": "b", "run": f"{sys.executable} loop.py", "progress": r"done (?P<samples>\d+)"}
    says = r"job 'b' ended with exit code 0 and reported 20 samples .* where 2 epochs have 40"
    with pytest.raises(IngestError, match=says):
        run_jobs(file_of(folder, python_job(), {**command, "epochs": 2}), [0.0, 0.0], folder / "kept")


def test_a_script_that_was_edited_is_measured_again(folder: Path) -> None:
    file = file_of(folder, {"name": "b", "run": f"{sys.executable} loop.py"})
    before = key_of(file, list(file.jobs), {})
    (folder / "loop.py").write_text(LOOP + "\n")
    assert key_of(file, list(file.jobs), {}) != before


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "windows").write_text("not a folder")
    launcher = Launcher(file_of(folder, python_job(), python_job("b")), folder)
    with pytest.raises(DataError, match=r"windows' is a file; name a folder"):
        launcher.run("cold", [Launch(0, 8, 0, 1)])
