"""Hugging Face TrainingArguments (JSON, YAML or command-line flags) as fields of a job.

Names and defaults are those of transformers 4.30 to 5; TRL's configurations and the arguments of its and transformers'
example scripts add the model and the length of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.merge import merged
from precision_time.job.importers.numerics import DEEPSPEED, FSDP, Numerics
from precision_time.job.importers.peft import DOUBLE, take_bits, take_lora
from precision_time.job.importers.preferences import take_trl
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat, is_on
from precision_time.reading import plain_mapping

KIND = "Hugging Face TrainingArguments"
KEYS = (
    "per_device_train_batch_size", "per_gpu_train_batch_size", "per_device_eval_batch_size", "num_train_epochs",
    "lr_scheduler_type", "warmup_ratio", "eval_strategy", "evaluation_strategy", "dataloader_num_workers",
    "ddp_find_unused_parameters", "report_to",
)  # fmt: skip
"""Keys by which TrainingArguments are recognised."""
WEAK_KEYS = ("output_dir", "optim", "max_grad_norm", "learning_rate", "max_steps", "fsdp", "save_strategy")
"""The same, where two of them are there and nothing points to another program."""

SWITCHES = frozenset("bf16 fp16 tf32 gradient-checkpointing torch-compile do-train overwrite-output-dir".split())
"""Flags without a value; what follows one in a script belongs to another."""

_OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"), "adamw_hf": ("adamw", "single"),
    "adamw_apex_fused": ("adamw", "fused"), "sgd": ("sgd", "foreach"), "adagrad": ("adagrad", "foreach"),
    "rmsprop": ("rmsprop", "foreach"), "adafactor": ("adafactor", None), "adamw_32bit": ("adamw", None),
    "adamw_bnb_8bit": ("adamw-8bit", None), "adamw_8bit": ("adamw-8bit", None), "adamw": ("adamw", None),
    "adamw_torch_8bit": ("adamw-8bit", None), "lion": ("lion", None), "lion_32bit": ("lion", None),
    "muon": ("muon", None),
}  # fmt: skip
"""optim -> optimizer and its kernels; None: as usual."""
_NEAR = {"adamw_torch_4bit": "adamw-8bit", "lion_8bit": "lion", "adamw_anyprecision": "adamw", "rmsprop_bnb": "rmsprop"}
"""optim -> optimizer whose states take another memory."""
ATTENTIONS = {
    "flash_attention_2": "flash2", "flash_attention_3": "flash", "sdpa": "flash", "flex_attention": "triton",
    "eager": "math",
}  # fmt: skip
DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32",
    "fp32": "fp32", "auto": "the dtype of its checkpoint",
}  # fmt: skip
_NO_EFFECT = frozenset(
    """
    output_dir overwrite_output_dir do_train do_eval do_predict prediction_loss_only learning_rate weight_decay
    adam_beta1 adam_beta2 adam_epsilon lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps optim_args
    log_level log_level_replica log_on_each_node logging_dir logging_strategy logging_first_step logging_steps
    logging_nan_inf_filter save_total_limit save_safetensors save_on_each_node save_only_model seed data_seed
    restore_callback_states_from_checkpoint disable_tqdm report_to run_name project trackio_space_id
    trackio_bucket_id trackio_static_space_id label_names load_best_model_at_end metric_for_best_model
    greater_is_better ignore_data_skip debug resume_from_checkpoint local_rank push_to_hub hub_model_id hub_strategy
    hub_token hub_private_repo hub_always_push hub_revision push_to_hub_model_id push_to_hub_organization
    push_to_hub_token include_inputs_for_metrics include_for_metrics include_tokens_per_second
    include_num_input_tokens_seen past_index remove_unused_columns length_column_name ddp_backend ddp_timeout
    xpu_backend skip_memory_metrics fp16_backend half_precision_backend bf16_full_eval fp16_full_eval
    per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps eval_do_concat_batches
    eval_use_gather_object batch_eval_metrics eval_delay eval_on_start average_tokens_across_devices
    gradient_checkpointing_kwargs activation_checkpointing_kwargs torch_compile_backend dataloader_drop_last
    mp_parameters use_cache use_legacy_prediction_loop label_smoothing_factor auto_find_batch_size_step
    enable_jit_checkpoint liger_kernel_config jit_mode_eval deepspeed_plugin ray_scope
    dataset_text_field dataset_config dataset_config_name dataset_num_proc dataset_train_split dataset_test_split
    preprocessing_num_workers tokenizer_name config_name cache_dir trust_remote_code model_revision use_fast_tokenizer
    validation_split_percentage eos_token pad_token chat_template_path token low_cpu_mem_usage overwrite_cache
    """.split()
)
_LOADER = "the loader is modelled by the field data: --data storage=...;workers=..."
_BUCKETS = "buckets of DDP are taken as usual"
_ON = {
    "use_liger_kernel": "are not modelled here; the step takes less time and memory than predicted",
    "neftune_noise_alpha": "the noise added to embeddings is not modelled; it takes little time",
    "full_determinism": "deterministic kernels are not modelled; the step takes longer than predicted",
    "torch_empty_cache_steps": "emptying the cache is not modelled; the step takes longer than predicted",
    "group_by_length": "batches are taken as of equal length; give a range of seq_len as --input seq_len=A..B",
    "ddp_find_unused_parameters": "the search for unused parameters is not modelled; the step takes a little longer",
    "ddp_static_graph": _BUCKETS, "ddp_bucket_cap_mb": _BUCKETS, "ddp_broadcast_buffers": _BUCKETS,
    "optim_target_modules": "the choice of modules is not modelled",
    "dispatch_batches": _LOADER, "split_batches": "not understood: may change the samples of a step",
    "load_in_4bit": "weights of 4 bits are not modelled: less memory and a longer step than predicted",
    "load_in_8bit": "weights of 8 bits are not modelled: less memory and a longer step than predicted",
    "packing": "sequences are taken as full", "padding_free": "sequences are taken as full",
}  # fmt: skip
"""Settings that change nothing while they are off -> what they change where they are on."""
_STRATEGIES = (
    ("hybrid_shard_zero2", {"hybrid_shard_zero2": True}), ("hybrid_shard", {"hybrid_shard": True}),
    ("full_shard", {"zero": 3}), ("shard_grad_op", {"zero": 2}), ("no_shard", {"zero": 0}),
)  # fmt: skip
_LORA = {
    "rank": "lora_r", "targets": "lora_target_modules", "dropout": "lora_dropout", "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save", "target_parameters": "lora_target_parameters", "bias": "lora_bias",
}  # fmt: skip
"""Adapters in TRL's ModelConfig; the last is peft's alone."""
FSDP_NO_EFFECT = frozenset(
    """
    min_num_params fsdp_min_num_params transformer_layer_cls_to_wrap auto_wrap_policy use_orig_params
    sync_module_states cpu_ram_efficient_loading state_dict_type version final_state_dict_type fsdp_version xla
    activation_checkpointing_reentrant
    """.split()
)


def from_huggingface(arguments: Mapping[str, Any]) -> Imported:
    """The job fields of TrainingArguments. Raises JobError for an invalid value.

    `deepspeed` as a mapping is read too; as the name of a file it leaves the layout to that file.
    """
    settings = {
        name.strip().lstrip("-").replace("-", "_"): v for name, v in plain_mapping("arguments", arguments).items()
    }
    reader = Reader(settings)
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {"batch_size": 8, "grad_accum": 1, "clip_norm": 1.0, "optimizer": "adamw"}
    _batch(reader, fields)
    _model(reader, fields)
    take_trl(reader, fields)
    if "reference" not in fields:  # whose loss is of the probabilities of both sequences
        defaults["loss"] = "fp32"
    take_optimizer(reader, fields, "optim")
    if "optim" not in settings:
        defaults["optimizer_impl"] = "fused"  # adamw_torch_fused is the default from PyTorch 2.8 on
    wrapper = _sharding(reader, fields)
    nested = _deepspeed(reader)
    if is_on(settings.get("deepspeed")):
        fields["framework"] = "deepspeed"
    if reader.left.get("use_liger_kernel") is not None and (wrapper or "framework" in fields):
        take_liger(reader, fields, "use_liger_kernel")
    numerics = _numerics(reader, wrapper or (DEEPSPEED if is_on(settings.get("deepspeed")) else None))
    _step(reader, fields)
    if fields.get("execution") == "compile" and numerics.asked == "no" and settings.get("tf32") is None:
        numerics = replace(numerics, asked="tf32")  # as TrainingArguments do, to speed torch.compile up
    _run(reader, fields)
    _elsewhere(reader)
    not_taken = reader.finish(names=_NO_EFFECT)
    imported = Imported(
        KIND, fields, None, 1, not_taken, reader.taken, defaults, undecided=reader.undecided, numerics=numerics
    )
    if nested is None:
        return imported
    both = merged([("TrainingArguments", imported), ("its deepspeed", nested)])
    inner = {f"deepspeed.{name}": why for name, why in nested.not_taken.items()}
    taken = (*imported.taken, *(f"deepspeed.{name}" for name in nested.taken))
    return both.named(KIND, {**imported.not_taken, **inner}, taken)


def _batch(reader: Reader, fields: dict[str, Any]) -> None:
    each = reader.number("per_device_train_batch_size", "per_gpu_train_batch_size")
    if each is not None:
        fields["batch_size"] = each
    if (steps := reader.number("gradient_accumulation_steps")) is not None:
        fields["grad_accum"] = steps
    if reader.on("auto_find_batch_size"):
        reader.undecided["batch_size"] = "auto_find_batch_size chooses it while the job runs"
    if (norm := reader.take("max_grad_norm")) is not None:
        fields["clip_norm"] = norm


def _model(reader: Reader, fields: dict[str, Any]) -> None:
    """What arguments of scripts say of the model; TrainingArguments themselves name none."""
    if name := reader.take("model_name_or_path", "model_name", "model_id"):
        fields["model"] = str(name)
    if (length := reader.number("max_seq_length", "max_length", "block_size", "max_seq_len")) is not None:
        fields["input"] = {"seq_len": length}
    if (kind := reader.text("attn_implementation")) and kind in ATTENTIONS:
        fields["attention"] = ATTENTIONS[kind]
    elif kind:
        reader.not_taken["attn_implementation"] = f"no model of attention {kind}; give --attention"
    if is_on(reader.take("use_peft")):  # TRL's ModelConfig
        take_lora(reader, fields, _LORA, 16)
        if is_on(reader.left.get("load_in_4bit")) and not is_on(reader.left.get("use_bnb_nested_quant")):
            reader.not_taken["use_bnb_nested_quant"] = DOUBLE
        take_bits(reader, fields, "load_in_4bit", "load_in_8bit")
        reader.refuse(NO_EFFECT, "bnb_4bit_quant_type", "use_bnb_nested_quant", "lora_alpha", "use_rslora")
    reader.refuse("needs use_peft", *reader.where(lambda name: name.startswith("lora_")))


def take_liger(reader: Reader, fields: dict[str, Any], key: str) -> None:
    """Sets the loss where Liger's kernels are on, which also replace norms, rotations and activations."""
    if is_on(reader.left.get(key)):
        fields["loss"] = "liger"
        reader.not_taken["other Liger kernels"] = _ON["use_liger_kernel"]
    reader.take(key)


