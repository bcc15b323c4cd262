"""An Axolotl config (YAML) as fields of a job. Axolotl trains through the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import on_off, show
from precision_time.errors import JobError
from precision_time.job.importers.huggingface import ATTENTIONS, take_fsdp, take_optimizer
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import DEEPSPEED, FSDP, Numerics
from precision_time.job.importers.peft import take_bits, take_lora
from precision_time.job.importers.preferences import take_pairs
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat, is_on
from precision_time.reading import plain_mapping

KIND = "Axolotl config"
KEYS = ("base_model",)
"""The key by which an Axolotl config is recognised."""

_NO_EFFECT = frozenset(
    """
    learning_rate lr_scheduler lr_scheduler_kwargs warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2
    adam_epsilon cosine_min_lr_ratio output_dir logging_steps seed resume_from_checkpoint
    auto_resume_from_checkpoints local_rank strict debug trust_remote_code hub_model_id hub_strategy
    hf_use_auth_token save_total_limit save_safetensors save_only_model early_stopping_patience wandb_project
    wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model wandb_mode mlflow_tracking_uri
    mlflow_experiment_name mlflow_run_name use_wandb use_mlflow use_tensorboard use_comet load_best_model_at_end
    tokenizer_type tokenizer_config tokenizer_use_fast base_model_config model_type type_of_model
    revision_of_model is_llama_derived_model is_mistral_derived_model is_falcon_derived_model chat_template
    chat_template_jinja train_on_inputs dataset_prepared_path dataset_processes push_dataset_to_hub
    shuffle_merged_datasets loss_watchdog_threshold loss_watchdog_patience low_cpu_mem_usage ddp_timeout
    lora_model_dir merge_lora lora_on_cpu gc_steps eval_table_size eval_max_new_tokens eval_batch_size
    default_system_message group_size profiler_steps
    """.split()
)
_PREFIXES = ("special_tokens", "added_tokens", "gradient_checkpointing_kwargs", "wandb_", "comet_", "hub_", "mlflow_",
             "trackio_", "gradio_", "tokens")  # fmt: skip
_LORA = {
    "rank": "lora_r", "targets": "lora_target_modules", "dropout": "lora_dropout", "use_dora": "peft_use_dora",
    "modules_to_save": "lora_modules_to_save", "target_parameters": "lora_target_parameters", "bias": "lora_bias",
}  # fmt: skip
_PREFERENCES = {"dpo": True, "ipo": True, "orpo": False, "simpo": False}
"""Losses of pairs of sequences, and whether a reference is compared with."""
_ADAPTER = NO_EFFECT
_KERNELS_OF_ADAPTERS = "fused kernels of adapters are not modelled; the step takes less time than predicted"
_ON = {
    "sample_packing": "sequences are taken as full, as packing makes them",
    "eval_sample_packing": "sequences are taken as full, as packing makes them",
    "pad_to_sequence_len": "sequences are taken as full",
    "group_by_length": "batches are taken as of equal length",
    "load_in_8bit": "weights of 8 bits are not modelled: less memory and a longer step than predicted",
    "load_in_4bit": "weights of 4 bits are not modelled: less memory and a longer step than predicted",
    "neftune_noise_alpha": "the noise added to embeddings is not modelled; it takes little time",
    "noisy_embedding_alpha": "the noise added to embeddings is not modelled; it takes little time",
    "flash_attn_cross_entropy": "a fused kernel that is not modelled; the step takes less time than predicted",
    "flash_attn_rms_norm": "a fused kernel that is not modelled; the step takes less time than predicted",
    "relora": "restarts of adapters are not modelled",
    "activation_offloading": "offloading to cpu is not modelled",
    "layer_offloading": "offloading to cpu is not modelled",
    "use_pose": "sequences are taken as of sequence_len",
}  # fmt: skip
_KERNELS = (
    ("flash_attention", "flash2"), ("sdp_attention", "flash"), ("flex_attention", "triton"),
    ("eager_attention", "math"), ("xformers_attention", "fused"),
)  # fmt: skip
_STRATEGIES: dict[str, dict[str, Any]] = {
    "full_shard": {"zero": 3}, "shard_grad_op": {"zero": 2}, "hybrid_shard": {"hybrid_shard": True},
}  # fmt: skip


def from_axolotl(config: Mapping[str, Any]) -> Imported:
    """The job fields of an Axolotl config. Raises JobError for an invalid value."""
    reader = Reader(flat(plain_mapping("the config", config)))
    fields: dict[str, Any] = {"model": str(reader.take("base_model"))}
    if (length := reader.number("sequence_len")) is not None:
        fields["input"] = {"seq_len": length}
    adapter = reader.text("adapter")
    _adapter(reader, fields, adapter)
    if (each := reader.number("micro_batch_size")) is not None:
        fields["batch_size"] = each
    if (steps := reader.number("gradient_accumulation_steps")) is not None:
        fields["grad_accum"] = steps
    if (norm := reader.take("max_grad_norm")) is not None:
        fields["clip_norm"] = norm
    if (each := reader.number("batch_size")) is not None:  # of a rank, in all its micro-batches
        if steps is not None:
            raise JobError(
                "batch_size and gradient_accumulation_steps decide each other, and Axolotl refuses both; "
                "remove batch_size"
            )
        fields["grad_accum"] = max(each // int(fields.get("batch_size", 1)), 1)
    wrapper = _sharding(reader, fields)
    numerics = _numerics(reader, wrapper)
    whole = numerics.job_fields().get("precision", "") in ("bf16", "fp16", "bf16-master", "fp16-master")
    if whole and is_on(reader.left.get("liger_fused_linear_cross_entropy")):
        reader.take("liger_fused_linear_cross_entropy")
        fields["loss"] = "liger"
    _step(reader, fields)
    _run(reader, fields)
    defaults = {"batch_size": 1, "grad_accum": 1, "clip_norm": 1.0, "optimizer": "adamw", "loss": "fp32"}
    if "optimizer" not in reader.given:
        defaults["optimizer_impl"] = "fused"  # adamw_torch_fused
    if "reference" in fields:  # its loss is of the probabilities of both sequences
        defaults.pop("loss")
    unsloth = "Unsloth's kernels are not modelled; the step takes less time and memory than predicted"
    reader.refuse_on(dict.fromkeys(reader.where(lambda name: name.startswith("unsloth_")), unsloth))
    not_taken = reader.finish(_PREFIXES, _NO_EFFECT)
    return Imported(KIND, fields, None, 1, not_taken, reader.taken, defaults, reader.undecided, numerics)


def _adapter(reader: Reader, fields: dict[str, Any], adapter: str) -> None:
    if adapter in ("lora", "qlora"):
        if reader.on("lora_target_linear"):
            reader.left["lora_target_modules"] = ["all-linear"]
        take_lora(reader, fields, _LORA)
        take_bits(reader, fields, "load_in_4bit", "load_in_8bit")
        if adapter == "qlora" and "lora" in fields:
            fields["quantized"] = "nf4"
    elif adapter and adapter not in ("none", "false"):
        reader.undecided["lora"] = f"adapter {adapter} has no model here"
    else:
        reader.refuse("needs adapter lora", "lora_r")
    reader.refuse(
        _KERNELS_OF_ADAPTERS, *reader.where(lambda name: name.startswith("lora_") and name.endswith("_kernel"))
    )
    reader.refuse(_ADAPTER, *reader.where(lambda name: name.startswith(("lora_", "peft", "loraplus_"))))


def _sharding(reader: Reader, fields: dict[str, Any]) -> str | None:
    """What wraps the model, with its layout."""
    degrees = {
        "tp": reader.number("tensor_parallel_size"),
        "cp": reader.number("context_parallel_size", "sequence_parallel_degree"),
    }
    layout: dict[str, Any] = {name: degree for name, degree in degrees.items() if (degree or 1) > 1}
    replicas, shards = reader.number("dp_replicate_size"), reader.number("dp_shard_size")
    reader.refuse("the ring is taken as usual", "heads_k_stride", "ring_attn_func")
    if layout.get("cp"):
        layout["cp_comm"] = "ring"
    if config := reader.take("deepspeed"):
        reader.undecided["layout"] = f"deepspeed names file {show(config)}"
        fields["framework"] = "deepspeed"
        return DEEPSPEED
    old = reader.take("fsdp", several=True)
    words = " ".join(map(str, old)) if isinstance(old, list) else str(old or "")
    prefix = "fsdp_config."
    options = reader.where(lambda name: name.startswith(prefix) or name == "fsdp_version")
    if not is_on(words) and not options:
        fields |= {"layout": layout} if layout else {}
        return None
    strategy = reader.text(f"{prefix}fsdp_sharding_strategy", f"{prefix}sharding_strategy")
    after = take_fsdp(reader, prefix, fields)
    reader.take("fsdp_version")
    found = next((dict(_STRATEGIES[word]) for word in (strategy, *words.lower().split()) if word in _STRATEGIES), None)
    fields["layout"] = layout | (found or {"zero": after})
    if replicas is not None and replicas > 1:
        fields["layout"] |= {
            "data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": shards or -1,
        }  # fmt: skip
    if reader.take(f"{prefix}mixed_precision_policy") is not None:
        reader.undecided["precision"] = "fsdp_config.mixed_precision_policy replaces the policy of bf16"
    return FSDP


def _numerics(reader: Reader, wrapper: str | None) -> Numerics:
    """The model is loaded in the dtype that is trained: bf16 under DDP keeps weights and optimizer states in bf16."""
    text = reader.text("bf16", "bfloat16", default="false")
    fp16, fp8 = reader.switch("fp16", "float16"), reader.switch("fp8")
    automatic = reader.left.get("tf32") == "auto"
    tf32 = reader.text("tf32") == "auto" if automatic else reader.switch("tf32")
    if text == "auto":  # a GPU without bf16 has no estimate in it, so that this is never a wrong guess
        reader.not_taken["bf16 auto"] = "is bf16, as on Ampere and later; on an older GPU write fp16: true"
        text = "true"
    if fp8:
        return Numerics("fp8", "fp8 true", True, wrapper)
    if text == "full":
        return Numerics("no", "bf16 full", True, wrapper, weights="bf16")
    if on_off("bf16", text):
        return Numerics("bf16", f"bf16 {text}", True, wrapper, weights="bf16")
    if fp16:
        return Numerics("fp16", "fp16 true", True, wrapper, weights="fp16")
    if automatic:
        reader.undecided["precision"] = "tf32 auto is on for Ampere and later: write tf32: true or false"
    return Numerics("tf32" if tf32 else "no", "", False, wrapper)


def _step(reader: Reader, fields: dict[str, Any]) -> None:
    take_optimizer(reader, fields, "optimizer")
    reader.refuse("options of the optimizer", "optim_args", "optim_target_modules")
    checkpointing = reader.take("gradient_checkpointing", "activation_checkpointing", several=True)
    if is_on(checkpointing):
        fields["recompute"] = "full"
        if str(checkpointing).lower() not in ("true", "1"):
            reader.not_taken["gradient_checkpointing"] = f"{show(checkpointing)} is taken as true, without offloading"
    kind = reader.text("attn_implementation")
    if kind and kind not in ATTENTIONS:
        reader.not_taken["attn_implementation"] = f"no model of attention {kind}; give --attention"
    switches = [ours for theirs, ours in _KERNELS if reader.on(theirs)]
    chosen = ([ATTENTIONS[kind]] if kind in ATTENTIONS else []) + switches
    if chosen:
        fields["attention"] = chosen[0]
    if reader.on("torch_compile"):
        fields["execution"] = "compile"
    reader.refuse(
        "compilation is taken with its default options", *reader.where(lambda n: n.startswith("torch_compile"))
    )
    if reader.on("auto_find_batch_size"):
        reader.undecided["batch_size"] = "auto_find_batch_size chooses it while the job runs"
    fused = "fused Liger kernels are not modelled; the step takes less time and memory than predicted"
    reader.refuse_on(dict.fromkeys(reader.where(lambda name: name.startswith("liger_")), fused) | _ON)
    plugins = reader.take("plugins", several=True)
    if plugins:
        reader.not_taken["plugins"] = "plugins are not modelled; they may change kernels and memory"
    if rl := reader.text("rl"):
        if rl not in _PREFERENCES:
            known = ", ".join(_PREFERENCES)
            raise JobError(
                f"rl {show(rl)} is not predicted (it generates text, or has a loss of its own); give {known}"
            )
        without = reader.on("precompute_ref_log_probs")
        take_pairs(reader, fields, _PREFERENCES[rl] and not without, 1)
    inert = reader.where(lambda name: name.startswith(("dpo_", "rl_", "simpo_", "orpo_")))
    reader.refuse(NO_EFFECT, *inert)


def _run(reader: Reader, fields: dict[str, Any]) -> None:
    run: dict[str, Any] = {}
    steps, epochs = reader.take("max_steps"), reader.take("num_epochs")
    if steps is not None and str(steps).strip() not in ("-1", "0"):
        run["steps"] = steps
    elif epochs is not None:
        run["epochs"] = epochs
        reader.not_taken["the data set of num_epochs"] = "its size is not in the file; give --dataset-size"
    every = reader.take("save_steps")
    try:
        share = every is None or 0 < float(every) < 1
    except (TypeError, ValueError):
        raise JobError(f"save_steps is {show(every)}; give a whole number") from None
    if not share:
        run["checkpoint_every_steps"] = every
    elif every is not None:
        reader.not_taken["save_steps"] = "is a share of the run; give --checkpoint-every-steps"
    if run:
        fields["run"] = run
    reader.refuse("is no number of steps; give --checkpoint-every-steps", "saves_per_epoch", "save_strategy")
    evaluation = (
        "val_set_size",
        "evals_per_epoch",
        "eval_steps",
        "eval_strategy",
        "evaluation_strategy",
        "test_datasets",
    )
    reader.refuse("evaluations need the number of samples; give --evaluation-samples", *evaluation)
    data = ("datasets", "pretraining_dataset", "streaming")
    reader.refuse("the size of the data set is not in the file; give --dataset-size", *data)
    reader.refuse("the loader is modelled by the field data", *reader.where(lambda n: n.startswith("dataloader_")))
    reader.refuse("buckets of DDP are taken as usual", *reader.where(lambda name: name.startswith("ddp_")))
