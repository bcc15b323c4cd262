"""A recipe of NeMo or Megatron-Bridge (YAML) as fields of a job.

Both start Megatron: their settings are given to its importer under the names of its arguments. Sections are those of
Megatron-Bridge's ConfigContainer (model, train, ddp, mixed_precision ...), of NeMo 2 (model, trainer, data) or of
NeMo 1 (trainer, exp_manager, model).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precision_time.checks import show, small_number
from precision_time.errors import JobError
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.numerics import FULL_PRECISION
from precision_time.job.importers.peft import take_lora
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat, is_on, not_understood
from precision_time.reading import plain_mapping

KIND = "NeMo or Megatron-Bridge recipe"

_ARGUMENTS = {
    "num_moe_experts": "num-experts", "encoder_seq_length": "seq-length", "sequence_length": "seq-length",
    "gradient_clip_val": "clip-grad", "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method", "activations_checkpoint_num_layers": "recompute-num-layers",
    "apply_qk_layer_norm": "qk-layernorm", "num_layers_in_virtual_pipeline": "num-layers-per-virtual-pipeline-stage",
    "rotary_percentage": "rotary-percent", "moe_expert_capacity_factor": "moe-expert-capacity-factor",
    "max_steps": "train-iters", "use_torch_fsdp2": "use-torch-fsdp2", "qk_layernorm": "qk-layernorm",
}  # fmt: skip
"""Names here -> arguments of Megatron, where they differ in more than hyphens."""
_SAME = frozenset(
    """
    num_layers hidden_size num_attention_heads ffn_hidden_size kv_channels max_position_embeddings seq_length
    num_query_groups normalization position_embedding_type hidden_dropout attention_dropout vocab_size
    make_vocab_size_divisible_by tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size
    expert_model_parallel_size expert_tensor_parallel_size virtual_pipeline_model_parallel_size sequence_parallel
    use_distributed_optimizer overlap_grad_reduce overlap_param_gather tp_comm_overlap cp_comm_type
    moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq multi_latent_attention
    q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim mtp_num_layers recompute_granularity
    recompute_method recompute_num_layers recompute_modules attention_backend micro_batch_size global_batch_size
    train_iters train_samples clip_grad cuda_graph_impl enable_cuda_graph
    """.split()
)
_DTYPES = ("bf16", "fp16", "fp8", "fp8_recipe", "grad_reduce_in_fp32")
_FP8_OPTION = "an option of fp8; weights are gathered in the dtype of the precision"
_FP8_OPTIONS = re.compile(r"fp8_\w+|first_last_layers_bf16|num_layers_at_(?:start|end)_in_bf16|fp16_lm_cross_entropy")
_INERT = frozenset(
    """
    rng rerun_state_machine scheduler logger log tokenizer profiling ft straggler nvrx_straggler tensor_inspect
    inprocess_restart resume exp_manager name hydra exp_dir seed checkpoint dataset data validation_ds run
    restore_from_path
    """.split()
)
"""Sections in which nothing changes the time of a step, apart from the settings that are read from them."""
_MODEL_NO_EFFECT = re.compile(
    r"_target_|_partial_|_call_|init_method|layernorm_epsilon|layernorm_zero|persist_layer_norm|softmax_in_fp32|rotary_base|"
    r"rope_scaling|seed|deallocate|parallel_output|hf_model_id|init_model_with|fusion$|scatter_embedding|"
    r"perform_initialization|use_cpu_initialization|transformer_layer_spec|layer_spec|weight_decay|^lr$|min_lr|adam_|"
    r"sched|warmup|betas?$|logger|callbacks|enable_checkpointing|log_every|tokenizer|restore|resume|^name$|should_pad|"
    r"params_dtype|pipeline_dtype|autocast|grad_scale|loss_scale|calculate_per_token|distributed_backend|timeout|"
    r"check_for_nan|average_in_collective|gradient_as_bucket|ckpt_|data_prefix|splits_string|num_workers|exit_|manual_gc|eval_|val_|limit_|"
    r"accelerator|use_distributed_sampler|max_epochs|max_time|benchmark|num_sanity|skip_train|log_interval"
)
_MODEL_CLASS = re.compile(r"([A-Za-z]+?)(\d*)(MoE)?(?:ModelProvider|Config|Provider)(\d[\w]*)")
_FAMILIES = {"gpt": "gpt3"}
_VERSIONS = {"31": "3.1", "32": "3.2", "25": "2.5"}
_LLAMA = {
    "swiglu": True, "normalization": "RMSNorm", "position-embedding-type": "rope", "disable-bias-linear": True,
    "untie-embeddings-and-output-weights": True, "hidden-dropout": 0.0, "attention-dropout": 0.0,
}  # fmt: skip
_RECIPES = {"delayed_scaling": "delayed", "mxfp8": "mxfp8", "current_scaling": "tensorwise",
            "subchannel_scaling": "blockwise"}  # fmt: skip


def from_nemo(config: Mapping[str, Any]) -> Imported:
    """The job fields of a recipe of NeMo or Megatron-Bridge. Raises JobError for an invalid value."""
    reader = Reader(flat(plain_mapping("the recipe", config)))
    target = str(reader.take("model.config._target_", "model._target_", default="")).rpartition(".")[2]
    reader.take("_target_")
    arguments: dict[str, Any] = {}
    origin: dict[str, list[str]] = {}
    fields: dict[str, Any] = {"framework": "megatron-bridge"}
    _inverted(reader, arguments)
    _cluster(reader, fields)
    precision = _precision(reader, arguments)
    for name in tuple(reader.left):
        last = name.rpartition(".")[2]
        argument = _ARGUMENTS.get(last, last.replace("_", "-") if last in _SAME else None)
        if argument is None:
            continue
        value = reader.take(name, several=True)
        if value is None:
            continue
        if isinstance(value, list):
            value = " ".join(map(str, value)) if argument == "cp-comm-type" else str(value)
        if argument in origin and str(arguments[argument]) != str(value):
            first = origin[argument][0]
            raise JobError(f"{first} is {show(arguments[argument])} but {name} is {show(value)}; correct one of them")
        arguments[argument] = value
        origin.setdefault(argument, []).append(name)
    if target.startswith(("Llama", "Mistral")) and "num-layers" in arguments:
        arguments = {**_LLAMA, **arguments}
    if "num-query-groups" in arguments:
        arguments["group-query-attention"] = True
    inner = from_megatron(arguments)
    run = {**inner.fields.get("run", {}), **fields.get("run", {})}
    fields = {**inner.fields, **fields, **precision, **({"run": run} if run else {})}
    _model(target, fields, reader, arguments)
    _adapters(reader, fields)
    not_taken = _reasons(reader)
    for argument, why in inner.not_taken.items():
        for name in origin.get(argument, [argument] if why != NO_EFFECT else []):
            not_taken[name] = why
    fields.setdefault("batch_size", 1)
    taken = tuple(name for name in reader.given if name not in not_taken)
    return Imported(
        KIND, fields, inner.global_batch, inner.least_gpus, not_taken, taken,
        undecided={**inner.undecided, **reader.undecided},
    )  # fmt: skip


def _adapters(reader: Reader, fields: dict[str, Any]) -> None:
    """Adapters of section `peft`: by default 32 features beside all linear layers (megatron/bridge/peft/lora.py)."""
    names = reader.where(lambda name: name.startswith("peft.") or (name == "peft" and bool(reader.left[name])))
    if not names:
        return
    kind = str(reader.take("peft._target_", "peft.peft_scheme", "peft", default="lora"))
    if not re.search("[ld]ora", kind.rpartition(".")[2].lower()):
        reader.undecided["lora"] = f"peft {show(kind)} has no model here"
        return
    if reader.left.get("peft.target_modules") is None:
        reader.left["peft.target_modules"] = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    keys = {"rank": "peft.dim", "targets": "peft.target_modules", "dropout": "peft.dropout"}
    take_lora(reader, fields, keys, 32)
    if "dora" in kind.rpartition(".")[2].lower() and "lora" in fields:
        fields["lora"]["dora"] = True
        reader.not_taken["DoRA"] = "is taken in peft's order of operations"


def _inverted(reader: Reader, arguments: dict[str, Any]) -> None:
    """Settings whose Megatron argument says the opposite, or that decide one together."""
    for last, argument in (
        ("add_bias_linear", "disable-bias-linear"), ("bias", "disable-bias-linear"),
        ("share_embeddings_and_output_weights", "untie-embeddings-and-output-weights"),
    ):  # fmt: skip
        for name in reader.where(lambda n, last=last: n in (f"model.{last}", f"model.config.{last}")):  # type: ignore[misc]
            arguments[argument] = not is_on(reader.take(name))
    gated = [is_on(reader.take(n)) for n in reader.where(lambda n: n.endswith("gated_linear_unit"))]
    names = reader.where(lambda n: n in (
        "model.activation", "model.activation_func", "model.config.activation_func",
        "model.activation_func._target_", "model.config.activation_func._target_"))  # fmt: skip
    activation = " ".join(str(reader.take(n)) for n in names).lower()
    if "swiglu" in activation or (any(gated) and ("silu" in activation or not activation)):
        arguments["swiglu"] = True
    elif any(gated) or any(word in activation for word in ("geglu", "quick")):
        reader.undecided["model"] = f"its activation {show(activation)} with gates has no model here"
    elif gated or activation:
        arguments["swiglu"] = False
    if "squared" in activation:
        arguments["squared-relu"] = True


def _cluster(reader: Reader, fields: dict[str, Any]) -> None:
    """GPUs of NeMo's trainer, which Megatron-Bridge leaves to the launcher; checkpoints, accumulation and optimizer."""
    devices = reader.take("trainer.devices", several=True)
    nodes = reader.number("trainer.num_nodes", default=1) or 1
    count = len(devices) if isinstance(devices, list) else small_number(str(devices))
    if count:
        fields["gpus"] = count * nodes
        if nodes > 1:
            fields["nodes"] = nodes
    elif devices is not None:
        reader.undecided["gpus"] = f"trainer.devices {devices} takes all GPUs of a node"
    for name in reader.where(lambda n: n in ("optimizer.optimizer", "model.optim.name", "optim.config.optimizer")):
        kind = reader.text(name)
        if "adam" not in kind:
            reader.undecided["optimizer"] = f"{name} {show(kind)} has no model here"
    if (steps := reader.number("trainer.accumulate_grad_batches")) is not None and steps > 1:
        fields["grad_accum"] = steps
    every = reader.take("checkpoint.save_interval")
    if every is not None and is_on(reader.left.get("checkpoint.save")):
        fields.setdefault("run", {})["checkpoint_every_steps"] = every