def take_optimizer(reader: Reader, fields: dict[str, Any], key: str) -> None:
    """Sets the optimizer by its name in transformers; one without a model here is left to the user."""
    name = reader.text(key).removeprefix("optimizernames.")
    if reader.on("adafactor"):
        name = "adafactor"
    paged, plain = name.startswith("paged_"), name.removeprefix("paged_")
    if plain in _OPTIMIZERS:
        fields["optimizer"], kernels = _OPTIMIZERS[plain]
        if kernels is not None:
            fields["optimizer_impl"] = kernels
    elif plain in _NEAR:
        fields["optimizer"] = _NEAR[plain]
        reader.not_taken[f"{key} {name}"] = f"taken as {_NEAR[plain]}; its states take another memory than predicted"
    elif name:
        reader.undecided["optimizer"] = f"{key} {show(name)} has no model here"
    if paged:
        reader.not_taken[f"pages of {key} {name}"] = "states are taken as staying on the GPU"


def _sharding(reader: Reader, fields: dict[str, Any]) -> str | None:
    """Sets the layout of FSDP; gives FSDP where it is on."""
    value = reader.take("fsdp", several=True)
    words = " ".join(map(str, value)) if isinstance(value, list) else str("" if value is None else value)
    config = reader.take("fsdp_config", several=True)
    if isinstance(config, str) and config.strip():
        reader.not_taken["fsdp_config"] = f"names file {show(config)}; give its settings in place"
        config = {}
    inner = Reader(
        {f"fsdp_config.{name}": v for name, v in flat(config if isinstance(config, Mapping) else {}).items()}
    )
    reader.given = (*(name for name in reader.given if name != "fsdp_config" or not inner.given), *inner.given)
    reader.left |= inner.left
    if not is_on(words):
        reader.refuse("needs fsdp", *inner.given)
        return None
    words = words.strip().lower()
    layout = next((dict(layout) for name, layout in _STRATEGIES if name in words), None)
    if layout is None and words not in ("true", "1"):
        raise JobError(f"fsdp {show(words)} is unknown; set it to full_shard, shard_grad_op, hybrid_shard or no_shard")
    resharding = take_fsdp(reader, "fsdp_config.", fields)
    fields["layout"] = layout if layout is not None else {"zero": resharding}
    if "offload" in words.split():
        fields["offload"] = "parameters"
    return FSDP


