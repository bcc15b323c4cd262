"""`precision-time serve` as a process: limits of real jobs, concurrency, graceful stop, metrics, where it listens."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.attack.jobs import models, random_fields
from precision_time import Client, Job, predict
from precision_time.cli.main import main
from precision_time.errors import JobError, PrecisionTimeError
from serving import RESNET, Served, served

PRECISIONS = ("fp32", "bf16", "amp-bf16", "fp16", "fp64", "tf32", "amp-fp16")
SLOWEST = {
    "model": "gpt3-175b", "model_config": {"layers": 512}, "gpus": 64, "layout": "pp=64,vpp=8", "grad_accum": 4800,
    "gpu": "h100-80gb-sxm", "steps": 10**6,
    "schedule": [{"from_step": 10 * i, "precision": name} for i, name in enumerate(PRECISIONS * 14)],
    "anchors": [f"gpus=64,batch_size={i + 1},precision={PRECISIONS[i % 7]},step_time_s=0.{i + 1}" for i in range(100)],
}  # fmt: skip
"""Admissible, and 18 s of processor time: 98 precisions of a deep pipeline, each corrected by 100 measured jobs."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served"), "--workers", "2", "--quiet") as found:
        yield found


def metric(server: Served, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_many_clients_at_once_get_the_library_s_answers(server: Served) -> None:
    jobs = [{**RESNET, "batch_size": 8 * n, "gpus": gpus} for n in range(1, 11) for gpus in (1, 8)] * 3

    def ask(job: dict[str, Any]) -> tuple[str, Any]:
        reply = server.http.post("/v1/predict", json={"job": job})
        return json.dumps(job), (reply.json()["id"], reply.json()["estimate"])

    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(ask, jobs))
    answers = dict(found)
    assert all(answers[job] == answer for job, answer in found), "equal jobs have one id and one estimate"
    assert len({identifier for identifier, _ in answers.values()}) == 20
    for job, (_, estimate) in answers.items():
        assert estimate == json.loads(json.dumps(predict(Job.from_dict(json.loads(job))).to_dict()))


def test_random_jobs_get_the_library_s_answer_or_its_sentence(server: Served) -> None:
    source = random.Random(11)
    fields = [random_fields(source, names=models()) for _ in range(40)]
    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(lambda job: server.http.post("/v1/predict", json={"job": job}), fields))
    answered = 0
    for job, reply in zip(fields, replies, strict=True):
        content = reply.json()
        if "precision-time capture" in content.get("detail", ""):
            continue
        expected, sentence = None, ""
        try:
            expected = json.loads(json.dumps(predict(Job.from_dict(job)).to_dict()))
        except PrecisionTimeError as error:
            sentence = str(error)
        assert (content.get("estimate"), content.get("detail", "")) == (expected, sentence), job
        answered += expected is not None
    assert answered >= 20


def test_a_job_that_takes_too_long_is_refused_and_others_go_on(server: Served) -> None:
    before = metric(server, "precision_time_workers_replaced")
    began = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        slow = beside.submit(server.http.post, "/v1/predict", json={"job": SLOWEST})
        answered = 0
        while not slow.done():
            reply = server.http.post("/v1/predict", json={"job": {**RESNET, "batch_size": 1 + answered}, "keep": False})
            assert reply.status_code == 200
            answered += 1
        took = time.monotonic() - began
    refused = slow.result()
    busy = refused.status_code == 503  # other programs took four fifths of the processor
    assert ("too busy" if busy else "more than 2 s of processor time") in refused.json()["detail"]
    assert refused.status_code in (422, 503)
    assert answered > 5, f"{answered} in {took:.1f} s"
    assert metric(server, "precision_time_workers_replaced") == before + 1
    assert server.http.post("/v1/predict", json={"job": RESNET}).status_code == 200


