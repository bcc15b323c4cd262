"""Predictions shared by executors: a thread pool, one that loses its work, and a Dask cluster of two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from precision_time import compare
from precision_time.cli.main import main
from precision_time.comparison import cross
from precision_time.evaluation import evaluate
from precision_time.job import Job
from precision_time.plan import Goal, Space, plan, rank_layouts
from precision_time.processes import map_chunks, shared

JOB = Job("resnet50", precision="amp-fp16", batch_size=64, gpus=8, run={"epochs": 90})
SPACE = Space(providers=("aws",), gpu=("a100-40gb-sxm", "v100-16gb-sxm"), gpus=(8, 16))


class LosesEverySecond(Executor):
    """An executor whose workers are killed with every second piece of work in their hands."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, fn: Any, /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked += 1
        if self.asked % 2:
            future.set_result(fn(*given, **named))
        else:
            future.set_exception(RuntimeError("the worker was killed"))
        return future


def test_what_an_executor_loses_is_done_here() -> None:
    executor = LosesEverySecond()
    items = list(range(100))
    chunks = [items[start : start + 7] for start in range(0, 100, 7)]
    seen: list[int] = []
    assert map_chunks(abs, items, chunks, executor, lambda done, total: seen.append(done)) == items
    assert executor.asked == len(chunks)
    assert seen == sorted(seen)
    assert seen[-1] == 100
    assert len(list(shared(abs, items, LosesEverySecond()))) == 50


def test_a_mistake_of_the_work_is_raised() -> None:
    with ThreadPoolExecutor(2) as executor, pytest.raises(TypeError):
        map_chunks(abs, [1, "a"], [[0], [1]], executor)


def test_any_executor_gives_the_same_answers() -> None:
    expected = plan(JOB, Goal(), SPACE).to_dict()
    with ThreadPoolExecutor(2) as executor:
        assert plan(JOB, Goal(), SPACE, workers=executor).to_dict() == expected
        jobs = cross(JOB, precision=["fp32", "amp-fp16"], gpus=[1, 8])
        assert compare(jobs, workers=executor).to_dict() == compare(jobs).to_dict()
    assert plan(JOB, Goal(), SPACE, workers=LosesEverySecond()).to_dict() == expected


# --- a real scheduler


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A Dask scheduler and two workers, each a process of its own."""
    distributed = pytest.importorskip("distributed")
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s"}
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *"--host 127.0.0.1 --port 0 --no-dashboard".split()],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    assert scheduler.stderr is not None
    address = ""
    for line in scheduler.stderr:
        text = line.decode()
        if "Scheduler at:" in text:
            address = text.split("Scheduler at:")[1].strip()
            break
    workers = [_worker(address, environment) for _ in range(2)]
    try:
        with distributed.Client(address, timeout=60) as client:
            client.wait_for_workers(2, timeout=120)
        yield address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
        scheduler.stderr.close()


def _worker(address: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--no-dashboard"], env=environment, **quiet)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answers in the same order, also when a worker is killed with work in its hands."""
    import distributed

    address, workers = cluster
    llama = Job("llama3-8b", precision="bf16-master", gpu="h100-80gb-sxm", gpus=16)
    expected = rank_layouts(llama, global_batch=64).to_dict()
    table = tmp_path / "rows.csv"
    table.write_text(
        "id,model,batch_size,gpus,gpu,precision,step_time_s\n"
        "a,resnet50,256,8,a100-80gb-sxm,amp-fp16,0.1\nb,resnet50,128,8,v100-16gb-sxm,fp32,0.3\n",
        encoding="utf-8",
    )
    with distributed.Client(address, timeout=60) as client:
        executor = client.get_executor()
        assert rank_layouts(llama, global_batch=64, workers=executor).to_dict() == expected
        assert evaluate(table, workers=executor).to_dict() == evaluate(table).to_dict()
        killed = [False]

        def kill(done: int, total: int) -> None:
            if done and not killed[0]:
                killed[0] = True
                workers[0].send_signal(signal.SIGKILL)

        again = rank_layouts(llama, global_batch=64, workers=client.get_executor(), progress=kill).to_dict()
        assert killed[0]
        assert again == expected
    end = time.monotonic() + 60
    while workers[0].poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    assert main(["compare", "resnet50", "--gpus", "1,8", "--dask", address, "--json"]) == 0
    by_dask = capsys.readouterr().out
    assert main(["compare", "resnet50", "--gpus", "1,8", "--json"]) == 0
    assert capsys.readouterr().out == by_dask


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_does_not_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("precision_time.cli.workers.CONNECT_S", 1)
    assert main(["compare", "resnet50", "--dask", "tcp://127.0.0.1:9"]) == 2
    assert "does not answer" in capsys.readouterr().err
    assert main(["compare", "resnet50", "--dask", "tcp://127.0.0.1:9", "--workers", "2"]) == 2
    assert "leave one out" in capsys.readouterr().err
