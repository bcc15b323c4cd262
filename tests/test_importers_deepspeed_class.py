"""DeepSpeed configs against DeepSpeed's own class: its recorded answers, and the class itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.rigs import deepspeed_config
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.job.importers import from_deepspeed

RECORDED = json.loads(deepspeed_config.RECORDED.read_text(encoding="utf-8"))
READ = [row for row in RECORDED["rows"] if isinstance(row["answer"], dict)]
REFUSED = [row for row in RECORDED["rows"] if isinstance(row["answer"], str)]
OPTIMIZERS = {"adam": "adamw"}
"""DeepSpeed's Adam decays weights as AdamW does."""


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    return from_deepspeed(config).job_fields({"gpus": 1})


@pytest.mark.parametrize("row", READ, ids=lambda row: json.dumps(row["config"]))
def test_a_config_is_what_deepspeed_reads(row: dict[str, Any]) -> None:
    answer = row["answer"]
    if answer["optimizer"] in ("OneBitAdam",):
        with pytest.raises(JobError, match="does not decide optimizer"):
            read(row["config"])
        return
    fields = read(row["config"])
    accumulation = fields.get("grad_accum", 1)
    assert (fields["batch_size"], accumulation) == (answer["batch_size"], answer["grad_accum"])
    assert fields["clip_norm"] == answer["clip_norm"]
    precision = {"bf16": "bf16-master", "fp16": "fp16-master", "no": "torch-fp32"}[answer["half"]]
    assert fields["precision"] == precision
    assert (fields.get("loss_scale") == "static") == answer["static_scale"]
    assert (int(fields["layout"]["zero"]), fields["layout"]["overlap_grad_reduce"]) == (
        answer["stage"], answer["overlap"],
    )  # fmt: skip
    name = str(answer["optimizer"]).lower()
    assert fields.get("optimizer", "none") == OPTIMIZERS.get(name, name)
    devices = {what: device for what, device in answer["offload"].items() if device != "none"}
    word = "parameters" if "param" in devices else "optimizer" if devices else ""
    assert fields.get("offload", "") == (f"{word}-nvme" if "nvme" in devices.values() else word)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: json.dumps(row["config"]))
def test_what_deepspeed_refuses_is_refused(row: dict[str, Any]) -> None:
    if row["config"]:
        with pytest.raises(JobError):
            Job.from_dict(from_deepspeed(row["config"]).job_fields({"gpus": 1, "model": "gpt2"}))


def test_a_batch_that_is_stated_in_full_decides_the_gpus() -> None:
    whole = from_deepspeed({"train_batch_size": 128, "train_micro_batch_size_per_gpu": 4,
                            "gradient_accumulation_steps": 4})  # fmt: skip
    assert whole.job_fields()["gpus"] == 8
    assert whole.job_fields({"gpus": 8})["grad_accum"] == 4
    with pytest.raises(JobError, match=r"global batch 128 .* is not batch_size 4 x grad_accum 4 x dp 16 = 256"):
        whole.job_fields({"gpus": 16})
    assert whole.job_fields({"gpus": 16, "grad_accum": 2, "batch_size": 4})["gpus"] == 16


def test_every_setting_of_its_classes_is_known() -> None:
    for section, names in RECORDED["fields"].items():
        for name in names:
            value: Any = 1 if section == "zero_optimization" else "1"
            inner = {name: {"device": "cpu"} if name.startswith("offload_") else value}
            for part in reversed(section.split(".")):
                inner = {part: {"device": "cpu", **inner} if part.startswith("offload") else {"stage": 3, **inner}}
            if (name, section) in (("device", "zero_optimization.offload_param"),
                                   ("device", "zero_optimization.offload_optimizer")):  # fmt: skip
                continue
            notes = from_deepspeed(inner).not_taken
            assert not [key for key, why in notes.items() if "not understood" in why], (section, name)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_the_recorded_answers_are_those_of_the_class() -> None:
    for row in RECORDED["rows"]:
        assert deepspeed_config.answer(row["config"]) == row["answer"]
    assert deepspeed_config.fields() == RECORDED["fields"]
