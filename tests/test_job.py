"""The job: reading, checking, writing back."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import DataError, JobError
from precision_time.job import PRECISIONS, Job, Run, choices
from precision_time.job import job as job_module
from precision_time.job.datasets import DATASETS, samples_per_epoch
from precision_time.job.fields import clean_fields, format_fields, parse_fields
from precision_time.job.layout import LAYOUT_FIELDS
from precision_time.job.precision import ALIASES

counts = st.integers(1, 10**6)
amounts = st.floats(0.001, 1e6, allow_nan=False)
names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True).filter(lambda w: w not in ("true", "false"))
scalars = st.one_of(st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9, allow_nan=False), st.booleans(), names)
values = st.one_of(scalars, st.lists(scalars, max_size=4).map(tuple).filter(len))
mappings = st.dictionaries(names, values, max_size=4)
runs = st.one_of(
    st.builds(Run, epochs=amounts, dataset=st.sampled_from(sorted(DATASETS)), price_per_gpu_hour=amounts),
    st.builds(Run, steps=counts, checkpoint_every_steps=counts, checkpoint_s=amounts, start_up_s=amounts),
    st.builds(Run, samples=counts, dataset=names, dataset_size=counts, evaluation_samples=counts),
)
precisions = st.sampled_from([*PRECISIONS, "fp8-block"])
schedules = st.lists(precisions, min_size=2, max_size=3).map(
    lambda names: [{"from_step": 10 * at, "precision": name} for at, name in enumerate(names)]
)
jobs = st.builds(
    Job,
    names,
    model_config=mappings,
    input=mappings,
    precision=st.one_of(precisions, schedules),
    batch_size=st.none() | counts,
    grad_accum=counts,
    gpu=names,
    gpus=counts,
    node=st.none() | names,
    optimizer=st.sampled_from([None, *choices.OPTIMIZERS]),
    optimizer_impl=st.sampled_from(choices.OPTIMIZER_IMPLS),
    clip_norm=st.none() | amounts,
    execution=st.sampled_from(choices.EXECUTIONS),
    no_sync=st.booleans(),
    communication_dtype=st.sampled_from([None, "bf16", "float32"]),
    layout=st.sampled_from(["dp", "fsdp", "zero1", {"zero": 1, "overlap_param_gather": True}]),
    recompute=st.sampled_from(["none", "core_attn", "full"]),
    run=runs,
)


@given(jobs)
def test_round_trip_through_json(job: Job) -> None:
    again = Job.from_dict(json.loads(json.dumps(job.to_dict(), allow_nan=False)))
    assert again == job
    assert job.replace() == job
    assert "\n" not in job.signature()


@given(mappings)
def test_fields_text_round_trip(mapping: dict[str, Any]) -> None:
    assert parse_fields(format_fields(clean_fields(mapping, "input")), "input") == clean_fields(mapping, "input")


def test_defaults_are_stated() -> None:
    job = Job("resnet50")
    assert (job.precision, job.gpu, job.gpus, job.grad_accum, job.layout) == (
        "fp32",
        "a100-80gb-sxm",
        1,
        1,
        "dp",
    )
    assert job.batch_size is None
    assert job.optimizer is None
    assert job.run == Run()
    assert pickle.loads(pickle.dumps(job)) == job


def test_the_issue_s_example() -> None:
    job = Job.from_dict({"model": "resnet50", "precision": "mixed_fp16_fp32", "gpus": 8, "batch_size": 256})
    assert job.precision == "amp-fp16"
    assert job.precision_spec.autocast
    assert job.signature() == "resnet50 · amp-fp16 · 8 x a100-80gb-sxm · batch 256"


def test_hyphens_nulls_and_fields_of_run_given_directly() -> None:
    job = Job.from_dict({"model": "m", "batch-size": "32", "node": None, "epochs": 3, "run": {"dataset": "coco"}})
    assert job.batch_size == 32
    assert job.run == Run(epochs=3, dataset="coco")
    with pytest.raises(JobError, match="epochs is given both"):
        Job.from_dict({"model": "m", "epochs": 3, "run": {"epochs": 3}})
    with pytest.raises(JobError, match="batch_size is given twice"):
        Job.from_dict({"model": "m", "batch-size": 1, "batch_size": 1})


def test_measurement_table_strings() -> None:
    job = Job("m", input="image_size=192x160;channels=4", model_config="cutoffs=19997,39997;drop=.1;variant=v1.5")
    assert job.input == {"image_size": (192, 160), "channels": 4}
    assert job.model_config == {"cutoffs": (19997, 39997), "drop": 0.1, "variant": "v1.5"}


def test_schedule_as_precision() -> None:
    entries = [{"from_step": 0, "precision": "fp32"}, {"from_step": 9, "precision": "mixed"}]
    job = Job("m", precision=entries)  # type: ignore[arg-type]
    assert job.precision == "fp32"
    assert [entry.precision for entry in job.schedule] == ["fp32", "amp-fp16"]
    assert Job("m", precision=entries[:1]) == Job("m")  # type: ignore[arg-type]
    assert job.replace(precision="bf16") == Job("m", precision="bf16")
    assert job.replace(gpus=2).schedule == job.schedule
    with pytest.raises(JobError, match="not the schedule's first"):
        Job.from_dict({"model": "m", "precision": "bf16", "schedule": entries})


def test_replace_reaches_into_run() -> None:
    job = Job("m", run={"epochs": 3, "dataset": "coco"})  # type: ignore[arg-type]
    assert job.replace(epochs=5).run == Run(epochs=5, dataset="coco")
    assert job.replace(steps=10).run == Run(steps=10, dataset="coco")
    with pytest.raises(JobError, match="nearest: gpus"):
        job.replace(gpuss=3)


def test_layout_spellings_of_data_parallel() -> None:
    for layout in (
        "dp",
        "DDP",
        {"dp": 8},
        "dp=8",
        {"dp": 8, "tp": 1, "sp": False, "zero": 0},
        "tp=1,pp=1,dp=8",
    ):
        assert Job("m", gpus=8, layout=layout).layout == "dp"  # type: ignore[arg-type]


def test_recomputation_has_the_names_that_others_give_it() -> None:
    assert (
        Job("m", recompute="activation-checkpointing").recompute == Job("m", recompute="checkpoint").recompute == "full"
    )
    assert Job("m", recompute="core_attn").recompute == "selective"
    assert Job("m", recompute="full", recompute_layers="4").recompute_layers == 4  # type: ignore[arg-type]
    assert Job("m", torch="1.12.1+cu113").torch == "1.12"
    versions = (None, "1.9", "1.11.0", "1.12", "2.3", "2.4", "2.11")
    assert [Job("m", torch=version).grouped_kernels for version in versions] == [2, 0, 0, 1, 1, 2, 2]
    assert "recompute full of 4 layers a stage" in Job("m", recompute="full", recompute_layers=4).signature()


def test_the_layout_follows_other_gpus() -> None:
    job = Job("m", gpus=16, layout="tp=8,sp=1,dp=2")
    assert job.layout == "tp=8,dp=2,sp=1"
    assert job.layout_spec.dp == 2
    assert job.replace(gpus=64).layout == "tp=8,dp=8,sp=1"
    assert job.replace(gpus=64, layout="fsdp").layout == "fsdp"
    assert "tp=8,dp=2,sp=1" in job.signature()
    with pytest.raises(JobError, match="does not divide gpus 12; set gpus to a multiple, for example 16"):
        job.replace(gpus=12)
    assert Job("m", gpus=16, nodes=2, layout="hsdp").layout == "hsdp=8"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": "256k"}, "suffix; write the number out, for example 256000"),
    ({"batch_size": 0}, "batch_size must be a whole number of samples from 1 to 16,777,216, not 0"),
    ({"batch_size": -4}, "whole number"),
    ({"batch_size": 2.5}, "whole number"),
    ({"batch_size": True}, "whole number"),
    ({"batch_size": [1]}, "whole number"),
    ({"batch_size": 10**13}, "whole number"),
    ({"batch_size": "x" * 1000}, "whole number"),
    ({"gpus": math.nan}, "whole number"),
    ({"gpus": "eight"}, "gpus must be a whole number"),
    ({"gpus": 6, "nodes": 4}, "cannot be shared out evenly over nodes 4"),
    ({"gpus": 8, "layout": {"dp": 4}}, "does not make up gpus 8"),
    ({"layout": {"tp": 8, "dp": 1}}, "tp=8 x pp=1 x cp=1 x dp=1 = 8 does not make up gpus 1; set gpus to 8"),
    ({"gpus": 8, "layout": "cp=4", "input": {"seq_len": 1020}}, "seq_len 1020 is not a multiple of 8"),
    ({"layout": {"td": 8}}, "nearest: tp"),
    ({"layout": "fdsp"}, "nearest: fsdp"),
    ({"layout": 4}, "layout 4 is unknown"),
    ({"optimizer": "adamm"}, "nearest: adam"),
    ({"optimizer_impl": "fussed"}, "nearest: fused"),
    ({"execution": "cuda-graph"}, "nearest: cuda_graphs"),
    ({"recompute": "some"}, "set recompute to one of none, selective, selective-ops, full"),
    ({"recompute_layers": 4}, "recompute_layers 4 goes with recompute full, not none"),
    ({"framework": "tensorflow", "layout": "fsdp", "gpus": 8}, "tensorflow2 is predicted with whole replicas"),
    ({"framework": "mxnet", "layout": "tp=2", "gpus": 8}, "framework mxnet is predicted with whole replicas alone"),
    ({"recompute": "full", "recompute_layers": 0}, "recompute_layers must be a whole number"),
    ({"memory_format": "nhcw"}, "nearest: n"),
    ({"torch": 1.1}, "torch 1.1 is no version of PyTorch; give text in quotes"),
    ({"torch": "latest"}, "torch 'latest' is no version of PyTorch"),
    ({"attention": 3}, "attention 3 is unknown"),
    ({"loss_scale": "constant"}, "set loss_scale to one of dynamic, static"),
    ({"communication_dtype": "fp17"}, "communication_dtype 'fp17' is unknown"),
    ({"no_sync": "maybe"}, "true or false"),
    ({"clip_norm": -1}, "clip_norm must be 0 or a number from 1e-9 to 1e9"),
    ({"clip_norm": "inf"}, "clip_norm must be 0 or a number from 1e-9 to 1e9"),
    ({"precision": "fp17"}, "nearest: "),
    ({"model": ""}, "model must be"),
    ({"model": "a\nb"}, "model must be"),
    ({"gpu": 3}, "gpu must be"),
    ({"data": {"workers": 4}}, "data gives workers, but not what is read from; add storage"),
    ({"data": {"storage": "nfs", "wrokers": 4}}, "unknown field 'wrokers' in data; nearest: .*workers"),
    ({"data": 3}, "data must be a mapping"),
    ({"data": {"storage": "nfs", "workers": -1}}, "workers must be a whole number of processes from 0 to 10,000"),
    ({"data": {"storage": "nfs", "cached": 1.5}}, "cached must be 0 or a number from 1e-6 to 1"),
    ({"data": {"storage": "nfs", "reader_efficiency": 0}}, "must be a number from 0.001 to 1"),
    ({"data": {"storage": "nfs", "format": "jpog"}}, "nearest: jpeg"),
    ({"data": {"storage": "nfs", "decode_ms": 1, "samples_per_s_per_worker": 1000}}, "keep one of them"),
    ({"data": {"storage": "nfs", "cache": "none", "cache_gib": 3}}, "cache_gib 3.0 with cache none"),
    ({"data": {"storage": "nfs", "cache": "explicit"}}, "add cache_gib"),
    ({"input": 3}, "input must be a mapping"),
    ({"input": "seq_len"}, "no key=value"),
    ({"input": "seq_len="}, "no key=value"),
    ({"input": "a=1;a=2"}, "twice"),
    ({"input": {"a": {"b": 1}}}, "input.a holds"),
    ({"input": {"a": [[1, 2]]}}, "flat list"),
    ({"input": {"a b": 1}}, "has the key 'a b'"),
    ({"input": {"a": math.inf}}, "finite"),
    ({"input": {"a": "x;y=2"}}, "semicolons"),
    ({"num_gpus": 8}, "unknown field 'num_gpus' in the job; write gpus: 8"),
    ({3: 8}, "unknown field '3'"),
    ({"run": 3}, "run must be a mapping"),
    ({"run": {"epoch": 3}}, "unknown field 'epoch' in run; nearest: epochs"),
    ({"run": {"epochs": 0}}, "epochs must be a number of epochs from 1e-6 to 1,000,000"),
    ({"run": {"epochs": "ninety"}}, "epochs must be a number of epochs from 1e-6 to 1,000,000"),
    ({"run": {"epochs": 3, "steps": 10}}, "epochs and steps; keep one"),
    ({"run": {"dataset": "imagnet"}}, "nearest: imagenet"),
    ({"run": {"checkpoint_s": 3}}, "needs checkpoint_every_steps or checkpoint_every_s"),
    ({"run": {"evaluation_every_epochs": 1}}, "evaluation_samples"),
    ({"run": {"price_per_gpu_hour": "cheap"}}, "price_per_gpu_hour must be 0 or a number of US dollars"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(fields)[:40] for fields, _ in BAD])
def test_bad_fields_get_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message) as caught:
        Job.from_dict({"model": "resnet50", **fields})
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400


def test_a_job_without_model() -> None:
    with pytest.raises(JobError, match="names no model"):
        Job.from_dict({"gpus": 3})


def test_every_field_has_a_check_and_a_description() -> None:
    for noun in (Job, Run):
        for item in (item for item in dataclasses.fields(noun) if item.name != "code"):  # not a word of the job
            assert callable(item.metadata["type"])
            assert item.metadata["meaning"]


def test_yaml_and_json_files(tmp_path: Path) -> None:
    text = """
