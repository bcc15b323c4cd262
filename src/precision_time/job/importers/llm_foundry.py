"""A training config of MosaicML's llm-foundry (YAML) as fields of a job. Composer trains it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precision_time.checks import LONGEST_TEXT, show
from precision_time.errors import JobError, nearest
from precision_time.field_types import COUNT
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.peft import take_lora
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat
from precision_time.reading import plain_mapping

KIND = "llm-foundry config"
KEYS = (
    "max_seq_len", "global_train_batch_size", "device_train_microbatch_size", "device_train_batch_size",
    "max_duration", "train_loader", "fsdp_config",
)  # fmt: skip
"""Keys by which an llm-foundry config is recognised: two of them."""

_VARIABLE = re.compile(r"\$\{([\w.]+)\}")
_DURATION = re.compile(r"([0-9][0-9_]{0,17})\s*(ba|ep|sp|tok)", re.IGNORECASE)
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "", "amp_fp8": "fp8"}
_OPTIMIZERS = {"decoupled_adamw": "adamw", "adamw": "adamw", "adam": "adam", "decoupled_sgdw": "sgd", "sgd": "sgd",
               "decoupled_lionw": "lion"}  # fmt: skip
_SHARDING: dict[str, dict[str, Any]] = {
    "full_shard": {"zero": 3}, "shard_grad_op": {"zero": 2}, "no_shard": {"zero": 0},
    "hybrid_shard": {"hybrid_shard": True}, "_hybrid_shard_zero2": {"hybrid_shard_zero2": True},
}  # fmt: skip
_MPT = (
    ("hidden", "d_model"), ("heads", "n_heads"), ("layers", "n_layers"), ("head_dim", "head_dim"),
    ("vocab", "vocab_size"), ("max_positions", "max_seq_len"), ("kv_heads", "attn_config.kv_n_heads"),
)  # fmt: skip
_ATTENTIONS = {"flash": "flash2", "torch": "math", "triton": "triton"}
_NO_EFFECT = frozenset(
    """
    seed global_seed run_name save_folder save_filename save_latest_filename save_overwrite save_weights_only
    save_num_checkpoints_to_keep load_path load_weights_only load_strict_model_weights load_ignore_keys autoresume
    progress_bar log_to_console console_log_interval python_log_level log_config dist_timeout device_eval_batch_size
    eval_first eval_subset_num_batches icl_seq_len icl_subset_num_batches icl_tasks eval_gauntlet code_paths metadata
    flatten_metadata tokenizer_name model_name_or_path data_local data_remote only_hf_checkpoint
    only_composer_checkpoint expandable_segments max_split_size_mb cuda_load_lazy spin_dataloaders save_ignore_keys
    accumulate_train_batch_on_tokens
    """.split()
)
_PREFIXES = (
    "tokenizer", "scheduler", "callbacks", "loggers", "profiler", "optimizer.", "variables", "model.init_config",
    "fsdp_config.verbose", "fsdp_config.state_dict_type", "fsdp_config.sync_module", "fsdp_config.use_orig",
    "fsdp_config.activation_checkpointing_reentrant", "fsdp_config.load_", "fsdp_config.sharded_ckpt",
    "model.init_device", "model.norm_eps", "model.use_cache", "model.attn_config.rope_theta",
    "model.attn_config.softmax_scale", "model.pretrained", "model.use_auth_token", "model.name", "model.logit_scale",
)  # fmt: skip
_LOADER = "the loader is modelled by the field data: --data storage=...;workers=..."


def from_llm_foundry(config: Mapping[str, Any]) -> Imported:
    """The job fields of an llm-foundry config; variables (`${max_seq_len}`) are filled in. Raises JobError."""
    reader = Reader(_filled(flat(plain_mapping("the config", config))))
    for name, value in list(reader.left.items()):
        if isinstance(value, str) and "${" in value:
            reader.refuse(f"{show(value)} is not set in the file", name)
    fields: dict[str, Any] = {"framework": "llm-foundry"}
    length = reader.number("max_seq_len")
    if length is not None:
        fields["input"] = {"seq_len": length}
    _model(reader, fields, length)
    total = _batch(reader, fields)
    _sharding(reader, fields)
    _precision(reader, fields)
    _step(reader, fields)
    _run(reader, fields)
    not_taken = reader.finish(_PREFIXES, _NO_EFFECT)
    return Imported(KIND, fields, total, 1, not_taken, reader.taken, undecided=reader.undecided)


def _filled(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with `${name}` replaced where the file sets it, at most ten levels deep. Raises JobError."""
    known = {**settings, **{k.removeprefix("variables."): v for k, v in settings.items() if k.startswith("variables.")}}

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1])
        return match[0] if found is None or isinstance(found, (list, dict)) else str(found)[: LONGEST_TEXT + 1]

    def fill(each: Any) -> Any:
        for _ in range(10):
            if not isinstance(each, str) or "${" not in each or len(each) > LONGEST_TEXT:
                break
            whole = _VARIABLE.fullmatch(each.strip())
            each = known.get(whole[1], each) if whole else _VARIABLE.sub(value, each)
            if isinstance(each, str) and len(each) > LONGEST_TEXT:
                raise JobError(
                    f"a value has more than {LONGEST_TEXT:,} characters with variables filled in; shorten it"
                )
        return each

    return {name: fill(each) for name, each in settings.items()}


