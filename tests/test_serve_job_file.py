"""Job files among imported texts: taken as they are written; files of other programs left alone."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the server is not installed")

from precision_time.errors import PrecisionTimeError
from precision_time.serve.http.answers import import_file
from precision_time.serve.http.job_file import job_in

YAML = "model: resnet50\ngpus: 8\nprecision: mixed\nrun:\n  epochs: 3\n"
FIELDS = {"model": "resnet50", "gpus": 8, "precision": "mixed", "run": {"epochs": 3}}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (YAML, "job.yaml"),
        (YAML, ""),
        ('{"model": "resnet50", "gpus": 8, "precision": "mixed", "run": {"epochs": 3}}', "job.json"),
        ('{"model": "resnet50", "gpus": 8, "precision": "mixed", "run": {"epochs": 3}}', ""),
    ],
)
def test_a_job_file_is_taken_as_it_is_written(text: str, name: str) -> None:
    assert job_in(text, name) == FIELDS
    asked = {"text": text, **({"name": name} if name else {})}
    assert import_file(asked) == {"kind": "job file", "job": FIELDS, "notes": []}
    assert import_file({**asked, "job": {"gpus": 4}})["job"] == {**FIELDS, "gpus": 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torchrun --nproc_per_node 8 train.py",
        "- model: resnet50",
        "model: {name: mpt_causal_lm, d_model: 768}\nmax_duration: 10ep\n",  # llm-foundry
        "base_model: NousResearch/Llama-3.2-1B\nmodel: x\n",  # Axolotl
        "model: my.Module\ntrainer: {devices: 8}\n",  # LightningCLI
        "model: llama3\nseed: 1\nlr: 0.1\nwarmup: 3\n",  # mostly unknown keys
        "model: [unclosed",
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert job_in(text, "") is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: resnet50\nbatc_size: 3\n", "batch_size"),
        ("model: resnet50\ngpus: 0\n", "gpus"),
        ("model: train.py:make_job\n", "opens no file"),
        ("model: resnet50\ndevice: mine.yaml\n", "device"),
    ],
)
def test_what_a_request_may_not_say_is_an_error_with_the_field(text: str, named: str) -> None:
    with pytest.raises(PrecisionTimeError, match=named):
        job_in(text, "job.yaml")


def test_settings_of_another_program_go_to_its_importer() -> None:
    found = import_file({"text": '{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}}', "name": "ds.json"})
    assert found["kind"] == "DeepSpeed config"
    assert found["job"]["batch_size"] == 4
