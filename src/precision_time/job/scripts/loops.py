"""Facts of training loops: optimizer, batch, precision, layout, length, as PyTorch's own calls state them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from precision_time.job.importers.numerics import FSDP, Numerics
from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.script import Call
from precision_time.job.scripts.values import Dotted, Unread

OPTIMIZERS = {
    "SGD": "sgd", "Adam": "adam", "AdamW": "adamw", "Adagrad": "adagrad", "RMSprop": "rmsprop", "Muon": "muon",
    "Adafactor": "adafactor", "Lion": "lion", "AdamW8bit": "adamw-8bit", "Adam8bit": "adamw-8bit",
    "PagedAdamW8bit": "adamw-8bit", "PagedAdam8bit": "adamw-8bit", "FusedAdam": "adamw", "FusedLAMB": "lamb",
    "SOAP": "soap", "DistributedShampoo": "shampoo",
}  # fmt: skip
"""Class of an optimizer -> the field of a job."""
_OTHER_OPTIMIZERS = ("Adamax", "NAdam", "RAdam", "LBFGS", "Rprop", "ASGD", "SparseAdam", "Adadelta")
_BATCHES = ("batch_size", "train_batch_size", "per_device_train_batch_size", "micro_batch_size", "BATCH_SIZE")
_ACCUMULATIONS = (
    "gradient_accumulation_steps", "grad_accum_steps", "grad_accumulation_steps", "accumulation_steps",
    "accumulate_grad_batches", "grad_accum", "accum_iter", "accum_steps", "GRADIENT_ACCUMULATION_STEPS",
)  # fmt: skip
_STEPS = (
    "max_iters", "max_steps", "max_train_steps", "num_iterations", "train_steps", "total_steps", "num_train_steps",
    "num_steps", "training_steps", "MAX_STEPS",
)  # fmt: skip
LENGTHS = (
    "block_size", "seq_len", "seq_length", "max_seq_length", "max_seq_len", "sequence_length", "context_length",
    "max_length", "BLOCK_SIZE", "MAX_LENGTH", "SEQ_LEN",
)  # fmt: skip
_TYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_SHARDING: dict[str, Any] = {
    "FULL_SHARD": {"zero": 3}, "SHARD_GRAD_OP": {"zero": 2}, "NO_SHARD": {"zero": 0},
    "HYBRID_SHARD": {"hybrid_shard": True}, "_HYBRID_SHARD_ZERO2": {"hybrid_shard_zero2": True},
}  # fmt: skip
_SEVERAL = (
    "FullyShardedDataParallel", "FSDP", "fully_shard", "DistributedDataParallel", "DDP", "init_process_group",
    "Accelerator", "DataParallel", "parallelize_module",
)  # fmt: skip
"""Calls of scripts that run on several GPUs."""
_MOST = 2**24


def read(reading: Reading) -> None:
    """Adds what the calls of one file say."""
    for part in (_optimizer, _batch, _accumulation, _layout, _numerics, _step, _length):
        part(reading)


def count(value: Any) -> Any:
    """A value where it is a count; `Unread` for anything else."""
    if isinstance(value, Unread):
        return value
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value < _MOST else Unread(f"is {value!r}, which is no count")


def _optimizer(reading: Reading) -> None:
    facts = reading.facts
    calls = [call for call in reading.calls if call.last in OPTIMIZERS or call.last in _OTHER_OPTIMIZERS]
    for call in calls[:1]:
        if facts.by_trainer and "optimizer" in facts.where:
            break
        others = sorted({each.last for each in calls} - {call.last})
        if others:
            facts.missing["optimizer"] = f"the text has {' and '.join([call.last, *others])}"
        elif call.last in _OTHER_OPTIMIZERS:
            facts.missing["optimizer"] = f"{reading.place(call)} has no model here; give the nearest in its states"
        else:
            facts.say("optimizer", OPTIMIZERS[call.last], reading.place(call))
            for name in ("fused", "foreach"):
                if reading.values.argument(call, name) is True:
                    facts.say("optimizer_impl", name, reading.place(call, f"{call.last}({name}=True)"))
            if call.last == "FusedAdam":
                facts.say("optimizer_impl", "fused", reading.place(call))


def _batch(reading: Reading) -> None:
    """Of several loaders the one of training: by its name or its data's, or because it shuffles."""
    facts, values = reading.facts, reading.values
    if "batch_size" in facts.fields or facts.by_trainer:
        return
    loaders = [call for call in reading.named("DataLoader") if _batch_of(reading, call) is not None]
    training = [call for call in loaders if _is_training(call, values.argument(call, "shuffle", 2))]
    found = {repr(value): (value, call) for call in training or loaders for value in (_batch_of(reading, call),)}
    if len(found) > 1:
        lines = " and ".join(str(call.line) for _, call in found.values())
        facts.missing["batch_size"] = f"the loaders of lines {lines} have different ones"
    elif found:
        value, call = next(iter(found.values()))
        _say_batch(reading, value, reading.place(call, f"DataLoader(batch_size={_source(call, 'batch_size', 1)})"))
    else:
        name, value = values.setting(*_BATCHES)
        if name:
            _say_batch(reading, value, f"line {values.where(name)}: {name}")


