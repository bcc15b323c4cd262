"""A LLaMA-Factory config (YAML) as fields of a job. LLaMA-Factory trains through the Hugging Face Trainer.

Names and defaults are those of its arguments (src/llamafactory/hparams) from 0.9 on: adapters of rank 8 on all linear
layers, sequences of up to 2,048 tokens, gradient checkpointing on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.job.importers.huggingface import from_huggingface
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.preferences import take_pairs
from precision_time.job.importers.reader import NO_EFFECT, Reader, is_on
from precision_time.reading import plain_mapping

KIND = "LLaMA-Factory config"
KEYS = ("finetuning_type", "cutoff_len", "lora_target", "quantization_bit")
"""Keys by which a LLaMA-Factory config is recognised."""

_ATTENTIONS = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager"}
_RENAMED = {
    "cutoff_len": "max_length", "lora_rank": "lora_r", "additional_target": "lora_modules_to_save",
    "enable_liger_kernel": "use_liger_kernel", "max_samples": "max_train_samples",
}  # fmt: skip
"""Its name -> what the importer of TrainingArguments calls it."""
_NO_REFERENCE = ("orpo", "simpo")
_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini")
_ON = {
    "use_unsloth": "Unsloth's kernels are not modelled; the step takes less time and memory than predicted",
    "use_unsloth_gc": "checkpoints on the host are not modelled; the step takes less memory than predicted",
    "shift_attn": "attention within groups is not modelled; the step takes less time than predicted",
    "upcast_layernorm": "norms in fp32 are not modelled; the step takes a little longer than predicted",
    "upcast_lmhead_output": "logits in fp32 are not modelled; the step takes more memory than predicted",
    "use_llama_pro": "training of added blocks alone is not modelled",
    "streaming": "the loader is modelled by the field data: --data storage=...;workers=...",
    "predict_with_generate": "evaluation by generation is not modelled",
    "freeze_vision_tower": NO_EFFECT,
}  # fmt: skip
_INERT = frozenset(
    """
    stage template dataset dataset_dir eval_dataset media_dir overwrite_cache preprocessing_num_workers val_size
    plot_loss lora_alpha pref_beta pref_loss pref_ftx dpo_label_smoothing simpo_gamma loraplus_lr_ratio use_rslora
    pissa_init pissa_iter pissa_convert create_new_adapter train_on_prompt mask_history mix_strategy interleave_probs
    buffer_size preprocessing_batch_size tokenized_path tool_format adapter_name_or_path rope_scaling resize_vocab
    quantization_method double_quantization quantization_type eval_on_each_dataset ignore_pad_token_for_loss
    default_system enable_thinking include_effective_tokens_per_second use_swanlab new_special_tokens add_tokens
    use_reentrant_gc moe_aux_loss_coef image_max_pixels video_max_pixels neat_packing
    """.split()
)


def from_llama_factory(config: Mapping[str, Any]) -> Imported:
    """The job fields of a LLaMA-Factory config. Raises JobError for an invalid value."""
    given = plain_mapping("the config", config)
    reader = Reader(given)
    settings: dict[str, Any] = {}
    stage = reader.text("stage", default="sft")
    _adapters(reader, settings)
    _weights(reader, settings)
    attention = reader.text("flash_attn", default="auto")
    if attention in _ATTENTIONS:
        settings["attn_implementation"] = _ATTENTIONS[attention]
    settings["gradient_checkpointing"] = not reader.on("disable_gradient_checkpointing")
    settings["max_length"] = reader.take("cutoff_len", default=2048)
    if is_on(reader.left.get("use_muon")):
        settings["optim"] = "muon" if reader.on("use_muon") else None
    for name in _OPTIMIZERS:
        if reader.on(name):
            reader.undecided["optimizer"] = f"{name} is true, and it has no model here"
    reader.refuse_on({name: why for name, why in _ON.items() if name in reader.left})
    loss = str(reader.left.get("pref_loss", "sigmoid"))
    inert = reader.where(lambda name: name in _INERT or name.startswith("swanlab_"))
    reader.refuse(NO_EFFECT, *inert)
    rest = {_RENAMED.get(name, name): value for name, value in reader.left.items()}
    inner = from_huggingface({**rest, **settings})
    fields = dict(inner.fields)
    if stage in ("dpo", "rm"):
        take_pairs(reader, fields, reference=stage == "dpo" and loss not in _NO_REFERENCE)
    elif stage not in ("pt", "sft"):
        raise JobError(
            f"stage {show(stage)} is not predicted (it generates text, or has a loss of its own); give a config of "
            "stage pt, sft, rm or dpo"
        )
    if "lora" in fields and (inner.numerics is not None and inner.numerics.asked == "bf16"):
        reader.not_taken["adapters"] = "are taken in bf16 as the frozen weights; LLaMA-Factory keeps the few in fp32"
    back = {theirs: ours for ours, theirs in _RENAMED.items() if ours in given}
    not_taken = {back.get(n, n): why for n, why in inner.not_taken.items() if n in back or n not in settings}
    theirs = (back.get(name, name) for name in inner.taken if name not in settings)
    taken = tuple(dict.fromkeys((*reader.taken, *theirs)))
    return replace(
        inner, kind=KIND, fields=fields, taken=taken, not_taken={**not_taken, **reader.not_taken},
        undecided={**inner.undecided, **reader.undecided},
    )  # fmt: skip


def _adapters(reader: Reader, settings: dict[str, Any]) -> None:
    kind = reader.text("finetuning_type", default="lora")
    if kind == "lora":
        target = reader.take("lora_target", default="all", several=True)
        settings |= {
            "use_peft": True, "lora_r": reader.number("lora_rank", default=8),
            "lora_target_modules": "all-linear" if str(target).strip() == "all" else target,
        }  # fmt: skip
    elif kind != "full":
        reader.undecided["lora"] = f"finetuning_type {show(kind)} has no model here"
    extra = reader.take("additional_target")
    if extra is not None and kind == "lora":
        settings["lora_modules_to_save"] = extra
    bits = reader.number("quantization_bit")
    if bits in (4, 8):
        settings[f"load_in_{bits}bit"] = True
        double = str(reader.left.get("double_quantization", True)).lower() != "false"
        settings["use_bnb_nested_quant"] = double
    elif bits is not None:
        reader.undecided["quantized"] = f"quantization_bit {bits} has no model here"
    method = str(reader.left.get("quantization_method", "bnb")).lower()
    if bits is not None and method not in ("bnb", "bitsandbytes"):
        reader.undecided["quantized"] = f"quantization_method {show(method)} has no model here"


def _weights(reader: Reader, settings: dict[str, Any]) -> None:
    """Frozen weights are loaded in the dtype of training; trained ones are cast to fp32, unless pure_bf16 is set."""
    low = next((name for name in ("bf16", "fp16") if is_on(reader.left.get(name))), "")
    if reader.on("pure_bf16"):
        settings["dtype"] = "bfloat16"
    elif low and settings.get("use_peft"):
        settings["dtype"] = low
