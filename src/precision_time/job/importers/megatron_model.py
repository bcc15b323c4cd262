"""The shape of a Megatron-LM model: its arguments as the model_config of the zoo's `gpt`."""

from __future__ import annotations

import re
from typing import Any

from precision_time.field_types import SHARE, number
from precision_time.job.importers.reader import NO_EFFECT, Reader

_POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none"}
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokens of tokenizers whose vocabulary is fixed, for scripts that name no vocab-size."""

_SIZES = (
    ("layers", "num-layers"), ("hidden", "hidden-size"), ("heads", "num-attention-heads"), ("head_dim", "kv-channels"),
    ("ffn", "ffn-hidden-size"), ("max_positions", "max-position-embeddings"), ("mtp_layers", "mtp-num-layers"),
)  # fmt: skip
_LATENT = (
    ("q_lora", "q-lora-rank"), ("kv_lora", "kv-lora-rank"), ("qk_nope", "qk-head-dim"),
    ("qk_rope", "qk-pos-emb-head-dim"), ("v_head", "v-head-dim"),
)  # fmt: skip
_ROTARY = number(1e-3, 1)
_UNSUPPORTED = "no such part in the zoo's decoder"


def model_config(reader: Reader, tp: int) -> dict[str, Any]:
    """Keys of `model_config`, with Megatron's defaults where a shape is given at all; {} where none is.

    `tp` widens the vocabulary: it is padded to a multiple of make-vocab-size-divisible-by x tp.
    """
    config: dict[str, Any] = {}
    for key, name in _SIZES:
        if (number := reader.number(name)) is not None:
            config[key] = number
    if not {"layers", "hidden", "heads"} & set(config):
        return {}
    _attention(reader, config)
    _blocks(reader, config)
    _experts(reader, config)
    if (vocabulary := _vocabulary(reader, tp)) is not None:
        config["vocab"] = vocabulary
    return config


def _attention(reader: Reader, config: dict[str, Any]) -> None:
    groups = reader.number("num-query-groups", default=1)
    if reader.on("group-query-attention"):
        config["kv_heads"] = groups
    if reader.on("multi-latent-attention"):
        config["attn"] = "mla"
        for key, name in _LATENT:
            if (number := reader.number(name)) is not None:
                config[key] = number
    if reader.on("qk-layernorm"):
        config["qk_norm"] = 1
    rotary = reader.on("use-rotary-position-embeddings")
    kind = str(reader.take("position-embedding-type", default="rope" if rotary else "learned_absolute"))
    if kind not in _POSITIONS:
        reader.not_taken[f"position-embedding-type {kind}"] = "no model of it; taken as rope"
    config["pos"] = _POSITIONS.get(kind, "rope")
    if reader.on("no-position-embedding") and config["pos"] == "learned":
        config["pos"] = "none"
    percent = _ROTARY("rotary-percent", reader.take("rotary-percent", default=1.0))
    if config["pos"] == "rope" and percent != 1.0:
        config["rotary_percent"] = percent
    reader.refuse(
        NO_EFFECT, "rotary-base", "use-rope-scaling", "rope-scaling-factor", "rotary-seq-len-interpolation-factor"
    )
    reader.refuse(_UNSUPPORTED, "add-qkv-bias", "window-size", "softmax-type", "attention-output-gate")


def _blocks(reader: Reader, config: dict[str, Any]) -> None:
    gated, squared, tanh = reader.on("swiglu"), reader.on("squared-relu"), reader.on("openai-gelu")
    config["act"] = "swiglu" if gated else "relu2" if squared else "gelu_tanh" if tanh else "gelu"
    if gated and "ffn" not in config and "hidden" in config:
        # Megatron keeps the parameters of a plain 4 x hidden block, in multiples of 64.
        config["ffn"] = int(4 * config["hidden"] * 2 / 3 / 64) * 64
    kind = str(reader.take("normalization", default="LayerNorm"))
    config["norm"] = "rmsnorm" if kind.lower() == "rmsnorm" else "layernorm"
    config["bias"] = 0 if reader.on("disable-bias-linear") else 1
    config["tied_embeddings"] = 0 if reader.on("untie-embeddings-and-output-weights") else 1
    drops = [SHARE(name, reader.take(name, default=0.1)) for name in ("hidden-dropout", "attention-dropout")]
    config["dropout"] = max(drops)
    if drops[0] != drops[1]:
        reader.not_taken["hidden-dropout and attention-dropout"] = f"one rate for both; taken as {max(drops)}"


def _experts(reader: Reader, config: dict[str, Any]) -> None:
    experts = reader.number("num-experts")
    topk = reader.number("moe-router-topk", default=2)
    inner = reader.number("moe-ffn-hidden-size", default=config.get("ffn"))
    shared = reader.number("moe-shared-expert-intermediate-size")
    groups, chosen = reader.number("moe-router-num-groups"), reader.number("moe-router-group-topk")
    pattern = reader.take("moe-layer-freq", several=True)
    if experts is None:
        return
    config |= {"experts": experts, "topk": topk, "shared_ffn": shared or 0, "dense_layers": 0}
    if groups is not None and chosen is not None:
        config |= {"expert_groups": groups, "topk_groups": chosen}
    if inner is not None:
        config["moe_ffn"] = inner
    # "([0]*3+[1]*58)": dense layers first, then layers of experts.
    if match := re.fullmatch(r"['\"(\s]*\[0\]\s*\*\s*(\d+)\s*\+\s*\[1\]\s*\*\s*\d+[)'\"\s]*", str(pattern)):
        config["dense_layers"] = int(match[1])
    elif pattern is not None and not re.fullmatch(r"['\"(\s]*(\[1\]\s*\*\s*\d+|1)[)'\"\s]*", str(pattern)):
        reader.not_taken[f"moe-layer-freq {pattern}"] = "no model of this order of layers; all have experts"


def _vocabulary(reader: Reader, tp: int) -> int | None:
    divisor = (reader.number("make-vocab-size-divisible-by", default=128) or 128) * tp
    padded = reader.number("padded-vocab-size")
    tokenizer = str(reader.take("tokenizer-type", default=""))
    size = reader.number("vocab-size", default=_TOKENIZERS.get(tokenizer))
    if padded is not None:
        return padded
    if size is None:
        reader.not_taken["vocab-size"] = "is not given, nor known of the tokenizer; taken as the model's default"
        return None
    if tokenizer == "NullTokenizer":
        size += 1  # its end of document
    return -(-size // divisor) * divisor
