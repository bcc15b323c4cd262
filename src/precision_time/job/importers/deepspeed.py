"""A DeepSpeed config (the JSON file of `--deepspeed_config`) as fields of a job. It names no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import MOST_GPUS, number, whole
from precision_time.job.importers.imported import Imported, Reader, is_on
from precision_time.reading import plain_mapping

KIND = "DeepSpeed config"
_LOSS_SCALE = number(1e-9, 1e12, zero=True)
_SHARD = whole(0, MOST_GPUS, "ranks")
KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
    "fp16", "bf16", "gradient_clipping", "zero_allow_untested_optimizer",
)  # fmt: skip
"""Keys by which a DeepSpeed config is recognised."""

_OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "lamb": "lamb", "fusedlamb": "lamb", "sgd": "sgd",
    "adagrad": "adagrad",
}  # fmt: skip
"""DeepSpeed's Adam decays weights as AdamW by default (`adam_w_mode`)."""
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "bfp16": "bfloat16", "fp32": "float32"}
_NO_EFFECT = (
    "scheduler", "steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "wandb", "csv_monitor",
    "comet", "flops_profiler", "comms_logger", "checkpoint", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "memory_breakdown", "prescale_gradients", "gradient_predivide_factor",
    "data_types", "elasticity", "autotuning", "monitor_config", "seed", "disable_allgather",
)  # fmt: skip
_ZERO_NO_EFFECT = (
    "contiguous_gradients", "round_robin_gradients", "sub_group_size", "elastic_checkpoint",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save", "load_from_fp32_weights",
    "ignore_unused_parameters", "legacy_stage1", "cpu_offload_use_pin_memory", "memory_efficient_linear",
)  # fmt: skip
_SIZES = (
    "_bucket_size", "_threshold", "allgather_partitions", "reduce_scatter", "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)  # fmt: skip
_TUNING = "buffer sizes are DeepSpeed's own; buckets are taken as usual"


def from_deepspeed(config: Mapping[str, Any]) -> Imported:
    """The job fields of a DeepSpeed config. Raises JobError for an invalid section or number."""
    reader = Reader(plain_mapping("the config", config), auto=True)
    fields: dict[str, Any] = {}
    _batch(reader, fields)
    fields["precision"] = _precision(reader, fields)
    fields["layout"] = layout = _layout(reader)
    if (dtype := reader.take("communication_data_type")) is not None:
        fields["communication_dtype"] = _DTYPES.get(str(dtype).lower(), dtype)
    fields["clip_norm"] = reader.take("gradient_clipping", default=0)
    if name := _section(reader, "optimizer").take("type"):
        if str(name).lower() in _OPTIMIZERS:
            fields["optimizer"] = _OPTIMIZERS[str(name).lower()]
        else:
            reader.not_taken[f"optimizer {name}"] = "no model of this optimizer; give --optimizer"
    checkpointing = _section(reader, "activation_checkpointing").left
    if any(is_on(value) for value in checkpointing.values()):
        fields["recompute"] = "full"
    elif checkpointing:
        reader.not_taken["activation_checkpointing"] = (
            "the model's code decides whether it recomputes; give --recompute full"
        )
    least = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
    return Imported(KIND, fields, reader.number("train_batch_size"), least, reader.finish(_NO_EFFECT))


def _section(reader: Reader, name: str) -> Reader:
    """A nested mapping; keys that nobody takes from it are not reported."""
    value = reader.take(name, default={}, several=True)
    if isinstance(value, bool):
        value = {"enabled": value}
    if not isinstance(value, Mapping):
        raise JobError(f"{name} of the DeepSpeed config is {show(value)}; give a mapping")
    return Reader(value, auto=True)


def _batch(reader: Reader, fields: dict[str, Any]) -> None:
    for field, name in (
        ("batch_size", "train_micro_batch_size_per_gpu"),
        ("grad_accum", "gradient_accumulation_steps"),
    ):
        if (number := reader.number(name)) is not None:
            fields[field] = number


def _precision(reader: Reader, fields: dict[str, Any]) -> str:
    """fp16 and bf16 of DeepSpeed: half weights, with an fp32 copy in the optimizer. apex's amp is autocast at O1."""
    half, bf16, amp = _section(reader, "fp16"), _section(reader, "bf16"), _section(reader, "amp")
    reader.refuse("superseded by bf16", "bfloat16")
    if half.on("enabled"):
        if _LOSS_SCALE("fp16.loss_scale", half.take("loss_scale", default=0)) > 0.0:  # 0: dynamic
            fields["loss_scale"] = "static"
        return "fp16-master"
    if bf16.on("enabled"):
        return "bf16-master"
    if amp.on("enabled"):
        return "fp16-master" if str(amp.take("opt_level", default="O1")) == "O2" else "amp-fp16"
    return "fp32"


def _layout(reader: Reader) -> dict[str, Any]:
    zero = _section(reader, "zero_optimization")
    # Old configs have `zero_optimization: true`, which is stage 1.
    stage = zero.take("stage", default=1 if zero.on("enabled") else 0)
    layout: dict[str, Any] = {"zero": stage}
    deep = str(stage).strip() == "3"
    # overlap_comm reduces behind the backward pass; only stage 3 has it by default, and only stage 3 prefetches.
    layout["overlap_grad_reduce"] = is_on(zero.take("overlap_comm", default=deep))
    if str(stage).strip() != "0":
        layout["overlap_param_gather"] = deep
    for name in ("mics_shard_size", "zero_hpz_partition_size"):
        size = zero.take(name, default=0)
        size = 0 if size == -1 else _SHARD(name, size)  # MiCS: -1 is off
        if size > 1 and str(stage).strip() != "0":
            layout["shard"] = size
            if name == "zero_hpz_partition_size":
                reader.not_taken[name] = (
                    f"taken as hybrid sharding over {size} ranks; the optimizer states are really spread over all"
                )
    zero.refuse(_TUNING, *(name for name in zero.left if name.endswith(_SIZES) or name in _SIZES))
    for name in ("offload_optimizer", "offload_param", "cpu_offload"):
        value = zero.take(name, several=True)
        device = value.get("device", "cpu") if isinstance(value, Mapping) else ("cpu" if is_on(value) else "none")
        if device != "none":
            reader.not_taken[f"zero_optimization.{name}"] = f"offloading to {device} is not modelled"
    for name in [name for name in zero.left if name.startswith("zero_quantized") and is_on(zero.left[name])]:
        reader.not_taken[f"zero_optimization.{name}"] = "compressed communication is not modelled"
        del zero.left[name]
    for name, why in zero.finish((*_ZERO_NO_EFFECT, "zero_quantized")).items():
        reader.not_taken[f"zero_optimization.{name}"] = why
    if (tp := _section(reader, "tensor_parallel").number("autotp_size", "tp_size")) is not None:
        layout["tp"] = tp
    if (cp := reader.number("sequence_parallel_size")) is not None:
        layout |= {"cp": cp, "cp_comm": "all-to-all"}
    stages = _section(reader, "pipeline").take("stages")
    if isinstance(stages, int):
        layout["pp"] = stages
    return layout
