"""Settings of trainers as a script writes them: Hugging Face, TRL, peft, Unsloth and Lightning.

They are handed to the importers of `job.importers` as if a file stated them, so that what they mean is written once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError
from precision_time.job.importers.huggingface import from_huggingface
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.lightning import from_lightning
from precision_time.job.importers.reader import NO_EFFECT
from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.script import Call
from precision_time.job.scripts.values import Unread

_ARGUMENTS = re.compile(
    r"(Seq2Seq)?TrainingArguments|UnslothTrainingArguments|(SFT|DPO|Reward|ORPO|CPO|KTO|GRPO)Config"
)
_TRAINERS = re.compile(r"(Seq2Seq)?Trainer|(SFT|DPO|Reward|ORPO|CPO|KTO|GRPO|Unsloth)Trainer")
_PARSERS = ("HfArgumentParser", "TrlParser", "LightningCLI")
_LORA = {
    "r": "lora_r", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout", "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save", "target_parameters": "lora_target_parameters", "bias": "lora_bias",
}  # fmt: skip
_LORA_INERT = frozenset(
    "lora_alpha task_type use_rslora random_state loftq_config init_lora_weights inference_mode".split()
)
_FIELDS = {
    "per_device_train_batch_size": "batch_size", "gradient_accumulation_steps": "grad_accum", "bf16": "precision",
    "fp16": "precision", "tf32": "precision", "optim": "optimizer", "max_grad_norm": "clip_norm", "fsdp": "layout",
    "deepspeed": "layout", "num_train_epochs": "run", "max_steps": "run", "max_length": "input",
    "max_seq_length": "input", "gradient_checkpointing": "recompute", "lora_r": "lora", "lora_target_modules": "lora",
    "load_in_4bit": "quantized", "load_in_8bit": "quantized", "dtype": "precision", "torch_compile": "execution",
    "trainer.precision": "precision", "trainer.devices": "gpus", "trainer.strategy": "layout",
    "trainer.accumulate_grad_batches": "grad_accum", "trainer.gradient_clip_val": "clip_norm",
    "trainer.max_epochs": "run", "trainer.max_steps": "run", "trainer.num_nodes": "gpus",
}  # fmt: skip
"""Setting -> the field that stays open where the text does not decide it."""
_DTYPE = (
    "weights are taken as fp32, as transformers 4 loads them; 5 takes the dtype of the checkpoint: give --precision"
)
_UNSLOTH = "Unsloth's kernels are not modelled; the step takes less time and memory than predicted"
_UNSLOTH_CHECKPOINTS = "checkpoints on the host are not modelled; the step takes less memory than predicted"


def read(reading: Reading) -> None:
    """Adds what trainers' settings say, where the script has a trainer."""
    for call in reading.named(*_PARSERS):
        reading.facts.note(
            f"{reading.place(call)}: settings come from the command line or a file; add them by --import FILE"
        )
    lightning = [call for call in reading.named("Trainer") if _is_lightning(call)]
    hugging = [call for call in reading.calls if _is_hugging(call)]
    if lightning:
        _lightning(reading, lightning[0])
    elif hugging:
        _hugging(reading, hugging)


def _is_lightning(call: Call) -> bool:
    return call.name.partition(".")[0] in ("lightning", "pytorch_lightning")


def _is_hugging(call: Call) -> bool:
    own = "." not in call.name and call.name != call.last
    return not own and bool(_ARGUMENTS.fullmatch(call.last) or _TRAINERS.fullmatch(call.last))


# --- Hugging Face, TRL, peft, Unsloth


