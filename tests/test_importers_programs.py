"""What is taken from a realistic file of each program, and which precision its settings mean."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attack.import_files import FILES
from precision_time import predict
from precision_time.errors import JobError, MissingPeakError
from precision_time.job import Job
from precision_time.job.importers import (
    Imported,
    from_accelerate,
    from_axolotl,
    from_huggingface,
    from_lightning,
    from_llama_factory,
    from_llm_foundry,
    from_nemo,
    from_torchtitan,
    read_import,
)
from precision_time.job.importers.numerics import FULL_PRECISION
from precision_time.job.importers.reader import NO_EFFECT


def imported(name: str, folder: Path) -> Imported:
    (folder / name).write_text(FILES[name][0])
    return read_import(folder / name)


def job(name: str, folder: Path, **overrides: Any) -> Job:
    return Job.from_dict(imported(name, folder).job_fields(overrides))


def test_training_arguments(tmp_path: Path) -> None:
    found = imported("training_args.json", tmp_path)
    job = Job.from_dict(found.job_fields({"model": "gpt2", "gpus": 8}))
    assert (job.precision, job.layout, job.batch_size, job.grad_accum) == ("amp-bf16", "dp", 4, 8)
    assert (job.optimizer, job.optimizer_impl, job.clip_norm) == ("adamw", "fused", 0.5)
    assert (job.recompute, job.execution, job.run.steps, job.run.checkpoint_every_steps) == (
        "full",
        "compile",
        1000,
        250,
    )
    assert found.not_taken["learning_rate"] == NO_EFFECT
    assert found.not_taken["novel_kernel_option"] == "not understood: may change the time of a step"
    assert "evaluation_samples" in found.not_taken["eval_steps"].replace("-", "_")


def hugging(**arguments: Any) -> Job:
    return Job.from_dict(from_huggingface({"output_dir": "x", **arguments}).job_fields({"model": "gpt2", "gpus": 8}))


def test_the_precisions_of_the_trainer() -> None:
    for arguments, precision in (
        ({}, FULL_PRECISION), ({"tf32": True}, "tf32"), ({"torch_compile": True}, "tf32"),
        ({"torch_compile": True, "tf32": False}, FULL_PRECISION),
        ({"fp16": True}, "amp-fp16"), ({"bf16": True}, "amp-bf16"),
        ({"bf16": True, "fsdp": "full_shard auto_wrap"}, "bf16-master"),
        ({"fp16": True, "fsdp": ["shard_grad_op"]}, "fp16-master"),
        ({"bf16": True, "deepspeed": {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}}, "bf16-master"),
        ({"bf16": True, "deepspeed": {"zero_optimization": {"stage": 2}}}, "bf16-master"),
        ({"bf16": True, "dtype": "bfloat16"}, "bf16"), ({"dtype": "bfloat16"}, "bf16"),
    ):  # fmt: skip
        assert hugging(**arguments).precision == precision, arguments
    for arguments, message in (
        ({"fp16": True, "torch_dtype": "float16"}, "fp16 true with weights in fp16 under DDP is not certain"),
        ({"bf16": True, "dtype": "auto"}, "weights in the dtype of its checkpoint under DDP is not certain"),
        ({"bf16": True, "fp16": True}, "bf16 and fp16 are both true"),
        ({"bf16": True, "deepspeed": {"bf16": {"enabled": False}}}, "bf16 true and bf16.enabled false contradict"),
        ({"fp8_recipe": "tensorwise"}, "fp8_recipe 'tensorwise' is not understood"),
        ({"auto_find_batch_size": True}, "batch_size .auto_find_batch_size chooses it while the job runs"),
        ({"optim": "galore_adamw"}, "optimizer .optim 'galore_adamw' has no model here"),
        ({"deepspeed": "ds.json"}, "layout .deepspeed names file 'ds.json'"),
        ({"use_cpu": True}, "use_cpu is true"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown; set it to float32"),
        ({"fsdp": "some_shard"}, "fsdp 'some_shard' is unknown; set it to full_shard"),
        ({"save_strategy": "steps", "save_steps": "often"}, "save_steps is 'often'; give a number"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            hugging(**arguments)


def test_the_optimizers_of_the_trainer() -> None:
    for optim, ours in (
        ("adamw_torch", ("adamw", "foreach")), ("adamw_torch_fused", ("adamw", "fused")),
        ("adafactor", ("adafactor", None)),
        ("paged_adamw_8bit", ("adamw-8bit", None)), ("lion_32bit", ("lion", None)),
        ("adamw_torch_4bit", ("adamw-8bit", None)),
    ):  # fmt: skip
        job_ = hugging(optim=optim)
        assert (job_.optimizer, job_.optimizer_impl) == ours
    assert hugging(adafactor=True).optimizer == "adafactor"
    assert "staying on the GPU" in from_huggingface({"optim": "paged_adamw"}).not_taken["pages of optim paged_adamw"]


def test_the_layouts_of_the_trainer() -> None:
    assert hugging(fsdp="full_shard offload").layout == "fsdp"
    assert hugging(fsdp="shard_grad_op").layout_spec.zero == 2
    assert hugging(fsdp=True, fsdp_config={"reshard_after_forward": False}).layout_spec.zero == 2
    assert hugging(fsdp="full_shard", fsdp_config={"activation_checkpointing": True}).recompute == "full"
    assert hugging(fsdp="").layout == "dp"
    three = hugging(deepspeed={"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"})
    assert (three.layout, three.framework, three.batch_size, three.clip_norm) == ("fsdp", "deepspeed", 8, 1.0)
    assert (
        from_huggingface({"deepspeed": {"zero_optimization": {"new": 1}}})
        .not_taken["deepspeed.zero_optimization.new"]
        .startswith("not understood")
    )


def test_all_of_the_real_training_arguments_are_known() -> None:
    """Names and defaults of the installed transformers: none is unknown here, and they give what the Trainer does."""
    transformers = pytest.importorskip("transformers")
    defaults: dict[str, Any] = {}
    for item in dataclasses.fields(transformers.TrainingArguments):
        if item.default is not dataclasses.MISSING:
            defaults[item.name] = getattr(item.default, "value", item.default)
        elif item.default_factory is not dataclasses.MISSING:
            defaults[item.name] = item.default_factory()
    found = from_huggingface({**defaults, "output_dir": "x"})
    assert {*defaults, "output_dir"} <= {*found.taken, *found.not_taken}
    assert not [key for key, why in found.not_taken.items() if "not understood" in why]
    job = Job.from_dict(found.job_fields({"model": "gpt2"}))
    assert (job.batch_size, job.grad_accum, job.clip_norm, job.optimizer) == (8, 1, 1.0, "adamw")
    assert (job.precision, job.recompute, job.execution, job.run.epochs) == (FULL_PRECISION, "none", "eager", 3)


def test_an_accelerate_config(tmp_path: Path) -> None:
    found = job("accelerate.yaml", tmp_path, model="gpt2")
    assert (found.gpus, found.nodes, found.layout, found.recompute) == (16, 2, "hsdp=8", "full")
    assert found.precision == "bf16-master"


def accelerated(**config: Any) -> Job:
    return Job.from_dict(from_accelerate({"num_processes": 8, **config}).job_fields({"model": "gpt2"}))


def test_accelerate_settings() -> None:
    assert (accelerated().layout, accelerated().precision) == ("dp", FULL_PRECISION)
    assert accelerated(distributed_type="MULTI_GPU", mixed_precision="fp16").precision == "amp-fp16"
    deep = accelerated(distributed_type="DEEPSPEED", mixed_precision="bf16", deepspeed_config={
        "zero_stage": 3, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "offload_optimizer_device": "none",
    })  # fmt: skip
    assert (deep.layout, deep.precision, deep.grad_accum, deep.framework) == ("fsdp", "bf16-master", 4, "deepspeed")
    megatron = accelerated(distributed_type="MEGATRON_LM", mixed_precision="bf16", megatron_lm_config={
        "megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 2, "megatron_lm_num_micro_batches": 8,
        "megatron_lm_sequence_parallelism": True, "megatron_lm_use_distributed_optimizer": True,
        "megatron_lm_recompute_activations": True, "megatron_lm_gradient_clipping": 1.0,
    })  # fmt: skip
    assert (megatron.layout, megatron.grad_accum, megatron.recompute) == ("tp=2,pp=2,dp=2,sp=1,zero=1", 8, "selective")
    two = accelerated(distributed_type="FSDP", fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": False})
    assert (two.layout_spec.zero, two.precision) == (2, FULL_PRECISION)
    mesh = accelerated(distributed_type="FSDP", parallelism_config={
        "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 2})  # fmt: skip
    assert mesh.layout == "tp=2,dp=4,zero=3,shard=2"
    eight = accelerated(distributed_type="MULTI_GPU", mixed_precision="fp8", fp8_config={"backend": "TE"})
    assert (eight.precision, eight.communication_dtype) == ("fp8", "float32")
    compiled = accelerated(dynamo_config={"dynamo_backend": "INDUCTOR"})
    assert (compiled.execution, compiled.precision) == ("compile", "tf32")
    for config, message in (
        ({"distributed_type": "XLA"}, "distributed_type 'xla' does not train on GPUs"),
        ({"mixed_precision": "int4"}, "mixed_precision 'int4' is unknown; set it to no, fp16, bf16 or fp8"),
        ({"use_cpu": True}, "use_cpu is true"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}},
         "layout .deepspeed_config_file names file 'ds.json'"),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "SOME"}}, "'some' is unknown; nearest"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            accelerated(**config)


def test_a_lightning_config(tmp_path: Path) -> None:
    found = imported("lightning.yaml", tmp_path)
    job = Job.from_dict(found.job_fields({"model": "resnet50"}))
    assert (job.gpus, job.nodes, job.layout_spec.zero, job.precision) == (8, 2, 2, "bf16-master")
    assert (job.batch_size, job.grad_accum, job.clip_norm, job.optimizer_impl) == (64, 2, 1.0, "fused")
    assert job.run.epochs == 20
    assert "user's model" in found.not_taken["model.init_args.width"]
    assert found.not_taken["lr_scheduler.init_args.T_max"] == NO_EFFECT


def lightning(**trainer: Any) -> Job:
    fields = from_lightning({"fit": {"trainer": {"devices": 4, **trainer}}}).job_fields({"model": "gpt2"})
    return Job.from_dict(fields)


def test_lightning_s_precisions() -> None:
    for precision, strategy, ours in (
        (None, "auto", FULL_PRECISION), (32, "ddp", FULL_PRECISION), ("64-true", "ddp", "fp64"),
        ("16-mixed", "ddp", "amp-fp16"), (16, "ddp", "amp-fp16"), ("bf16-mixed", "ddp", "amp-bf16"),
        ("bf16-true", "ddp", "bf16"), ("16-true", "auto", "fp16"), ("16-mixed", "fsdp", "fp16-master"),
        ("bf16-mixed", "fsdp", "bf16-master"), ("bf16-mixed", "deepspeed_stage_2", "bf16-master"),
        ("bf16-true", "deepspeed_stage_3", "bf16-master"), ("transformer-engine", "ddp", "fp8"),
    ):  # fmt: skip
        assert lightning(precision=precision, strategy=strategy).precision == ours, (precision, strategy)
    assert lightning(strategy="deepspeed_stage_3_offload").layout == "fsdp"
    assert lightning(devices="0,1", num_nodes=3).gpus == 6
    assert lightning(devices=[0, 1, 2, 3], strategy="ddp_find_unused_parameters_true").layout == "dp"
    for trainer, message in (
        ({"devices": "auto"}, "gpus .trainer.devices auto takes all GPUs of a node"),
        ({"precision": "8-mixed"}, "trainer.precision '8-mixed' is unknown; nearest: 16-mixed"),
        ({"precision": "bf16-true", "strategy": "fsdp"}, "under FSDP keeps weights in fp32"),
        ({"strategy": {"class_path": "ours.Strategy"}}, "trainer.strategy 'ours.strategy' is not known here"),
        ({"accelerator": "tpu"}, "trainer.accelerator 'tpu' does not train on GPUs"),
        ({"devices": "some"}, "trainer.devices 'some' is no number of GPUs"),
        ({"plugins": {"class_path": "ours.MixedPrecision"}}, "trainer.plugins sets a precision of its own"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            lightning(**trainer)


def test_an_axolotl_config(tmp_path: Path) -> None:
    job_ = job("axolotl.yaml", tmp_path, gpus=8)
    assert (job_.model, dict(job_.input), job_.layout, job_.precision) == (
        "gpt2-xl", {"seq_len": 1024}, "fsdp", "bf16-master",
    )  # fmt: skip
    assert (job_.batch_size, job_.grad_accum, job_.recompute, job_.attention) == (2, 4, "full", "flash2")


def axolotl(**config: Any) -> Mapping[str, Any]:
    return from_axolotl({"base_model": "gpt2", **config}).job_fields()


def test_axolotl_settings() -> None:
    assert axolotl()["precision"] == FULL_PRECISION
    assert axolotl(bf16=True)["precision"] == axolotl(bf16="full")["precision"] == "bf16"
    assert axolotl(tf32=True)["precision"] == "tf32"
    assert axolotl(bf16=True, adapter="lora", lora_r=16)["lora"] == {"rank": 16, "targets": ["c_attn"]}
    assert axolotl(fsdp_version=2, fsdp_config={"reshard_after_forward": True}, bf16=True)["layout"] == {"zero": 3}
    assert axolotl(optimizer="adamw_bnb_8bit")["optimizer"] == "adamw-8bit"
    assert axolotl(max_steps=50, num_epochs=2)["run"] == {"steps": 50}
    assert from_axolotl({"base_model": "meta-llama/Llama-3.1-8B"}).fields["model"] == "meta-llama/Llama-3.1-8B"
    for config, message in (
        ({"fp16": True}, "fp16 true with weights in fp16 under DDP is not certain"),
        ({"tf32": "auto"}, "tf32 auto is on for Ampere and later"),
        ({"deepspeed": "zero3.json"}, "layout .deepspeed names file 'zero3.json'"),
        ({"optimizer": "sophia"}, "optimizer 'sophia' has no model here"),
        ({"rl": "kto"}, "rl 'kto' is not"),
        ({"rl": "grpo"}, "rl 'grpo' is not predicted"),
        ({"adapter": "ia3"}, "adapter ia3 has no model here"),
        ({"save_steps": "x"}, "save_steps is 'x'; give a whole number"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            axolotl(**config)


def test_a_llama_factory_config(tmp_path: Path) -> None:
    """DPO with adapters: two sequences a pair, and the model without adapters runs forward too."""
    found = imported("llama_factory.yaml", tmp_path)
    made = Job.from_dict(found.job_fields({"gpus": 8, "gpu": "h100-80gb-sxm"}))
    assert (made.batch_size, made.grad_accum, made.reference, made.recompute) == (4, 4, True, "full")
    assert made.lora is not None
    assert (made.lora.rank, made.lora.targets) == (16, ("q_proj", "k_proj", "v_proj", "o_proj"))
    assert (made.quantized, made.precision, made.attention) == ("int8", "bf16", "flash2")
    assert (made.input["seq_len"], made.run.steps, made.run.checkpoint_every_steps) == (1024, 600, 200)
    assert "4 sequences" in found.not_taken["pairs"]


def llama_factory(**settings: Any) -> Imported:
    return from_llama_factory({"model_name_or_path": "gpt2", "finetuning_type": "full", "bf16": True, **settings})


def test_llama_factory_settings() -> None:
    fields = llama_factory().job_fields()
    assert (fields["precision"], fields["recompute"], fields["input"]) == ("amp-bf16", "full", {"seq_len": 2048})
    assert "lora" not in fields
    assert llama_factory(pure_bf16=True, bf16=False).job_fields()["precision"] == "bf16"
    assert llama_factory(finetuning_type="lora").fields["lora"] == {"rank": 8, "targets": ["all-linear"]}
    saved = llama_factory(finetuning_type="lora", additional_target="embed_tokens,lm_head").fields["lora"]
    assert saved["modules_to_save"] == ["embed_tokens", "lm_head"]
    assert "recompute" not in llama_factory(disable_gradient_checkpointing=True).fields
    assert llama_factory(stage="rm").fields["batch_size"] == 16
    assert "reference" not in llama_factory(stage="rm").fields
    assert "reference" not in llama_factory(stage="dpo", pref_loss="orpo").fields
    assert "take less time" in llama_factory(use_unsloth=True).not_taken["use_unsloth"].replace("takes", "take")
    for settings, message in (
        ({"stage": "ppo"}, "stage 'ppo' is not predicted"),
        ({"finetuning_type": "freeze"}, "finetuning_type 'freeze' has no model here"),
        ({"use_galore": True}, "use_galore is true, and it has no model here"),
        ({"finetuning_type": "lora", "quantization_bit": 2}, "quantization_bit 2 has no model here"),
        ({"finetuning_type": "lora", "quantization_bit": 4, "quantization_method": "hqq"}, "'hqq' has no model here"),
        ({"deepspeed": "ds_z3.json"}, "deepspeed names file 'ds_z3.json'"),
    ):
        with pytest.raises(JobError, match=message):
            llama_factory(**settings).job_fields()


def test_a_dpo_config_of_trl(tmp_path: Path) -> None:
    made = Job.from_dict(imported("trl_dpo.yaml", tmp_path).job_fields({"gpus": 8}))
    assert (made.batch_size, made.grad_accum, made.reference, made.precision) == (2, 16, True, "bf16-master")
    assert (made.layout_spec.zero, made.input["seq_len"]) == (3, 2048)


def test_what_trl_has_beside_training_arguments() -> None:
    """What its defaults decide, which is not certain, and trainers that generate text."""
    base = {"output_dir": "x", "model_name_or_path": "gpt2", "bf16": True}
    sft = from_huggingface({**base, "packing": True})
    assert (sft.fields["input"], sft.fields["recompute"]) == ({"seq_len": 1024}, "full")
    assert "on by default in TRL" in sft.not_taken["gradient_checkpointing"]
    assert "reference" not in sft.fields
    assert "reference" not in from_huggingface({**base, "beta": 0.1, "precompute_ref_log_probs": True}).fields
    assert "recompute" not in from_huggingface(base).fields
    for settings, message in (
        ({"packing": True, "bf16": None}, "bf16 is on by default in TRL from 0.20 on"),
        ({"num_generations": 8, "beta": 0.0}, "num_generations belongs to training that generates text"),
        ({"desirable_weight": 1.0, "beta": 0.1}, "desirable_weight belongs to KTO"),
    ):
        with pytest.raises(JobError, match=message):
            from_huggingface({**base, **settings}).job_fields()


def test_preferences_of_axolotl() -> None:
    for loss, reference in (("dpo", True), ("orpo", False)):
        fields = axolotl(rl=loss, micro_batch_size=None)
        assert (fields["batch_size"], fields.get("reference", False)) == (2, reference)


def test_an_llm_foundry_config(tmp_path: Path) -> None:
    job_ = job("foundry.yaml", tmp_path, gpus=16)
    assert (job_.model, job_.framework, dict(job_.input)) == ("gpt", "llm-foundry", {"seq_len": 2048})
    config = job_.model_config
    assert (config["layers"], config["hidden"], config["heads"], config["ffn"]) == (24, 2048, 16, 8192)
    assert (job_.precision, job_.layout, job_.communication_dtype) == ("bf16-master", "fsdp", None)
    assert (job_.batch_size, job_.grad_accum) == (4, 512 // (4 * 16))
    assert (job_.run.steps, job_.run.checkpoint_every_steps, job_.clip_norm) == (24800, 500, 1.0)


def foundry(**config: Any) -> Mapping[str, Any]:
    base = {"max_seq_len": 1024, "device_train_microbatch_size": 2, "global_train_batch_size": 16}
    return from_llm_foundry({**base, **config}).job_fields({"model": "gpt2", "gpus": 4})


def test_llm_foundry_settings() -> None:
    sharded = {"sharding_strategy": "FULL_SHARD"}
    for config, precision, reduced in (
        ({}, "amp-bf16", None), ({"precision": "fp32"}, "tf32", None),
        ({"fsdp_config": sharded}, "bf16-master", "float32"),
        ({"fsdp_config": {**sharded, "mixed_precision": "PURE"}}, "bf16-master", None),
        ({"fsdp_config": {**sharded, "mixed_precision": "FULL"}}, "amp-bf16", None),
        ({"precision": "amp_fp16", "fsdp_config": sharded}, "fp16-master", "float32"),
        ({"precision": "amp_fp8"}, "fp8", None),
    ):  # fmt: skip
        fields = foundry(**config)
        assert (fields["precision"], fields.get("communication_dtype")) == (precision, reduced), config
    assert foundry(max_duration="2_048_000tok")["run"] == {"samples": 2000}
    assert foundry(max_duration="3ep")["run"] == {"epochs": 3}
    model = {"name": "hf_causal_lm", "pretrained_model_name_or_path": "gpt2", "peft_config": {"r": 8, "alpha": 1}}
    named = from_llm_foundry({"max_seq_len": 8, "model": model})
    assert (named.fields["model"], named.fields["lora"]) == ("gpt2", {"rank": 8, "targets": ["c_attn"]})
    shared = {"name": "mpt_causal_lm", "attn_config": {"attn_type": "multiquery_attention", "attn_impl": "torch"}}
    fields = from_llm_foundry({"max_seq_len": 8, "model": shared}).fields
    assert (fields["model_config"]["kv_heads"], fields["attention"]) == (1, "math")
    biased = from_llm_foundry({"max_seq_len": 8, "model": {**shared, "attn_config": {"alibi": True}}})
    assert biased.fields["model_config"]["pos"] == "alibi"
    assert not any("alibi" in name for name in biased.not_taken)
    looped = from_llm_foundry({"max_seq_len": "${a}", "a": "${b}", "b": "${a}", "max_duration": "1ba"})
    assert "is not set in the file" in looped.not_taken["max_seq_len"]
    for config, message in (
        ({"device_train_microbatch_size": "auto"}, "batch_size .device_train_microbatch_size auto is found"),
        ({"precision": "int8"}, "precision 'int8' is unknown; nearest"),
        ({"optimizer": {"name": "clip_lion"}}, "optimizer.name clip_lion has no model here"),
        ({"fsdp_config": {**sharded, "mixed_precision": {"param_dtype": "bf16"}}}, "is a policy of its own"),
    ):  # fmt: skip
        with pytest.raises(JobError, match=message):
            foundry(**config)


def test_a_megatron_bridge_recipe(tmp_path: Path) -> None:
    found = imported("bridge.yaml", tmp_path)
    job_ = Job.from_dict(found.job_fields({"gpus": 32}))
    assert (job_.model, job_.framework, job_.precision) == ("gpt", "megatron-bridge", "fp8")
    assert job_.layout == "tp=2,dp=8,cp=2,sp=1,zero=1,overlap_grad_reduce=1,overlap_param_gather=1"
    assert dict(job_.model_config) == {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "pos": "rope",
        "act": "swiglu", "norm": "rmsnorm", "bias": 0, "tied_embeddings": 0, "dropout": 0.0,
    }  # fmt: skip
    assert (job_.grad_accum, job_.run.steps, job_.run.checkpoint_every_steps) == (128 // 8, 500, 100)
    assert found.not_taken["model.novel_router"].startswith("not understood")


def test_a_nemo_1_recipe(tmp_path: Path) -> None:
    job_ = job("nemo.yaml", tmp_path)
    assert (job_.gpus, job_.nodes, job_.precision, job_.grad_accum) == (32, 4, "bf16-master", 512 // (4 * 8))
    assert (job_.recompute, job_.layout) == ("selective", "tp=4,dp=8,sp=1")


def nemo(model: dict[str, Any], **sections: Any) -> Imported:
    return from_nemo({"train": {"micro_batch_size": 1, "global_batch_size": 64}, "model": model, **sections})


def test_models_of_recipes_by_their_class() -> None:
    provider = "megatron.bridge.models."
    for target, name in (
        ("llama.Llama31ModelProvider8B", "llama3.1-8b"), ("llama.Llama2ModelProvider70B", "llama2-70b"),
        ("qwen.Qwen3MoEModelProvider30B_A3B", "qwen3-30b-a3b"), ("mixtral.MixtralConfig8x7B", "mixtral-8x7b"),
    ):  # fmt: skip
        assert nemo({"_target_": provider + target}).fields["model"] == name
    assert nemo({"_target_": provider + "llama.Llama3Config8B"}).fields["precision"] == FULL_PRECISION
    plain = nemo(
        {"_target_": provider + "llama.Llama3Config8B"}, mixed_precision={"bf16": True, "grad_reduce_in_fp32": False}
    )
    assert (plain.fields["precision"], "communication_dtype" in plain.fields) == ("bf16-master", False)
    with pytest.raises(JobError, match="mixed_precision 'bf16_with_nvfp4_mixed' has no model here"):
        nemo({"_target_": provider + "llama.Llama3Config8B"}, mixed_precision="bf16_with_nvfp4_mixed").job_fields()
    with pytest.raises(JobError, match=r"model\.seq_length is 8 but dataset\.seq_length is 16; correct one of them"):
        nemo({"seq_length": 8}, dataset={"seq_length": 16})


def test_settings_of_precision_in_recipes() -> None:
    llama = "megatron.bridge.models.llama.Llama3Config8B"
    model = {"_target_": llama, "fp8": None, "fp8_recipe": "delayed", "fp8_margin": 0, "first_last_layers_bf16": True}
    found = nemo(model,
                 mixed_precision={"bf16": True, "fp8": "hybrid", "fp8_recipe": "blockwise", "novel": 1})  # fmt: skip
    assert found.job_fields()["precision"] == "fp8-block", "mixed_precision decides over the model"
    assert found.not_taken["mixed_precision.novel"].startswith("not understood")
    assert "an option of fp8" in found.not_taken["model.fp8_margin"]
    two = from_nemo({
        "trainer": {"devices": 8, "num_nodes": 2, "plugins": {"precision": "bf16-mixed", "grad_reduce_in_fp32": False},
                    "strategy": {"tensor_model_parallel_size": 2, "ddp": {"grad_reduce_in_fp32": True}}},
        "model": {"config": {"_target_": llama}},
        "data": {"seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 64},
    })  # fmt: skip
    fields = two.job_fields()
    assert (fields["model"], fields["precision"], fields["gpus"], fields["grad_accum"]) == (
        "llama3-8b", "bf16-master", 16, 8,
    )  # fmt: skip
    assert "communication_dtype" not in fields, "gradients travel in bf16"


def test_what_the_real_trainer_writes_is_known() -> None:
    """`TrainingArguments(...).to_json_string()` of the installed transformers and accelerate."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    real = transformers.TrainingArguments(output_dir="x", use_cpu=True, bf16=True, per_device_train_batch_size=2)
    written = {**json.loads(real.to_json_string()), "use_cpu": False}  # bf16 is refused on a machine without a GPU
    found = from_huggingface(written)
    assert set(written) <= {*found.taken, *found.not_taken}
    assert not [key for key, why in found.not_taken.items() if "not understood" in why]
    fields = found.job_fields({"model": "gpt2"})
    assert (fields["precision"], fields["batch_size"], found.undecided) == ("amp-bf16", 2, {})


