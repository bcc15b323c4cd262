"""Where words that people know from other tools go in a job: `seq_len` into `input`, `num_gpus` is `gpus`.

They are not accepted in place of the job's own words; they make its errors helpful.
"""

from __future__ import annotations

import dataclasses
import re

from precision_time.job.data import Data
from precision_time.job.layout import Layout
from precision_time.job.precision import PRECISIONS

_INPUT = (
    "seq_len image_size volume frames channels target_len mem_len text_tokens latent_size audio_samples audio_frames "
    "n_mels encoder_steps decoder_steps"
)
_SHAPE = "hidden heads layers ffn vocab kv_heads head_dim experts topk max_positions classes"
_SAME = {
    "gpus": "num_gpus n_gpus ngpus gpu_count world_size num_devices devices num_processes",
    "gpu": "gpu_type gpu_name accelerator hardware",
    "nodes": "nnodes num_nodes node_count machines num_machines",
    "batch_size": "bs batch micro_batch_size per_device_train_batch_size per_device_batch_size local_batch_size "
    "train_micro_batch_size_per_gpu",
    "grad_accum": "gradient_accumulation_steps accumulate_grad_batches accumulation_steps gradient_accumulation",
    "steps": "max_steps train_steps num_steps iterations max_iters train_iters training_steps total_steps",
    "epochs": "num_epochs num_train_epochs max_epochs n_epochs",
    "precision": "dtype torch_dtype mixed_precision bits",
    "optimizer": "optim",
    "ema": "model_ema use_ema ema_decay",
    "clip_norm": "max_grad_norm gradient_clip_val clip_grad clip_grad_norm",
    "evaluation_every_steps": "eval_steps eval_interval",
    "checkpoint_every_steps": "save_steps save_interval",
}
_VALUES = {
    "precision=amp-fp16": "amp fp16 half autocast",
    "precision=amp-bf16": "bf16 bfloat16",
    "precision=tf32": "tf32 allow_tf32",
    "precision=fp8": "fp8",
    "precision=fp32": "fp32 float32",
    "recompute=full": "activation_checkpointing gradient_checkpointing checkpoint_activations activation_checkpoint",
    "attention=flash": "flash_attention flash_attn use_flash_attn",
    "execution=compile": "compile torch_compile",
    "memory_format=nhwc": "channels_last",
    "layout=fsdp": "fsdp zero3",
    "layout=zero1": "zero1",
    "layout=zero2": "zero2",
    "layout=dp": "ddp",
    "quantized=nf4": "load_in_4bit qlora",
    "loss=liger": "use_liger_kernel liger",
}
_KEYS = {
    "input.seq_len": "seq_length sequence_length max_length max_seq_len max_seq_length context_length block_size",
    "input.image_size": "img_size imgsz resolution crop_size",
    "model_config.hidden": "hidden_size d_model n_embd dim embed_dim",
    "model_config.heads": "num_heads n_head num_attention_heads",
    "model_config.layers": "num_layers n_layer n_layers num_hidden_layers",
    "model_config.ffn": "intermediate_size d_ff ffn_hidden_size",
    "model_config.vocab": "vocab_size",
    "layout.tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "layout.pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    "layout.cp": "context_parallel context_parallel_size",
    "layout.ep": "expert_parallel expert_model_parallel_size",
    "layout.zero": "zero_stage",
    "data.workers": "num_workers dataloader_num_workers",
    "data.storage": "filesystem",
    "lora.rank": "lora_rank lora_r",
}
_WITHOUT_EFFECT = frozenset(
    "lr learning_rate seed weight_decay warmup warmup_steps warmup_ratio lr_scheduler scheduler momentum betas "
    "save_dir output_dir logging_steps log_interval".split()
)


def where(word: str, value: object = None, flag: bool = False) -> str:
    """What to write for a word that is none of a job, or "" for one that is unknown everywhere.

    `word` with underscores, as in a file, and the value it was given; `flag`: as on the command line.
    """
    if word in _WITHOUT_EFFECT:
        return "leave it out, it does not change how long a step takes"
    place = _PLACES.get(word)
    if place is None:
        return ""
    given = str(value) if isinstance(value, int | str) and re.fullmatch(r"[\w.]{1,20}", str(value)) else "VALUE"
    name, _, fixed = place.partition("=")
    section, _, key = name.partition(".")
    dashed = f"--{section.replace('_', '-')}"
    if key:
        return f"write {dashed} {key}={given}" if flag else f"write {section}: {{{key}: {given}}}"
    if section == "precision" and not fixed:  # bf16 elsewhere is seldom pure bf16
        return f"give {dashed if flag else section}, one of {', '.join(PRECISIONS)}"
    return f"write {dashed} {fixed or given}" if flag else f"write {section}: {fixed or given}"


def _places() -> dict[str, str]:
    """Word -> "field", "field=value" or "section.key"."""
    found = {item.name: f"{section}.{item.name}" for section, noun in (("data", Data), ("layout", Layout))
             for item in dataclasses.fields(noun)}  # fmt: skip
    for section, words in (("input", _INPUT), ("model_config", _SHAPE)):
        found.update({word: f"{section}.{word}" for word in words.split()})
    for table in (_SAME, _VALUES, _KEYS):
        found.update({word: place for place, words in table.items() for word in words.split()})
    return found


_PLACES = _places()
