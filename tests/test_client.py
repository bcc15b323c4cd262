"""`precision_time.Client` and `--server`: the library's calls, answered by a server; its errors; what is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")

import httpx

from precision_time import Client, Estimate, Job, compare, predict
from precision_time import client as client_module
from precision_time.cli import remote
from precision_time.cli.main import main
from precision_time.comparison import cross
from precision_time.errors import JobError, MissingExtraError, PlanError, ServeError
from precision_time.plan import Goal, Space, plan
from precision_time.plan.walltime import time_limit
from precision_time.serve.http.tokens import add_token
from serving import Here, here

RESNET = Job("resnet50", gpu="a100-80gb-sxm", batch_size=64, precision="amp-fp16", run={"epochs": 3})


def transport(server: Here) -> Any:
    """Requests of httpx, answered by the application in this process."""

    def answer(request: Any) -> Any:
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        path = request.url.raw_path.decode()
        reply = server.client.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(reply.status_code, headers=dict(reply.headers), content=reply.content)

    return httpx.MockTransport(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with here(tmp_path_factory.mktemp("client")) as found:
        yield found


@pytest.fixture
def client(server: Here) -> Iterator[Client]:
    with Client("http://testserver", transport=transport(server)) as found:
        yield found


def test_predict(client: Client) -> None:
    estimate = client.predict(RESNET)
    assert isinstance(estimate, Estimate)
    assert estimate.prediction
    assert estimate.to_dict() == predict(RESNET).to_dict()
    assert str(estimate) == str(predict(RESNET))
    assert client.predict(RESNET.to_dict()).prediction == estimate.prediction
    assert client.predict(RESNET, key="one").prediction != estimate.prediction
    assert client.predict(RESNET, keep=False).prediction is None


def test_compare(client: Client) -> None:
    found = client.compare(RESNET, precisions=["fp32", "amp-fp16"], counts=[1, 8])
    jobs = cross(RESNET.replace(precision="fp32"), gpus=[1, 8], precision=["fp32", "amp-fp16"])
    assert found.to_dict() == compare(jobs).to_dict()
    assert str(found) == str(compare(jobs))


def test_plan(client: Client) -> None:
    goal, space = (
        Goal(deadline_hours=30),
        Space(gpus=(4, 8), gpu=("a100", "h100"), grid="france", schedule="fp32:N%..amp-bf16"),
    )
    made = plan(RESNET, goal, space)
    found = client.plan(RESNET, goal, space)
    assert found.pop("text") == str(made)
    assert found == json.loads(json.dumps(made.to_dict()))
    with pytest.raises(PlanError, match="nothing meets the deadline"):
        client.plan(RESNET, {"deadline_hours": 0.01}, {"gpus": [1], "gpu": ["a100"]})


def test_walltime(client: Client) -> None:
    assert client.walltime(RESNET, 0.9, "slurm") == time_limit(predict(RESNET), 0.9, "slurm")


def test_record_and_list(server: Here) -> None:
    client = Client("http://testserver", cluster="recorded", transport=transport(server))
    made = client.predict(RESNET, key="recorded")
    assert client.record(made, key="a", step_s=0.1, steps_s=(0.1, 0.2), machine={"host": "n1"})
    assert made.prediction
    assert not client.record(made.prediction, key="a", step_s=0.2)
    assert [each["id"] for each in client.predictions(limit=1)] == [made.prediction]
    found = client.prediction(made.prediction)
    assert [outcome["step_s"] for outcome in found["outcomes"]] == [0.1]
    with pytest.raises(ServeError, match=r"no prediction|Not Found"):
        client.record("no/such?id", step_s=1)
    with pytest.raises(ServeError, match="was not kept"):
        client.record(client.predict(RESNET, keep=False), step_s=1)


def test_import(client: Client) -> None:
    text = "parallelism:\n  tensor_parallel_degree: 2\ntraining:\n  local_batch_size: 1\n  seq_len: 8192\n  steps: 9\n"
    assert client.import_file(text, "c.yaml", model="llama3.1-8b", gpus=8)["job"]["run"] == {"steps": 9}


def test_errors_are_those_of_the_library(client: Client) -> None:
    for fields in (
        {"model": "resnet51"},
        {"model": "resnet50", "batch_size": 0},
        {"model": "resnet50", "gpus": 3, "layout": "tp=2"},
    ):
        with pytest.raises(JobError) as here_:
            predict(Job.from_dict(fields))
        with pytest.raises(JobError) as there:
            client.predict(fields)
        assert str(here_.value) == str(there.value)


# What fails on the way.


def answering(*replies: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """A transport that gives these replies in order, the last one again and again."""
    asked: list[Any] = []

    def answer(request: Any) -> Any:
        asked.append(request)
        return replies[min(len(asked), len(replies)) - 1]()

    return httpx.MockTransport(answer), asked


def busy() -> Any:
    problem = {"status": 503, "title": "Service Unavailable", "detail": "all workers are busy", "type": "about:blank"}
    return httpx.Response(503, json=problem, headers={"retry-after": "0"})


def broken() -> Any:
    raise httpx.ConnectError("refused")


def late() -> Any:
    raise httpx.ReadTimeout("late")


def listed() -> Any:
    return httpx.Response(200, json={"predictions": []})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", found.append)
    return found


def test_a_busy_server_is_asked_again(waits: list[float]) -> None:
    replies, asked = answering(busy, broken, listed)
    with Client("http://x", transport=replies) as client:
        assert client.predictions() == []
    assert (len(asked), waits) == (3, [0.2, 1.0])


@pytest.mark.parametrize(
    ("reply", "count", "text"),
    [(busy, 4, "all workers are busy"), (broken, 4, "does not answer"), (late, 1, "does not answer")],
)
def test_a_server_that_stays_away(waits: list[float], reply: Any, count: int, text: str) -> None:
    replies, asked = answering(reply)
    with Client("http://x", transport=replies) as client, pytest.raises(ServeError, match=text):
        client.predictions()
    assert (len(asked), len(waits)) == (count, count - 1)


@pytest.mark.parametrize(
    "reply",
    [
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json=[1]),
        lambda: httpx.Response(502, text="Bad Gateway"),
        lambda: httpx.Response(422, json={"detail": "x", "error": "__builtins__"}),
        lambda: httpx.Response(422, json={"detail": "x", "error": "nearest"}),
        lambda: httpx.Response(302, headers={"location": "http://elsewhere/"}),
    ],
)
def test_what_is_no_answer_of_a_server(reply: Any) -> None:
    replies, asked = answering(reply)
    with Client("http://x", transport=replies) as client, pytest.raises(ServeError) as raised:
        client.predictions()
    assert (len(asked), type(raised.value)) == (1, ServeError)


def test_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    replies, asked = answering(listed)
    monkeypatch.setenv(client_module.TOKEN, "pt_env_x")
    for token, expected in ((None, "Bearer pt_env_x"), ("pt_a_y", "Bearer pt_a_y"), ("", None)):
        with Client("http://x", token, transport=replies) as client:
            client.predictions()
        assert asked[-1].headers.get("authorization") == expected


@pytest.mark.parametrize("url", ["", "localhost:8750", "ftp://x", "http://[", "http://x y"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ServeError, match="is no address"):
        Client(url)


def test_httpx_is_named_where_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"precision-time\[client\]"):
        Client("http://x")


def test_a_token_without_the_role(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, "page", ["read"], "2026-11-25")
    with here(tmp_path, path) as server, Client("http://testserver", token, transport=transport(server)) as client:
        assert client.predictions() == []
        with pytest.raises(ServeError, match="this needs predict"):
            client.predict(RESNET)


# The command line.


@pytest.fixture
def at_server(server: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = remote._client

    def made(options: Any, *flags: Any) -> Client:
        checked(options, *flags).close()
        return Client("http://testserver", cluster=options.cluster_name, transport=transport(server))

    monkeypatch.setattr(remote, "_client", made)


@pytest.mark.parametrize(
    "words",
    [
        "predict resnet50 --gpus 8 --epochs 3",
        "predict resnet50 --gpus 8 --epochs 3 --quantile 0.95 --json",
        "compare resnet50 --gpu v100-32gb-sxm,a100-80gb-sxm --gpus 1,8 --epochs 3 --sort cost --best 3 --price any",
        "compare resnet50 --json",
        "plan resnet50 --epochs 3 --gpus 4,8 --gpu a100,h100 --deadline 30h",
        "plan resnet50 --epochs 3 --gpus 4,8 --gpu a100 --quantile 0.95 --json",
        "walltime resnet50 --epochs 3 --format slurm",
        "walltime resnet50 --epochs 3 --json",
    ],
)
@pytest.mark.usefixtures("at_server")
def test_a_command_prints_the_same_from_a_server(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    expected = capsys.readouterr().out
    assert main([*words.split(), "--server", "http://testserver"]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("predict resnet50 --trace t.json", "--trace does not go with --server"),
        ("predict resnet50 --largest-batch", "--largest-batch does not go with --server"),
        ("predict resnet50 --predictor additive", "--predictor does not go with --server"),
        ("compare resnet50 vgg16", "one model at a time"),
        ("compare resnet50 --workers 2", "--workers does not go with --server"),
        ("predict resnet50 --device d.yaml", "device 'd.yaml' is a device file"),
        ("predict hf:config.json", "a request opens no file"),
    ],
)
@pytest.mark.usefixtures("at_server")
def test_what_does_not_go_with_a_server(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--server", "http://testserver"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("command", "body"), [
    ("predict", b"{}"), ("predict", b'{"estimate": {}, "id": 3}'), ("compare", b'{"rows": 3}'),
    ("walltime", b'{"format": "slurm"}'), ("plan", b"{}"), ("predict", b"[" * 50_000), ("predict", b'{"id": NaN}'),
    ("plan", b'{"chosen": {"step_s": {"p10": -1, "p50": 2, "p90": 3}}}'),
    ("predictions", b'{"predictions": [{"p10": 3, "p50": 2, "p90": 4}]}'),
])  # fmt: skip
def test_an_answer_of_another_program_is_one_sentence(command: str, body: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    with Client("http://x", transport=transport) as client, pytest.raises(ServeError, match="is it precision-time"):
        getattr(client, command)(*() if command == "predictions" else (Job("resnet50", run={"steps": 10}),))


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_time.client.LARGEST_REPLY", 100)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b" " * 101))
    with Client("http://x", transport=transport) as client, pytest.raises(ServeError, match="more than 100 bytes"):
        client.predict(Job("resnet50"))