def take_fsdp(reader: Reader, prefix: str, fields: dict[str, Any], old: str = "fsdp_") -> int:
    """Takes the options of FSDP that the Trainer, accelerate and Axolotl share; gives the ZeRO stage they ask for."""
    after = reader.text(f"{prefix}reshard_after_forward", f"{prefix}{old}reshard_after_forward", default="true")
    if reader.on(f"{prefix}activation_checkpointing", f"{prefix}{old}activation_checkpointing"):
        fields["recompute"] = "full"
    switches = [reader.on(f"{prefix}{name}", f"{prefix}{old}{name}") for name in ("offload_params", "cpu_offload")]
    if any(switches):
        fields["offload"] = "parameters"
    reader.refuse(NO_EFFECT, f"{prefix}cpu_offload_pin_memory", f"{prefix}{old}cpu_offload_pin_memory")
    prefetch = "prefetching is taken as usual"
    for name in ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "backward_prefetch_policy"):
        reader.refuse(prefetch, f"{prefix}{name}", f"{prefix}{old}{name}")
    plain = (
        (name, name.removeprefix(prefix).removeprefix(old)) for name in reader.where(lambda n: n.startswith(prefix))
    )
    reader.refuse(
        NO_EFFECT,
        *(name for name, last in plain if last in FSDP_NO_EFFECT or last.startswith("xla")),
    )
    return {"shard_grad_op": 2, "2": 2, "false": 2, "no_shard": 0, "3": 0, "ddp": 0}.get(after, 3)


