"""A request never runs code and opens no file: every field that may name a path, in a process that watches `open`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import PrecisionTimeError
from precision_time.field_table import field_table
from precision_time.serve.http.safe_job import safe_job, safe_space

RESNET = {"model": "resnet50", "gpu": "a100-80gb-sxm", "run": {"steps": 10}}
CODE = "import pathlib; pathlib.Path({mark!r}).write_text('ran')\ndef make_job(): return None\n"


def with_value(section: str, name: str, value: Any) -> dict[str, Any]:
    """RESNET with a field of a section."""
    if section in ("job", "run"):
        return {**RESNET, "run": {} if section == "run" else RESNET["run"], name: value}
    return {**RESNET, section: {name: value, **({"bandwidth_gb_per_s": 1} if section == "data" else {})}}


SECTIONS = {"job", "run", "data", "layout", "lora", "model_config", "input"}
FIELDS = sorted({(field.section, field.name) for field in field_table() if field.section in SECTIONS})


def files(folder: Path) -> dict[str, Path]:
    """One file of every kind that the library reads, with content that it would accept."""
    made = {
        "py": folder / "model.py",
        "json": folder / "config.json",
        "yaml": folder / "device.yaml",
        "csv": folder / "anchors.csv",
        "storage": folder / "storage.yml",
        "toml": folder / "job.toml",
        "plain": folder / "file",
    }
    made["py"].write_text(CODE.format(mark=str(folder / "ran")))
    made["json"].write_text('{"model_type": "llama", "hidden_size": 64}')
    made["yaml"].write_text("gpus: {mine: {based_on: a100-80gb-sxm}}\n")
    made["csv"].write_text("model,step_time_s\nresnet50,0.1\n")
    made["storage"].write_text("bandwidth_gb_per_s: 2\n")
    made["toml"].write_text("[training]\nlocal_batch_size = 1\n")
    made["plain"].write_text("plain")
    return made


def values(path: Path) -> Iterator[Any]:
    """A path in the forms in which a field may hold one."""
    yield from (str(path), f" {path} ", f"hf:{path}", f"timm:{path}", f"torchvision:{path}", f"{path}:make_job")
    yield from (f"graph:{path}", f"module:{path}", f"storage={path}", f"model={path},step_time_s=0.1", f"file://{path}")
    yield from ([str(path)], {"path": str(path)}, {"storage": str(path)}, {"checkpoint_storage": str(path)})
    yield from ([{"model": str(path), "step_time_s": 0.1}], [f"model=hf:{path},step_time_s=0.1"])


def bodies(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that name a file in every field of a job, a space and an import."""
    for path in files(folder).values():
        for section, name in FIELDS:
            for value in values(path):
                yield "predict", {"job": with_value(section, name, value)}
        for value in values(path):
            yield "walltime", {"job": {**RESNET, "model": value}}
            yield "compare", {"job": RESNET, "gpus": [str(path)], "precisions": [str(path)]}
            yield "compare", {"job": RESNET, "layouts": [value]}
            for name in ("providers", "gpu", "spot", "grid", "schedule", "precision"):
                yield "plan", {"job": RESNET, "space": {name: value, "gpus": [1]}}
        yield "import_file", {"text": str(path), "name": path.name}
        yield "import_file", {"text": f"deepspeed: {path}\ntraining:\n  config: {path}\n", "name": "config.yaml"}
        yield (
            "import_file",
            {"text": f"#!/bin/bash\nsource {path}\ntorchrun --nproc-per-node 2 {path} --bf16 $(cat {path})"},
        )
        yield (
            "import_file",
            {
                "text": json.dumps(
                    {"per_device_train_batch_size": 4, "deepspeed": str(path), "fsdp_config": str(path)}
                ),
                "name": "args.json",
                "job": {"model": f"hf:{path}", "device": str(path)},
            },
        )


WATCH = """
import json, os, sys
opened = []
folder = os.path.realpath(sys.argv[1])
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "subprocess.Popen", "os.system", "os.exec", "socket.connect",
                 "ctypes.dlopen", "exec", "compile", "import", "shutil.copyfile", "glob.glob"):
        text = " ".join(map(str, arguments[:2]))
        if folder in text or event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect"):
            opened.append((event, text[:300]))
from precision_time.serve.http import worker
for name in ("torch", "torchvision", "timm", "transformers"):
    sys.modules[name] = None
worker._warm()
stat = os.stat
def watched(path, *rest, **options):
    if isinstance(path, (str, bytes, os.PathLike)) and folder in os.fspath(path):
        opened.append(("stat", os.fspath(path)))
    return stat(path, *rest, **options)
os.stat = watched
sys.addaudithook(hook)
statuses = {}
for line in sys.stdin:
    reply = worker.answered(line.encode())
    status = reply.get("problem", {}).get("status", 200)
    statuses[status] = statuses.get(status, 0) + 1
    if status >= 500 or status == 200 and reply.get("answer", {}).get("estimate", {}).get("job", {}).get("device"):
        print(json.dumps({"line": line[:500], "reply": str(reply)[:500]}))
print(json.dumps({"opened": opened, "statuses": statuses}))
"""


