"""Files of Megatron, DeepSpeed and torchtitan as job-file words."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.importers import Imported, from_deepspeed, from_megatron, from_torchtitan, read_import
from precision_time.job.importers.reader import NO_EFFECT
from precision_time.job.importers.shell import arguments

SCRIPT = r"""#!/bin/bash
# Trains "175B"; don't run this at home
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
CHECKPOINT_PATH=$1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes ${NUM_NODES}
    --master_addr ${MASTER_ADDR:-localhost} )
MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048 # as many
    --attention-backend auto
)
OLD_ARGS="
    --micro-batch-size 1
    --global-batch-size=1536
    --train-iters 500000 --clip-grad 1.0 --fp16 --lr 6.0e-5
"
PARALLEL="--tensor-model-parallel-size ${TP:-8} --pipeline-model-parallel-size 16
    --num-layers-per-virtual-pipeline-stage 2 --sequence-parallel --use-distributed-optimizer"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} $OLD_ARGS $PARALLEL \
    --vocab-size 50257 --foo-bar 3 --save $CHECKPOINT_PATH --context-parallel-size $CP
"""
LLAMA = (
    "--nproc-per-node 8 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --position-embedding-type rope "
    "--rotary-base 500000 --untie-embeddings-and-output-weights --disable-bias-linear --hidden-dropout 0 "
    "--attention-dropout 0 --seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --vocab-size 128256 "
    "--tensor-model-parallel-size 2 --bf16 "
)


def test_a_megatron_script() -> None:
    imported = from_megatron(SCRIPT)
    fields = imported.job_fields()
    assert fields["model"] == "gpt"
    assert fields["model_config"] == {
        "layers": 96, "hidden": 12288, "heads": 96, "max_positions": 2048, "pos": "learned", "act": "gelu",
        "norm": "layernorm", "bias": 1, "tied_embeddings": 1, "dropout": 0.1,
        "vocab": 51200,  # 50257 in multiples of 128 x tp 8
    }  # fmt: skip
    assert fields["input"] == {"seq_len": 2048}
    assert (fields["gpus"], fields["nodes"], fields["batch_size"], fields["grad_accum"]) == (128, 16, 1, 1536)
    assert (fields["precision"], fields["optimizer"], fields["recompute"]) == ("fp16-master", "adamw", "none")
    assert fields["run"] == {"steps": 500000}
    assert "communication_dtype" not in fields, "fp16 gradients travel as they are"
    job = Job.from_dict(fields)
    assert job.layout == "tp=8,pp=16,dp=1,vpp=3,sp=1,zero=1"
    assert (job.clip_norm, job.layout_spec.overlap_grad_reduce) == (1.0, False)
    assert imported.not_taken["foo-bar"] == "not understood: may change the time of a step"
    assert imported.not_taken["context-parallel-size"] == "'$CP' is not set in the text"
    assert imported.not_taken["lr"] == imported.not_taken["save"] == NO_EFFECT
    assert any(note.startswith("foo-bar: ") for note in imported.notes())
    assert imported.notes()[-1].endswith(NO_EFFECT)


def test_a_llama_in_megatron_arguments() -> None:
    fields = from_megatron(LLAMA).job_fields()
    assert fields["model_config"] == {
        "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "kv_heads": 8, "pos": "rope", "act": "swiglu",
        "norm": "rmsnorm", "bias": 0, "tied_embeddings": 0, "dropout": 0.0, "vocab": 128256,
    }  # fmt: skip
    assert fields["grad_accum"] == 32
    assert (fields["precision"], fields["communication_dtype"]) == ("bf16-master", "float32")


def fields_of(arguments: str, **overrides: Any) -> dict[str, Any]:
    return from_megatron(LLAMA + arguments).job_fields(overrides)


def test_megatron_s_precisions() -> None:
    assert "communication_dtype" not in fields_of("--grad-reduce-in-bf16")
    assert fields_of("--fp8-format hybrid")["precision"] == "fp8"
    assert fields_of("--fp8-format hybrid --fp8-recipe blockwise")["precision"] == "fp8-block"
    with pytest.raises(JobError, match=r"precision .fp8-recipe 'new' has no model here"):
        fields_of("--fp8-format hybrid --fp8-recipe new")
    assert fields_of("--fp16-lm-cross-entropy --first-last-layers-bf16 --no-fp8-wgrad")["precision"] == "bf16-master"
    plain = LLAMA.replace("--bf16", "")
    assert from_megatron(plain).fields["precision"] == "torch-fp32"
    half = from_megatron(plain + "--fp16 --loss-scale 4096 --accumulate-allreduce-grads-in-fp32").fields
    assert (half["precision"], half["loss_scale"], half["communication_dtype"]) == ("fp16-master", "static", "float32")


def test_megatron_s_recomputation() -> None:
    block = fields_of("--recompute-granularity full --recompute-method block --recompute-num-layers 3")
    assert (block["recompute"], block["recompute_layers"]) == ("full", 3)
    chunks = fields_of(
        "--recompute-granularity full --recompute-method block --recompute-num-layers 3 "
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4"
    )
    assert (chunks["layout"]["vpp"], chunks["recompute_layers"]) == (2, 6)
    uniform = fields_of("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    assert (uniform["recompute"], "recompute_layers" in uniform) == ("full", False)
    groups = fields_of("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4")
    assert (groups["recompute_method"], groups["recompute_layers"]) == ("uniform", 4)
    assert fields_of("--recompute-activations")["recompute"] == "selective"
    assert fields_of("--recompute-granularity selective --recompute-modules core_attn")["recompute"] == "selective"
    several = "--recompute-granularity selective --recompute-modules moe_act layernorm"
    assert fields_of(several)["recompute"] == "layernorm,moe_act"


def test_megatron_s_experts() -> None:
    imported = from_megatron(
        LLAMA + "--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --expert-model-parallel-size 4 "
        "--moe-router-num-groups 8 --moe-router-group-topk 4 "
        "--moe-shared-expert-intermediate-size 2816 --moe-layer-freq ([0]*1+[1]*31) --moe-expert-capacity-factor 1.25 "
        "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"
    )
    config = imported.fields["model_config"]
    assert {k: config[k] for k in ("experts", "topk", "moe_ffn", "shared_ffn", "dense_layers")} == {
        "experts": 64, "topk": 6, "moe_ffn": 1408, "shared_ffn": 2816, "dense_layers": 1,
    }  # fmt: skip
    assert (config["expert_groups"], config["topk_groups"]) == (8, 4)
    assert (config["attn"], config["kv_lora"], config["qk_nope"], config["qk_rope"]) == ("mla", 512, 128, 64)
    layout = Job.from_dict(imported.job_fields()).layout_spec
    assert (layout.ep, layout.etp, layout.capacity_factor) == (4, 2, 1.25)


def test_megatron_s_defaults_and_overlaps() -> None:
    gated = from_megatron("--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --swiglu")
    assert gated.fields["model_config"]["ffn"] == 2688  # 2/3 of 4 x 1024, in multiples of 64
    plain = Job.from_dict(fields_of("")).layout_spec
    assert (plain.overlap_grad_reduce, plain.zero) == (False, 0)
    told = fields_of("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --sequence-parallel "
                    "--tp-comm-overlap --cp-comm-type a2a --context-parallel-size 2")  # fmt: skip
    layout = Job.from_dict(told).layout_spec
    assert (layout.overlap_grad_reduce, layout.overlap_param_gather, layout.overlap_tp) == (True, True, True)
    assert (layout.cp, layout.cp_comm) == (2, "all-to-all")
    assert fields_of("--use-flash-attn")["attention"] == "flash"
    assert fields_of("--attention-backend unfused")["attention"] == "math"
    assert fields_of("--tokenizer-type NullTokenizer")["model_config"]["vocab"] == 128512, "one more, padded"
    assert fields_of("--optimizer sgd")["optimizer"] == "sgd"
    assert fields_of("--optimizer dist_muon")["optimizer"] == "muon"
    with pytest.raises(JobError, match=r"optimizer 'sophia' has no model here.; give --optimizer"):
        fields_of("--optimizer sophia")
    assert (
        from_megatron("--num-layers 4 --micro-batch-size 2").not_taken["the model"].startswith("its shape lacks hidden")
    )


def test_megatron_as_a_mapping() -> None:
    mapping = {"MODEL_ARGS": {"--num-layers": 4, "--hidden-size": 256, "--num-attention-heads": 4, "--bf16": True,
                              "--swiglu": False, "--tensor-model-parallel-size": 2}}  # fmt: skip
    fields = from_megatron(mapping).job_fields({"gpus": 8})
    assert fields["model_config"]["act"] == "gelu"
    assert Job.from_dict(fields).layout_spec.dp == 4


def test_numbers_that_do_not_divide() -> None:
    message = "128 of the Megatron arguments is not a multiple of batch_size 1 x dp 12 = 12; change gpus or batch_size"
    with pytest.raises(JobError, match=message):
        fields_of("", gpus=24)
    with pytest.raises(JobError, match=r"num-layers 32 is not a multiple of pipeline-model-parallel-size 4 x .* = 12"):
        fields_of("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3")
    with pytest.raises(JobError, match="num-layers must be a whole number"):
        from_megatron("--num-layers many --hidden-size 8")


def test_fields_of_the_user_override_the_file() -> None:
    fields = fields_of(
        "--train-iters 50", gpus=32, batch_size=2, epochs=3, model_config="layers=2", input={"seq_len": 512}
    )
    assert (fields["gpus"], fields["grad_accum"], fields["epochs"], "run" in fields) == (32, 4, 3, False)
    assert (fields["model_config"]["layers"], fields["model_config"]["hidden"]) == (2, 4096)
    assert fields["input"] == {"seq_len": 512}
    named = fields_of("", model="llama3-8b", layout="dp")
    assert (named["model"], "model_config" in named, named["grad_accum"]) == ("llama3-8b", False, 16)
    assert fields_of("", grad_accum=5)["grad_accum"] == 5
    assert fields_of("--nnodes 2", gpus=8).get("nodes") is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(DataError, JobError):
        assert isinstance(from_megatron(text), Imported)


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z-]{1,12}[a-z]", fullmatch=True), st.integers(0, 10**6)), max_size=8))
def test_pairs_are_read_back(pairs: list[tuple[str, int]]) -> None:
    text = " ".join(f"--{name} {value}" for name, value in pairs)
    assert arguments(text) == {name: str(value) for name, value in pairs}
    quoted = f'ARGS="{text}"\nrun.py $ARGS'
    assert arguments(quoted) == arguments(text)


DEEPSPEED = {
    "train_batch_size": 512, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "steps_per_print": 10,
    "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e9, "zero_hpz_partition_size": 8,
                          "offload_optimizer": {"device": "cpu"}, "zero_quantized_weights": True},
    "communication_data_type": "fp32", "something_new": 1,
}  # fmt: skip


def test_a_deepspeed_config() -> None:
    imported = from_deepspeed(DEEPSPEED)
    job = Job.from_dict(imported.job_fields({"model": "gpt2-xl", "gpus": 16}))
    assert (job.precision, job.communication_dtype, job.clip_norm) == ("bf16-master", "float32", 1.0)
    assert (job.batch_size, job.grad_accum, job.optimizer, job.layout) == (8, 4, "adamw", "hsdp=8")
    reasons = imported.not_taken
    assert job.offload == "optimizer"
    assert reasons["zero_optimization.zero_quantized_weights"] == "compressed communication is not modelled"
    assert (reasons["steps_per_print"], reasons["something_new"]) == (
        NO_EFFECT,
        "not understood: may change the time of a step",
    )


def deepspeed(**config: Any) -> Job:
    return Job.from_dict(from_deepspeed(config).job_fields({"model": "gpt2", "gpus": 16}))


def test_deepspeed_settings() -> None:
    assert deepspeed().layout_spec.zero == 0
    assert deepspeed().clip_norm == 1.0  # the default of DeepSpeed 0.19
    assert deepspeed(zero_optimization=True).layout_spec.zero == 1
    for stage, reduce, gather in ((1, False, False), (2, False, False), (3, True, True)):
        layout = deepspeed(zero_optimization={"stage": stage}).layout_spec
        assert (layout.zero, layout.overlap_grad_reduce, layout.overlap_param_gather) == (stage, reduce, gather)
    assert deepspeed(zero_optimization={"stage": 2, "overlap_comm": True}).layout_spec.overlap_grad_reduce
    assert deepspeed(zero_optimization={"stage": 3, "mics_shard_size": 4}).layout == "hsdp=4"
    assert deepspeed(fp16={"enabled": True}).precision == "fp16-master"
    assert deepspeed(fp16={"enabled": True, "loss_scale": 1024}).loss_scale == "static"
    assert deepspeed(fp16={"enabled": True, "loss_scale": 0}).loss_scale == "dynamic"
    assert deepspeed(fp16={"enabled": False}).precision == "torch-fp32"
    assert deepspeed(amp={"enabled": True}).precision == "amp-fp16"
    assert deepspeed(amp={"enabled": True, "opt_level": "O3"}).precision == "fp16"
    assert deepspeed(activation_checkpointing={"partition_activations": True}).recompute == "full"
    assert deepspeed(activation_checkpointing={"partition_activations": False}).recompute == "none"
    assert deepspeed(tensor_parallel={"autotp_size": 4}).layout_spec.tp == 4
    assert deepspeed(sequence_parallel_size=4).layout_spec.cp_comm == "all-to-all"
    accumulated = deepspeed(train_batch_size=256, gradient_accumulation_steps=4)
    assert (accumulated.batch_size, accumulated.grad_accum) == (4, 4)
    assert deepspeed(train_batch_size=256).batch_size == 16
    auto = from_deepspeed({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}})
    assert "batch_size" not in auto.fields
    assert "auto" in auto.not_taken["train_micro_batch_size_per_gpu"]
    with pytest.raises(JobError, match=r"optimizer.type 'OneBitAdam' has no model here.; give --optimizer"):
        deepspeed(optimizer={"type": "OneBitAdam"})
    with pytest.raises(JobError, match="fp16 of the DeepSpeed config is 3; give a mapping"):
        deepspeed(fp16=3)
    with pytest.raises(JobError, match="global batch 250 of the DeepSpeed config is not a multiple of batch_size 4"):
        deepspeed(train_batch_size=250, train_micro_batch_size_per_gpu=4)


def titan(**tables: Any) -> Job:
    base: dict[str, Any] = {"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 8192}}
    return Job.from_dict(from_torchtitan({**base, **tables}).job_fields({"gpus": 64}))


def test_a_torchtitan_config() -> None:
    job = titan(
        training={"local_batch_size": 2, "global_batch_size": 64, "seq_len": 8192, "max_norm": 1.0, "steps": 1000,
                  "dataset": "c4"},
        parallelism={"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 8,
                     "enable_async_tensor_parallel": True},
        compile={"enable": True, "components": ["model"]},
        optimizer={"name": "AdamW", "lr": 3e-4, "implementation": "foreach"},
        activation_checkpoint={"mode": "full"},
    )  # fmt: skip
    assert (job.model, dict(job.input), job.layout) == (
        "llama3-8b", {"seq_len": 8192}, "tp=8,dp=8,sp=1,zero=3,shard=4,overlap_tp=1",
    )  # fmt: skip
    assert (job.batch_size, job.grad_accum, job.run.steps) == (2, 4, 1000)
    assert (job.precision, job.communication_dtype, job.execution) == ("bf16-master", "float32", "compile")
    assert (job.optimizer, job.optimizer_impl, job.clip_norm, job.recompute) == ("adamw", "foreach", 1.0, "full")


def test_torchtitan_settings() -> None:
    assert titan().layout == "fsdp"
    assert titan(model={"name": "llama3", "flavor": "405B"}).model == "llama3.1-405b"
    replicas = titan(parallelism={"data_parallel_replicate_degree": 64, "data_parallel_shard_degree": 1})
    assert (replicas.layout, replicas.precision) == ("dp", "amp-bf16")
    ring = titan(parallelism={"context_parallel_degree": 4, "context_parallel_rotate_method": "alltoall"})
    assert (ring.layout_spec.cp_comm, titan(parallelism={"context_parallel_degree": 4}).layout_spec.cp_comm) == (
        "ring", "all-gather",
    )  # fmt: skip
    pipeline = titan(parallelism={"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B"})
    assert (pipeline.layout, pipeline.batch_size, pipeline.grad_accum) == ("pp=4,dp=16,vpp=2,zero=3", 1, 8)
    assert titan(training={"mixed_precision_param": "float32"}).precision == "torch-fp32"
    assert titan(training={"dtype": "bfloat16"}).precision == "bf16"
    rowwise = {"linear": {"float8": {"recipe_name": "rowwise"}}}
    assert titan(model={"name": "llama3", "flavor": "8B", "converters": ["quantize.linear.float8"]},
                 quantize=rowwise).precision == "fp8-rowwise"  # fmt: skip
    assert titan(quantize=rowwise).precision == "bf16-master", "without the converter the table does nothing"
    for given_ac, recompute in (
        ({"mode": "none"}, ("none", None, None)),
        ({"mode": "selective", "selective_ac_option": "op"}, ("selective", None, None)),
        ({"mode": "selective", "selective_ac_option": "1"}, ("full", None, None)),
        ({"mode": "selective", "selective_ac_option": "3"}, ("full", "every", 3)),
    ):  # fmt: skip
        found = titan(activation_checkpoint=given_ac)
        assert (found.recompute, found.recompute_method, found.recompute_layers) == recompute
    llama = {"name": "llama3", "flavor": "8B"}
    for tables, message in (
        ({"activation_checkpoint": {"mode": "memory_budget"}}, "recompute .activation_checkpoint.mode 'memory_budget'"),
        ({"model": {**llama, "converters": ["mx"]}}, "precision .model.converters 'mx' has no model here"),
        ({"model": {**llama, "converters": ["float8"]}, "float8": {"recipe_name": "new"}}, "recipe 'new' has no model"),
        ({"training": {"seq_len": 8192, "fp4_weights": True}}, "training.fp4_weights True is not understood"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            titan(**tables)
    tiny = from_torchtitan({"model": {"name": "llama3", "flavor": "debugmodel"}})
    assert "model" not in tiny.fields
    assert (
        from_torchtitan({"parallelism": {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2}}).least_gpus == 8
    )
    with pytest.raises(JobError, match="local_batch_size 3 is not a multiple of pipeline_parallel_microbatch_size 2"):
        titan(training={"local_batch_size": 3},
              parallelism={"pipeline_parallel_degree": 2, "pipeline_parallel_microbatch_size": 2})  # fmt: skip


TOML = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n[parallelism]\ntensor_parallel_degree = 2\n'
)


def test_files_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    def kind(name: str, content: str) -> str:
        (tmp_path / name).write_text(content)
        return read_import(tmp_path / name).kind

    assert kind("a.sh", SCRIPT) == kind("a.txt", LLAMA) == "Megatron arguments"
    assert kind("a.yaml", "MODEL_ARGS:\n  --num-layers: 4\n  --bf16: true\n") == "Megatron arguments"
    assert kind("a.json", json.dumps(DEEPSPEED)) == kind("ds_config", json.dumps(DEEPSPEED)) == "DeepSpeed config"
    pytest.importorskip("tomllib")
    assert kind("a.toml", TOML) == kind("a.cfg", TOML) == "torchtitan config"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "hello", "is not recognised; give Hugging Face"),
        ("a.json", '{"a": 1}', "with 'a' is not recognised; give Hugging Face"),
        ("a.json", "{", "not valid JSON at line 1"),
        ("a.cfg", '{"bf16": {"enabled": true}', "not valid JSON at line 1"),
        ("a.sh", 'torchrun x.py --num-layers 4 "', "no closing quotation; close the quote"),
        ("a.sh", "torchrun x.py --num-layers four --hidden-size 4", "file .*a.sh.*: num-layers must be a whole number"),
        ("a.toml", "[training", "is not valid TOML|reads from 3.11 on"),
        ("a.toml", b"\xff", "is not UTF-8"),
    ],
)
def test_files_that_cannot_be_imported(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        read_import(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_command_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = (
        "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
    )
    Path("a.sh").write_text(f"torchrun --nproc-per-node 8 x.py {small} --micro-batch-size 4 --global-batch-size 128 "
                            "--bf16 --vocab-size 50257 --lr 1e-4 --overlap-grad-reduce --speed 9")  # fmt: skip
    Path("ds.json").write_text(json.dumps({"train_batch_size": 128, "bf16": {"enabled": True}}))
    Path("over.yaml").write_text("gpu: h100-80gb-sxm\nbatch-size: 8\nrun: {steps: 10}\n")

    assert main("predict --import a.sh --gpus 16 --json".split()) == 0
    printed = capsys.readouterr()
    job = json.loads(printed.out)["job"]
    assert (job["gpus"], job["grad_accum"], job["precision"], job["layout"]) == (16, 2, "bf16-master", "dp")
    assert (
        "note: a.sh (Megatron arguments), not taken: speed: not understood: may change the time of a step"
        in printed.err
    )

    assert main("predict over.yaml --import a.sh --json".split()) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert (job["gpu"], job["batch_size"], job["grad_accum"], job["run"]) == ("h100-80gb-sxm", 8, 2, {"steps": 10})

    assert main("predict --import ds.json".split()) == 2
    assert "file 'ds.json' names no model; name one before --import" in capsys.readouterr().err
    assert main("predict gpt2 --import ds.json --gpus 24".split()) == 2
    assert (
        "global batch 128 of the DeepSpeed config is not a multiple of grad_accum 1 x dp 24" in capsys.readouterr().err
    )
    assert main("predict --import a.sh --layout tp=2 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["job"]["layout"] == "tp=2,dp=4"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "[training]\nseq_len = [1]\n[parallelism]\n", "training.seq_len is [1]; give a single value"),
        ("a.toml", '[model]\nname = ["llama3"]\n[training]\nsteps = 1\n', "model.name is ['llama3']; give a single"),
        ("a.toml", "[model]\nconverters = true\n[training]\nsteps = {a = 1}\n", "names no model"),
        ("a.json", '{"train_batch_size": [8]}', "train_batch_size is [8]; give a single value"),
        ("a.json", '{"bf16": [true], "train_batch_size": 1}', "bf16 of the DeepSpeed config is [True]; give a mapping"),
        ("a.yaml", "num_layers: [2]\nhidden_size: 8", "num-layers is [2]; give a single value"),
        ("a.yaml", "bf16: true\nmicro_batch_size: {a: 1}\nnum_layers: 2", "names no model"),
        ("a.sh", "pretrain.py --num-layers 2 --hidden-size 'x", "close the quote"),
        ("a.sh", 'A="--num-layers 2 \'x"\npretrain.py $A --hidden-size 8', "close the quote"),
        ("a.sh", "pretrain.py --num-layers 2 --cp-comm-type ' ' --hidden-size 8", "names no model"),
        ("a.sh", "A=aaaaaaaaaa\n" + "A=$A$A\n" * 50 + "x --num-layers $A", "a value of more than 65,536 characters"),
        ("a.sh", "A=aaaaaaaaaa\n" + "A=$A$A\n" * 11 + "x --num-layers 2 " + "$A " * 500, "with variables filled in"),
        ("a.sh", "x --num-layers 2 " + "a" * 300_000, "more than 262,144 characters"),
    ],
)
def test_lists_where_single_values_belong_and_open_quotes(
    name: str, content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert main(["predict", "--import", str(path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("precision-time: error: ")
    assert message in error


def test_a_megatron_file_with_a_switch_of_deepspeed_is_megatron(tmp_path: Path) -> None:
    path = tmp_path / "megatron.yaml"
    path.write_text(
        "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 2\nseq_length: 32\nbf16: true\nworld_size: 1\n"
    )
    found = read_import(path)
    assert (found.kind, found.fields["precision"]) == ("Megatron arguments", "bf16-master")


def test_megatron_s_evaluations_are_of_global_batches() -> None:
    words = "--train-iters 500 --global-batch-size 64 --eval-interval 100 --eval-iters {}"
    run = fields_of(words.format(10))["run"]
    assert (run["evaluation_every_steps"], run["evaluation_samples"]) == (100, 640)
    assert "evaluation_samples" not in fields_of(words.format(0))["run"]