def _precision(reader: Reader, arguments: dict[str, Any]) -> dict[str, Any]:
    """mixed_precision of Megatron-Bridge by name or as a mapping, else the precision of NeMo's trainer."""
    recipe = reader.text("mixed_precision")
    first = ("mixed_precision.", "trainer.plugins.")  # they decide over the same settings of model and ddp
    names = reader.where(lambda n: n.rpartition(".")[2] in _DTYPES)
    plain: dict[str, Any] = {}
    for name in sorted(names, key=lambda n: not n.startswith(first)):
        value = reader.take(name)
        if value is not None:
            plain.setdefault(name.rpartition(".")[2], value)
    reader.refuse(_FP8_OPTION, *reader.where(lambda n: _FP8_OPTIONS.fullmatch(n.rpartition(".")[2]) is not None))
    if recipe:
        found = re.fullmatch(r"(?:\w+_)?(bf16|fp16)(?:_with_fp8_(\w+))?_mixed", recipe[:100])
        if found is None or (found[2] and found[2] not in _RECIPES):
            reader.undecided["precision"] = f"mixed_precision {show(recipe)} has no model here"
            return {}
        arguments[found[1]] = True
        if found[2]:
            arguments |= {"fp8-format": "hybrid", "fp8-recipe": _RECIPES[found[2]]}
        return {}
    text = reader.text("trainer.precision", "trainer.plugins.precision")
    amp = reader.on("model.megatron_amp_O2", "model.megatron_amp_o2")
    two = bool(reader.where(lambda name: name.startswith("trainer.strategy")))
    if text in ("bf16", "bf16-mixed", "16", "16-mixed", "bf16-true"):
        low = "bf16" if text.startswith("bf16") else "fp16"
        if amp or two or text == "bf16-true":
            arguments[low] = True
            _reduction(plain, arguments)
            return {}
        return {"precision": f"amp-{low}"}
    if is_on(plain.get("bf16")) or is_on(plain.get("fp16")):
        arguments["bf16" if is_on(plain.get("bf16")) else "fp16"] = True
        _reduction(plain, arguments)
        if is_on(plain.get("fp8")):
            arguments |= {"fp8-format": plain["fp8"], "fp8-recipe": plain.get("fp8_recipe", "delayed")}
        return {}
    if text not in ("", "32", "32-true"):
        reader.undecided["precision"] = f"trainer.precision {text} has no model here"
    return {"precision": FULL_PRECISION}


