"""`precision-time record`: from flags, outcome files, tables and Slurm, into a store or to a server, and again."""

from __future__ import annotations

import functools
import io
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from postgresql_server import Server
from precision_time import Estimate, Job, predict
from precision_time.cli.main import main
from precision_time.client import Client
from precision_time.errors import DataError, StoreError, UnknownPredictionError
from precision_time.integrations.live import LiveRun
from precision_time.integrations.outcome import Outcome
from precision_time.integrations.preview import Preview
from precision_time.integrations.probe import DeviceProbe
from precision_time.serve.recording import Measured, Run, open_recorder, record_run, recorder
from precision_time.serve.recording.outcome_file import measured_of, run_of_file
from precision_time.serve.recording.recorder import facets_of
from precision_time.serve.recording.slurm import ended_jobs
from precision_time.serve.records import Prediction
from precision_time.serve.store import SqlStore, new_id, open_store
from serving import Here, here
from store_cases import prediction

Run_ = Callable[..., tuple[int, dict[str, Any], str]]
JOB = Job("resnet50", gpu="v100-16gb-sxm", precision="amp-fp16", batch_size=64, run={"steps": 40})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.chdir(tmp_path)
    opened = open_store("store.db")
    yield opened
    opened.close()


@pytest.fixture
def one(store: SqlStore) -> Prediction:
    return store.add_prediction(prediction())


@pytest.fixture
def run(store: SqlStore, capsys: pytest.CaptureFixture[str]) -> Run_:
    """Runs `record` on the store; gives the exit code, the JSON and what was noted."""

    def call(*words: str, place: tuple[str, ...] = ("--database", "store.db")) -> tuple[int, dict[str, Any], str]:
        code = main(["record", *words, *place, "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else {}, told.err

    return call


def outcome_content(job: Job = JOB, steps: int = 40, here: bool = True, device: str = "cuda") -> dict[str, Any]:
    """The content of an outcome file after so many steps of 0.2 s, of which the first three are slower."""
    live = LiveRun(warmup=3)
    live.steps = 40
    written = Outcome(None, "transformers", DeviceProbe("cpu"))
    for index in range(steps):
        step_s = 1.0 if index < 3 else 0.2
        live.add(step_s, 0.0)
        written.add_step(step_s, 0.0)
    ended = "all steps are done" if steps == 40 else ""
    content = written.content(live, Preview(predict(job), here), ["a note"], 11.0, ended, 0.01)
    content["measured"]["device_type"] = device
    content["measured"]["peak_memory"] = {"bytes": 9_000_000_000, "of": "memory reserved by PyTorch"}
    return content


# --- flags


def test_flags_of_a_prediction(run: Run_, store: SqlStore, one: Prediction) -> None:
    words = (one.id, "--step-s", "0.112", "--run-s", "50400", "--peak-bytes", "41000000000", "--finished", "yes",
             "--machine", "host=node17", "--machine", "driver=550.54", "--key", "slurm-4711")  # fmt: skip
    code, found, _ = run(*words)
    assert (code, found) == (
        0, {"recorded": [{"key": "slurm-4711", "prediction": one.id, "new": True, "refused": None}]}
    )  # fmt: skip
    (kept,) = store.outcomes(one.id)
    assert (kept.key, kept.step_s, kept.run_s, kept.peak_bytes, kept.finished, kept.machine) == (
        "slurm-4711", 0.112, 50400.0, 41_000_000_000, True, {"host": "node17", "driver": "550.54"}
    )  # fmt: skip
    assert run(*words)[1]["recorded"][0]["new"] is False
    assert len(store.outcomes(one.id)) == 1


def test_equal_flags_without_a_key_are_one_outcome(run: Run_, store: SqlStore, one: Prediction) -> None:
    for flags, new in ((("--run-s", "60"), True), (("--run-s", "60.0"), False), (("--run-s", "61"), True)):
        assert run(one.id, *flags)[1]["recorded"][0]["new"] is new
    assert [each.run_s for each in store.outcomes(one.id)] == [60.0, 61.0]


def test_exit_codes(run: Run_, store: SqlStore, one: Prediction) -> None:
    for code, key in (("0", "a"), ("137", "b")):
        assert run(one.id, "--exit-code", code, "--run-s", "9", "--key", key)[0] == 0
    assert [each.finished for each in store.outcomes(one.id)] == [True, False]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "give one source"), ("ID --slurm x", "give one source"), ("ID", "measures nothing; give one of step_s"),
        ("resnet50 --step-s 1", "neither the id of a prediction nor a file"), ("ID --step-s x", "step_s"),
        ("ID --step-s -1", "step_s"), ("ID --exit-code x", "no exit code"), ("ID --machine host", "NAME=VALUE"),
        ("ID --exit-code 0 --finished yes", "say the same"), ("ID --run-s 1 --server http://x", "two places"),
        ("run.json --step-s 1", "--step-s goes with the id"), ("ID --prediction ID --run-s 1", "with an outcome file"),
        ("nowhere.json", "cannot be read"), ("nowhere.csv", "cannot be read"), ("--slurm nowhere", "cannot be read"),
        ("ID --run-s 1 --finished maybe", "true or false"),
    ],
)  # fmt: skip
def test_wrong_flags(words: str, text: str, run: Run_, one: Prediction) -> None:
    code, _, told = run(*words.replace("ID", one.id).split())
    assert code == 2
    assert text in told
    assert told.count("\n") == 1


