"""Launch scripts as people write them: files written in place, outputs of commands, arithmetic, commands in quotes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.importers import read_import
from precision_time.job.importers.recognise import import_text
from precision_time.job.importers.shell import arguments
from precision_time.job.importers.shell_text import computed, without_documents, without_outputs

RENDEZVOUS = r"""#!/bin/bash
#SBATCH -N 4
#SBATCH --gpus-per-node=h100:8
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
srun --container-image=nvcr.io/nvidia/pytorch:24.10-py3 --container-mounts=/data:/data,$PWD:/w bash -c "
torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_endpoint $head_node_ip:29500 \
  pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size $((SLURM_NNODES * 8 * 8)) \
  --tensor-model-parallel-size 4 --bf16 --vocab-size 50257 --train-iters 3000"
"""
DOCUMENT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
cat > notes.txt <<'EOF'
never run with --bf16 false, nor --per_device_train_batch_size 1
EOF
accelerate launch --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) --mixed_precision bf16 \\
  --use_fsdp run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --max_steps 100 --output_dir out
"""


def test_commands_within_others(tmp_path: Path) -> None:
    """The helper's `srun --nodes=1` is no launch, the quoted torchrun is, and its global batch is worked out."""
    path = tmp_path / "a.sbatch"
    path.write_text(RENDEZVOUS)
    job = Job.from_dict(read_import(path).job_fields())
    assert (job.gpus, job.nodes, job.layout_spec.tp, job.precision) == (32, 4, 4, "bf16-master")
    assert job.grad_accum == 4 * 8 * 8 // 8
    assert job.run.steps == 3000


def test_a_document_is_no_argument(tmp_path: Path) -> None:
    path = tmp_path / "a.sbatch"
    path.write_text(DOCUMENT)
    job = Job.from_dict(read_import(path).job_fields())
    assert (job.gpus, job.batch_size, job.precision, job.layout_spec.zero) == (16, 4, "bf16-master", 3)
    run = "srun bash <<EOF\ntorchrun train.py --max_steps 7\nEOF\n"
    assert arguments(run) == {"max-steps": "7"}  # a shell reads it


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$((N * 8))", "32"), ("$(($N*8))", "32"), ("$((N / 3))", "1"), ("$((N - 5))", "-1"), ("$((2*N+1))", "9"),
        ("$((N / 0))", None), ("$((M * 8))", None), ("$((N ** 9))", None), ("$((N; rm))", None),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: str | None) -> None:
    read = arguments(f"N=4\ntrain --steps {text} --last 1")["steps"]
    assert read == value if value is not None else str(read).startswith("$((")


def test_outputs_of_commands_are_no_values() -> None:
    assert without_outputs("a=$(f $(g --x 1) --y) b") == "a=$OUTPUT_OF_A_COMMAND b"
    assert without_outputs("n=$(( A * 8 ))") == "n=$((A*8))"
    read = arguments("torchrun --nnodes $(scontrol show --all | wc -l) --nproc_per_node 8 -m torchtitan.train --a.b 1")
    assert read == {"nnodes": "$OUTPUT_OF_A_COMMAND", "nproc-per-node": "8", "a.b": "1"}
    assert computed("$((10**99))", {}) == "$((10**99))"


def test_a_file_of_settings_that_a_command_names() -> None:
    found = import_text("#SBATCH --nodes=1 --gpus=8\nllamafactory-cli train sft.yaml\n")
    assert found.not_taken["the config sft.yaml"] == "is named by the command: give it by --import"
    found = import_text("srun torchrun --nproc_per_node 8 train.py --config_file llama.toml --novel 3")
    assert "give it by --import" in found.not_taken["--config-file"]
    assert "not understood" in found.not_taken["--novel"]


def test_the_precision_of_a_script_that_is_not_read_has_to_be_given() -> None:
    text = "torchrun --nproc_per_node 8 train.py --batch_size=12 {} --max_samples 3\n"
    for argument in ("--dtype=bfloat16", "--amp", "--use_amp", "--precision 16-mixed"):
        found = import_text(text.format(argument))
        with pytest.raises(JobError, match="does not decide precision"):
            found.job_fields({"model": "gpt2"})
        assert found.job_fields({"model": "gpt2", "precision": "amp-bf16"})["gpus"] == 8
    for argument in ("--dtype float32", "--ramp 3", "--fp16 false"):
        assert import_text(text.format(argument)).job_fields({"model": "gpt2"})["gpus"] == 8
    assert "precision" not in import_text(text.format("")).not_taken["--max-samples"]


@given(st.text("$()<EOF'\"` \n=-Nx8*/+", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    without_documents(text)
    without_outputs(text)
    with contextlib.suppress(DataError):
        arguments(f"N=4 {text} --steps 3")