def _batch_of(reading: Reading, call: Call) -> Any:
    """The batch size of a loader, of **settings too; None where it is not given."""
    if call.argument("batch_size", 1) is not None:
        return reading.values.argument(call, "batch_size", 1)
    return reading.values.keywords(call).get("batch_size")


def _say_batch(reading: Reading, value: Any, where: str) -> None:
    facts = reading.facts
    if isinstance(value, Unread) and type(value.total) in (int, float) and 0 < value.total < _MOST:
        facts.global_batch = int(value.total)
        facts.missing["batch_size"] = f"{value.reason}: {int(value.total)} samples are shared by the ranks"
        return
    facts.say("batch_size", count(value), where)


def _is_training(call: Call, shuffles: Any) -> bool:
    first = call.argument("dataset", 0)
    text = f"{call.target} {ast.unparse(first) if first is not None else ''}".lower()
    if call.scope.function is not None:
        text += f" {call.scope.function.name}"
    if any(word in text for word in ("val", "test", "eval")):
        return False
    return "train" in text or shuffles is True or call.argument("sampler") is not None


def _accumulation(reading: Reading) -> None:
    facts, values = reading.facts, reading.values
    if facts.by_trainer or "grad_accum" in facts.fields:
        return
    for call in reading.named("Accelerator"):
        value = values.argument(call, "gradient_accumulation_steps", 2)
        if call.argument("gradient_accumulation_steps", 2) is not None:
            facts.say("grad_accum", count(value), reading.place(call, "Accelerator(gradient_accumulation_steps=...)"))
    name, value = values.setting(*_ACCUMULATIONS)
    if not name or "grad_accum" in facts.fields:
        return
    batch = facts.fields.get("batch_size")
    if isinstance(value, Unread) and type(value.total) is int and type(batch) is int:
        facts.global_batch = value.total * batch
        facts.missing["grad_accum"] = f"{value.reason}: {value.total} micro-steps are shared by the ranks"
    else:
        facts.say("grad_accum", count(value), f"line {values.where(name)}: {name}")