def test_an_unknown_prediction(run: Run_) -> None:
    code, _, told = run(new_id(), "--run-s", "1")
    assert code == 2
    assert "there is no prediction" in told


# --- outcome files


def test_an_outcome_file_brings_its_prediction(run: Run_, store: SqlStore) -> None:
    content = outcome_content()
    Path("outcome.json").write_text(json.dumps(content))
    first = run("outcome.json", "--cluster-name", "pool-a")[1]["recorded"][0]
    assert first["new"] is True
    made = store.prediction(first["prediction"])
    assert made is not None
    assert made.cluster == "pool-a"
    assert made.made_at == content["began_at"]
    assert Job.from_dict(made.job) == JOB
    assert made.predicted == (lambda step: (step.p10, step.p50, step.p90))(predict(JOB).step)
    assert (made.facets["gpu"], made.facets["precision"], made.facets["model"]) == (
        "v100-16gb-sxm",
        "amp-fp16",
        "resnet50",
    )
    (kept,) = store.outcomes(made.id)
    assert (kept.step_s, kept.run_s, kept.finished, kept.peak_bytes) == (0.2, 11.0, True, 9_000_000_000)
    assert kept.steps_s == (0.2,) * 37, "without the first three"
    assert str(kept.machine["framework"]).startswith("transformers")
    assert kept.machine["host"] == platform.node()
    again = run("outcome.json")[1]["recorded"][0]
    assert again == {**first, "new": False}
    assert len(store.predictions()) == 1


def test_a_run_that_was_killed_and_its_end_are_two_outcomes_of_one_prediction(run: Run_, store: SqlStore) -> None:
    content = outcome_content(steps=20)
    assert content["ended"] is None
    Path("o.json").write_text(json.dumps(content))
    run("o.json")
    whole = {**outcome_content(), "run": content["run"]}
    Path("o.json").write_text(json.dumps(whole))
    run("o.json")
    (made,) = store.predictions()
    assert [(each.finished, len(each.steps_s)) for each in store.outcomes(made.id)] == [(False, 17), (True, 37)]


def test_files_of_an_earlier_version_are_known_by_their_content(run: Run_, store: SqlStore) -> None:
    content = outcome_content()
    del content["run"], content["began_at"]
    for index, run_s in enumerate((11.0, 11.0, 12.0)):
        content["measured"]["run_s"] = run_s
        Path("o.json").write_text(json.dumps(content))
        assert run("o.json")[1]["recorded"][0]["new"] is (index != 1)
    assert len(store.predictions()) == 2