@pytest.mark.slow
def test_no_field_opens_a_file(tmp_path: Path) -> None:
    asked = [json.dumps({"ask": ask, **body}) for ask, body in bodies(tmp_path)]
    watching = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path)],
        input="\n".join(asked), capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    *failed, last = watching.stdout.splitlines()
    assert not failed, failed[:3]
    found = json.loads(last)
    assert found["opened"] == []
    assert sum(found["statuses"].values()) == len(asked)
    assert len(asked) > 10_000
    assert not (tmp_path / "ran").exists()


def test_the_watch_sees_files_that_are_opened(tmp_path: Path) -> None:
    """The same watch on the library, which does open what it is told to."""
    path = tmp_path / "job.yaml"
    path.write_text("model: resnet50\n")
    read = "{'answer': {'estimate': {'job': __import__('precision_time').Job.from_file(line.strip()).to_dict()}}}"
    watching = subprocess.run(
        [sys.executable, "-c", WATCH.replace("worker.answered(line.encode())", read), str(tmp_path)],
        input=str(path), capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    opened = json.loads(watching.stdout.splitlines()[-1])["opened"]
    assert {event for event, _ in opened} == {"open", "stat"}
    assert all(str(path) in text for _, text in opened)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": "my.py:make_job"}, "model"),
        ({"model": "my.py"}, "model"),
        ({"model": "MY.PY"}, "model"),
        ({"model": " hf:config.json "}, "model"),
        ({"model": "torchvision:resnet50"}, "model"),
        ({"model": "graph:" + "0" * 64}, "model"),
        ({"model": "module:Net-1"}, "model"),
        ({" model ": "x.yaml"}, "model"),
        ({"model": "resnet50", "device": "device.yaml"}, "device"),
        ({"model": "resnet50", "anchors": "own.csv"}, "anchors"),
        ({"model": "resnet50", "anchors": ["published", " Own.CSV "]}, "anchors"),
        ({"model": "resnet50", "anchors": ["model=a.py:f,step_time_s=1"]}, "anchors.model"),
        ({"model": "resnet50", "anchors": [{"model": "hf:c.json", "step_time_s": 1}]}, "anchors.model"),
        ({"model": "resnet50", "data": "storage=mine.yaml"}, "data.storage"),
        ({"model": "resnet50", "data": {"storage": "/etc/passwd"}}, "data.storage"),
        ({"model": "resnet50", "steps": 9, "checkpoint-every-steps": 1, "checkpoint-storage": "s.json"},
         "run.checkpoint_storage"),
        ({"model": "resnet50", "run": {"steps": 9, "checkpoint_every_steps": 1, "checkpoint_storage": "../s.yml"}},
         "run.checkpoint_storage"),
    ],
)  # fmt: skip
def test_files_are_refused_with_their_field(fields: Mapping[str, Any], field: str) -> None:
    with pytest.raises(PrecisionTimeError) as refused:
        safe_job(fields)
    assert getattr(refused.value, "parts", {}).get("field", "model") == field


@pytest.mark.parametrize("fields", [{"providers": ["vms.csv"]}, {"providers": "a,c.yaml"}, {"spot": "trace.json"}])
def test_files_of_a_space_are_refused(fields: Mapping[str, Any]) -> None:
    with pytest.raises(PrecisionTimeError, match="opens no file"):
        safe_space(fields)


def test_what_names_no_file_is_let_through() -> None:
    fields = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpus": 8, "data": {"storage": "nfs-10gbe", "workers": 4},
        "anchors": ["published", "gpus=1,precision=fp32,step_time_s=0.31"], "steps": 100, "price": "any",
        "checkpoint_storage": "nfs-10gbe", "checkpoint_every_steps": 10,
    }  # fmt: skip
    assert safe_job(fields).data.storage == "nfs-10gbe"
    assert safe_space({"providers": ["aws"], "spot": "published"}).providers == ("aws",)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(st.sampled_from([name for _, name in FIELDS] + ["model", "run", "data"]), _JSON, max_size=6)
)
def test_any_job_is_made_or_refused(fields: dict[str, Any]) -> None:
    try:
        job = safe_job({"model": "resnet50", **fields})
    except PrecisionTimeError:
        return
    assert ":" not in job.model
    assert job.code.refused


def test_an_unknown_field_of_a_goal_or_space_is_refused_with_its_nearest() -> None:
    from precision_time.errors import JobError
    from precision_time.serve.http import answers

    for section in ("goal", "space"):
        with pytest.raises(JobError, match=f"{section} has no field 'gpu_s'; nearest"):
            answers.plan({"job": {"model": "resnet50", "run": {"steps": 10}}, section: {"gpu_s": 1}})