def _deepspeed(reader: Reader) -> Imported | None:
    config = reader.take("deepspeed", several=True)
    if isinstance(config, Mapping):
        return from_deepspeed(config)
    if config:
        reader.undecided["layout"] = f"deepspeed names file {show(config)}"
    return None


def _numerics(reader: Reader, wrapper: str | None) -> Numerics:
    """bf16 and fp16 are mixed precision, whose kind the wrapper decides."""
    bf16, fp16, tf32 = (reader.switch(name) for name in ("bf16", "fp16", "tf32"))
    kind = reader.text("dtype", "torch_dtype", "model_dtype", default="float32").removeprefix("torch.")
    if kind not in DTYPES:
        raise JobError(f"dtype {show(kind)} is unknown; set it to float32, bfloat16, float16 or auto")
    if bf16 and fp16:
        raise JobError("bf16 and fp16 are both true; set one of them to false")
    level = reader.text("fp16_opt_level", default="o1")
    if (
        fp16
        and "apex" in (reader.text("half_precision_backend"), reader.text("fp16_backend"))
        and level in ("o2", "o3")
    ):
        reader.undecided["precision"] = f"apex at {level.upper()} keeps half weights: fp16-master at O2, fp16 at O3"
    asked = "bf16" if bf16 else "fp16" if fp16 else "tf32" if tf32 else "no"
    return Numerics(asked, "" if asked == "no" else f"{asked} true", bf16 or fp16, wrapper, DTYPES[kind])