def test_an_outcome_file_of_a_prediction_of_a_server(run: Run_, store: SqlStore, one: Prediction) -> None:
    Path("o.json").write_text(json.dumps({**outcome_content(), "job": None, "prediction": None}))
    code, _, told = run("o.json")
    assert code == 2
    assert "nothing was predicted for this run; record the outcome file with --prediction" in told
    assert run("o.json", "--prediction", one.id)[0] == 0
    assert store.outcomes(one.id)[0].step_s == 0.2


def test_a_run_on_another_device_is_not_held_against_the_prediction(run: Run_, store: SqlStore) -> None:
    Path("o.json").write_text(json.dumps(outcome_content(here=False)))
    code, _, told = run("o.json")
    assert code == 2
    assert "the prediction is for 'v100-16gb-sxm', and another device trained; record the" in told
    assert store.predictions() == ()


def test_memory_of_a_process_is_no_memory_of_a_gpu() -> None:
    assert measured_of(outcome_content(device="cpu")).peak_bytes is None


@pytest.mark.parametrize(
    "change", [{"measured": {"steps_s": ["x"]}}, {"measured": {"step_s": []}}, {"measured": {"peak_memory": 3}}]
)
def test_damaged_outcome_files(change: dict[str, Any], run: Run_) -> None:
    content = outcome_content()
    content["measured"] |= change["measured"]
    Path("o.json").write_text(json.dumps(content))
    code, _, told = run("o.json")
    assert code == 2
    assert "has a value of another kind" in told
    for text in ("[1, 2]", '{"model": "resnet50"}'):
        Path("o.json").write_text(text)
        assert "has no measured values" in run("o.json")[2]


def test_names_of_a_gpu_are_one_facet() -> None:
    short, full = (predict(JOB.replace(gpu=name)) for name in ("V100", "v100-16gb-sxm"))
    assert facets_of(short.job, short) == facets_of(full.job, full)
    assert facets_of(short.job, short)["gpu"] == "v100-16gb-sxm"


def test_modules_of_one_class_are_told_apart_by_their_sizes() -> None:
    """A program names its modules module:NAME-1, -2 ..., whatever their layers are."""
    small, large = predict(JOB), predict(JOB.replace(model="resnet101"))
    named = Job.from_dict({**JOB.to_dict(), "model": "module:Net-1"})
    second = Job.from_dict({**JOB.to_dict(), "model": "module:Net-2"})
    assert facets_of(named, small) == facets_of(second, small)
    assert facets_of(named, small)["job"] != facets_of(named, large)["job"]
    assert facets_of(named, small)["family"] == facets_of(named, large)["family"] == "module:net"
    other = Job.from_dict({**JOB.to_dict(), "model": "module:Net-1", "batch_size": 8})
    assert facets_of(other, small)["job"] != facets_of(named, small)["job"]


# --- tables


def test_a_table_of_outcomes(run: Run_, store: SqlStore, one: Prediction) -> None:
    two, unknown = store.add_prediction(prediction()), new_id()
    Path("t.csv").write_text(
        "prediction,key,step_s,run_s,peak_bytes,finished,host\n"
        f"{one.id},a,0.5,,,yes,n1\n{two.id},,,60,7,no,n2\n{unknown},,0.5,,,,\n"
    )
    code, found, told = run("t.csv")
    assert code == 0
    assert [each["new"] for each in found["recorded"]] == [True, True, False]
    assert "there is no prediction" in found["recorded"][2]["refused"]
    assert "not recorded" in told
    kept = store.outcomes(two.id)[0]
    assert (kept.run_s, kept.peak_bytes, kept.finished, kept.machine) == (60.0, 7, False, {"host": "n2"})
    assert [each["new"] for each in run("t.csv")[1]["recorded"]] == [False, False, False]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("ID,a,x", "line 2: step_s"),
        (",a,1", "names no prediction in line 2"),
        ("ID,a,", "line 2: the outcome measures"),
    ],
)
def test_wrong_rows_of_outcomes(row: str, text: str, run: Run_, store: SqlStore, one: Prediction) -> None:
    Path("t.csv").write_text(f"prediction,key,step_s\n{row.replace('ID', one.id)}\n")
    code, _, told = run("t.csv")
    assert code == 2
    assert text in told
    assert store.outcomes(one.id) == ()