def _model(reader: Reader, fields: dict[str, Any], length: int | None) -> None:
    kind = reader.text("model.name")
    if kind in ("hf_causal_lm", "hf_t5"):
        fields["model"] = str(reader.take("model.pretrained_model_name_or_path", default=""))
        if not fields["model"]:
            fields.pop("model")
        adapters = reader.where(lambda name: name.startswith("model.peft_config"))
        if adapters:
            peft = "model.peft_config."
            names = ("modules_to_save", "target_parameters", "use_dora", "bias")
            keys = {"rank": f"{peft}r", "targets": f"{peft}target_modules", "dropout": f"{peft}lora_dropout"}
            take_lora(reader, fields, {**keys, **{name: f"{peft}{name}" for name in names}})
        reader.refuse(NO_EFFECT, *(name for name in adapters if name in reader.left))
        if reader.on("model.use_flash_attention_2"):
            fields["attention"] = "flash2"
        return
    if kind != "mpt_causal_lm":
        if kind:
            reader.undecided["model"] = f"model.name {kind} has no model here"
        return
    shape = {key: number for key, name in _MPT if (number := reader.number(f"model.{name}")) is not None}
    ratio = reader.take("model.expansion_ratio", default=4)
    shape = {"hidden": 2048, "heads": 16, "layers": 24, "vocab": 50368, **shape}
    shape.setdefault("max_positions", length or 2048)
    try:
        shape["ffn"] = int(float(ratio) * shape["hidden"])
    except (TypeError, ValueError, OverflowError):
        raise JobError(f"model.expansion_ratio is {show(ratio)}; give a number") from None
    shape["bias"] = 0 if reader.on("model.no_bias") else 1
    positions = "rope" if reader.on("model.attn_config.rope") else "learned"
    if reader.on("model.attn_config.alibi"):
        positions = "alibi"
    if str(reader.take("model.learned_pos_emb", default=True)).lower() == "false" and positions == "learned":
        positions = "none"
    tied = str(reader.take("model.tie_word_embeddings", default=True)).lower() != "false"
    norm = "rmsnorm" if "rms" in reader.text("model.norm_type") else "layernorm"
    fields["model"] = "gpt"
    fields["model_config"] = {**shape, "pos": positions, "tied_embeddings": int(tied), "norm": norm, "act": "gelu"}
    implementation = reader.text("model.attn_config.attn_impl", default="flash")
    fields["attention"] = _ATTENTIONS.get(implementation, "flash2")
    kind = reader.text("model.attn_config.attn_type", default="multihead_attention")
    if kind == "multiquery_attention":
        fields["model_config"]["kv_heads"] = 1
    elif kind not in ("multihead_attention", "grouped_query_attention"):
        reader.undecided["model"] = f"attn_type {show(kind)} has no model here"


def _batch(reader: Reader, fields: dict[str, Any]) -> int | None:
    total = reader.number("global_train_batch_size")
    text = reader.text("device_train_microbatch_size", default="auto")
    if text == "auto":
        reader.undecided["batch_size"] = "device_train_microbatch_size auto is found while the job runs"
    else:
        fields["batch_size"] = text
    if (count := reader.number("n_gpus")) is not None:
        fields["gpus"] = count
    each = reader.number("device_train_batch_size")
    if total is None and each is not None and text != "auto":
        micro = COUNT("device_train_microbatch_size", text)
        if each % micro:
            raise JobError(f"device_train_batch_size {each} is no multiple of device_train_microbatch_size {micro}")
        fields["grad_accum"] = each // micro
    elif total is not None and each is not None:
        reader.not_taken["device_train_batch_size"] = "follows from global_train_batch_size and the number of GPUs"
    return total


