"""Adapters in the files of programs that train with peft: LoRA and QLoRA as the job's `lora` and `quantized`."""

from __future__ import annotations

from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.job.importers.reader import Reader

DOUBLE = "constants of 4-bit weights are taken as quantized twice: 0.05 bytes a weight less than without"
_DEFAULTS = (
    ("gpt2", ("c_attn",)),
    ("phi-3", ("qkv_proj",)),
    ("phi3", ("qkv_proj",)),
    ("phi-", ("q_proj", "v_proj", "fc1", "fc2")),
)
"""Part of a model's name -> layers that peft adapts by default (peft/utils/constants.py)."""
_DEFAULT = ("q_proj", "v_proj")


def take_lora(reader: Reader, fields: dict[str, Any], keys: dict[str, str], default: int | None = None) -> None:
    """Sets `lora` from settings whose names are given by `keys`: rank, targets, dropout, and what else there is of
    modules_to_save, target_parameters, use_dora, bias. `default`: the usual rank."""
    rank = reader.number(keys["rank"], default=default)
    targets = reader.take(keys["targets"], several=True)
    dropout = reader.take(keys["dropout"])
    parameters, saved = (
        reader.take(keys[name], several=True) if name in keys else None
        for name in ("target_parameters", "modules_to_save")
    )
    dora = "use_dora" in keys and reader.on(keys["use_dora"])
    bias = reader.text(keys["bias"], default="none") if "bias" in keys else "none"
    if rank is None:
        reader.undecided["lora"] = f"the file has an adapter but no {keys['rank']}"
        return
    named = _names(keys.get("target_parameters", ""), parameters)
    if targets or not named:
        named = [*_targets(keys["targets"], targets, str(fields.get("model", ""))), *named]
    lora: dict[str, Any] = {"rank": rank, "targets": named}
    if saved:
        lora["modules_to_save"] = _names(keys["modules_to_save"], saved)
    if dora:
        lora["dora"] = True
    if bias not in ("none", "false"):
        lora["bias"] = bias
    if dropout:
        lora["dropout"] = dropout
    fields["lora"] = lora


def _targets(name: str, given: Any, model: str) -> list[str]:
    if given is None or given == []:
        return list(next((layers for part, layers in _DEFAULTS if part in model.lower()), _DEFAULT))
    return _names(name, given)


def _names(name: str, given: Any) -> list[str]:
    """Last parts of names of layers, given as a list or as text with commas."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",")]
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) for each in given):
        raise JobError(f"{name} is {show(given)}; give a list of names of layers")
    patterns = [each for each in given if not each.replace("-", "_").replace(".", "_").isidentifier()]
    if patterns:
        raise JobError(f"{name} {show(patterns[0])} is a pattern; give the names of the layers, or all-linear")
    return [each.rpartition(".")[2] for each in given]


def take_bits(reader: Reader, fields: dict[str, Any], four: str, eight: str) -> None:
    """Sets `quantized` from the switches of bitsandbytes' formats, where adapters are trained."""
    if "lora" in fields and reader.left.get(four) is not None and reader.on(four):
        fields["quantized"] = "nf4"
    if "lora" in fields and reader.left.get(eight) is not None and reader.on(eight):
        fields["quantized"] = "int8"