def test_a_table_of_measured_jobs(run: Run_, store: SqlStore) -> None:
    Path("t.csv").write_text(
        "id,model,gpu,gpus,precision,batch_size,step_time_s,framework\n"
        "a,resnet50,v100-16gb-sxm,1,fp32,32,0.11,pytorch\n"
        "b,resnet50,v100-16gb-sxm,1,fp32,32,0.11,pytorch\n"
        "c,resnet18,a100-80gb-sxm,1,bf16,32,0.01,mxnet\n"
        "d,nothing-like-it,v100-16gb-sxm,1,fp32,32,0.11,\n"
    )
    _, found, told = run("t.csv", "--cluster-name", "old")
    assert [each["new"] for each in found["recorded"]].count(True) == 3
    assert "row 'd'" in told
    assert "nothing-like-it" in told
    assert store.clusters() == {"old": (3, 3)}
    steps = sorted((each.outcome.step_s or 0.0, each.prediction.facets["framework"]) for each in store.recorded())
    assert steps == [(0.01, "mxnet"), (0.11, "pytorch"), (0.11, "pytorch")]
    assert not any(each["new"] for each in run("t.csv", "--cluster-name", "old")[1]["recorded"])
    assert store.clusters() == {"old": (3, 3)}


# --- Slurm

SACCT = """JobIDRaw|JobName|State|ElapsedRaw|Elapsed|ExitCode|Start|NodeList|Comment
4711|train|COMPLETED|50400|14:00:00|0:0|2026-01-02T03:04:05|node[1-2]|precision-time:ID
4711.batch|batch|COMPLETED|50400|14:00:00|0:0|2026-01-02T03:04:05|node1|precision-time:ID
4712|train|RUNNING|60|00:01:00|0:0|2026-01-02T03:04:05|node3|precision-time:ID
4713|other|COMPLETED|60|00:01:00|0:0|2026-01-02T03:04:05|node3|nothing of ours
4714|a|b|TIMEOUT
"""
SACCT_ELAPSED = """JobID|State|Elapsed|ExitCode|Comment|
4720|TIMEOUT|1-02:03:04|0:0|x | y precision-time=ID|
4721|CANCELLED by 1000|03:04.250|0:15|precision-time:ID|
4722|FAILED|00:00:07|1:0|precision-time:ID|
4723|OUT_OF_MEMORY|00:00:07|0:125|precision-time:ID|
"""
SCONTROL = (
    "JobId=4730 JobName=train me UserId=a(1) Comment=precision-time:ID JobState=COMPLETING Reason=None "
    "Dependency=(null) Requeue=1 Restarts=0 ExitCode=0:0 RunTime=02:00:01 TimeLimit=1-00:00:00 "
    "StartTime=2026-01-02T03:04:05 EndTime=2026-01-02T05:04:06 NodeList=node7 Command=/bin/train --lr=0.1\n"
)


def jobs(text: str) -> dict[str, Measured]:
    name = new_id()
    found = list(ended_jobs(text.replace("ID:", "").replace("precision-time:ID", f"precision-time:{name}").replace(
        "precision-time=ID", f"precision-time={name}"), "text"))  # fmt: skip
    assert {each.prediction for each in found} <= {name}
    return {each.measured.key: each.measured for each in found}