def test_models_that_have_to_be_traced_are_refused(server: Served) -> None:
    job = {"model": "resnet50", "model_config": {"classes": 7}, "gpu": "a100-80gb-sxm"}
    reply = server.http.post("/v1/predict", json={"job": job})
    assert (reply.status_code, "precision-time capture" in reply.json()["detail"]) == (422, True), reply.text


def test_metrics_are_those_of_prometheus(server: Served) -> None:
    def counts() -> tuple[float, ...]:
        return (
            metric(server, "precision_time_requests_total", route="/v1/predict", status="200"),
            metric(server, "precision_time_request_seconds_count", route="/v1/predict"),
            metric(server, "precision_time_kept_predictions_total"),
            metric(server, "precision_time_cache_total", found="true"),
            metric(server, "precision_time_outcomes_total", new="true"),
        )

    before = counts()
    body = {"job": {**RESNET, "batch_size": 777}, "cluster": "metrics"}
    made, _, _ = (server.http.post("/v1/predict", json=body).json()["id"] for _ in range(3))
    server.http.post(f"/v1/predictions/{made}/outcomes", json={"step_s": 1.0})
    assert [new - old for new, old in zip(counts(), before, strict=True)] == [3, 3, 1, 2, 1]
    families = {f.name: f for f in text_string_to_metric_families(server.http.get("/metrics").text)}
    buckets = [s for s in families["precision_time_request_seconds"].samples if s.labels.get("route") == "/v1/predict"]
    values = [s.value for s in buckets if s.name.endswith("_bucket")]
    assert values == sorted(values)
    assert values[-1] == next(s.value for s in buckets if s.name.endswith("_count"))


def test_the_client_against_a_process(server: Served) -> None:
    with Client(server.url, cluster="client") as client:
        estimate = client.predict(Job("resnet50", gpus=8, run={"epochs": 3}))
        assert str(estimate) == str(predict(Job("resnet50", gpus=8, run={"epochs": 3})))
        assert client.record(estimate, step_s=0.3, steps_s=(0.3, 0.31), finished=True)
        assert client.predictions()[0]["id"] == estimate.prediction
        with pytest.raises(JobError, match="nearest: resnet50"):
            client.predict({"model": "resnet51"})


def test_a_stop_lets_answers_in_flight_finish(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "1") as server:
        found: list[httpx.Response] = []
        body = {"job": {**RESNET, "epochs": 1}, "space": {"gpus": "1..16", "gpu": ["a100", "h100"]}}
        asked = threading.Thread(target=lambda: found.append(server.http.post("/v1/plan", json=body)))
        asked.start()
        until = time.monotonic() + 30
        probe = httpx.Client(base_url=server.url)
        while metric_of(probe, "precision_time_waiting") < 1 and time.monotonic() < until:
            pass
        probe.close()
        os.kill(server.process.pid, signal.SIGTERM)
        asked.join()
        assert found[0].status_code == 200
        assert server.process.wait(60) == 0
        events = [line["event"] for line in server.log()]
        assert (events[0], events[-1]) == ("listening", "stopped")
        plans = [line for line in server.log() if line.get("path") == "/v1/plan"]
        assert [(line["status"], line["token"]) for line in plans] == [(200, None)]
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url)


def metric_of(client: httpx.Client, name: str) -> float:
    text = client.get("/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def test_no_process_is_left_when_the_server_is_killed(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "1") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if not children.exists():
            pytest.skip("this kernel does not list children")
        pids = [int(pid) for pid in children.read_text().split()]
        assert pids
        server.process.kill()
        server.process.wait()
        until = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_other_machines_need_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--database", str(tmp_path / "s.db"), "--tokens", str(tmp_path / "t.json"), "--port", "0"]
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        assert main(["serve", "--host", host, *flags]) == 2
        assert "there are no tokens" in capsys.readouterr().err
    assert not (tmp_path / "s.db").exists()


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--database", str(tmp_path / "s.db"), "--tokens", str(tmp_path / "t.json")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1]), *flags]) == 2
    assert "cannot be listened at" in capsys.readouterr().err