model: bert-large
model_config: {max_predictions: 20}
input: {seq_len: 128}
precision: [{from_step: 0, precision: fp32}, {from_step: 1000, precision: amp-bf16}]
batch_size: 32
optimizer: none
run: {epochs: 3, dataset: squad}
"""
    (tmp_path / "job.yaml").write_text(text)
    job = Job.from_file(tmp_path / "job.yaml")
    assert job.optimizer == "none"
    assert len(job.schedule) == 2
    (tmp_path / "job.json").write_text(json.dumps(job.to_dict()))
    assert Job.from_file(str(tmp_path / "job.json")) == job


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", "model: [", r"not valid YAML at line \d"),
        ("a.yaml", "model: a\n\tgpus: 3", "line 2"),
        ("a.yaml", "model: a\ngpus: 3\ngpus: 4\n", "gives 'gpus' twice, at line 3"),
        ("a.yaml", "", "holds nothing"),
        ("a.yaml", "- model", "holds a list"),
        ("a.yaml", "a: !!python/object:os.system x", "line 1: the tag '!!python/object:os.system' does not fit"),
        (
            "a.yaml",
            "model: a\ngpus: 2020-99-99",
            "gpus must be a whole number of GPUs from 1 to 1,048,576, not '2020-99-99'",
        ),
        ("a.yaml", "a: \x00", r"control character '\\x00' at line 1"),
        ("a.yaml", "[" * 5000, "line 1: more than 32 mappings and lists"),
        ("a.yaml", "model: a\ngpuss: 3", "job file .*nearest: gpus"),
        ("a.json", '{"model": "a",\n "gpus" 3}', "not valid JSON at line 2"),
        ("a.json", '{"model": "a", "model": "b"}', "'model' twice"),
        ("a.json", "[1]", "holds a list"),
        ("a.json", '{"model": "a", "gpus": ' + "9" * 5000 + "}", "job file"),
        ("a.json", b"\xff\xfe{}", "not UTF-8"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        Job.from_file(path)
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            Job.from_file(path)


def test_data_sets() -> None:
    assert samples_per_epoch("ImageNet_1k") == 1_281_167
    assert samples_per_epoch("librispeech") == 28_539 + 104_014 + 148_688
    assert samples_per_epoch("movielens20m") == (20_000_263 - 138_493) * 5
    assert samples_per_epoch("wikitext-103", seq_len=512) == 103_227_021 // 512
    with pytest.raises(JobError, match="seq_len"):
        samples_per_epoch("wikitext-103")
    assert all(entry.source for entry in DATASETS.values())
    assert Run(dataset="my own", dataset_size=10).samples_per_epoch() == 10
    assert Run().samples_per_epoch("cifar10") == 50_000
    assert Run().samples_per_epoch() is None
    assert Run().samples_per_epoch("text of some kind") is None


def test_the_job_room_imports_nothing_heavy() -> None:
    code = "import sys, precision_time.job; print([m for m in ('torch', 'numpy', 'yaml', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_names_every_field_and_alias_and_its_examples_run() -> None:
    page = (Path(__file__).parent.parent / "docs" / "job.md").read_text()
    listed = [
        name for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    for name in (*job_module.JOB_FIELDS, *job_module.RUN_FIELDS, *LAYOUT_FIELDS):
        assert name in listed, name
    for name in (*PRECISIONS, *ALIASES, "fp8-rowwise", "fp8-block"):
        assert f"`{name}`" in page.replace("_", "-")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    for kind, block in blocks:
        if kind == "yaml":
            assert Job.from_dict(yaml.safe_load(block)).batch_size == 32
        if kind == "python":
            exec(block, {})
    assert [kind for kind, _ in blocks] == ["yaml", "sh", "python", "sh", "python", "sh", "python", "python", "python"]