def test_what_sacct_prints() -> None:
    ((key, measured),) = jobs(SACCT).items()
    assert key == "slurm-4711-2026-01-02T03:04:05"
    assert (measured.run_s, measured.finished) == (50_400.0, True)
    assert measured.machine == {
        "slurm_job": "4711", "slurm_state": "COMPLETED", "slurm_exit_code": "0:0", "hosts": "node[1-2]"
    }  # fmt: skip
    found = jobs(SACCT_ELAPSED)
    assert {key: (each.run_s, each.finished) for key, each in found.items()} == {
        "slurm-4720": (93_784.0, False), "slurm-4721": (184.0, False), "slurm-4722": (7.0, False),
        "slurm-4723": (7.0, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "finished"),
    [
        ({}, True), ({"ExitCode=0:0": "ExitCode=1:0"}, False), ({"Reason=None": "Reason=TimeLimit"}, False),
        ({"JobState=COMPLETING": "JobState=COMPLETED"}, True), ({"JobState=COMPLETING": "JobState=NODE_FAIL"}, False),
    ],
)  # fmt: skip
def test_what_scontrol_prints_in_an_epilog(change: dict[str, str], finished: bool) -> None:
    text = SCONTROL
    for old, new in change.items():
        text = text.replace(old, new)
    ((key, measured),) = jobs(text).items()
    assert key == "slurm-4730-2026-01-02T03:04:05"
    assert (measured.run_s, measured.finished, measured.machine["hosts"]) == (7201.0, finished, "node7")


def test_a_job_that_was_queued_again_is_two_outcomes(run: Run_, store: SqlStore, one: Prediction) -> None:
    first = SACCT.replace("ID", one.id).replace(f"Job{one.id}Raw", "JobIDRaw")
    second = first.replace("2026-01-02", "2026-01-03")
    for text, new in ((first, 1), (first, 0), (first + second.partition("\n")[2], 1)):
        Path("sacct.txt").write_text(text)
        code, found, _ = run("--slurm", "sacct.txt")
        assert code == 0
        assert sum(each["new"] for each in found["recorded"]) == new
    assert len(store.outcomes(one.id)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,gpu\nresnet50,a100\n", "is neither what `sacct --parsable2` nor"),
        ("JobID|Elapsed|Comment\n1|soon|precision-time:ID\n", "line 2 has the elapsed time 'soon'"),
        ("JobIDRaw|Comment\n1|precision-time:ID\n", "has the elapsed time ''"),
    ],
)  # fmt: skip
def test_other_texts(text: str, said: str, run: Run_, one: Prediction) -> None:
    Path("s.txt").write_text(text.replace("precision-time:ID", f"precision-time:{one.id}"))
    code, _, told = run("--slurm", "s.txt")
    assert code == 2
    assert said in told


def test_jobs_of_other_stores_are_passed_over(run: Run_, store: SqlStore, one: Prediction) -> None:
    """The whole cluster's jobs may be piped into it."""
    text = f"JobIDRaw|State|Elapsed|ExitCode|Comment\n1|COMPLETED|01:00|0:0|precision-time:{new_id()}\n"
    text += f"2|COMPLETED|01:00|0:0|precision-time:{one.id}\n3|COMPLETED|01:00|0:0|\n"
    Path("s.txt").write_text(text)
    code, found, _ = run("--slurm", "s.txt")
    assert code == 0
    assert [each["new"] for each in found["recorded"]] == [False, True]