def test_kernels_of_the_optimizer_go_with_it() -> None:
    """The Trainer's default is adamw_torch_fused; other optimizers do not have its kernels."""
    none = from_huggingface({"output_dir": "x"})
    assert none.job_fields({"model": "gpt2"})["optimizer_impl"] == "fused"
    assert "optimizer_impl" not in none.job_fields({"model": "gpt2", "optimizer": "lion"})
    assert "optimizer_impl" not in from_huggingface({"optim": "adafactor"}).job_fields({"model": "gpt2"})
    named = from_huggingface({"optim": "adamw_torch"}).job_fields({"model": "gpt2"})
    assert (named["optimizer"], named["optimizer_impl"]) == ("adamw", "foreach")
    fused = from_huggingface({"optim": "adamw_torch_fused"})
    assert "optimizer_impl" not in fused.job_fields({"model": "gpt2", "optimizer": "lion"})
    assert fused.job_fields({"model": "gpt2", "optimizer_impl": "foreach"})["optimizer_impl"] == "foreach"
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert transformers.TrainingArguments("x", use_cpu=True).optim == "adamw_torch_fused"


def test_bf16_auto_of_axolotl_needs_a_gpu_with_bf16() -> None:
    imported = from_axolotl({"base_model": "gpt2", "bf16": "auto", "tf32": False, "micro_batch_size": 1})
    assert "on an older GPU write fp16: true" in imported.not_taken["bf16 auto"]
    taken = Job.from_dict(imported.job_fields({"gpu": "v100"}))
    assert taken.precision == "bf16"
    with pytest.raises(MissingPeakError, match="v100-16gb-sxm has no bf16 peak"):
        predict(taken)


