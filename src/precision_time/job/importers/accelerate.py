"""An accelerate config (the YAML of `accelerate config`, or the flags of `accelerate launch`) as fields of a job.

It names processes, what wraps the model and mixed precision; model and batch come from elsewhere, often from
TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, nearest
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.huggingface import take_fsdp
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import DDP, DEEPSPEED, FSDP, MEGATRON, Numerics
from precision_time.job.importers.reader import Reader, flat, is_on
from precision_time.reading import plain_mapping

KIND = "accelerate config"
KEYS = ("distributed_type", "compute_environment", "num_processes", "machine_rank", "fsdp_config", "megatron_lm_config")
"""Keys by which an accelerate config is recognised: one of the first two, or `num_processes` with another."""

_WRAPPERS = {"no": None, "multi_gpu": DDP, "fsdp": FSDP, "deepspeed": DEEPSPEED, "megatron_lm": MEGATRON}
_FRAMEWORKS = {DEEPSPEED: "deepspeed", MEGATRON: "megatron"}
_STRATEGIES: dict[str, dict[str, Any]] = {
    "full_shard": {"zero": 3}, "1": {"zero": 3}, "shard_grad_op": {"zero": 2}, "2": {"zero": 2},
    "no_shard": {"zero": 0}, "3": {"zero": 0}, "hybrid_shard": {"hybrid_shard": True}, "4": {"hybrid_shard": True},
    "hybrid_shard_zero2": {"hybrid_shard_zero2": True}, "5": {"hybrid_shard_zero2": True},
}  # fmt: skip
"""fsdp_sharding_strategy by name, and by its number in PyTorch."""
_NO_EFFECT = frozenset(
    """
    compute_environment debug machine_rank main_process_ip main_process_port main_training_function rdzv_backend
    rdzv_conf same_network enable_cpu_affinity downcast_bf16 gpu_ids num_cpu_threads_per_process tpu_env tpu_name
    tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm quiet tee log_dir role max_restarts
    monitor_interval module no_python env
    """.split()
)
_OPTIONS_NO_EFFECT = (
    "deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile",
    "deepspeed_config.deepspeed_exclusion_filter", "deepspeed_config.deepspeed_inclusion_filter",
    "deepspeed_config.zero3_init_flag", "deepspeed_config.zero3_save_16bit_model",
    "deepspeed_config.deepspeed_moe_layer_cls_names", "deepspeed_config.offload_optimizer_nvme_path",
    "deepspeed_config.offload_param_nvme_path", "mpirun_config", "fp8_config.use_autocast_during_eval",
)  # fmt: skip


def from_accelerate(config: Mapping[str, Any]) -> Imported:
    """The job fields of an accelerate config. Raises JobError for an invalid value."""
    reader = Reader(flat(plain_mapping("the config", config)))
    fields: dict[str, Any] = {}
    processes = reader.number("num_processes")
    nodes = reader.number("num_machines")
    kind = reader.text("distributed_type", default="multi_gpu" if (processes or 1) > 1 else "no")
    if kind not in _WRAPPERS:
        raise JobError(f"distributed_type {show(kind)} does not train on GPUs; nearest: {nearest(kind, _WRAPPERS)}")
    if reader.on("use_cpu"):
        raise JobError("use_cpu is true, but this program predicts training on GPUs; remove it")
    if processes is not None:
        fields["gpus"] = processes
        if nodes is not None and nodes > 1:
            fields["nodes"] = nodes
    elif nodes is not None and nodes > 1:
        reader.not_taken["num_machines"] = "needs num_processes, all processes of the job; give --gpus and --nodes"
    wrapper = _WRAPPERS[kind]
    if wrapper in (DDP, None) and ("distributed_type" in reader.given or not config.get("config_file")):
        fields["layout"] = "dp"
    elif wrapper in _FRAMEWORKS:
        fields["framework"] = _FRAMEWORKS[wrapper]
    _fsdp(reader, fields, wrapper)
    _deepspeed(reader, fields, wrapper)
    least = _megatron(reader, fields, wrapper)
    _parallelism(reader, fields)
    backend = reader.text("dynamo_config.dynamo_backend", "dynamo_backend", default="no")
    if backend not in ("no", "eager"):
        fields["execution"] = "compile"
    options = reader.where(lambda name: name.startswith(("dynamo_config.", "dynamo_")))
    reader.refuse("compilation is taken with its default options", *options)
    if file := reader.take("config_file"):
        reader.undecided["layout"] = f"config_file names file {show(file)}"
    numerics = _numerics(reader, wrapper, compiled="execution" in fields)
    not_taken = reader.finish(_OPTIONS_NO_EFFECT, _NO_EFFECT)
    return Imported(KIND, fields, None, least, not_taken, reader.taken, undecided=reader.undecided, numerics=numerics)


def _fsdp(reader: Reader, fields: dict[str, Any], wrapper: str | None) -> None:
    prefix = "fsdp_config."
    if wrapper != FSDP:
        reader.refuse("needs distributed_type FSDP", *reader.where(lambda name: name.startswith(prefix)))
        return
    strategy = reader.text(f"{prefix}fsdp_sharding_strategy")
    if strategy and strategy not in _STRATEGIES:
        raise JobError(f"fsdp_sharding_strategy {show(strategy)} is unknown; nearest: {nearest(strategy, _STRATEGIES)}")
    after = take_fsdp(reader, prefix, fields)
    fields["layout"] = dict(_STRATEGIES[strategy]) if strategy else {"zero": after}


def _deepspeed(reader: Reader, fields: dict[str, Any], wrapper: str | None) -> None:
    prefix = "deepspeed_config."
    if wrapper != DEEPSPEED:
        reader.refuse("needs distributed_type DEEPSPEED", *reader.where(lambda name: name.startswith(prefix)))
        return
    if file := reader.take(f"{prefix}deepspeed_config_file"):
        reader.undecided["layout"] = f"deepspeed_config_file names file {show(file)}"
        others = reader.where(lambda name: name.startswith(prefix) and not name.startswith(_OPTIONS_NO_EFFECT))
        reader.refuse("the DeepSpeed config decides it", *others)
        return
    zero: dict[str, Any] = {"stage": reader.take(f"{prefix}zero_stage", default=2)}
    for name in ("offload_optimizer", "offload_param"):
        zero[name] = {"device": reader.text(f"{prefix}{name}_device", default="none")}
    nested = from_deepspeed({"zero_optimization": zero}).fields
    fields |= {name: nested[name] for name in ("layout", "offload") if name in nested}
    for field, name in (("grad_accum", "gradient_accumulation_steps"), ("clip_norm", "gradient_clipping")):
        value = reader.take(prefix + name)
        if value is not None and str(value).strip().lower() != "auto":
            fields[field] = value


def _megatron(reader: Reader, fields: dict[str, Any], wrapper: str | None) -> int:
    """Degrees of Megatron-LM under accelerate; gives their product."""
    prefix = "megatron_lm_config.megatron_lm_"
    if wrapper != MEGATRON:
        reader.refuse("needs distributed_type MEGATRON_LM", *reader.where(lambda name: name.startswith("megatron_lm")))
        return 1
    layout: dict[str, Any] = {}
    for field, name in (("tp", "tp_degree"), ("pp", "pp_degree"), ("cp", "context_parallel_size"),
                        ("ep", "expert_model_parallel_size"), ("etp", "expert_tensor_parallel_size")):  # fmt: skip
        if (degree := reader.number(prefix + name)) is not None:
            layout[field] = degree
    if reader.on(f"{prefix}sequence_parallelism"):
        layout["sp"] = True
    if reader.on(f"{prefix}use_distributed_optimizer"):
        layout["zero"] = 1
    if reader.on(f"{prefix}recompute_activations"):
        fields["recompute"] = "selective"
    if (norm := reader.take(f"{prefix}gradient_clipping")) is not None:
        fields["clip_norm"] = norm
    if (steps := reader.number(f"{prefix}num_micro_batches")) is not None:
        fields["grad_accum"] = steps
    fields["layout"] = layout | {"overlap_grad_reduce": False}
    return int(layout.get("tp", 1)) * int(layout.get("pp", 1)) * int(layout.get("cp", 1))


def _parallelism(reader: Reader, fields: dict[str, Any]) -> None:
    prefix = "parallelism_config.parallelism_config_"
    degrees = {name: reader.number(f"{prefix}{name}_size") for name in ("tp", "cp", "dp_replicate", "dp_shard")}
    way = reader.text(f"{prefix}cp_comm_strategy", default="allgather")
    if not any((degree or 1) > 1 for degree in degrees.values()):
        return
    layout = {name: degrees[name] for name in ("tp", "cp") if degrees[name] is not None}
    fields["layout"] = {
        **layout, "data_parallel_replicate_degree": degrees["dp_replicate"] or 1,
        "data_parallel_shard_degree": degrees["dp_shard"] or 1,
    }  # fmt: skip
    if (degrees["cp"] or 1) > 1:
        fields["layout"]["cp_comm"] = "ring" if way == "alltoall" else "all-gather"


def _numerics(reader: Reader, wrapper: str | None, compiled: bool) -> Numerics:
    """`no` is the program's default: TrainingArguments that ask for bf16 or fp16 replace it.

    With dynamo, accelerate runs products in TF32 where there is no mixed precision (AcceleratorState).
    """
    asked = reader.text("mixed_precision", default="fp16" if reader.on("fp16") else "no")
    if asked in ("false", "none", ""):
        asked = "no"
    if asked not in ("no", "bf16", "fp16", "fp8"):
        raise JobError(f"mixed_precision {show(asked)} is unknown; set it to no, fp16, bf16 or fp8")
    options = reader.where(lambda name: name.startswith(("fp8_config", "fp8_")))
    if asked == "fp8":
        names = [name for name in options if is_on(reader.left[name])]
        reader.refuse("an option of fp8; scaling is taken as tensorwise, for another give --precision", *names)
    reader.refuse("needs mixed_precision fp8", *reader.where(lambda name: name.startswith(("fp8_config", "fp8_"))))
    kind = "tf32" if asked == "no" and compiled else asked
    return Numerics(kind, f"mixed_precision {asked}", asked != "no", wrapper)
