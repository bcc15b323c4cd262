"""Imported files are recognised or refused, every setting is taken or has a reason, and what launches say."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.attack.import_files import FILES
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.importers import (
    Imported,
    from_accelerate,
    from_axolotl,
    from_deepspeed,
    from_huggingface,
    from_lightning,
    from_llm_foundry,
    from_nemo,
    read_import,
)
from precision_time.job.importers.reader import flat

OVERRIDES: dict[str, dict[str, Any]] = {
    "ds_auto.json": {"model": "gpt2", "precision": "bf16-master", "batch_size": 1, "grad_accum": 1},
}
NEEDS_MODEL = ("manifest.yaml", "training_args.json", "accelerate.yaml", "lightning.yaml", "launch.sh", "ds.json")


def imported(name: str, folder: Path) -> Imported:
    (folder / name).write_text(FILES[name][0])
    return read_import(folder / name)


def job(name: str, folder: Path, **overrides: Any) -> Job:
    return Job.from_dict(imported(name, folder).job_fields(overrides))


@pytest.mark.parametrize("name", FILES)
def test_each_kind_is_recognised_and_gives_a_job(name: str, tmp_path: Path) -> None:
    if name.endswith(".toml"):
        pytest.importorskip("tomllib")
    found = imported(name, tmp_path)
    assert found.kind == FILES[name][1]
    overrides = OVERRIDES.get(name, {"model": "gpt2"} if name in NEEDS_MODEL else {})
    Job.from_dict(found.job_fields(overrides if "gpus" in found.fields else {"gpus": 32, **overrides}))
    for key, why in found.not_taken.items():
        assert why, key


def keys(text: str) -> set[str]:
    content = yaml.safe_load(text)
    return set(flat(content.get("fit", content)))


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".json", ".yaml"))])
def test_every_setting_is_taken_or_has_a_reason(name: str, tmp_path: Path) -> None:
    found = imported(name, tmp_path)
    accounted = {*found.taken, *found.not_taken}
    missing = {key for key in keys(FILES[name][0]) if not any(a == key or key.startswith(f"{a}.") for a in accounted)}
    assert not missing
    assert not set(found.taken) & set(found.not_taken)


READERS = {
    "training_args.json": from_huggingface, "accelerate.yaml": from_accelerate, "lightning.yaml": from_lightning,
    "axolotl.yaml": from_axolotl, "foundry.yaml": from_llm_foundry, "bridge.yaml": from_nemo, "nemo.yaml": from_nemo,
    "ds.json": from_deepspeed,
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=30)
@given(
    st.from_regex(r"[a-z]{1,6}(_[a-z]{1,8}){0,2}", fullmatch=True),
    st.one_of(st.integers(1, 9), st.booleans(), st.sampled_from(["auto", "no", "bf16", "3", ""]), st.none()),
    st.booleans(),
)
def test_no_setting_is_dropped(name: str, key: str, value: Any, inside: bool) -> None:
    """Whatever key is added, at the top or inside a section, it is taken, has a reason, or is refused by name."""
    content = yaml.safe_load(FILES[name][0])
    section = next((k for k, v in content.items() if isinstance(v, dict) and v), "") if inside else ""
    target = content[section] if section else content
    if key in target:
        return
    target[key] = value
    try:
        found = READERS[name](content)
    except JobError:
        return
    full = f"{section}.{key}" if section else key
    accounted = {*found.taken, *found.not_taken}
    assert any(full == each or full.startswith(f"{each}.") for each in accounted)


def test_an_sbatch_script(tmp_path: Path) -> None:
    found = imported("run.sbatch", tmp_path)
    job_ = Job.from_dict(found.job_fields())
    assert (job_.gpus, job_.nodes, job_.model, job_.precision) == (16, 2, "gpt2-xl", "amp-bf16")
    assert (job_.batch_size, job_.grad_accum, dict(job_.input), job_.run.steps) == (4, 2, {"seq_len": 1024}, 400)
    assert "'12:00:00'" in found.not_taken["#SBATCH --time"]
    assert found.not_taken["#SBATCH --gres a100"] == "names a kind of GPU, not its memory and form; give --gpu"
    assert found.not_taken["new_option"].startswith("not understood")


@pytest.mark.parametrize(
    ("lines", "gpus", "nodes"),
    [
        ("--nodes=4\n#SBATCH --gpus-per-node=h100:8", 32, 4), ("-N 2 -G 16", 16, 2), ("--gpus=3", 3, None),
        ("--gres=gpu:2", 2, None), ("--nodes 2 --gres=gpu:h200:4,lscratch:10", 8, 2),
        ("--ntasks=6 --gpus-per-task=1", 6, None), ("--nodes=2 --ntasks-per-node=4 --gpus-per-task=1", 8, 2),
        ("--time=1:00 --nodes=1", None, None),
    ],
)  # fmt: skip
def test_allocations_of_slurm(lines: str, gpus: int | None, nodes: int | None, tmp_path: Path) -> None:
    (tmp_path / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH {lines}\npython train.py\n#SBATCH --nodes=99\n")
    found = read_import(tmp_path / "a.sbatch")
    assert (found.fields.get("gpus"), found.fields.get("nodes")) == (gpus, nodes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH --nodes=2-4 --gres=gpu:8\npython x.py", "gpus .#SBATCH --nodes '2-4' is no single number"),
        ("#SBATCH --nodes=2 --gres=gpu:8\ntorchrun --nproc_per_node 4 x.py",
         "gpus .is 16 in #SBATCH but 4 in the launcher"),
        ("#SBATCH --gpus=many\npython x.py", "#SBATCH --gpus is 'many'; give a whole number of GPUs"),
    ],
)  # fmt: skip
def test_launches_that_do_not_decide_the_gpus(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"#!/bin/bash\n{text}\n")
    with pytest.raises((DataError, JobError), match=message):
        read_import(tmp_path / "a.sh").job_fields({"model": "gpt2"})


def test_a_megatron_script_under_sbatch_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8\n" + FILES["pretrain.sh"][0])
    fields = read_import(tmp_path / "a.sh").job_fields()
    assert (fields["gpus"], fields["model"], fields["grad_accum"], fields["framework"]) == (16, "gpt", 4, "megatron")


def test_what_follows_a_switch_is_not_its_value(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(FILES["pretrain.sh"][0].replace("--bf16", "--bf16 $MORE"))
    (tmp_path / "b.sh").write_text("torchrun --nproc-per-node 8 a.py --per_device_train_batch_size 1 --bf16 $MORE")
    for name, precision in (("a.sh", "bf16-master"), ("b.sh", "amp-bf16")):
        found = read_import(tmp_path / name)
        assert found.job_fields()["precision"] == precision
        assert found.not_taken["the arguments '$MORE' after bf16"] == "are not set in the text"
    for arguments in ({"bf16": "x"}, {"fp16": 3}):
        with pytest.raises(JobError, match="must be true or false, not"):
            from_huggingface({"output_dir": "x", **arguments})
        with pytest.raises(JobError, match="must be true or false, not"):
            from_axolotl({"base_model": "gpt2", **arguments})
    for config in ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
                   {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}):  # fmt: skip
        with pytest.raises(JobError, match="true has no model here"):
            from_deepspeed(config).job_fields()
    off = {"bf16": {"enabled": True, "bf16_optimizer_states": False}, "torch_autocast": {"enabled": False}}
    assert from_deepspeed(off).job_fields()["precision"] == "bf16-master"
    with pytest.raises(JobError, match=r"bf16.enabled must be true or false, not 'x'"):
        from_deepspeed({"bf16": {"enabled": "x"}})


def test_a_launch_by_accelerate(tmp_path: Path) -> None:
    job_ = job("launch.sh", tmp_path, model="gpt2")
    assert (job_.gpus, job_.precision, job_.execution) == (8, "amp-fp16", "compile")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("training_args.bin", "x", "is a pickle, which is not read"),
        ("trainer_state.json", json.dumps({"global_step": 1, "log_history": []}), "is the state of a Trainer"),
        ("config.json", json.dumps({"model_type": "bert", "transformers_version": "5", "hidden_size": 8}),
         "is that of no decoder of the zoo.*name the file as --model hf:FILE"),
        ("a.json", json.dumps({"per_device_train_batch_size": 1, "zero_optimization": {}}),
         "has settings of DeepSpeed config .zero_optimization. and of Hugging Face TrainingArguments .per_device"),
        ("a.yaml", "base_model: gpt2\ndistributed_type: FSDP", "accelerate config .distributed_type. and of Axolotl"),
        ("a.yaml", "colour: blue", "with 'colour' is not recognised; give Hugging Face"),
    ],
)  # fmt: skip
def test_files_that_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_import(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_megatron_llama_is_predicted_without_torch(tmp_path: Path) -> None:
    llama = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 4096 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm "
        "--position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --hidden-dropout 0 "
        "--attention-dropout 0 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 128256 "
        "--tensor-model-parallel-size 2 --sequence-parallel --bf16 --use-distributed-optimizer"
    )
    (tmp_path / "llama.sh").write_text(llama)
    program = (
        "import sys; sys.modules['torch'] = None; from precision_time.cli.main import main; "
        f"sys.exit(main(['predict', '--import', {str(tmp_path / 'llama.sh')!r}, '--gpu', 'h100-80gb-sxm', '--json']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    job_ = json.loads(ran.stdout)["job"]
    assert (job_["framework"], job_["layout"], job_["grad_accum"]) == ("megatron", "tp=2,dp=4,sp=1,zero=1", 16)


WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, float("nan"), "", "x", "auto", "x" * 5000, [], [1], ["a", ["b"]], {}, {"a": 1},
    {"a": {"b": [None]}}, 10**25,
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_wrong_values_are_refused_in_a_sentence(name: str) -> None:
    """Every setting of each file, replaced by a value of another type: a job, or an error of one line."""
    whole = yaml.safe_load(FILES[name][0])
    for section, key in _places(whole):
        for value in WRONG:
            content = copy.deepcopy(whole)
            (content[section] if section else content)[key] = value
            try:
                Job.from_dict(READERS[name](content).job_fields({"model": "gpt2", "gpus": 16}))
            except JobError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert len(str(error)) < 1500  # noqa: PT017


def _places(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings at the top and of sections: the section, or "", and the key."""
    inner = [(section, key) for section, values in content.items() if isinstance(values, dict) for key in values]
    return [*(("", key) for key in content), *inner]