def test_batches_of_axolotl() -> None:
    """Its batch_size is that of a rank in a step; gradient_accumulation_steps is the share of micro_batch_size."""
    base = {"base_model": "gpt2", "bf16": True, "micro_batch_size": 4}
    fields = from_axolotl({**base, "batch_size": 32}).job_fields({"gpus": 8})
    assert (fields["batch_size"], fields["grad_accum"], fields["optimizer_impl"]) == (4, 8, "fused")
    with pytest.raises(JobError, match="Axolotl refuses both; remove batch_size"):
        from_axolotl({**base, "batch_size": 32, "gradient_accumulation_steps": 8})
    notes = from_axolotl({**base, "unsloth_lora_mlp": True, "unsloth_rope": False}).not_taken
    assert "the step takes less time and memory than predicted" in notes["unsloth_lora_mlp"]
    assert notes["unsloth_rope"] == NO_EFFECT


def test_torchtitan_without_sharding_is_said_to_train_in_fp32() -> None:
    for degrees, noted in (({"tensor_parallel_degree": 8}, 1), ({"context_parallel_degree": 2}, 0), ({}, 0)):
        config = {"model": {"name": "llama3", "flavor": "8B"}, "parallelism": degrees}
        notes = from_torchtitan(config).notes()
        assert sum("torchtitan trains in fp32; then give --precision torch-fp32" in note for note in notes) == noted
