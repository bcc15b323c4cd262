"""The family of a Hugging Face model, by its `model_type`: which published steps are like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "hf"
"""Family of a model that is like none of the zoo."""
DECODER = "decoder"
"""Family of a language model that reads from left to right and has no family in the zoo."""

_SAME = {
    "llama": "llama", "mistral": "mistral", "ministral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3-moe", "mixtral": "mixtral", "deepseek_v2": "deepseek", "deepseek_v3": "deepseek",
    "gpt_oss": "gpt-oss", "phi3": "phi3", "nemotron": "nemotron", "nemotron_h": "nemotron-h", "mpt": "mpt",
    "gpt2": "gpt", "gpt_neo": "gpt", "gpt_neox": "gpt", "gptj": "gpt", "opt": "gpt",
    "gemma": "gemma", "gemma2": "gemma", "gemma3_text": "gemma",
    "bert": "bert", "roberta": "bert", "camembert": "bert", "xlm-roberta": "bert", "electra": "electra", "esm": "esm2",
    "t5": "t5", "mt5": "t5", "bart": "bart", "mbart": "bart", "transfo-xl": "transformer-xl",
    "vit": "vit", "deit": "vit", "dinov2": "vit", "swin": "swin", "convnext": "convnext", "resnet": "resnet",
    "clip": "clip", "whisper": "whisper", "wav2vec2": "wav2vec2",
}  # fmt: skip
"""model_type -> family of the zoo, whose models have the same blocks (`precision-time zoo` lists them)."""
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def family_of_config(config: Mapping[str, Any]) -> str:
    """The family of a model from the content of its config.json, which may be anything that is JSON.

    Of a model with text and images that of its language model.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and isinstance(text.get("model_type"), str):
        return _SAME.get(text["model_type"], DECODER)
    kind, names = config.get("model_type"), config.get("architectures")
    if isinstance(kind, str) and kind in _SAME:
        return _SAME[kind]
    causal = isinstance(names, list) and any(isinstance(name, str) and name.endswith(_CAUSAL) for name in names)
    return DECODER if causal else UNKNOWN
