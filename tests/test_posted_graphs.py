"""Captured graphs: a model of one's own as a file, predicted elsewhere as it would be here; what is no such file."""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")

from precision_time import Client, Job, predict
from precision_time.capture.posted_graph import CapturedGraph, captured, digest_of
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError, PrecisionTimeError
from precision_time.job.precision import parse_precision
from serving import Here, here
from test_client import transport

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf")).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(x.shape)) + x


def make_job(batch_size=16, seq_len=32):
    blocks = [Attention() for _ in range(3)]
    model = nn.Sequential(nn.Embedding(1000, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 1000))
    return {
        "model": model, "inputs": torch.zeros(batch_size, seq_len, dtype=torch.long),
        "targets": torch.zeros(batch_size, seq_len, dtype=torch.long),
        "loss": lambda out, target: nn.functional.cross_entropy(out.flatten(0, 1), target.flatten()),
        "optimizer": torch.optim.AdamW(model.parameters()),
    }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graphs")
    (made / "model.py").write_text(MODEL)
    return made


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    """What the command writes."""
    model, target = f"{folder}/model.py:make_job", str(folder / "graph.json")
    flags = ["--precision", "fp32,amp-bf16,bf16", "--batch-size", "8", "--input", "seq_len=64"]
    assert main(["capture", model, "-o", target, *flags]) == 0
    found: dict[str, Any] = json.loads((folder / "graph.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with here(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "fp32"},
        {"precision": "amp-bf16", "gpus": 8, "gpu": "h100-80gb-sxm", "grad_accum": 4},
        {"precision": "amp-fp16", "execution": "compile", "gpus": 16, "layout": "fsdp"},
        {"precision": "bf16", "optimizer": "lion", "clip_norm": 1.0},
        {"precision": "fp16-master", "layout": "pp=2", "gpus": 2, "grad_accum": 8},
        {"precision": "fp64"},
        {"precision": "fp8", "gpu": "h100-80gb-sxm", "steps": 1000, "recompute": "full"},
    ],
)
def test_a_posted_graph_is_predicted_as_the_model_itself(
    server: Here, folder: Path, content: dict[str, Any], fields: dict[str, Any]
) -> None:
    own = Job.from_dict(
        {"model": f"{folder}/model.py:make_job", "batch_size": 8, "input": {"seq_len": 64}, **fields}, allow_code=True
    )
    reply = server.client.post("/v1/predict", json={"job": fields, "graph": content})
    assert reply.status_code == 200, reply.text
    found = reply.json()["estimate"]
    expected = json.loads(json.dumps(predict(own).to_dict()))
    assert found["job"].pop("model") == f"graph:{content['digest']}"
    del expected["job"]["model"]
    assert found == expected


def test_the_client_captures_and_posts(server: Here, folder: Path) -> None:
    job = Job(f"{folder}/model.py:make_job", precision="amp-bf16", gpus=8)
    with Client("http://testserver", transport=transport(server)) as client:
        found = client.predict(job)
        assert found.job.model == job.model
        assert found.step == predict(job).step
        assert client.walltime(job.replace(steps=1000)).seconds > 0


def test_a_graph_survives_json(folder: Path) -> None:
    job = Job(f"{folder}/model.py:make_job", batch_size=4)
    made = captured(job, [parse_precision("amp-bf16"), parse_precision("fp32")])
    text = json.dumps(made.to_dict(), allow_nan=False)
    read = CapturedGraph.from_dict(json.loads(text))
    assert read.to_dict() == made.to_dict()
    for regime, graph in made.graphs.items():
        again = read.graphs[regime]
        for name in ("kinds", "calls", "modules", "storages", "parameters", "buffer_bytes", "assumptions"):
            assert getattr(again, name) == getattr(graph, name), name
    values = {value for kind in made.graphs["full"].kinds for _, value in kind.attrs}
    assert values, "attributes are there"


def test_numbers_that_json_has_not() -> None:
    from precision_time.capture.graph_json import _plain, _Reader

    for value in (float("-inf"), 1.7976931348623157e308, 1e-310, (1, (2.5, None, True, "x")), 0.0, -3):
        again = _Reader()._value("here", json.loads(json.dumps(_plain(value), allow_nan=False)), 3)
        assert again == value
        assert type(again) is type(value)