def _step(reader: Reader, fields: dict[str, Any]) -> None:
    if reader.on("gradient_checkpointing", "activation_checkpointing"):
        fields["recompute"] = "full"
    compiled = reader.on("torch_compile") | is_on(reader.left.get("torch_compile_backend"))
    mode = reader.text("torch_compile_mode")
    if compiled or mode:
        fields["execution"] = "compile"
        if mode not in ("", "default"):
            reader.not_taken["torch_compile_mode"] = f"{mode} is taken as the default mode, without CUDA graphs"
    if is_on(reader.take("parallelism_config", several=True)):
        reader.undecided["layout"] = "parallelism_config is not read here"
    config = reader.left.get("accelerator_config")
    divided = isinstance(config, Mapping) and is_on(config.get("split_batches"))
    reason = "split_batches divides the batch over the ranks; give --batch-size" if divided else NO_EFFECT
    reader.refuse(reason, "accelerator_config")
    sampling = reader.text("train_sampling_strategy")
    if sampling == "group_by_length":
        reader.not_taken["train_sampling_strategy"] = _ON["group_by_length"]
    if reader.on("use_cpu", "no_cuda", "use_mps_device"):
        raise JobError("use_cpu is true, but this program predicts training on GPUs; remove it")
    reader.refuse_on({name: why for name, why in _ON.items() if name in reader.left})


def _run(reader: Reader, fields: dict[str, Any]) -> None:
    """The length of the run and its checkpoints; max_steps above 0 replaces epochs."""
    run: dict[str, Any] = {}
    steps, epochs = reader.take("max_steps", default=-1), reader.take("num_train_epochs")
    if str(steps).strip() not in ("-1", "0"):
        run["steps"] = steps
    elif epochs is not None:
        run["epochs"] = epochs
        reader.not_taken["the data set of num_train_epochs"] = "its size is not in the file; give --dataset-size"
    strategy = reader.text("save_strategy").removeprefix("intervalstrategy.").removeprefix("savestrategy.")
    every = reader.take("save_steps")
    if strategy == "steps" and every is not None:
        if 0 < float(_number("save_steps", every)) < 1:
            reader.not_taken["save_steps"] = "is a share of the run; give --checkpoint-every-steps"
        else:
            run["checkpoint_every_steps"] = every
    elif strategy in ("epoch", "best"):
        reader.not_taken["save_strategy"] = f"{strategy} is no number of steps; give --checkpoint-every-steps"
    if run:
        fields["run"] = run


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise JobError(f"{name} is {show(value)}; give a number") from None


def _elsewhere(reader: Reader) -> None:
    """What other fields of a job would say, but not from this file alone."""
    evaluation = "evaluations need the number of samples; give --evaluation-samples and --evaluation-every-steps"
    chosen = reader.left.get("eval_strategy", reader.left.get("evaluation_strategy"))
    on = str(chosen).lower().removeprefix("intervalstrategy.") not in ("no", "none", "false")
    for name in ("eval_strategy", "evaluation_strategy", "eval_steps"):
        reader.refuse(evaluation if on else NO_EFFECT, name)
    reader.refuse(_LOADER, *reader.where(lambda name: name.startswith("dataloader_")))
    datasets = reader.where(
        lambda name: name in ("dataset_name", "train_file", "validation_file", "dataset_mixer", "dataset_mixture")
    )
    reader.refuse("its size is not in the file; give --dataset or --dataset-size", *datasets)
    capped = reader.where(lambda name: name in ("max_train_samples", "max_eval_samples"))
    reader.refuse("a limit on the data set; give --dataset-size", *capped)