def test_standard_input(run: Run_, store: SqlStore, one: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"JobID|State|Elapsed|ExitCode|Comment\n7|COMPLETED|01:00|0:0|precision-time:{one.id}\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("--slurm", "-")[1]["recorded"][0]["new"] is True
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert run("--slurm", "-")[:2] == (0, {"recorded": []})


def documented(marker: str) -> str:
    """The line of the documentation that has this text."""
    page = (Path(__file__).parents[1] / "docs" / "serve-running.md").read_text()
    (line,) = [line for line in page.splitlines() if marker in line and "precision-time record" in line]
    return line


def test_the_documented_trap_of_a_batch_script(store: SqlStore, one: Prediction, tmp_path: Path) -> None:
    """Run by bash: seconds of the script and its exit code reach the store, also where the training fails."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    command = f"{sys.executable} -m precision_time record"
    line = documented("trap ").replace("precision-time record", command)
    database = f"--database {tmp_path / 'store.db'}"
    for number, (training, expected) in enumerate((("true", 0), ("exit 3", 3))):
        script = f"PREDICTION={one.id}\nSLURM_JOB_ID={number}\n{line.replace(' --server $SERVER', ' ' + database)}\n"
        done = subprocess.run(["bash", "-c", script + training], capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stderr
    kept = store.outcomes(one.id)
    assert [(each.key, each.finished) for each in kept] == [("slurm-0", True), ("slurm-1", False)]
    assert all(each.run_s is not None and 0 <= each.run_s < 60 for each in kept)


def test_the_documented_epilog(store: SqlStore, one: Prediction, tmp_path: Path) -> None:
    """Run by sh, with programs of Slurm that print what they were asked for."""
    (tmp_path / "bin").mkdir()
    scontrol = SCONTROL.replace("precision-time:ID", f"precision-time:{one.id}")
    sacct = SACCT.replace("precision-time:ID", f"precision-time:{one.id}")
    for name, text in (("scontrol", scontrol), ("sacct", sacct)):
        (tmp_path / f"{name}.txt").write_text(text)
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.asked\ncat {tmp_path}/{name}.txt\n')
        program.chmod(0o755)
    command = f"{sys.executable} -m precision_time record"
    for marker, key in (("scontrol show", "slurm-4730"), ("sacct ", "slurm-4711")):
        line = documented(marker).replace("precision-time record", command).replace("--server $SERVER", "")
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "4730", "PYTHONPATH": _path()}
        done = subprocess.run(
            ["sh", "-c", f"{line} --database {tmp_path / 'store.db'}"], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert store.outcomes(one.id)[-1].key.startswith(key)
    asked = (tmp_path / "sacct.asked").read_text()
    assert all(word in asked for word in ("Comment", "Elapsed", "ExitCode", "State", "JobID", "Start"))


def _path() -> str:
    import precision_time

    return str(Path(precision_time.__file__).parents[1])


# --- to a server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    (tmp_path / "server").mkdir()
    with here(tmp_path / "server") as found:
        monkeypatch.setattr(recorder, "Client", functools.partial(Client, transport=transport_to(found)))
        yield found


def transport_to(server: Here) -> httpx.MockTransport:
    """Requests of a client, answered by the application of this process."""

    def answer(request: httpx.Request) -> httpx.Response:
        reply = server.client.request(
            request.method, request.url.raw_path.decode(), content=request.content, headers=dict(request.headers)
        )
        return httpx.Response(reply.status_code, headers=dict(reply.headers), content=reply.content)

    return httpx.MockTransport(answer)


PLACE = ("--server", "http://testserver")


def test_outcomes_at_a_server(run: Run_, server: Here) -> None:
    with Client("http://testserver", transport=transport_to(server)) as client:
        known = client.predict(JOB).prediction
    assert known is not None
    words = (known, "--step-s", "0.2", "--peak-bytes", "9", "--key", "k", "--machine", "host=n1")
    assert run(*words, place=PLACE)[1]["recorded"][0]["new"] is True
    assert run(*words, place=PLACE)[1]["recorded"][0]["new"] is False
    (kept,) = server.store.outcomes(known)
    assert (kept.step_s, kept.peak_bytes, kept.machine) == (0.2, 9, {"host": "n1"})
    code, _, told = run(new_id(), "--step-s", "0.2", place=PLACE)
    assert code == 2
    assert "there is no prediction" in told
    Path("s.txt").write_text(
        "JobIDRaw|State|Elapsed|ExitCode|Comment\n"
        f"1|COMPLETED|01:00|0:0|precision-time:{new_id()}\n2|COMPLETED|01:00|0:0|precision-time:{known}\n"
    )
    assert [each["new"] for each in run("--slurm", "s.txt", place=PLACE)[1]["recorded"]] == [False, True]


def test_files_and_tables_at_a_server(run: Run_, server: Here) -> None:
    """The server predicts the jobs itself, and keeps what is recorded twice once."""
    Path("o.json").write_text(json.dumps(outcome_content()))
    Path("t.csv").write_text(
        "id,model,gpu,precision,batch_size,step_time_s\na,resnet50,v100-16gb-sxm,fp32,32,0.11\n"
        "b,timm:resnet50,v100-16gb-sxm,fp32,32,0.11\n"
    )
    for name, new in (("o.json", [True]), ("o.json", [False]), ("t.csv", [True, False]), ("t.csv", [False, False])):
        code, found, told = run(name, "--cluster-name", "pool", place=PLACE)
        assert code == 0, told
        assert [each["new"] for each in found["recorded"]] == new
    assert server.store.clusters() == {"pool": (2, 2)}
    assert "timm:resnet50" in found["recorded"][1]["refused"]


def test_a_server_that_is_not_there(run: Run_, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_time.client._WAIT_S", ())
    code, _, told = run(new_id(), "--run-s", "1", place=("--server", "http://127.0.0.1:9"))
    assert code == 2
    assert "does not answer" in told


# --- from programs


def test_recording_from_a_program(store: SqlStore, postgresql: Server) -> None:
    for target in ("store.db", postgresql.new_database()):
        content = outcome_content()
        first = record_run(content, target, "pool")
        assert record_run(content, target, "pool") == first
        kept = open_store(target)
        assert len(kept.outcomes(first)) == 1
        kept.close()


def test_a_module_of_this_process_at_a_server(server: Here, tmp_path: Path) -> None:
    """A traced module is posted as a graph, which the server predicts."""
    torch = pytest.importorskip("torch")
    from precision_time.integrations.torch import predict_module

    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    batch = (torch.zeros(32, 64), torch.zeros(32, dtype=torch.long))
    estimate = predict_module(net, batch, loss=torch.nn.functional.cross_entropy, gpu="h100", precision="bf16-mixed")
    content = {**outcome_content(), "job": estimate.job.to_dict(), "prediction": estimate.to_dict()}
    name = record_run(content, "http://testserver", None, estimate)
    made = server.store.prediction(name)
    assert made is not None
    assert made.estimate["parameters"] == estimate.parameters
    assert len(server.store.outcomes(name)) == 1
    other = record_run(content, tmp_path / "own.db", None, estimate)
    own = open_store(tmp_path / "own.db")
    kept = own.prediction(other)
    assert kept is not None
    assert kept.facets["family"] == "module:sequential"
    own.close()


def test_what_a_recorder_raises(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        open_recorder(tmp_path / "no" / "store.db")
    here = open_recorder(tmp_path / "store.db")
    with pytest.raises(UnknownPredictionError):
        here.record(new_id(), Measured("k", run_s=1.0))
    impossible = Job("resnet50", gpu="v100-16gb-sxm", precision="fp8")
    (refused,) = here.record_runs([Run("k", impossible, Measured("k", run_s=1.0))])
    assert refused.prediction is None
    assert "fp8" in refused.refused
    here.close()
    with pytest.raises(DataError, match="fp8"):
        run_and_fail(tmp_path, impossible)


def run_and_fail(tmp_path: Path, job: Job) -> None:
    recorded = run_of_file(outcome_content())
    here = open_recorder(tmp_path / "store.db")
    (result,) = here.record_runs([Run(recorded.key, job, recorded.measured)])
    here.close()
    raise DataError(result.refused)


def test_estimates_of_runs_are_those_that_were_made(tmp_path: Path) -> None:
    """What was predicted before the run is kept, not what this version would predict."""
    content = outcome_content()
    made = Estimate.from_dict(content["prediction"]).to_dict()
    made["step"] = {"p10": 1.0, "p50": 2.0, "p90": 3.0}
    name = record_run({**content, "prediction": made}, tmp_path / "store.db")
    store = open_store(tmp_path / "store.db")
    kept = store.prediction(name)
    assert kept is not None
    assert kept.predicted == (1.0, 2.0, 3.0)
    store.close()