# What is refused.


def test_what_was_not_traced_is_refused(server: Here, content: dict[str, Any], folder: Path) -> None:
    one = captured(Job(f"{folder}/model.py:make_job", batch_size=8), [parse_precision("fp32")]).to_dict()
    for graph, fields, text in (
        (one, {"precision": "amp-bf16"}, "capture it with --precision amp-bf16 too"),
        (content, {"batch_size": 16}, "batch_size is 16"),
        (content, {"input": {"seq_len": 32}}, "input is"),
        (content, {"attention": "math"}, "attention is 'math'"),
        (content, {"memory_format": "nhwc"}, "memory_format is 'nhwc'"),
        (content, {"lora": 8}, "lora"),
        (content, {"model_config": {"layers": 2}}, "model_config"),
        (content, {"layout": "tp=2", "gpus": 2}, "tp=2"),
        (content, {"model": "resnet50"}, "model is given beside a graph"),
    ):
        reply = server.client.post("/v1/predict", json={"job": fields, "graph": graph})
        assert (reply.status_code, text in reply.json()["detail"]) == (422, True), (fields, reply.text)


def test_a_digest_alone_names_no_graph(server: Here, content: dict[str, Any]) -> None:
    reply = server.client.post("/v1/predict", json={"job": {"model": f"graph:{content['digest']}"}})
    assert (reply.status_code, reply.json()["field"]) == (422, "model")
    with pytest.raises(JobError, match="no longer kept"):
        predict(Job("graph:" + "0" * 64))


