"""Names of models and GPUs as people write them: other spellings, repositories of the hub, and the nearest names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from precision_time import predict_time
from precision_time.errors import CatalogError, JobError
from precision_time.hardware import default_catalog, gpu
from precision_time.hardware.aliases import GPU_ALIASES
from precision_time.names import joined, nearest_names
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.names import find, nearest_models, zoo_name
from precision_time.zoo.tables.hub import REPOSITORIES
from precision_time.zoo.tables.open_decoders import ENTRIES as OPEN_DECODERS
from precision_time.zoo.templates import template_for


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("resnet-50", "resnet50"),
        ("ResNet_50", "resnet50"),
        ("vit_b_16", "vit-b-16"),
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("unsloth/Llama-3.2-1B-Instruct", "llama3.2-1b"),
        ("NousResearch/Meta-Llama-3-8B", "llama3-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("bert-base-uncased", "bert-base"),
    ],
)
def test_models_are_known_by_other_names(written: str, name: str) -> None:
    assert zoo_name(written) == name


@pytest.mark.parametrize(
    "unknown", ["llama3-18b", "llama318b", "qwen2-57b", "bert", "t5", "someone/Llama-3.1-8B", "", "/", "x" * 9999]
)
def test_other_models_are_not_guessed(unknown: str) -> None:
    assert find(unknown) is None


def test_spellings_are_unambiguous() -> None:
    assert len({joined(name) for name in ENTRIES}) == len(ENTRIES)
    every = [repository.lower() for each in REPOSITORIES.values() for repository in each]
    assert len(set(every)) == len(every)
    for name, repositories in REPOSITORIES.items():
        assert all(zoo_name(repository) == name for repository in repositories)


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("resnet51", "resnet50"),
        ("llama3-9b", "llama3-8b"),
        ("Llama-3.1-7B", "llama3.1-8b"),
        ("qwen3-7b", "qwen3-8b"),
        ("resnt50", "resnet50"),
        ("bert", "bert-base"),
        ("t5", "t5-base"),
        ("meta-llama/Llama-3.1-7B", "meta-llama/Llama-3.1-8B"),
        ("someone/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("google/bert-base", "google-bert/bert-base-uncased"),
    ],
)
def test_the_nearest_model_comes_first(written: str, first: str) -> None:
    assert nearest_models(written).partition(",")[0] == first
    with pytest.raises(JobError, match=f"is unknown; nearest: {first}"):
        predict_time(written)


def test_where_none_is_near_some_of_all_are_named() -> None:
    assert nearest_names("zzz", ["b1", "a1"]) == "a1, b1"
    assert nearest_names("zzz", [f"a{i}" for i in range(10, 20)]).endswith("a17, ...")
    assert nearest_names("", ["a1"]) == "a1"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA RTX4090", "rtx-4090"),
        ("gtx1080ti", "gtx-1080-ti"),
        ("rtxa6000", "rtx-a6000"),
        ("a100", "a100-80gb-sxm"),
        ("a100 80 gb pcie", "a100-80gb-pcie"),
        ("h100 pcie", "h100-80gb-pcie"),
    ],
)
def test_gpus_are_known_without_separators(written: str, name: str) -> None:
    assert gpu(written).name == name


def test_a_gpu_without_separators_is_one_or_an_error() -> None:
    meant: dict[str, set[str]] = {}
    for name in (*default_catalog().gpus, *GPU_ALIASES):
        meant.setdefault(joined(name), set()).add(gpu(name).name)
    assert all(len(names) == 1 for names in meant.values())
    with pytest.raises(CatalogError, match="unknown GPU 'b100'; nearest: b200"):
        gpu("b100")
    both = {"gpus": {f"x-{name}": {"based_on": "a100"} for name in ("1y", "1-y")}}
    with pytest.raises(CatalogError, match="unknown GPU 'x1y'; nearest: x-1-y, x-1y"):
        default_catalog().with_document(both).gpu("x1y")


def test_a_prediction_is_that_of_the_named_model() -> None:
    named, written = (predict_time(name, precision="amp-bf16", gpu="a100") for name in ("resnet50", "ResNet-50"))
    assert written.step == named.step


def test_published_decoders_follow_templates_and_need_no_torch() -> None:
    for entry in OPEN_DECODERS:
        assert not entry.ships
        assert template_for(entry.builder, entry.config, "flash"), entry.name
    script = f"""
import sys
sys.modules["torch"] = None
from precision_time import predict_time
for name in {["Qwen/Qwen2.5-7B-Instruct", "qwen3-0.6b", "phi-4", "deepseek-v2-lite", "gpt-oss-20b"]}:
    run = predict_time(name, precision="bf16-master", gpu="h100", gpus=8, layout="fsdp")
    assert run.floor_s < run.step.p50, name
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