def _layout(reading: Reading) -> None:
    facts, values = reading.facts, reading.values
    if facts.by_trainer:
        return
    facts.several |= bool(reading.named(*_SEVERAL))
    for call in reading.named("FullyShardedDataParallel", "FSDP", "fully_shard"):
        strategy = values.argument(call, "sharding_strategy")
        layout: Any = {"zero": 3}
        if call.argument("sharding_strategy") is not None:
            known = _SHARDING.get(str(strategy).rpartition(".")[2]) if isinstance(strategy, str) else None
            layout = known or Unread(f"line {call.line}: the strategy of FSDP is not a value")
        elif call.argument("reshard_after_forward") is not None:
            kept = values.argument(call, "reshard_after_forward")
            layout = kept if isinstance(kept, Unread) else {"zero": 3 if kept else 2}
        facts.say("layout", layout, reading.place(call))
        if values.made(call.argument("cpu_offload"), call.scope)[0] is not None:
            facts.say("offload", "parameters", reading.place(call, "cpu_offload"))
    for call in reading.named("DistributedDataParallel", "DDP"):
        facts.say("layout", "dp", reading.place(call))
    for call in reading.named("DataParallel"):
        if "layout" not in facts.fields and call.name.startswith(("torch", "nn.")):
            facts.note(f"{reading.place(call)} copies the model in every step, which is not modelled; use DDP")
    for call in reading.calls:
        if call.name.endswith("deepspeed.initialize"):
            facts.several = True
            facts.missing["layout"] = f"{reading.place(call)}: its config decides; add it by --import ds_config.json"
        elif call.last == "parallelize_module":
            facts.missing["layout"] = f"{reading.place(call)}: give the degrees by --layout"
        elif call.last == "Accelerator":
            text = "what `accelerate config` wrote decides GPUs and layout; add that file by --import"
            facts.note(f"{reading.place(call)}: {text}")


def _numerics(reading: Reading) -> None:
    """Autocast, policies of FSDP, the dtype of weights and the switches of TF32, as precision."""
    facts = reading.facts
    if "precision" in facts.fields or "precision" in facts.missing or facts.by_trainer:
        return
    sharded = isinstance(facts.fields.get("layout"), dict)
    for find in (_policy if sharded else _none, _accelerator, _autocast, _weights, _tf32):
        if (found := find(reading)) is None:
            continue
        numerics, where = found
        if isinstance(numerics, Unread):
            facts.missing["precision"] = f"{where}: {numerics.reason}"
            return
        if numerics.asked != "no" and not sharded and (loaded := _weights(reading)) is not None:
            numerics = replace(numerics, weights=getattr(loaded[0], "weights", "a dtype that is not in the text"))
        if not (given := numerics.job_fields()):
            facts.missing["precision"] = f"{where}: {numerics.doubt}"
        for name, value in given.items():
            facts.say(name, value, where)
        return
    if unclear := _unclear(reading):
        facts.missing["precision"] = f"{unclear} is not understood"
    elif reading.script is reading.main:
        facts.say("precision", "torch-fp32", "no line asks for another: what PyTorch does")


Asked = tuple[Numerics | Unread, str] | None


def _none(reading: Reading) -> Asked:
    return None


def _dtype(value: Any) -> str | Unread:
    """A dtype of torch, or its name, in the words of precisions."""
    if isinstance(value, Unread):
        return value
    return _TYPES.get(str(value).rpartition(".")[2]) or Unread(f"the dtype is {value!r}")


def _policy(reading: Reading) -> Asked:
    for call in reading.named("MixedPrecision", "MixedPrecisionPolicy"):
        names = enumerate(("param_dtype", "reduce_dtype"))
        given, reduce = (reading.values.argument(call, name, place) for place, name in names)
        kind = _dtype(given)
        if isinstance(kind, Unread):
            return kind, reading.place(call)
        wire = _dtype(reduce) if call.argument("reduce_dtype", 1) is not None else kind
        if kind in ("bf16", "fp16"):
            reduced = "float32" if wire == "fp32" else None
            return Numerics(kind, call.last, True, FSDP, reduce=reduced), reading.place(call)
    return None