def _reduction(settings: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Gradients are reduced in fp32 unless the recipe says otherwise."""
    reduced = settings.get("grad_reduce_in_fp32")
    if reduced is not None and not is_on(reduced):
        arguments["grad-reduce-in-bf16"] = True


def _model(target: str, fields: dict[str, Any], reader: Reader, arguments: Mapping[str, Any]) -> None:
    """The shape where the recipe has it, else the model that the class of its config is named after."""
    if "model" in fields:
        known = target.startswith(("Llama", "Mistral", "GPT")) or not target
        if not known and "normalization" not in arguments:
            reader.undecided["model"] = f"{target} has defaults that are not known here"
        return
    if (match := _MODEL_CLASS.fullmatch(target)) is not None:
        family = _FAMILIES.get(match[1].lower(), match[1].lower())
        size = match[4].lower().replace("_", "-").replace("p", ".")
        version = _VERSIONS.get(match[2], match[2])
        joined = f"{family}{version}" if version or family == "gpt3" else family
        fields["model"] = f"{joined}-{size}"
    elif target:
        reader.undecided["model"] = f"class {show(target)} names no size"


def _reasons(reader: Reader) -> dict[str, str]:
    """The reason for every setting that is left."""
    for name, value in tuple(reader.left.items()):
        section, _, rest = name.partition(".")
        last = name.rpartition(".")[2]
        if (section == "peft" and value is not None) or section in _INERT or (rest and _MODEL_NO_EFFECT.search(last)):
            reader.not_taken[name] = NO_EFFECT
        elif value is None or value is False:
            reader.not_taken[name] = "is off"
        else:
            reader.not_taken[name] = not_understood(name)
    reader.finish()
    return dict(reader.not_taken)
