"""What trainers of preferences and rewards do in a step: DPO and its relatives, in TRL and LLaMA-Factory."""

from __future__ import annotations

from typing import Any

from precision_time.errors import JobError
from precision_time.job.importers.reader import NO_EFFECT, Reader, is_on

TRL_KEYS = (
    "use_peft", "packing", "packing_strategy", "eval_packing", "padding_free", "dataset_text_field", "dataset_kwargs",
    "completion_only_loss", "assistant_only_loss", "chat_template_path", "truncation_mode", "max_prompt_length",
    "precompute_ref_log_probs", "reference_free", "sync_ref_model", "num_generations", "rpo_alpha",
)  # fmt: skip
"""Settings that TrainingArguments lack and TRL's configs have."""
_PAIRS = (
    "beta", "max_prompt_length", "precompute_ref_log_probs", "reference_free", "sync_ref_model", "rpo_alpha",
    "ref_model_init_kwargs", "f_divergence_type", "label_pad_token_id", "force_use_ref_model",
)  # fmt: skip
_GENERATES = (
    "num_generations", "use_vllm", "vllm_mode", "reward_funcs", "reward_weights", "num_ppo_epochs", "total_episodes",
    "response_length", "reward_model_path", "max_new_tokens",
)  # fmt: skip
_UNPAIRED = ("desirable_weight", "undesirable_weight")
_INERT = (
    "loss_type", "label_smoothing", "max_prompt_length", "max_completion_length", "truncation_mode", "disable_dropout",
    "f_divergence_type", "f_alpha_divergence_coef", "label_pad_token_id", "padding_value", "beta", "rpo_alpha",
    "dataset_kwargs", "packing_strategy", "eval_packing", "pad_to_multiple_of", "loss_weights", "ld_alpha",
    "completion_only_loss", "assistant_only_loss", "shuffle_dataset", "model_init_kwargs", "script_args", "config",
    "no_remove_unused_columns", "precompute_ref_batch_size", "lora_task_type", "ignore_bias_buffers",
    "dataset_streaming",
)  # fmt: skip
_SINCE = "is on by default in TRL from 0.20 on"


def take_trl(reader: Reader, fields: dict[str, Any], steps_on_sequences: int = 1024) -> None:
    """Sets what TRL's configs have beside TrainingArguments, where some of it is there. A config names no trainer:
    which it is follows from its settings, and those of trainers that generate text are left to the user."""
    if not any(name in reader.left or name in reader.taken for name in (*TRL_KEYS, *_PAIRS, *_GENERATES)):
        return
    generates = [name for name in _GENERATES if name in reader.left]
    if generates:
        raise JobError(
            f"{generates[0]} belongs to training that generates text (GRPO, RLOO, PPO), which is not predicted; give "
            "the update alone as a job file"
        )
    if "input" not in fields:
        fields["input"] = {"seq_len": steps_on_sequences}
        reader.not_taken["max_length"] = f"is not given; taken as TRL's default, {steps_on_sequences}"
    if reader.left.get("gradient_checkpointing") is None:
        fields["recompute"] = "full"
        reader.not_taken["gradient_checkpointing"] = f"{_SINCE}; for older ones give --recompute none"
    if reader.left.get("bf16") is None and reader.left.get("fp16") is None:
        reader.undecided["precision"] = f"bf16 {_SINCE}: write bf16: true or false"
    unpaired = next((name for name in _UNPAIRED if name in reader.left), "")
    if unpaired:
        raise JobError(f"{unpaired} belongs to KTO, which is not predicted; give its update as a job file")
    if any(name in reader.left for name in _PAIRS):
        without = [name for name in ("precompute_ref_log_probs", "reference_free") if reader.on(name)]
        take_pairs(reader, fields, reference=not without)
        reader.not_taken["the trainer"] = (
            "is taken as DPO's by its settings; ORPO and CPO have no reference: give --reference false"
        )
    reader.refuse(NO_EFFECT, *(name for name in _INERT if name in reader.left))
    if is_on(reader.left.get("sync_ref_model")):
        reader.refuse("copies of weights to the reference are not modelled; they are rare", "sync_ref_model")
    reader.refuse(NO_EFFECT, "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps")


def take_pairs(reader: Reader, fields: dict[str, Any], reference: bool, usual: int = 8) -> None:
    """Sets a batch of pairs, a chosen and a rejected sequence each, and the reference that they are compared with.
    `usual`: pairs where the file gives no batch."""
    pairs = fields.get("batch_size", usual)
    fields["batch_size"] = 2 * pairs
    reader.not_taken["pairs"] = (
        f"a batch of {pairs} pairs has {2 * pairs} sequences, which are the samples: give --dataset-size in sequences"
    )
    if reference:
        fields["reference"] = True