def _hugging(reading: Reading, calls: list[Call]) -> None:
    facts, values = reading.facts, reading.values
    arguments = next((call for call in calls if _ARGUMENTS.fullmatch(call.last)), None)
    trainer = next((call for call in calls if _TRAINERS.fullmatch(call.last)), None)
    settings: dict[str, Any] = {}
    where = reading.place(arguments or trainer)  # type: ignore[arg-type]
    if arguments is not None:
        settings |= values.keywords(arguments)
        if "output_dir" not in settings:
            settings["output_dir"] = "out"
    else:
        facts.note(f"{where} has no TrainingArguments in the text; its settings are taken as their defaults")
    if trainer is not None:
        named = ("max_seq_length", "dataset_text_field", "packing")
        settings |= {name: values.argument(trainer, name) for name in named if trainer.argument(name) is not None}
    sources: dict[str, str] = {}
    for found, place in (_loading(reading), _adapters(reading)):
        sources |= {_FIELDS[name]: place for name in found if name in _FIELDS and _FIELDS[name] != "precision"}
        settings |= found
    if "max_length" not in settings and "max_seq_length" not in settings:
        found, place = _tokenized(reading)
        settings |= found
        sources |= {"input": place} if found else {}
    _import(reading, settings, where, from_huggingface)
    _quantization(reading)
    facts.several = not any("unsloth" in name for name in reading.script.imported.values())
    if not facts.several:
        facts.fields.pop("loss", None)  # Unsloth has its own
    facts.where |= {name: place for name, place in sources.items() if name in facts.fields}
    facts.by_trainer = True


def _loading(reading: Reading) -> tuple[dict[str, Any], str]:
    """How the model is loaded: dtype, attention, bits; of Unsloth with its defaults. With the line."""
    facts, values = reading.facts, reading.values
    for call in reading.calls:
        owner = call.name.split(".")[-2:-1]
        if call.last != "from_pretrained" or not owner or not re.search("Model|LM|For[A-Z]", owner[0]):
            continue
        given = values.keywords(call)
        kept: dict[str, Any] = {}
        if re.fullmatch("Fast(Language|Vision)?Model", owner[0]):
            facts.note(f"{reading.place(call, owner[0])}: {_UNSLOTH}")
            kept = {"load_in_4bit": given.get("load_in_4bit", True), "load_in_8bit": given.get("load_in_8bit", False)}
            kept |= {"dtype": given.get("dtype") or "bfloat16", "max_length": given.get("max_seq_length", 2048)}
            kept["use_bnb_nested_quant"] = True
            return {name: value for name, value in kept.items() if value is not False}, reading.place(call)
        config, scope = values.made(call.argument("quantization_config"), call.scope)
        if config is not None:
            bits = {each.arg: values.of(each.value, scope) for each in config.keywords if each.arg}
            given |= {name: bits[name] for name in ("load_in_4bit", "load_in_8bit") if name in bits}
            kept["use_bnb_nested_quant"] = bits.get("bnb_4bit_use_double_quant", False)
        for name, one in given.items():
            if name in ("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit"):
                kept["dtype" if name == "torch_dtype" else name] = one
        if not {"dtype", "load_in_4bit", "load_in_8bit"} & set(kept):
            facts.note(f"{reading.place(call)} names no dtype: {_DTYPE}")
        return kept, reading.place(call)
    for call in reading.calls:
        if _TRAINERS.fullmatch(call.last) and isinstance(reading.values.argument(call, "model", 0), str):
            facts.note(f"{reading.place(call)} loads the model by its name: {_DTYPE}")
    return {}, ""


def _quantization(reading: Reading) -> None:
    """The 4-bit format of BitsAndBytesConfig, whose default is fp4."""
    for call in reading.named("BitsAndBytesConfig"):
        kind = reading.values.argument(call, "bnb_4bit_quant_type")
        if reading.facts.fields.get("quantized") == "nf4" and kind != "nf4":
            four = call.argument("bnb_4bit_quant_type") is None or kind == "fp4"
            reading.facts.fields["quantized"] = "fp4" if four else "nf4"


