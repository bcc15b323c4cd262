"""The routes of the server: answers equal the library's, keys, outcomes, errors, headers, the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from precision_time import Job, predict
from precision_time.comparison import compare, cross
from precision_time.plan import Goal, Space, plan
from precision_time.plan.walltime import time_limit
from precision_time.serve.http.guard import HEADERS
from precision_time.serve.http.routes import ROUTES
from serving import RESNET, Here, here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with here(tmp_path_factory.mktemp("server")) as found:
        yield found


def post(server: Here, path: str, status: int = 200, **body: Any) -> Any:
    reply = server.client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_predict_is_the_library_s_estimate(server: Here) -> None:
    job = {**RESNET, "run": {"epochs": 90}, "gpus": 8}
    assert post(server, "/v1/predict", job=job)["estimate"] == plain(predict(Job.from_dict(job)).to_dict())


def test_a_quantile_is_added(server: Here) -> None:
    job = {**RESNET, "steps": 100}
    plainly = post(server, "/v1/predict", job=job)
    for quantile in (0.95, 0.5):
        found = post(server, "/v1/predict", job=job, quantile=quantile)
        assert found["id"] == plainly["id"], "the prediction is the same"
        assert found["estimate"] == plain(predict(Job.from_dict(job)).with_quantile(quantile).to_dict())
    assert "quantile" not in server.client.get(f"/v1/predictions/{plainly['id']}").json()["prediction"]["estimate"]


def test_compare_is_the_library_s(server: Here) -> None:
    found = post(
        server, "/v1/compare", job=RESNET, gpus=["v100-32gb-sxm", "a100-80gb-sxm"], precisions=["fp32", "bf16"]
    )
    jobs = cross(
        Job.from_dict({**RESNET, "precision": "fp32"}), gpu=["v100-32gb-sxm", "a100-80gb-sxm"],
        precision=["fp32", "bf16"],
    )  # fmt: skip
    assert found == plain(compare(jobs).to_dict())
    assert [row["error"] is None for row in found["rows"]] == [True, False, True, True], "a V100 has no bf16"


def test_plan_is_the_library_s(server: Here) -> None:
    job = {**RESNET, "epochs": 3}
    found = post(
        server, "/v1/plan", job=job, goal={"deadline_hours": 30}, space={"gpus": [4, 8], "gpu": ["a100", "h100"]}
    )
    made = plan(Job.from_dict(job), Goal(deadline_hours=30), Space(gpus=(4, 8), gpu=("a100", "h100")))
    assert found.pop("text") == str(made)
    assert found == plain(made.to_dict())


def test_a_goal_that_cannot_be_met_says_what_binds(server: Here) -> None:
    job = {**RESNET, "epochs": 90}
    found = post(server, "/v1/plan", 422, job=job, goal={"deadline_hours": 0.5}, space={"gpus": [8], "gpu": ["a100"]})
    assert found["error"] == "PlanError"
    assert "the earliest finish is" in found["detail"]


def test_walltime_is_the_library_s(server: Here) -> None:
    job = {**RESNET, "epochs": 3}
    found = post(server, "/v1/walltime", job=job, confidence=0.9, format="slurm")
    expected = time_limit(predict(Job.from_dict(job)), 0.9, "slurm")
    assert {name: found[name] for name in expected.to_dict()} == plain(expected.to_dict())
    assert server.client.get(f"/v1/predictions/{found['id']}").status_code == 200, "it is kept, for its outcome"


def test_import_reads_text(server: Here) -> None:
    launch = "srun torchrun --nnodes 2 --nproc-per-node 4 train.py --per_device_train_batch_size 8 --bf16"
    text = f"#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\n{launch} --max_steps 100\n"
    found = post(server, "/v1/import", text=text, name="train.sh", job={"model": "bert-large", "gpu": "a100"})
    assert (found["job"]["gpus"], found["job"]["batch_size"]) == (8, 8)
    assert post(server, "/v1/predict", job=found["job"], keep=False)["estimate"]["step"]["p50"] > 0


# What is kept.


def test_equal_requests_are_one_prediction(server: Here) -> None:
    before = len(server.pool.asked)
    first, second = (post(server, "/v1/predict", job={**RESNET, "batch_size": 48}) for _ in range(2))
    third = post(
        server, "/v1/predict", job={"batch_size": "48", **{k: v for k, v in RESNET.items() if k != "batch_size"}}
    )
    assert first == second
    assert first["id"] == third["id"], "the same job in other words"
    assert len(server.pool.asked) == before + 1, "the others came from the kept replies"


def test_equal_plans_are_made_once(server: Here) -> None:
    body = {"job": {**RESNET, "epochs": 2}, "space": {"gpus": [4], "gpu": ["a100"]}}
    made = post(server, "/v1/predict", job=RESNET, cluster="default")["id"]
    post(server, f"/v1/predictions/{made}/outcomes", 201, step_s=0.05)
    before = len(server.pool.asked)
    assert post(server, "/v1/plan", **body) == post(server, "/v1/plan", **body)
    assert len(server.pool.asked) == before + 1


def test_a_key_is_one_prediction(server: Here) -> None:
    body = {"job": RESNET, "key": "run-1"}
    first = post(server, "/v1/predict", **body)["id"]
    assert post(server, "/v1/predict", job=RESNET)["id"] != first
    assert post(server, "/v1/predict", **body, quantile=0.9)["id"] == first
    refused = post(server, "/v1/predict", 409, job={**RESNET, "batch_size": 8}, key="run-1")
    assert (refused["field"], refused["value"]) == ("key", "run-1")


def test_nothing_is_kept_unless_asked(server: Here) -> None:
    before = server.client.get("/v1/predictions").json()
    assert post(server, "/v1/predict", job={**RESNET, "batch_size": 49}, keep=False)["id"] is None
    assert server.client.get("/v1/predictions").json() == before


def test_outcomes(server: Here) -> None:
    made = post(server, "/v1/predict", job={**RESNET, "batch_size": 50}, cluster="pool-1")["id"]
    path = f"/v1/predictions/{made}/outcomes"
    assert post(server, path, 201, key="a", step_s=0.1, steps_s=[0.1, 0.2], machine={"host": "n1", "gpus": 8})["new"]
    assert post(server, path, 200, key="a", step_s=0.3) == {"key": "a", "new": False}
    again = [post(server, path, status, run_s=5.0, finished=True) for status in (201, 200)]
    assert again[0]["key"] == again[1]["key"], "without a key, one is made of the content"
    found = server.client.get(f"/v1/predictions/{made}").json()
    assert [outcome["step_s"] for outcome in found["outcomes"]] == [0.1, None]
    assert found["outcomes"][0]["machine"] == {"host": "n1", "gpus": 8}
    listed = server.client.get("/v1/predictions", params={"cluster": "pool-1"}).json()["predictions"]
    assert [(each["id"], len(each["outcomes"])) for each in listed] == [(made, 2)]
    counts = {each["name"]: each for each in server.client.get("/v1/clusters").json()["clusters"]}
    assert counts["pool-1"] == {"name": "pool-1", "predictions": 1, "outcomes": 2}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"machine": {"host": "n1"}}, None),
        ({"step_s": 0}, "step_s"),
        ({"step_s": "fast"}, "step_s"),
        ({"steps_s": []}, "steps_s"),
        ({"peak_bytes": 1.5}, "peak_bytes"),
        ({"finished": "maybe"}, "finished"),
        ({"step_s": 1, "machine": {"a": [1]}}, "machine.a"),
        ({"step_s": 1, "speed": 2}, "speed"),
    ],
)
def test_outcomes_that_are_wrong(server: Here, body: dict[str, Any], field: str | None) -> None:
    made = post(server, "/v1/predict", job=RESNET)["id"]
    assert post(server, f"/v1/predictions/{made}/outcomes", 422, **body).get("field") == field


def test_outcomes_of_no_prediction(server: Here) -> None:
    for name in ("nope", "0" * 36, "01a214bc-496e-708c-b896-bb29341902b6", "..", "%00"):
        reply = server.client.post(f"/v1/predictions/{name}/outcomes", json={"step_s": 1})
        assert reply.status_code == 404, name


def test_pages_of_predictions(server: Here) -> None:
    made = [post(server, "/v1/predict", job={**RESNET, "batch_size": n}, cluster="pages")["id"] for n in range(1, 6)]
    seen: list[str] = []
    query: dict[str, Any] = {"cluster": "pages", "limit": 2}
    while True:
        page = server.client.get("/v1/predictions", params=query).json()
        seen += [each["id"] for each in page["predictions"]]
        if page["next"] is None:
            break
        query["before"] = page["next"]
    assert seen == made[::-1]


# What outcomes change.


def test_outcomes_correct_later_predictions_of_their_cluster(server: Here) -> None:
    job = {**RESNET, "batch_size": 128}
    first = post(server, "/v1/predict", job=job, cluster="slow")
    assert first["correction"] is None
    step_s = first["estimate"]["step"]["p50"]
    for number in range(3):
        path = f"/v1/predictions/{first['id']}/outcomes"
        post(server, path, 201, key=f"{number}", step_s=1.3 * step_s, machine={"hosts": "node17"})
    second = post(server, "/v1/predict", job=job, cluster="slow")
    assert second["id"] != first["id"], "another state of corrections is another prediction"
    assert (second["correction"]["cluster"], second["correction"]["outcomes"]) == ("slow", 3)
    assert second["estimate"]["step"]["p50"] == pytest.approx(1.3 * step_s, rel=0.08)
    kept = server.client.get(f"/v1/predictions/{second['id']}").json()["prediction"]
    assert kept["predicted"][1] == pytest.approx(step_s), "corrections are learned from what was predicted without any"
    rows = post(server, "/v1/compare", job=job, gpus=["v100-32gb-sxm", "a100-80gb-sxm"], cluster="slow")["rows"]
    assert rows[1]["estimate"]["step"] == second["estimate"]["step"]
    assert rows[0]["estimate"]["learned"]["factor"] != rows[1]["estimate"]["learned"]["factor"], "another GPU"
    limit = post(server, "/v1/walltime", job={**job, "steps": 10_000}, cluster="slow")
    assert (
        limit["median_s"]
        > post(server, "/v1/walltime", job={**job, "steps": 10_000}, cluster="other")["median_s"] * 1.15
    )
    assert post(server, "/v1/predict", job=job, cluster="other")["correction"] is None


def test_a_plan_corrects_each_candidate_by_its_own_gpu(server: Here) -> None:
    job = {**RESNET, "gpus": 8, "run": {"epochs": 10}}
    asked = {"job": job, "space": {"gpu": "a100-80gb-sxm,v100-16gb-sxm", "gpus": "8", "providers": "aws"}}
    before = post(server, "/v1/plan", **asked, cluster="planned")
    assert "learned" not in before["chosen"]
    made = post(server, "/v1/predict", job=job, cluster="planned")
    for number in range(4):
        step_s = 1.4 * made["estimate"]["step"]["p50"]
        post(server, f"/v1/predictions/{made['id']}/outcomes", 201, key=f"{number}", step_s=step_s)
    after = post(server, "/v1/plan", **asked, cluster="planned")
    assert after["chosen"]["learned"]["outcomes"] == 4
    assert any("corrected by 4 outcomes on planned" in line for line in after["basis"])
    factors = {option["gpu"]: option["learned"]["factor"] for option in after["front"]}
    told = post(server, "/v1/predict", job=after["chosen"]["job"], cluster="planned", keep=False)["estimate"]
    assert told["step"] == pytest.approx(after["chosen"]["step_s"])
    assert told["learned"]["factor"] == pytest.approx(factors[after["chosen"]["gpu"]])
    assert post(server, "/v1/plan", **asked, cluster="other") == before


def test_own_anchors_and_outcomes_of_the_same_runs_do_not_count_twice(server: Here) -> None:
    job = {**RESNET, "batch_size": 96}
    made = post(server, "/v1/predict", job=job, cluster="anchored")
    step_s = 1.4 * made["estimate"]["step"]["p50"]
    for number in range(4):
        post(server, f"/v1/predictions/{made['id']}/outcomes", 201, key=f"{number}", step_s=step_s)
    anchored = {**job, "anchors": ["published", f"step_time_s={step_s}"]}
    told = post(server, "/v1/predict", job=anchored, cluster="anchored")
    assert told["correction"] is None
    assert told["estimate"]["step"]["p50"] == pytest.approx(step_s, rel=0.05)
    post(server, f"/v1/predictions/{told['id']}/outcomes", 201, key="own", step_s=step_s)
    again = post(server, "/v1/predict", job=job, cluster="anchored")
    assert again["correction"]["outcomes"] == 4, "an outcome of another base is not learned"
    assert again["estimate"]["step"]["p50"] == pytest.approx(step_s, rel=0.1)


def test_a_known_key_gives_what_was_kept_whatever_was_learned_since(server: Here) -> None:
    body = {"job": {**RESNET, "batch_size": 130, "steps": 1000}, "cluster": "keyed", "key": "keyed-1"}
    first = post(server, "/v1/predict", **body)
    limit = post(server, "/v1/walltime", **body)
    assert limit["id"] == first["id"]
    step_s = first["estimate"]["step"]["p50"]
    post(server, f"/v1/predictions/{first['id']}/outcomes", 201, step_s=2 * step_s)
    assert post(server, "/v1/predict", **body) == first
    assert post(server, "/v1/walltime", **body) == limit
    assert post(server, "/v1/predict", job=body["job"], cluster="keyed")["estimate"]["step"]["p50"] > 1.2 * step_s


def test_errors_over_time_and_anomalies(server: Here) -> None:
    job = {**RESNET, "batch_size": 32}
    made = post(server, "/v1/predict", job=job, cluster="watched")
    step_s = made["estimate"]["step"]["p50"]
    for number, factor in enumerate((1.0, 1.02, 0.99, 1.01, 3.0)):
        machine = {"hosts": "node17" if factor == 3.0 else "node1"}
        path = f"/v1/predictions/{made['id']}/outcomes"
        post(server, path, 201, key=f"{number}", step_s=factor * step_s, machine=machine)
    points = server.client.get("/v1/accuracy", params={"cluster": "watched"}).json()["points"]
    assert [point["error"] for point in points] == pytest.approx(
        [0.0, 1 / 1.02 - 1, 1 / 0.99 - 1, 1 / 1.01 - 1, 1 / 3 - 1]
    )
    assert [point["inside"] for point in points] == [True, True, True, True, False]
    (anomaly,) = server.client.get("/v1/anomalies", params={"cluster": "watched"}).json()["anomalies"]
    assert anomaly["prediction"] == made["id"]
    assert "node17" in anomaly["sentence"]
    assert anomaly["job"]["model"] == "resnet50"
    assert server.client.get("/v1/anomalies", params={"cluster": "none"}).json()["anomalies"] == []


def test_outcomes_are_learned_again_after_a_restart(tmp_path: Path) -> None:
    with here(tmp_path) as server:
        made = post(server, "/v1/predict", job=RESNET)
        post(server, f"/v1/predictions/{made['id']}/outcomes", 201, step_s=2 * made["estimate"]["step"]["p50"])
        before = post(server, "/v1/predict", job=RESNET)
    with here(tmp_path) as server:
        asyncio.run(server.service.learn())
        assert post(server, "/v1/predict", job=RESNET) == before


# Errors.


def test_an_error_has_its_parts(server: Here) -> None:
    found = post(server, "/v1/predict", 422, job={**RESNET, "optimizer": "adamm"})
    assert found == {
        "type": "about:blank",
        "title": "Unprocessable Content",
        "status": 422,
        "detail": found["detail"],
        "error": "JobError",
        "field": "optimizer",
        "value": "adamm",
        "nearest": ["adam", "adamw", "adamw-8bit"],
        "fix": found["detail"].rpartition("; ")[2],
    }


@pytest.mark.parametrize(
    ("job", "field", "value"),
    [
        ({"model": "resnet51"}, "model", "resnet51"),
        ({"model": "resnet50", "gpu": "a100-90gb"}, "gpu", "a100-90gb"),
        ({"model": "resnet50", "node": "dgx-x"}, "node", "dgx-x"),
        ({"model": "resnet50", "gpus": 0}, "gpus", "0"),
        ({"model": "resnet50", "precision": "fp33"}, "precision", "fp33"),
        ({"model": "resnet50", "baatch": 1}, "baatch", "baatch"),
        ({"model": "resnet50", "run": {"epocs": 1}}, "epocs", "epocs"),
        ({"model": "resnet50", "data": {"storage": "floppy"}}, "storage", "floppy"),
    ],
)
def test_the_field_and_value_of_errors(server: Here, job: dict[str, Any], field: str, value: str) -> None:
    found = post(server, "/v1/predict", 422, job=job)
    assert (found.get("field"), found.get("value")) == (field, value), found


@pytest.mark.parametrize(
    ("headers", "body", "status", "fix"),
    [
        ({}, {"job": {"model": "resnet51"}}, 422, "name one of GET /v1/models, or capture yours"),
        ({}, {"job": {**RESNET, "gpu": "a100-90gb"}}, 422, "name one of GET /v1/gpus"),
        ({}, {"job": RESNET, "cluster": "a b"}, 422, "for example cluster: run-1"),
        ({}, [], 422, "give a mapping of fields"),
        ({"content-type": "text/html"}, {}, 415, "send application/json"),
        ({"origin": "http://evil.example"}, {}, 403, "open its own page"),
        ({"host": "evil.example"}, {}, 421, "start it with --allow-host NAME"),
    ],
)
def test_what_to_do_about_an_error(server: Here, headers: dict[str, str], body: object, status: int, fix: str) -> None:
    """Nothing that a request may not name, and also for errors of the request itself."""
    reply = server.client.post("/v1/predict", content=json.dumps(body), headers=headers)
    assert (reply.status_code, reply.json()["fix"][: len(fix)]) == (status, fix), reply.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"   ", 400),
        (b"{", 400),
        (b"nonsense", 400),
        (b"\xff\xfe", 400),
        (b'{"job": {"model": "resnet50", "model": "vgg16"}}', 422),
        (b'{"job": {"model": "resnet50", "batch_size": NaN}}', 400),
        (b'{"job": {"model": "resnet50", "batch_size": 1' + b"0" * 4000 + b"}}", 422),
        (b'{"job": {"model": "resnet50\\u0000"}}', 422),
        (b'{"job": ' + b"[" * 20 + b"]" * 20 + b"}", 400),
        (b"[" * 60_000, 400),
        (b'{"job": {"model": "' + b"x" * 60_000 + b'"}}', 422),
        (b'{"job": {"model": "' + b"x" * 70_000 + b'"}}', 413),
        (b'{"job": {}, "graph": {"x": [' + b"1," * 600_000 + b"1]}}", 422),
        (b'{"job": {"model": "' + b"x" * (9 << 20) + b'"}}', 413),
        (b"[]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b'{"job": null}', 422),
        (b'{"job": "resnet50"}', 422),
        (b'{"job": {}}', 422),
        (b'{"jobs": {}}', 422),
    ],
)
def test_bodies_that_are_no_request(server: Here, content: bytes, status: int) -> None:
    reply = server.client.post("/v1/predict", content=content)
    assert reply.status_code == status, reply.text[:300]
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["status"] == status


def test_types_of_bodies(server: Here) -> None:
    body = json.dumps({"job": RESNET, "keep": False})
    kinds = {
        "application/json": 200, "application/json; charset=utf-8": 200, "application/x-www-form-urlencoded": 200,
        "application/vnd.x+json": 200, "multipart/form-data": 415, "application/xml": 415,
    }  # fmt: skip
    for kind, status in kinds.items():
        reply = server.client.post("/v1/predict", content=body, headers={"content-type": kind})
        assert reply.status_code == status, kind


def test_methods_and_paths(server: Here) -> None:
    assert server.client.get("/nothing").json()["status"] == 404
    wrong = server.client.get("/v1/predict")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert server.client.request("TRACE", "/v1/models").status_code == 405
    assert server.client.get("/v1/predictions", params={"limit": 0}).json()["field"] == "limit"
    assert server.client.get("/v1/predictions?limit=1&limit=2").status_code == 422
    assert server.client.get("/v1/predictions?limits=1").status_code == 422


# What holds for every reply.


def test_every_reply_has_the_security_headers(server: Here) -> None:
    replies = [server.client.get(route.path) for route in ROUTES if route.method == "GET"]
    replies += [server.client.get("/"), server.client.get("/nothing"), server.client.post("/v1/predict", content=b"{")]
    for reply in replies:
        assert HEADERS.items() <= dict(reply.headers).items(), reply.url
        assert "server" not in reply.headers


def test_pages_of_other_sites_are_refused(server: Here) -> None:
    body = json.dumps({"job": RESNET, "keep": False})
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://testserver", 200)):
        assert server.client.post("/v1/predict", content=body, headers={"origin": origin}).status_code == status
    rebound = server.client.post("/v1/predict", content=body, headers={"host": "evil.example"})
    assert rebound.status_code == 421


def test_lists(server: Here) -> None:
    models = {each["name"]: each for each in server.client.get("/v1/models").json()["models"]}
    assert models["resnet50"]["family"] == "resnet"
    assert "h100-80gb-sxm" in {each["name"] for each in server.client.get("/v1/gpus").json()["gpus"]}
    assert server.client.get("/healthz").json()["status"] == "ok"


def test_the_page_is_served_from_memory(server: Here) -> None:
    page = server.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert server.client.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    for path in ("/../words.py", "/%2e%2e/words.py", "/words.py", "/static/index.html"):
        assert server.client.get(path).status_code == 404


def test_the_log_has_a_line_for_each_request_without_its_content(tmp_path: Path) -> None:
    with here(tmp_path) as server:
        post(server, "/v1/predict", job={**RESNET, "system": "secret-name"}, keep=False)
        server.client.get("/nothing%0A{}")
        lines = server.log()
    assert [(line["event"], line["method"], line["status"]) for line in lines] == [
        ("request", "POST", 200), ("request", "GET", 404),
    ]  # fmt: skip
    assert "secret-name" not in server.lines.getvalue()