def _accelerator(reading: Reading) -> Asked:
    for call in reading.named("Accelerator"):
        if call.argument("mixed_precision", 2) is None:
            continue
        value = reading.values.argument(call, "mixed_precision", 2)
        if value is None:
            value = Unread("mixed_precision is None, so that what `accelerate config` wrote decides it")
        if isinstance(value, Unread) or value not in ("no", "bf16", "fp16", "fp8"):
            return value if isinstance(value, Unread) else Unread(f"is {value!r}"), reading.place(call)
        return Numerics(value, f"mixed_precision {value}", True), reading.place(call)
    return None


def _autocast(reading: Reading) -> Asked:
    values = reading.values
    for call in reading.named("autocast", "custom_fwd"):
        if call.last != "autocast" or values.argument(call, "enabled") is False:
            continue
        where = reading.place(call)
        if isinstance(on := values.argument(call, "enabled"), Unread) and call.argument("enabled") is not None:
            return on, where
        kind = values.argument(call, "dtype", 1 if not call.name.endswith("cuda.amp.autocast") else -1)
        if values.argument(call, "device_type", 0) == "cpu":
            continue
        asked = "fp16" if call.argument("dtype", 1) is None else _dtype(kind)
        if isinstance(asked, Unread):
            return asked, where
        if asked in ("fp16", "bf16"):
            return Numerics(asked, "autocast", True), where
    for call in reading.named("GradScaler"):
        if values.argument(call, "enabled") is not False:
            return Numerics("fp16", "GradScaler", True), reading.place(call)
    return None


def _weights(reading: Reading) -> Asked:
    """Weights that are loaded in, or turned into, a half dtype."""
    values = reading.values
    for call in reading.calls:
        attribute = call.node.func.attr if isinstance(call.node.func, ast.Attribute) else ""
        kind: Any = None
        if call.last in ("from_pretrained", "from_config"):
            word = next((w for w in ("torch_dtype", "dtype") if call.argument(w) is not None), "")
            kind = values.argument(call, word) if word else None
            if isinstance(kind, str) and kind == "auto":
                kind = Unread("the dtype is that of the checkpoint")
        elif call.last == "set_default_dtype":
            kind = values.argument(call, "d", 0)
        elif attribute in ("half", "bfloat16") and not call.node.args and _is_model(call):
            kind = Dotted(f"torch.{attribute}")
        elif attribute == "to" and _is_model(call):
            given = [values.of(each, call.scope) for each in (*call.node.args, call.argument("dtype")) if each]
            kind = next((each for each in given if str(each).rpartition(".")[2] in _TYPES), None)
        if kind is None:
            continue
        dtype = _dtype(kind)
        if isinstance(dtype, Unread):
            return dtype, reading.place(call)
        if dtype in ("bf16", "fp16"):
            return Numerics("no", f"weights in {dtype}", True, weights=dtype), reading.place(call, f"{dtype} weights")
    return None


def _is_model(call: Call) -> bool:
    of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    return of is not None and ("model" in ast.unparse(of).lower() or "net" in ast.unparse(of).lower())


def _tf32(reading: Reading) -> Asked:
    for binding in reading.script.attributes.get("allow_tf32", ()):
        if "matmul" in binding.target and reading.values.of(binding.value, binding.scope) is True:
            return Numerics("tf32", "allow_tf32", True), f"line {binding.line}: matmul.allow_tf32"
    for call in reading.named("set_float32_matmul_precision"):
        if reading.values.argument(call, "precision", 0) in ("high", "medium"):
            return Numerics("tf32", "matmul precision", True), reading.place(call)
    return None


def _unclear(reading: Reading) -> str:
    """A line that names a half dtype in a way that is not known here."""
    for call in reading.calls:
        if call.last == "autocast":
            continue
        for word in call.node.keywords:
            if word.arg in ("bf16", "fp16", "amp") and reading.values.of(word.value, call.scope) is True:
                return reading.place(call, f"{word.arg}=True")
        for each in (*call.node.args, *(word.value for word in call.node.keywords)):
            value = reading.values.of(each, call.scope)
            if isinstance(value, Dotted) and value in ("torch.float16", "torch.half", "torch.bfloat16"):
                return reading.place(call, value)
    return ""


