"""Sound of Hugging Face's models of text and sound: its features, with placeholders among the tokens.

As with images (`hf_images`), lengths are known, so masks are given as values: the sound fills its sample.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from precision_time.zoo.models.hf_heads import AUDIO_SECONDS
from precision_time.zoo.models.hf_images import Media, placeholders_of
from precision_time.zoo.workload import Sizes

WINDOW = 3000
"""Frames of the 30 s to which processors with Whisper's encoder pad."""
_MASKS = ("input_features_mask", "feature_attention_mask")
_TOKEN = ("audio_token_id", "audio_token_index")


def hears(module: nn.Module) -> bool:
    """Whether a model reads sound in the place of tokens of its text."""
    names = inspect.signature(module.forward).parameters
    config: Any = module.config
    return {"input_ids", "input_features"} <= set(names) and any(hasattr(config, name) for name in _TOKEN)


def sound_of(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """One sound for each sample of a micro-batch."""
    batch, names = int(sizes["batch_size"]), inspect.signature(module.forward).parameters
    encoder = getattr(config, "audio_config", None) or config.encoder_config
    bands = int(getattr(encoder, "num_mel_bins", None) or encoder.input_dim)
    stacked = int(getattr(encoder, "num_stacked_frames", 1))
    convolved = any(isinstance(part, nn.Conv1d) and part.in_channels == bands for part in module.modules())
    last = not convolved and not hasattr(encoder, "n_window")  # else as Whisper has them
    usual = AUDIO_SECONDS * 100 // (2 if hasattr(encoder, "input_dim") else 1) if last else WINDOW
    frames = int(sizes.get("audio_frames", usual))
    shape = (batch, frames, bands * stacked) if last else (batch, bands, frames)
    inputs: dict[str, Any] = {"input_features": torch.zeros(shape)}
    features = _features_of(module)
    taken = inspect.signature(features).parameters if features else names
    for name in _MASKS:
        if name in names and name in taken:
            inputs[name] = torch.ones(batch, frames, dtype=torch.long, device="cpu")
    placeholders = placeholders_of(features or _tower_of(module).forward, inputs, batch, 1)
    note = f"samples have {frames} frames of sound, {placeholders} tokens, beside seq_len tokens of text"
    return Media(inputs, placeholders, 1, note, _TOKEN)


def _features_of(module: nn.Module) -> Any:
    owners = (getattr(module, "model", None), module)
    return next((found for each in owners if (found := getattr(each, "get_audio_features", None))), None)


def _tower_of(module: nn.Module) -> Any:
    return next(part for name, part in module.named_modules() if name.endswith("audio_tower"))