def _sharding(reader: Reader, fields: dict[str, Any]) -> None:
    prefix = "fsdp_config."
    if not any(name.startswith("fsdp_config") and value for name, value in reader.left.items()):
        reader.refuse("is empty: DDP", "fsdp_config")
        fields["layout"] = "dp"
        return
    name = reader.text(f"{prefix}sharding_strategy", default="full_shard")
    if name not in _SHARDING:
        raise JobError(f"fsdp_config.sharding_strategy {show(name)} is unknown; nearest: {nearest(name, _SHARDING)}")
    layout: dict[str, Any] = dict(_SHARDING[name])
    replicas = reader.number(f"{prefix}data_parallel_replicate_degree")
    shards = reader.take(f"{prefix}data_parallel_shard_degree", default=-1)
    if replicas is not None and replicas > 1:
        layout = {"zero": 3, "data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": shards}
    if (tp := reader.number("tp_config.tensor_parallel_degree")) is not None:
        layout["tp"] = tp
    reader.refuse(
        "the plan of tensor parallelism is taken as usual", *reader.where(lambda n: n.startswith("tp_config"))
    )
    fields["layout"] = layout
    if reader.on(f"{prefix}activation_checkpointing"):
        fields["recompute"] = "full"
    if reader.on(f"{prefix}cpu_offload"):
        fields["offload"] = "parameters"
    reader.refuse_on({f"{prefix}activation_cpu_offload": "offloading of activations is not modelled"})
    usual = ("limit_all_gathers", "backward_prefetch", "forward_prefetch", "auto_wrap")
    reader.refuse(
        "prefetching is taken as usual", *reader.where(lambda n: n.startswith(tuple(prefix + u for u in usual)))
    )
    chosen = reader.where(lambda name: name.startswith("model.activation_checkpointing_target"))
    reader.refuse("all layers are taken as checkpointed", *chosen)


def _precision(reader: Reader, fields: dict[str, Any]) -> None:
    """FSDP's policy is mixed_precision: PURE and DEFAULT gather in low precision, which DEFAULT reduces in fp32."""
    name = reader.text("precision", default="amp_bf16")
    if name not in _PRECISIONS:
        raise JobError(f"precision {show(name)} is unknown; nearest: {nearest(name, _PRECISIONS)}")
    low = _PRECISIONS[name]
    policy = reader.text("fsdp_config.mixed_precision", default="default")
    options = reader.where(lambda each: each.startswith("fsdp_config.mixed_precision."))
    if options:
        reader.undecided["precision"] = f"{options[0]} is a policy of its own"
    elif policy not in ("pure", "default", "full"):
        raise JobError(f"fsdp_config.mixed_precision {show(policy)} is unknown; set it to PURE, DEFAULT or FULL")
    sharded = isinstance(fields["layout"], Mapping)
    if not low:
        fields["precision"] = "tf32"  # Composer's DeviceGPU allows it unless told otherwise
    elif low == "fp8":
        fields["precision"] = "fp8"
    elif sharded and policy != "full":
        fields["precision"] = f"{low}-master"
        if policy == "default":
            fields["communication_dtype"] = "float32"
    else:
        fields["precision"] = f"amp-{low}"


def _step(reader: Reader, fields: dict[str, Any]) -> None:
    name = reader.text("optimizer.name")
    if name in _OPTIMIZERS:
        fields["optimizer"] = _OPTIMIZERS[name]
    elif name:
        reader.undecided["optimizer"] = f"optimizer.name {name} has no model here"
    prefix = "algorithms.gradient_clipping."
    threshold = reader.take(f"{prefix}clipping_threshold", default=0)
    kind = reader.text(f"{prefix}clipping_type", default="norm")
    fields["clip_norm"] = threshold if kind == "norm" else 0
    if kind != "norm":
        reader.not_taken[f"{prefix}clipping_type"] = f"clipping by {kind} is not modelled"
    if reader.where(lambda n: n.startswith("compile_config")):
        fields["execution"] = "compile"
        reader.refuse(
            "compilation is taken with its default options", *reader.where(lambda n: n.startswith("compile_"))
        )


def _run(reader: Reader, fields: dict[str, Any]) -> None:
    run: dict[str, Any] = {}
    text = reader.text("max_duration")
    if match := _DURATION.fullmatch(text):
        number, unit = int(match[1].replace("_", "")), match[2].lower()
        if unit == "tok":
            length = fields.get("input", {}).get("seq_len")
            if length:
                run["samples"] = max(1, number // length)
            else:
                reader.not_taken["max_duration"] = "counts tokens, and max_seq_len is not given; give --samples"
        else:
            run[{"ba": "steps", "ep": "epochs", "sp": "samples"}[unit]] = number
    elif text:
        reader.not_taken["max_duration"] = f"{show(text)} is no number of ba, ep, sp or tok; give --steps"
    every = reader.text("save_interval")
    if (match := _DURATION.fullmatch(every)) and match[2].lower() == "ba":
        run["checkpoint_every_steps"] = int(match[1].replace("_", ""))
    elif every:
        reader.not_taken["save_interval"] = "is no number of steps; give --checkpoint-every-steps"
    if run:
        fields["run"] = run
    evaluation = reader.where(lambda name: name.startswith(("eval_interval", "eval_loader")))
    reader.refuse("evaluations need the number of samples; give --evaluation-samples", *evaluation)
    reader.refuse(_LOADER, *reader.where(lambda name: name.startswith("train_loader")))
    reader.refuse("not modelled", *reader.where(lambda name: name.startswith("algorithms")))
