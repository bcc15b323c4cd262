"""A LightningCLI config (YAML) as fields of a job. The model's class is the user's code, so it names no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show, small_number
from precision_time.errors import JobError, nearest
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import DDP, DEEPSPEED, FSDP, Numerics
from precision_time.job.importers.reader import NO_EFFECT, Reader, flat
from precision_time.reading import plain_mapping

KIND = "LightningCLI config"
_MIXED = {"16-mixed": "fp16", "bf16-mixed": "bf16", "16": "fp16", "bf16": "bf16"}
"""The last two are names of Lightning 1, which Lightning 2 reads as the first two."""
_WHOLE = {
    "32-true": "fp32", "32": "fp32", "64-true": "fp64", "64": "fp64", "16-true": "fp16", "bf16-true": "bf16",
}  # fmt: skip
_FP8 = ("transformer-engine", "transformer-engine-float16")
_SHARDING: dict[str, dict[str, Any]] = {
    "full_shard": {"zero": 3}, "shard_grad_op": {"zero": 2}, "no_shard": {"zero": 0},
    "hybrid_shard": {"hybrid_shard": True}, "_hybrid_shard_zero2": {"hybrid_shard_zero2": True},
}  # fmt: skip
_OPTIMIZERS = {
    **{name: name for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion", "muon")},
    "adamw8bit": "adamw-8bit",
}
"""Class of an optimizer in small letters -> its name here."""
_NO_EFFECT = frozenset(
    """
    seed_everything ckpt_path weights_only trainer.logger trainer.callbacks trainer.fast_dev_run trainer.min_epochs
    trainer.min_steps trainer.limit_test_batches trainer.limit_predict_batches trainer.num_sanity_val_steps
    trainer.log_every_n_steps trainer.enable_checkpointing trainer.enable_progress_bar trainer.enable_model_summary
    trainer.inference_mode trainer.use_distributed_sampler trainer.default_root_dir trainer.model_registry
    trainer.enable_autolog_hparams trainer.gradient_clip_algorithm trainer.reload_dataloaders_every_n_epochs
    trainer.benchmark trainer.profiler trainer.barebones verbose return_predictions
    """.split()
)
_PREFIXES = ("trainer.logger.", "lr_scheduler", "optimizer.init_args.", "trainer.profiler.")
_EVALUATION = "evaluations need the number of samples; give --evaluation-samples"
_LENGTHS = ("seq_len", "seq_length", "max_seq_length", "max_seq_len", "block_size", "max_length")


def from_lightning(config: Mapping[str, Any]) -> Imported:
    """The job fields of a LightningCLI config, also one under the subcommand `fit`. Raises JobError."""
    settings = plain_mapping("the config", config)
    if set(settings) == {"fit"} and isinstance(settings["fit"], Mapping):
        settings = dict(settings["fit"])
    reader = Reader(flat(settings))
    fields: dict[str, Any] = {}
    devices, nodes = _devices(reader), reader.number("trainer.num_nodes", default=1) or 1
    if devices is not None:
        fields["gpus"] = devices * nodes
    if nodes > 1:
        fields["nodes"] = nodes
    wrapper = _strategy(reader, fields)
    numerics = _numerics(reader, fields, wrapper)
    if (steps := reader.number("trainer.accumulate_grad_batches")) is not None:
        fields["grad_accum"] = steps
    norm = reader.take("trainer.gradient_clip_val")
    if reader.left.get("trainer.gradient_clip_algorithm") != "value":
        fields["clip_norm"] = 0 if norm is None else norm
    elif norm is not None:
        reader.not_taken["trainer.gradient_clip_val"] = "clips single values, which is not modelled"
    _model(reader, fields)
    _run(reader, fields)
    not_taken = reader.finish(_PREFIXES, _NO_EFFECT)
    return Imported(KIND, fields, None, 1, not_taken, reader.taken, {"grad_accum": 1}, reader.undecided, numerics)


def _devices(reader: Reader) -> int | None:
    """GPUs of a node: a number, a list of their indices, or auto and -1 for all, which leaves it open."""
    accelerator = reader.text("trainer.accelerator", default="auto")
    if accelerator not in ("auto", "gpu", "cuda"):
        raise JobError(f"trainer.accelerator {show(accelerator)} does not train on GPUs of CUDA; set it to gpu")
    value = reader.take("trainer.devices", default="auto", several=True)
    if isinstance(value, list):
        return len(value)
    text = str(value).strip().lower()
    if "," in text:
        return len([part for part in text.split(",") if part.strip()])
    if text in ("auto", "-1"):
        reader.undecided["gpus"] = f"trainer.devices {text} takes all GPUs of a node"
        return None
    if not (count := small_number(text)):
        raise JobError(f"trainer.devices {show(value)} is no number of GPUs; give a whole number or a list of indices")
    return count


def _strategy(reader: Reader, fields: dict[str, Any]) -> str | None:
    name = reader.text("trainer.strategy.class_path", "trainer.strategy", default="auto")
    prefix = "trainer.strategy.init_args."
    last = name.rpartition(".")[2]
    if last == "auto" or last.startswith("ddp"):
        fields["layout"] = "dp"
        reader.refuse("buckets of DDP are taken as usual", *reader.where(lambda key: key.startswith(prefix)))
        return DDP
    if last.startswith("fsdp"):
        sharding = reader.text(f"{prefix}sharding_strategy", default="full_shard")
        if sharding not in _SHARDING:
            raise JobError(f"sharding_strategy {show(sharding)} is unknown; nearest: {nearest(sharding, _SHARDING)}")
        fields["layout"] = dict(_SHARDING[sharding])
        policy = reader.where(lambda key: key.startswith(f"{prefix}activation_checkpointing"))
        if any(reader.take(key, several=True) for key in policy):
            fields["recompute"] = "full"
        if reader.on(f"{prefix}cpu_offload") or last == "fsdp_cpu_offload":
            fields["offload"] = "parameters"
        if policy_dtype := reader.where(lambda key: key.startswith(f"{prefix}mixed_precision")):
            reader.undecided["precision"] = f"{policy_dtype[0]} replaces the policy of trainer.precision"
        reader.refuse(NO_EFFECT, *reader.where(lambda key: key.startswith(f"{prefix}state")))
        wrapping = reader.where(lambda key: key.startswith(f"{prefix}auto_wrap_policy"))
        reader.refuse("every layer is taken as one unit of FSDP", *wrapping)
        return FSDP
    if last.startswith("deepspeed"):
        _deepspeed(reader, fields, last, prefix)
        return DEEPSPEED
    reader.undecided["layout"] = f"trainer.strategy {show(name)} is not known here"
    reader.refuse("an option of a strategy that is not known", *reader.where(lambda key: key.startswith(prefix)))
    return None


def _deepspeed(reader: Reader, fields: dict[str, Any], name: str, prefix: str) -> None:
    """deepspeed_stage_N[_offload], or DeepSpeedStrategy with its arguments; stage 2 unless they say."""
    given = next((part for part in name.split("_") if part in ("1", "2", "3")), "2")
    zero = {"stage": reader.take(f"{prefix}stage", default=int(given))}
    named = "offload" in name  # deepspeed_stage_3_offload moves parameters, too
    for key, switch, device in (
        ("offload_optimizer", "offload_optimizer", "offload_optimizer_device"),
        ("offload_param", "offload_parameters", "offload_params_device"),
    ):
        where = reader.text(f"{prefix}{device}", default="cpu")
        if reader.on(f"{prefix}{switch}") or (named and (key == "offload_optimizer" or str(zero["stage"]) == "3")):
            zero[key] = {"device": where}
    nested = from_deepspeed({"zero_optimization": zero}).fields
    fields |= {field: nested[field] for field in ("layout", "framework", "offload") if field in nested}
    if file := reader.take(f"{prefix}config", several=True):
        reader.undecided["layout"] = f"trainer.strategy has a config of its own, {show(file)}"
    rest = reader.where(lambda key: key.startswith(prefix))
    reader.refuse("a setting of DeepSpeed that is taken as usual", *rest)


def _numerics(reader: Reader, fields: dict[str, Any], wrapper: str | None) -> Numerics | None:
    """Mixed precision depends on the strategy; of pure ones, FSDP and DeepSpeed may keep a copy in fp32."""
    text = reader.text("trainer.precision", default="32-true")
    key = f"trainer.precision {text}"
    plugins = reader.where(lambda name: name.startswith("trainer.plugins"))
    if any("recision" in str(reader.left[name]) for name in plugins):
        reader.undecided["precision"] = "trainer.plugins sets a precision of its own"
    if text in _MIXED:
        return Numerics(_MIXED[text], key, True, wrapper)
    if text in _FP8:
        return Numerics("fp8", key, True, wrapper)
    if text not in _WHOLE:
        choices = (*_MIXED, *_WHOLE, *_FP8)
        raise JobError(f"trainer.precision {show(text)} is unknown; nearest: {nearest(text, choices)}")
    dtype = _WHOLE[text]
    if dtype == "fp64":
        fields["precision"] = "fp64"
        return None
    if wrapper == DEEPSPEED and dtype != "fp32":
        return Numerics(dtype, key, True, wrapper)
    if wrapper == FSDP and dtype != "fp32":
        reader.undecided["precision"] = f"{key} under FSDP keeps weights in fp32 ({dtype}-master) or not ({dtype})"
    return Numerics("no", key, True, wrapper, weights=dtype)


def _model(reader: Reader, fields: dict[str, Any]) -> None:
    """Batch and length of sequences, where arguments of the data or the model have their usual names."""
    inner = {name: name.rpartition(".")[2] for name in reader.left if name.startswith(("data.", "model."))}
    for names, field in ((("batch_size", "train_batch_size", "micro_batch_size"), "batch_size"), (_LENGTHS, "seq_len")):
        found = [name for name, last in inner.items() if last in names]
        values = {str(reader.left[name]) for name in found}
        if len(values) > 1:
            reader.undecided[field if field == "batch_size" else "input"] = f"{' and '.join(found)} differ"
        elif found and field == "batch_size":
            fields["batch_size"] = reader.number(*found)
        elif found:
            fields["input"] = {"seq_len": reader.number(*found)}
    reader.refuse(
        "the loader is modelled by the field data: --data storage=...;workers=...",
        *reader.where(lambda name: name.startswith("data.") and "worker" in name),
    )
    code = "an argument of the user's model, which the job names as FILE.py:FUNCTION or by a model of the zoo"
    reader.refuse(code, *reader.where(lambda name: name.startswith("model.")))
    reader.refuse(
        "an argument of the user's data module, which may change the input; give --input and --data",
        *reader.where(lambda name: name.startswith("data.")),
    )
    name = reader.text("optimizer.class_path").rpartition(".")[2]
    if name in _OPTIMIZERS:
        fields["optimizer"] = _OPTIMIZERS[name]
    elif name:
        reader.undecided["optimizer"] = f"optimizer.class_path {name} has no model here"
    if reader.on("optimizer.init_args.fused"):
        fields["optimizer_impl"] = "fused"


def _run(reader: Reader, fields: dict[str, Any]) -> None:
    steps, epochs = reader.take("trainer.max_steps", default=-1), reader.take("trainer.max_epochs")
    if str(steps).strip() != "-1":
        fields["run"] = {"steps": steps}
    elif epochs is not None and str(epochs).strip() != "-1":
        fields["run"] = {"epochs": epochs}
    for name in ("limit_val_batches", "val_check_interval", "check_val_every_n_epoch"):
        reader.refuse(_EVALUATION, f"trainer.{name}")
    limits = "shortens an epoch; give --steps-per-epoch"
    reader.refuse_on({f"trainer.{name}": limits for name in ("limit_train_batches", "overfit_batches", "max_time")})
    slower = "is not modelled; the step takes longer than predicted"
    reader.refuse_on({f"trainer.{name}": slower for name in ("deterministic", "detect_anomaly", "sync_batchnorm")})
    reader.refuse(
        "a plugin may change precision or communication", *reader.where(lambda n: n.startswith("trainer.plug"))
    )
    inner = reader.where(lambda name: name.startswith("trainer.callbacks."))
    reader.refuse("callbacks are not modelled", *inner)
