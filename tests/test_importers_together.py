"""Several imported files: what one leaves open another decides, and two that contradict each other are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attack.import_files import DEEPSPEED_AUTO, SBATCH, TRAINING_ARGUMENTS
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.importers import (
    Imported,
    from_accelerate,
    from_deepspeed,
    from_huggingface,
    merged,
    read_imports,
)
from precision_time.job.importers.numerics import FULL_PRECISION, Numerics, combined
from precision_time.job.importers.reader import Reader, flat, not_understood
from precision_time.job.importers.shell import arguments

AUTO: dict[str, Any] = json.loads(DEEPSPEED_AUTO)


def together(*files: Imported, **overrides: Any) -> Job:
    names = [(f"file {number}", each) for number, each in enumerate(files, 1)]
    return Job.from_dict(merged(names).job_fields({"model": "gpt2", "gpus": 8, **overrides}))


def test_training_arguments_decide_what_deepspeed_leaves_open() -> None:
    arguments = from_huggingface({
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True, "max_grad_norm": 0.3,
        "deepspeed": "ds.json",
    })  # fmt: skip
    for files in ((arguments, from_deepspeed(AUTO)), (from_deepspeed(AUTO), arguments)):
        job = together(*files)
        assert (job.batch_size, job.grad_accum, job.clip_norm, job.precision) == (4, 2, 0.3, "bf16-master")
        assert (job.layout, job.framework, job.optimizer) == ("fsdp", "deepspeed", "adamw")


def test_defaults_of_training_arguments_fill_in_auto() -> None:
    job = together(from_deepspeed(AUTO), from_huggingface({"output_dir": "x"}))
    assert (job.batch_size, job.grad_accum, job.clip_norm, job.precision) == (8, 1, 1.0, FULL_PRECISION)


def test_auto_without_the_other_file_has_to_be_given() -> None:
    alone = from_deepspeed(AUTO)
    with pytest.raises(JobError, match=r"does not decide batch_size .* give --batch-size --grad-accum --precision"):
        together(alone)
    job = together(alone, batch_size=2, grad_accum=3, precision="fp16-master")
    assert (job.batch_size, job.grad_accum, job.precision) == (2, 3, "fp16-master")
    half = from_deepspeed({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}})
    assert half.job_fields()["precision"] == "bf16-master"


def test_accelerate_says_what_wraps_the_model_and_the_arguments_the_precision() -> None:
    arguments = from_huggingface({"bf16": True, "output_dir": "x"})
    plain, sharded = (from_accelerate({"distributed_type": kind, "num_processes": 8, "mixed_precision": "no"})
                      for kind in ("MULTI_GPU", "FSDP"))  # fmt: skip
    assert together(arguments, plain).precision == "amp-bf16"
    job = together(sharded, arguments)
    assert (job.precision, job.layout) == ("bf16-master", "fsdp")
    asks = from_accelerate({"distributed_type": "MULTI_GPU", "num_processes": 8, "mixed_precision": "bf16"})
    assert together(asks, from_huggingface({"bf16": False, "output_dir": "x"})).precision == "amp-bf16"
    names_file = from_accelerate({"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16",
                                  "deepspeed_config": {"deepspeed_config_file": "ds.json"}})  # fmt: skip
    whole = together(names_file, from_deepspeed(AUTO), from_huggingface({"output_dir": "x"}))
    assert (whole.precision, whole.layout, whole.batch_size) == ("bf16-master", "fsdp", 8)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"bf16": True}, {"bf16": {"enabled": False}}, "precision .bf16 true and bf16.enabled false contradict"),
        ({"fp16": True}, {"bf16": {"enabled": True}}, "precision .fp16 true and bf16.enabled true contradict"),
        ({"per_device_train_batch_size": 4}, {"train_micro_batch_size_per_gpu": 8},
         "batch_size .is 4 in file 1 but 8 in file 2"),
        ({"gradient_accumulation_steps": 1}, {"gradient_accumulation_steps": 2}, "grad_accum .is 1 in file 1 but 2"),
        ({"fsdp": "full_shard"}, {"zero_optimization": {"stage": 2}}, "layout .is .* but"),
    ],
)  # fmt: skip
def test_contradictions_name_both_values(first: dict[str, Any], second: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        together(from_huggingface({"output_dir": "x", **first}), from_deepspeed(second))


def test_a_flag_settles_a_contradiction() -> None:
    files = (
        from_huggingface({"gradient_accumulation_steps": 1, "max_steps": 5}),
        from_deepspeed({"gradient_accumulation_steps": 2}),
    )
    assert together(*files, grad_accum=4).grad_accum == 4
    runs = files[0], from_huggingface({"max_steps": 6, "output_dir": "x"})
    with pytest.raises(JobError, match=r"steps .is 5 in file 1 but 6 in file 2"):
        together(*runs)
    assert together(*runs, epochs=1, dataset_size=100).run.epochs == 1
    totals = from_deepspeed({"train_batch_size": 64}), from_deepspeed({"train_batch_size": 128})
    with pytest.raises(JobError, match=r"global_batch .is 64 and 128.; give --batch-size --grad-accum"):
        together(*totals)
    assert together(*totals, batch_size=1, grad_accum=2).grad_accum == 2


def test_numerics_of_two_files() -> None:
    asks, wraps = Numerics("bf16", "bf16 true", True), Numerics(wrapper="FSDP")
    for pair in ((asks, wraps), (wraps, asks)):
        assert combined(*pair) == (Numerics("bf16", "bf16 true", True, "FSDP"), "")
    assert combined(Numerics("tf32", "tf32 true"), wraps)[0].asked == "tf32"
    assert combined(Numerics(wrapper="DDP"), wraps)[1] == "DDP and FSDP"


def test_reasons_name_the_effect() -> None:
    assert not_understood("use_fp4_weights").endswith("may change the precision, and so the time")
    assert not_understood("new_shard_degree").endswith("may change the layout or its communication")
    assert not_understood("colour").endswith("may change the time of a step")
    reader = Reader({"a": 1, "half_precision_kind": "new"})
    assert reader.finish() == {"a": not_understood("a"), "half_precision_kind": not_understood("half_precision_kind")}
    assert "precision" in reader.undecided
    assert flat({"a": {"b": {}}, "c": {"d": 1}}) == {"a.b": {}, "c.d": 1}
    with pytest.raises(JobError, match=r"a\.b is given twice"):
        flat({"a": {"b": 1}, "a.b": 2})


def test_values_end_before_the_next_command() -> None:
    assert arguments("run.py --max_steps 100\nwait\necho --done") == {"max-steps": "100", "done": True}
    assert arguments("run.py --nodes $SLURM_NNODES", {"SLURM_NNODES": "4"}) == {"nodes": "4"}


def test_the_command_imports_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(DEEPSPEED_AUTO)
    Path("args.json").write_text(json.dumps({**json.loads(TRAINING_ARGUMENTS), "deepspeed": "ds.json", "fsdp": []}))
    Path("run.sbatch").write_text(SBATCH)
    command = "predict gpt2 --gpus 8 --gpu h100-80gb-sxm --json"
    assert main([*command.split(), "--import", "ds.json", "--import", "args.json"]) == 0
    printed = capsys.readouterr()
    job = json.loads(printed.out)["job"]
    assert (job["precision"], job["layout"], job["batch_size"], job["grad_accum"]) == ("bf16-master", "fsdp", 4, 8)
    assert "note: ds.json (DeepSpeed config), not taken: bf16.enabled, fp16.enabled" in printed.err
    assert "note: args.json (Hugging Face TrainingArguments), not taken: novel_kernel_option: not under" in printed.err

    assert main([*command.split(), "--import", "args.json"]) == 2
    assert "does not decide layout (deepspeed names file 'ds.json'); give --layout" in capsys.readouterr().err
    assert main([*command.split(), "--import", "args.json", "--layout", "zero2"]) == 0
    assert "how many GPUs" not in capsys.readouterr().err
    assert main("predict gpt2 --import args.json --layout dp --json".split()) == 0
    assert "note: no file says how many GPUs; 1 taken, give --gpus" in capsys.readouterr().err
    assert main([*command.split(), "--import", "ds.json"]) == 2
    assert "give --batch-size --grad-accum --precision" in capsys.readouterr().err
    flags = "--batch-size 1 --grad-accum 1 --precision bf16-master".split()
    assert main([*command.split(), "--import", "ds.json", *flags]) == 0
    capsys.readouterr()
    assert main("predict --import run.sbatch --json".split()) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert (job["model"], job["gpus"], job["nodes"], job["precision"]) == ("gpt2-xl", 16, 2, "amp-bf16")
    with pytest.raises(DataError, match="17 files are imported; give at most 16"):
        read_imports(["ds.json"] * 17)


def test_plan_chooses_what_the_file_leaves_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    Path("ds.json").write_text(json.dumps(content))
    plan = "plan gpt2 --import ds.json --gpus 8 --gpu h100-80gb-sxm --steps 10 --json".split()
    assert main(plan) == 2
    assert "does not decide precision (bf16.enabled is auto)" in capsys.readouterr().err
    assert main([*plan, "--precision", "bf16-master"]) == 0


def test_a_note_that_flags_have_answered_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"output_dir": "o", "per_device_train_batch_size": 4, "bf16": true, "num_train_epochs": 3}')
    assert main(["predict", "bert-large", "--import", str(path), "--gpus", "1"]) == 0
    assert "give --dataset-size" in capsys.readouterr().err
    assert main(["predict", "bert-large", "--import", str(path), "--gpus", "1", "--dataset-size", "5000"]) == 0
    err = capsys.readouterr().err
    assert "give --dataset-size" not in err
    assert "output_dir" in err


def test_a_precision_that_no_file_says_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1 --gpus=8\nsrun python train.py\n")
    said = "note: no file says a precision; fp32 taken, give --precision"
    assert main(["predict", "resnet18", "--import", str(script)]) == 0
    assert said in capsys.readouterr().err
    for given in (["predict", "resnet18", "--precision", "tf32"], ["compare", "resnet18"]):
        assert main([*given, "--import", str(script)]) == 0
        assert said not in capsys.readouterr().err