_AVERAGES = {
    "ModelEma": "single", "ModelEmaV2": "single", "ModelEmaV3": "foreach", "AveragedModel": "foreach",
}  # fmt: skip
"""Classes of timm and PyTorch that keep a moving average of the weights, and how they update it. Without a function of
its own, an `AveragedModel` is the plain mean of some epochs (SWA)."""


def _step(reading: Reading) -> None:
    """Compilation, recomputation, memory format, clipping and averages of weights."""
    facts, values = reading.facts, reading.values
    for call in reading.calls:
        attribute = call.node.func.attr if isinstance(call.node.func, ast.Attribute) else ""
        if call.name == "torch.compile" or (attribute == "compile" and _is_model(call)):
            facts.say("execution", "compile", reading.place(call, "compile"))
        elif attribute == "gradient_checkpointing_enable" or call.last == "apply_activation_checkpointing":
            facts.say("recompute", "full", reading.place(call, attribute or call.last))
        elif call.name.startswith("torch.utils.checkpoint.") and call.last.startswith("checkpoint"):
            facts.say("recompute", "full", reading.place(call, "torch.utils.checkpoint"))
        elif attribute.startswith("clip_grad_norm") or call.last.startswith("clip_grad_norm"):
            norm = values.argument(call, "max_norm", 1)
            if type(norm) in (int, float) and norm > 0:
                facts.say("clip_norm", norm, reading.place(call, attribute))
        elif call.last in _AVERAGES and (call.last != "AveragedModel" or "ema" in ast.unparse(call.node).lower()):
            facts.say("ema", _AVERAGES[call.last], reading.place(call, call.last))
        given = values.argument(call, "memory_format")
        if isinstance(given, Dotted) and given.endswith("channels_last"):
            facts.say("memory_format", "nhwc", reading.place(call, "channels_last"))


def _length(reading: Reading) -> None:
    facts, values = reading.facts, reading.values
    if "run" in facts.fields or reading.script is not reading.main:
        return
    for loop, scope, guards in reading.script.loops:
        made = loop.iter.args[0] if _wrapped(loop.iter) else loop.iter  # type: ignore[attr-defined]
        named = isinstance(loop.target, ast.Name) and "epoch" in loop.target.id.lower()
        if not (named and isinstance(made, ast.Call) and reading.script.dotted(made.func) == "range" and made.args):
            continue
        if not values.runs(guards, scope):
            continue
        ends = [values.of(each, scope) for each in made.args[:2]]
        number = ends[-1] if len(ends) < 2 or isinstance(ends[-1], Unread) else _difference(ends)
        facts.say("run", _run("epochs", count(number)), f"line {loop.lineno}: for {ast.unparse(loop.target)} in range")
        return
    name, value = values.setting(*_STEPS)
    if name and not isinstance(value, Unread) and not isinstance(count(value), Unread):
        facts.say("run", {"steps": count(value)}, f"line {values.where(name)}: {name}")


def _run(name: str, value: Any) -> Any:
    return value if isinstance(value, Unread) else {name: value}


def _difference(ends: list[Any]) -> Any:
    """The length of range(first, last); a first one that the text leaves open, as of a resumed run, counts as 0."""
    first, last = ends
    return last - first if type(first) is type(last) is int else last


def _wrapped(node: ast.expr) -> bool:
    """Whether a loop goes over tqdm(range(...))."""
    names: Callable[[ast.expr], str] = ast.unparse
    return isinstance(node, ast.Call) and bool(node.args) and names(node.func).rpartition(".")[2] in ("tqdm", "trange")


def _source(call: Call, word: str, place: int) -> str:
    node = call.argument(word, place)
    return "..." if node is None else " ".join(ast.unparse(node).split())[:60]