def _adapters(reading: Reading) -> tuple[dict[str, Any], str]:
    """Adapters of peft's LoraConfig or Unsloth's get_peft_model. With the line."""
    facts, values = reading.facts, reading.values
    for call in reading.named("LoraConfig", "get_peft_model"):
        given = values.keywords(call)
        unsloth = call.last == "get_peft_model" and call.argument("r") is not None
        if call.last == "get_peft_model" and not unsloth:
            continue
        found: dict[str, Any] = {"use_peft": True, "lora_r": 16 if unsloth else 8}
        for name, value in given.items():
            if name in _LORA:
                found[_LORA[name]] = value
            elif name not in (*_LORA_INERT, "use_gradient_checkpointing"):
                facts.note(f"{reading.place(call, f'{call.last}({name}=...)')} is not understood")
        if unsloth:
            checkpoints = given.get("use_gradient_checkpointing", "unsloth")
            found.setdefault("lora_target_modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
            found["gradient_checkpointing"] = checkpoints if isinstance(checkpoints, (bool, Unread)) else True
            if checkpoints == "unsloth":
                facts.note(f"{reading.place(call)}: {_UNSLOTH_CHECKPOINTS}")
        return found, reading.place(call)
    return {}, ""


def _tokenized(reading: Reading) -> tuple[dict[str, Any], str]:
    """The length to which a tokenizer cuts sequences. With the line."""
    for call in reading.calls:
        if call.argument("max_length") is not None and "tokeniz" in ast.unparse(call.node.func).lower():
            if reading.values.argument(call, "padding") != "max_length":
                reading.facts.note(
                    f"{reading.place(call, 'tokenizer(max_length=...)')}: sequences are taken as full; give a range of "
                    "seq_len as --input seq_len=A..B"
                )
            return {"max_length": reading.values.argument(call, "max_length")}, reading.place(call, "tokenizer")
    return {}, ""


# --- Lightning


def _lightning(reading: Reading, call: Call) -> None:
    values = reading.values
    settings: dict[str, Any] = {f"trainer.{name}": value for name, value in values.keywords(call).items()}
    strategy, scope = values.made(call.argument("strategy"), call.scope)
    if strategy is not None:
        settings["trainer.strategy"] = {
            "class_path": reading.script.dotted(strategy.func).rpartition(".")[2].lower().removesuffix("strategy"),
            "init_args": {each.arg: values.of(each.value, scope) for each in strategy.keywords if each.arg},
        }
    _import(reading, settings, reading.place(call, "Trainer(...)"), from_lightning)
    reading.facts.several = True


# --- both


def _import(reading: Reading, settings: Mapping[str, Any], where: str, importer: Any) -> None:
    """Adds the fields that an importer makes of the settings; those that the text leaves open are named."""
    facts = reading.facts
    known: dict[str, Any] = {}
    for name, value in settings.items():
        plain = _plain(value)
        if not isinstance(plain, Unread):
            known[name] = plain
        elif name in _FIELDS:
            facts.missing.setdefault(_FIELDS[name], plain.reason)
        elif _matters(name, importer):
            facts.note(f"{name} is not read: {plain.reason}")
    try:
        imported: Imported = importer(_nested(known) if importer is from_lightning else known)
    except JobError as error:
        facts.note(f"{where} is not taken: {error}")
        return
    numerics = {} if imported.numerics is None else imported.numerics.job_fields()
    if imported.numerics is not None and not numerics:
        facts.missing.setdefault("precision", f"{where}: {imported.numerics.doubt}")
    usual = {name: value for name, value in imported.defaults.items() if name not in imported.undecided}
    for name, value in {**numerics, **imported.fields}.items():
        if name != "model" and name not in facts.missing and name not in imported.undecided:
            facts.say(name, value, where)
    for name, value in usual.items():
        if name not in facts.missing:
            facts.say(name, value, f"{where}: its default")
    facts.missing |= {name: why for name, why in imported.undecided.items() if name not in facts.fields}
    for text in imported.notes():
        if not text.endswith(NO_EFFECT) and "its size is not in the file" not in text:
            facts.note(f"{where}: {text}")


def _plain(value: Any) -> Any:
    """A value without parts that the text leaves open: `Unread` where one is."""
    if isinstance(value, (list, tuple)):
        parts = [_plain(each) for each in value]
        return next((each for each in parts if isinstance(each, Unread)), parts)
    if isinstance(value, dict):
        inner = {str(name): _plain(each) for name, each in value.items()}
        return {name: each for name, each in inner.items() if not isinstance(each, Unread)}
    return str(value) if isinstance(value, str) else value


def _matters(name: str, importer: Any) -> bool:
    """Whether a setting may change a prediction: unless the importer says that it does not."""
    try:
        imported = importer(_nested({name: "1"}) if importer is from_lightning else {name: "1"})
    except JobError:
        return True
    return bool(imported.not_taken.get(name) != NO_EFFECT)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"trainer": {name.removeprefix("trainer."): value for name, value in settings.items()}}
