"""A DeepSpeed config (the JSON file of `--deepspeed_config`) as fields of a job. It names no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import MOST_GPUS, number, whole
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import DEEPSPEED, FULL_PRECISION, Numerics
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat, is_on
from precision_time.reading import plain_mapping

KIND = "DeepSpeed config"
_LOSS_SCALE = number(1e-9, 1e12, zero=True)
_SHARD = whole(0, MOST_GPUS, "ranks")
KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "bf16",
    "zero_allow_untested_optimizer",
)  # fmt: skip
"""Keys by which a DeepSpeed config is recognised."""
WEAK_KEYS = ("gradient_accumulation_steps", "gradient_clipping", "communication_data_type", "steps_per_print")
"""The same, where nothing points to another program."""

OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "lamb": "lamb", "fusedlamb": "lamb", "sgd": "sgd",
    "adagrad": "adagrad", "lion": "lion", "fusedlion": "lion", "muon": "muon",
}  # fmt: skip
"""DeepSpeed's Adam decays weights as AdamW by default (`adam_w_mode`)."""
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "bfp16": "bfloat16", "fp32": "float32"}
_NO_EFFECT = (
    "scheduler", "steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "wandb", "csv_monitor",
    "comet", "flops_profiler", "comms_logger", "checkpoint", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "memory_breakdown", "prescale_gradients", "gradient_predivide_factor",
    "elasticity", "autotuning", "monitor_config", "seed", "disable_allgather", "optimizer.params.",
    "fp16.loss_scale_window", "fp16.initial_scale_power", "fp16.hysteresis", "fp16.min_loss_scale",
    "fp16.consecutive_hysteresis", "fp16.auto_cast", "bf16.immediate_grad_update",
    "optimizer.legacy_fusion", "managed_gradient_accumulation", "gradient_allreduce_op", "disable_python_gc",
    "vocabulary_size", "dataloader_drop_last", "log_level", "bf16.check_grad_overflow", "amp.", "torch_autocast.",
)  # fmt: skip
_ZERO_NO_EFFECT = (
    "contiguous_gradients", "round_robin_gradients", "sub_group_size", "elastic_checkpoint",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save", "load_from_fp32_weights",
    "ignore_unused_parameters", "legacy_stage1", "override_module_apply", "log_trace_cache_warnings",
    "enable_sanity_checks", "pipeline_loading_checkpoint", "save_muon_momentum_buffer_in_memory",
    "cpu_offload_use_pin_memory", "memory_efficient_linear", "compute_grad_norm", "leaf_module",
)  # fmt: skip
_SIZES = (
    "_bucket_size", "_threshold", "allgather_partitions", "reduce_scatter", "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)  # fmt: skip
_GATHERING = (
    "use_multi_rank_bucket_allreduce", "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
    "parameter_alignment",
)  # fmt: skip
_TUNING = "buffer sizes are DeepSpeed's own; buckets are taken as usual"
_SECTIONS = (
    "fp16", "bf16", "amp", "bfloat16", "zero_optimization", "optimizer", "activation_checkpointing",
    "tensor_parallel", "pipeline", "torch_autocast",
)  # fmt: skip
_NEWER = (
    "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states", "bf16.ddp_bf16",
    "fp16.fp16_master_weights_and_grads",)  # fmt: skip
"""Switches that change dtypes in a way that no precision describes."""
_APEX = {"O0": FULL_PRECISION, "O1": "amp-fp16", "O2": "fp16-master", "O3": "fp16"}
_AUTO = "is auto, which the program that reads it decides"


def from_deepspeed(config: Mapping[str, Any]) -> Imported:
    """The job fields of a DeepSpeed config. Raises JobError for an invalid section or number.

    Values that are auto leave their field to the accompanying TrainingArguments or to the user.
    """
    settings = plain_mapping("the config", config)
    if "bf16" not in settings and "bfloat16" in settings:  # its older name, which DeepSpeed reads where bf16 is not
        settings["bf16"] = settings.pop("bfloat16")
    settings = {k: _section(k, value) if k in _SECTIONS else value for k, value in settings.items()}
    reader = Reader(flat(settings))
    auto = {name for name, value in reader.left.items() if isinstance(value, str) and value.strip().lower() == "auto"}
    reader.refuse(_AUTO, *(name for name in reader.given if name in auto))
    fields: dict[str, Any] = {"framework": "deepspeed"}
    _batch(reader, fields, auto)
    numerics = _numerics(reader, fields, auto)
    fields["layout"] = layout = _layout(reader)
    _offloading(reader, fields, str(layout["zero"]).strip())
    if (dtype := reader.take("communication_data_type")) is not None:
        fields["communication_dtype"] = _DTYPES.get(str(dtype).lower(), dtype)
    if "gradient_clipping" in auto:
        reader.not_taken["gradient_clipping"] = "is auto: max_grad_norm of TrainingArguments, 1 unless its file says"
    defaults = {"clip_norm": 1.0}  # of DeepSpeed, and of the Trainer, which fills in auto
    if (norm := reader.take("gradient_clipping")) is not None:
        fields["clip_norm"] = norm
    if name := reader.take("optimizer.type"):
        if str(name).lower() in OPTIMIZERS:
            fields["optimizer"] = OPTIMIZERS[str(name).lower()]
        else:
            reader.undecided["optimizer"] = f"optimizer.type {show(name)} has no model here"
    _recomputation(reader, fields)
    least = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
    total = reader.number("train_batch_size")
    not_taken = reader.finish(_NO_EFFECT)
    return Imported(
        KIND, fields, total, least, not_taken, reader.taken, defaults, undecided=reader.undecided, numerics=numerics
    )


def _section(name: str, value: Any) -> Any:
    """A section as a mapping; true and false are those with `enabled`."""
    if isinstance(value, bool):
        return {"enabled": value}
    if value is not None and not isinstance(value, Mapping):
        raise JobError(f"{name} of the DeepSpeed config is {show(value)}; give a mapping")
    return value


def _batch(reader: Reader, fields: dict[str, Any], auto: set[str]) -> None:
    for field, name in (
        ("batch_size", "train_micro_batch_size_per_gpu"),
        ("grad_accum", "gradient_accumulation_steps"),
    ):
        if (number := reader.number(name)) is not None:
            fields[field] = number
        elif name in auto:
            reader.undecided[field] = f"{name} is auto"


def _numerics(reader: Reader, fields: dict[str, Any], auto: set[str]) -> Numerics:
    """fp16 and bf16 of DeepSpeed: half weights, with an fp32 copy in the optimizer. apex's amp is autocast at O1."""
    reader.refuse("superseded by bf16", *reader.where(lambda name: name.startswith("bfloat16")))
    half, bf16, amp = (reader.switch(f"{name}.enabled") for name in ("fp16", "bf16", "amp"))
    scale = reader.take("fp16.loss_scale", default=0)
    if half and _LOSS_SCALE("fp16.loss_scale", scale) > 0.0:  # 0: dynamic
        fields["loss_scale"] = "static"
    for name in reader.where(lambda name: name in (*_NEWER, "torch_autocast.enabled")):
        if reader.on(name):
            reader.undecided["precision"] = f"{name} true has no model here"
    if half and bf16:
        raise JobError("fp16.enabled and bf16.enabled are both true; set one of them to false")
    level = str(reader.take("amp.opt_level", default="O1"))
    accumulated = reader.take("data_types.grad_accum_dtype")
    if accumulated is not None and str(accumulated) not in ("bf16", "fp16", "None"):
        reader.not_taken["data_types.grad_accum_dtype"] = "gradients are accumulated in the dtype of the precision"
    if half or bf16:
        asked = "fp16" if half else "bf16"
        return Numerics(asked, f"{asked}.enabled true", True, DEEPSPEED)
    if amp:
        if level in _APEX:
            fields["precision"] = _APEX[level]
        else:
            reader.undecided["precision"] = f"amp.opt_level {show(level)} is unknown"
        return Numerics("fp16", f"amp.enabled true, opt_level {level}", True, DEEPSPEED)
    waiting = [f"{name}.enabled" for name in ("fp16", "bf16") if f"{name}.enabled" in auto]
    if waiting:
        reader.undecided["precision"] = f"{' and '.join(waiting)} {'is' if len(waiting) == 1 else 'are'} auto"
        return Numerics(wrapper=DEEPSPEED)
    stated = [f"{name}.enabled false" for name in ("fp16", "bf16") if f"{name}.enabled" in reader.given]
    return Numerics("no", " and ".join(stated), bool(stated), DEEPSPEED)


def _recomputation(reader: Reader, fields: dict[str, Any]) -> None:
    section = reader.where(lambda name: name.startswith("activation_checkpointing"))
    if any(is_on(reader.left[name]) for name in section):
        fields["recompute"] = "full"
        for name in section:
            reader.take(name, several=True)
    reader.refuse("the model's code decides whether it recomputes; give --recompute full", *section)


def _layout(reader: Reader) -> dict[str, Any]:
    zero = "zero_optimization."
    # Old configs have `zero_optimization: true`, which is stage 1.
    stage = reader.take(f"{zero}stage", default=1 if reader.on(f"{zero}enabled") else 0)
    layout: dict[str, Any] = {"zero": stage}
    deep = str(stage).strip() == "3"
    # overlap_comm reduces behind the backward pass; only stage 3 has it by default, and only stage 3 prefetches.
    layout["overlap_grad_reduce"] = is_on(reader.take(f"{zero}overlap_comm", default=deep))
    if str(stage).strip() != "0":
        layout["overlap_param_gather"] = deep
    for name in ("mics_shard_size", "zero_hpz_partition_size"):
        size = reader.take(zero + name, default=0)
        size = 0 if size == -1 else _SHARD(name, size)  # MiCS: -1 is off
        if size > 1 and str(stage).strip() != "0":
            layout["shard"] = size
            if name == "zero_hpz_partition_size":
                reader.not_taken[name] = (
                    f"taken as hybrid sharding over {size} ranks; the optimizer states are really spread over all"
                )
    reader.refuse(_TUNING, *reader.where(lambda name: name.startswith(zero) and name.endswith(_SIZES)))
    reader.refuse("weights and gradients are taken to travel as usual", *(zero + name for name in _GATHERING))
    flow = reader.where(lambda name: name.startswith(f"{zero}zenflow"))
    reader.refuse("updates beside compute are not modelled; the step takes less time than predicted", *flow)
    for name in reader.where(lambda name: name.startswith(f"{zero}zero_quantized")):
        reader.refuse_on({name: "compressed communication is not modelled"})
    for name in reader.where(lambda name: name.startswith(tuple(zero + each for each in _ZERO_NO_EFFECT))):
        reader.refuse(NO_EFFECT, name)
    if (tp := reader.number("tensor_parallel.autotp_size", "tensor_parallel.tp_size")) is not None:
        layout["tp"] = tp
    if (cp := reader.number("sequence_parallel_size")) is not None:
        layout |= {"cp": cp, "cp_comm": "all-to-all"}
    if (stages := reader.left.get("pipeline.stages")) is not None and isinstance(stages, int):
        layout["pp"] = reader.number("pipeline.stages")
    return layout


def _offloading(reader: Reader, fields: dict[str, Any], stage: str) -> None:
    """Sets `offload`: of parameters (stage 3 alone) with the optimizer, or of the optimizer's states."""
    zero = "zero_optimization."
    devices: dict[str, str] = {}
    ratios: dict[str, Any] = {}
    for what, old in (("optimizer", ("cpu_offload",)), ("param", ("cpu_offload_param", "cpu_offload_params"))):
        name = f"offload_{what}"
        single = (reader.take(f"{zero}{name}", several=True), *(reader.take(f"{zero}{each}") for each in old))
        inner = reader.where(lambda key, name=name: key.startswith(f"{zero}{name}."))  # type: ignore[misc]
        device = reader.text(f"{zero}{name}.device", default="cpu" if any(map(is_on, single)) or inner else "none")
        ratios[what] = reader.take(f"{zero}{name}.ratio", default=1.0)
        reader.refuse(NO_EFFECT, *inner)
        if device not in ("none", "cpu", "nvme"):
            raise JobError(f"{zero}{name}.device is {show(device)}; set it to cpu, nvme or none")
        if device != "none":
            devices[what] = device
    needs = "3" if "param" in devices else "123"
    if devices and stage not in needs:
        reader.not_taken[f"{zero}offload"] = f"needs a higher stage than {stage}"
    elif devices:
        if len(set(devices.values())) > 1:
            reader.not_taken[f"{zero}offload"] = "parameters and optimizer are taken as both on NVMe"
        word = "parameters" if "param" in devices else "optimizer"
        fields["offload"] = f"{word}-nvme" if "nvme" in devices.values() else word
        partial = ratios["optimizer"] not in (1, 1.0)
        if partial and fields["offload"] == "optimizer" and stage == "3":
            fields["offload_ratio"] = ratios["optimizer"]
        elif partial:
            reader.not_taken[f"{zero}offload_optimizer.ratio"] = (
                "needs stage 3 with the optimizer alone on cpu; taken as 1"
            )
