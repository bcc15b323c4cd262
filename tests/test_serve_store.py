"""The server on a store that fails: 503 with the reason, and answers again once the database is well. And its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import serving
from postgresql_server import running
from precision_time.serve.store import open_store
from serving import RESNET, Here, here, served
from test_full_disk import largest_file


def post(server: Here, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    reply = server.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    return reply.status_code, reply.json()


def refused(server: Here, path: str, body: dict[str, Any] | None, text: str) -> None:
    reply = server.client.get(path) if body is None else server.client.post(path, content=json.dumps(body))
    assert reply.status_code == 503, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert int(reply.headers["retry-after"]) >= 1
    assert text in reply.json()["detail"]
    assert "Traceback" not in reply.text


def test_a_full_disk_under_the_server(tmp_path: Path) -> None:
    with here(tmp_path) as server:
        code, found = post(server, "/v1/predict", {"job": RESNET})
        assert code == 200
        outcomes = f"/v1/predictions/{found['id']}/outcomes"
        steps = [0.1 + index / 7000 for index in range(700)]
        kept = 0
        with largest_file(400_000):
            while (answer := post(server, outcomes, {"run_s": 1.0 + kept, "steps_s": steps}))[0] == 201:
                kept += 1
                assert kept < 1000
            assert answer[0] == 503
            assert answer[1]["detail"].endswith("the next call tries again")
            assert server.client.get("/v1/models").status_code == 200, "what needs no store is answered"
            assert server.client.get(f"/v1/predictions/{found['id']}").status_code == 200, "and so is what is read"
        assert post(server, outcomes, {"run_s": 5000.0, "steps_s": steps})[0] == 201
        assert len(server.store.outcomes(found["id"])) == kept + 1


def test_a_lost_database_under_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fsync=False) as postgresql:
        target = postgresql.new_database()
        monkeypatch.setattr(serving, "open_store", lambda path: open_store(target))
        with here(tmp_path) as server:
            code, found = post(server, "/v1/predict", {"job": RESNET})
            assert code == 200
            outcomes = f"/v1/predictions/{found['id']}/outcomes"
            postgresql.stop()
            text = "the server cannot be reached"
            refused(server, outcomes, {"run_s": 1.0}, text)
            refused(server, "/v1/predict", {"job": {**RESNET, "batch_size": 8}}, text)
            refused(server, "/healthz", None, text)
            refused(server, "/v1/predictions", None, text)
            assert post(server, "/v1/predict", {"job": {**RESNET, "batch_size": 4}, "keep": False})[0] == 200
            postgresql.start()
            assert server.client.get("/healthz").status_code == 200
            assert post(server, outcomes, {"run_s": 1.0})[0] == 201
            assert post(server, outcomes, {"run_s": 1.0})[0] == 200


@pytest.mark.slow
def test_a_server_on_a_standby_answers_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fsync=False, replicated=True) as primary:
        stores = iter([primary.new_database()])
        monkeypatch.setattr(serving, "open_store", lambda path: open_store(next(stores)))
        with here(tmp_path) as first, running(fsync=False, of=primary) as standby:
            _, found = post(first, "/v1/predict", {"job": RESNET})
            outcomes = f"/v1/predictions/{found['id']}/outcomes"
            assert post(first, outcomes, {"step_s": 2 * found["estimate"]["step"]["p50"]})[0] == 201
            stores = iter([standby.address("test_1")])
            with here(tmp_path) as replica:
                until = time.monotonic() + 30
                while not list(replica.store.recorded()) and time.monotonic() < until:
                    time.sleep(0.05)
                asyncio.run(replica.service.learn())
                code, corrected = post(replica, "/v1/predict", {"job": RESNET, "keep": False})
                assert (code, corrected["correction"]["outcomes"]) == (200, 1)
                assert corrected == post(first, "/v1/predict", {"job": RESNET, "keep": False})[1]
                assert len(replica.client.get("/v1/predictions").json()["predictions"][0]["outcomes"]) == 1
                assert replica.client.get("/healthz").status_code == 200
                for path, body in (("/v1/predict", {"job": RESNET}), (outcomes, {"step_s": 1.0})):
                    refused(replica, path, body, "the server is read-only; name the primary server, not a standby")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_killed_server_has_what_it_answered(kind: str, tmp_path: Path) -> None:
    """The whole process under load, at random moments; outcomes by HTTP, each answered one is in the store once."""
    moments = random.Random(os.environ.get("PRECISION_TIME_SEED", "7"))
    with contextlib.ExitStack() as stack:
        target = str(tmp_path / "store.db")
        if kind == "postgresql":
            target = stack.enter_context(running()).new_database()
        answered: list[str] = []
        begun: list[str] = []
        for number in range(4):
            with served(tmp_path, "--workers", "1", "--quiet", "--database", target) as server:
                made = server.http.post("/v1/predict", json={"job": RESNET}).json()["id"]

                def load(worker: int, address: str = server.url, name: str = made, number: int = number) -> None:
                    with httpx.Client(base_url=address, timeout=30) as client, contextlib.suppress(httpx.HTTPError):
                        for count in range(10**6):
                            key = f"{number}-{worker}-{count}"
                            begun.append(key)
                            reply = client.post(f"/v1/predictions/{name}/outcomes", json={"key": key, "run_s": 1.0})
                            if reply.status_code == 201:
                                answered.append(key)

                threads = [threading.Thread(target=load, args=(worker,)) for worker in range(3)]
                for thread in threads:
                    thread.start()
                before = len(answered)
                while len(answered) < before + 5:
                    time.sleep(0.01)
                time.sleep(moments.random() * 0.2)
                server.process.send_signal(signal.SIGKILL)
                for thread in threads:
                    thread.join(60)
        store = open_store(target)
        found = [each.outcome.key for each in store.recorded()]
        assert len(found) == len(set(found))
        assert set(answered) <= set(found) <= set(begun)
        assert len(answered) >= 20
        store.close()