def changed(content: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The content after a change, with the digest of what it is now."""
    made = copy.deepcopy(content)
    change(made)
    made["digest"] = digest_of({key: value for key, value in made.items() if key != "digest"})
    return made


def full(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda made: change(made["graphs"]["full"])


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda made: made.update(format="precision-time graph 2"),
    "no graphs": lambda made: made.update(graphs={}),
    "another regime": lambda made: made["graphs"].update(other=made["graphs"]["full"]),
    "a further field": lambda made: made.update(path="/etc/passwd"),
    "an optimizer": lambda made: made.update(optimizer="sgdd"),
    "a batch": lambda made: made.update(batch_size=2**30),
    "a batch of text": lambda made: made.update(batch_size="x"),
    "a spread": lambda made: made.update(length_spread=-1),
    "a name": lambda made: made.update(name="x\ny"),
    "a dtype": full(lambda graph: graph["specs"][0].__setitem__(0, "float99")),
    "a dimension": full(lambda graph: graph["specs"][0].append(-1)),
    "a huge tensor": full(lambda graph: graph["specs"][0].extend([2**40, 2**40])),
    "many dimensions": full(lambda graph: graph["specs"][0].extend([1] * 20)),
    "an operator": full(lambda graph: graph["kinds"][0].__setitem__(0, "os.system('x')")),
    "an index": full(lambda graph: graph["kinds"][0].__setitem__(1, [10**6])),
    "a negative index": full(lambda graph: graph["kinds"][0].__setitem__(1, [-1])),
    "an attribute": full(lambda graph: graph["kinds"][0].__setitem__(3, [["a b", 1]])),
    "a deep attribute": full(lambda graph: graph["kinds"][0].__setitem__(3, [["a", [[[[1]]]]]])),
    "a call of no kind": full(lambda graph: graph["calls"]["kind"].__setitem__(0, 10**6)),
    "a phase": full(lambda graph: graph["calls"]["phase"].__setitem__(0, 17)),
    "a short column": full(lambda graph: graph["calls"]["views"].pop()),
    "a storage": full(lambda graph: graph["calls"]["reads"][0].append(10**7)),
    "a death": full(lambda graph: graph["storages"]["dies"].__setitem__(0, 10**7)),
    "bytes": full(lambda graph: graph["storages"]["bytes"].__setitem__(0, 2**60)),
    "bytes of text": full(lambda graph: graph["storages"]["bytes"].__setitem__(0, "1")),
    "true": full(lambda graph: graph["storages"]["bytes"].__setitem__(0, True)),
    "a parameter": full(lambda graph: graph["parameters"][0].pop()),
    "no calls": full(lambda graph: graph.update(calls={name: [] for name in graph["calls"]})),
    "too many calls": full(lambda graph: graph["calls"].update(kind=[0] * 30_000)),
    "no specs": full(lambda graph: graph.pop("specs")),
    "a list": lambda made: made["graphs"].update(full=[]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_that_is_wrong(server: Here, content: dict[str, Any], name: str) -> None:
    wrong = changed(content, CHANGES[name])
    with pytest.raises(PrecisionTimeError):
        CapturedGraph.from_dict(wrong)
    reply = server.client.post("/v1/predict", json={"job": {}, "graph": wrong})
    assert reply.status_code == 422, reply.text


def test_a_graph_that_was_changed_has_another_digest(server: Here, content: dict[str, Any]) -> None:
    wrong = copy.deepcopy(content)
    wrong["graphs"]["full"]["storages"]["bytes"][0] += 1
    with pytest.raises(DataError, match="changed after it was captured"):
        CapturedGraph.from_dict(wrong)
    reply = server.client.post("/v1/predict", json={"job": {}, "graph": wrong})
    assert (reply.status_code, "changed after" in reply.json()["detail"]) == (422, True)
    assert server.client.post("/v1/predict", json={"job": {}, "graph": {"digest": "x"}}).status_code == 422
    assert server.client.post("/v1/predict", json={"job": {}, "graph": []}).status_code == 422


def test_a_graph_that_another_program_wrote_again_is_the_same(
    server: Here, folder: Path, content: dict[str, Any]
) -> None:
    """jq, with which docs/serve.md posts it, and JavaScript write 0.0 as 0 and 1e16 as 10000000000000000."""
    job = {"gpus": 8}
    written = [json.dumps({"job": job, "graph": {**content, "length_spread": 0.0}})]
    if shutil.which("jq"):
        program = ["jq", "-n", "--slurpfile", "g", str(folder / "graph.json"), "{job: {gpus: 8}, graph: $g[0]}"]
        written.append(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    expected = server.client.post("/v1/predict", json={"job": job, "graph": content}).json()
    assert expected["id"]
    for body in written:
        reply = server.client.post("/v1/predict", content=body)
        assert (reply.status_code, reply.json()) == (200, expected), reply.text
    whole = {**content, "attrs": [1e16, -2.0, 0.5, "1.0"]}
    assert digest_of(whole) == digest_of({**content, "attrs": [10**16, -2, 0.5, "1.0"]})
    assert digest_of(whole) != digest_of({**content, "attrs": [10**16, -2, 0.5, "1"]})


LEAVES = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    10**6,
    2**62,
    2**70,
    -(2**40),
    0.5,
    -1e30,
    "",
    "x",
    "float32",
    "1",
    [],
    {},
    [0],
)


def with_another_value(source: random.Random, graph: dict[str, Any]) -> None:
    """Replace a value anywhere in a graph."""
    at: Any = graph
    while True:
        key = source.choice(sorted(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], (dict, list)) or not at[key] or source.random() < 0.1:
            at[key] = copy.deepcopy(source.choice(LEAVES))
            return
        at = at[key]


def test_any_change_is_refused_or_predicted(server: Here, content: dict[str, Any]) -> None:
    """The server answers, with an estimate or with what is wrong."""
    source, statuses = random.Random(7), []
    for _ in range(60):
        wrong = changed(content, full(lambda graph: with_another_value(source, graph)))
        reply = server.client.post("/v1/predict", json={"job": {"precision": "fp32"}, "graph": wrong, "keep": False})
        statuses.append(reply.status_code)
        assert reply.status_code in (200, 422), reply.text
    assert 5 < statuses.count(200) < 55, "both happen"


# The command.


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["resnet50", "-o", "g.json"], "is no Python file"),
        (["{model}"], "capture writes a file"),
        (["{model}", "-o", "{model}"], "model.py"),
        (["{model}", "-o", "g.json", "--precision", "fp33"], "fp33"),
    ],
)
def test_the_command_refuses(
    folder: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["capture", *(word.format(model="model.py") for word in words)]) == 2
    assert text in capsys.readouterr().err
    assert not (folder / "g.json").exists()
