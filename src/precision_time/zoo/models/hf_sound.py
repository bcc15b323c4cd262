"""Sound of Hugging Face's models of text and sound: its features, with placeholders among the tokens.

As with images (`hf_images`), lengths are known, so masks are given as values: the sound fills its sample.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from precision_time.errors import JobError
from precision_time.zoo.models.hf_heads import AUDIO_SECONDS
from precision_time.zoo.models.hf_images import Media, placeholders_of
from precision_time.zoo.workload import Sizes

WINDOW = 3000
"""Frames of the 30 s to which processors with Whisper's encoder pad."""
_MASKS = ("input_features_mask", "feature_attention_mask")
_TOKEN = ("audio_token_id", "audio_token_index")


_FEATURES = ("input_features", "input_values")
_HOP = 160
"""Samples of a wave between two frames of features: 10 ms of 16 kHz."""
_WAVE_RATE = 24_000
"""Samples a second of models that read the wave itself (VibeVoice-ASR)."""


def hears(module: nn.Module) -> bool:
    """Whether a model reads sound in the place of tokens of its text, or beside each of them."""
    names = inspect.signature(module.forward).parameters
    config: Any = module.config
    if "input_ids" not in names or not any(name in names for name in _FEATURES):
        return False
    return _beside_text(config) or any(hasattr(config, name) for name in _TOKEN)


def sound_of(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """One sound for each sample of a micro-batch."""
    batch, names = int(sizes["batch_size"]), inspect.signature(module.forward).parameters
    if "noise_scheduler" in names:
        raise JobError(
            f"{type(module).__name__} learns to remove noise by a scheduler that its config does not hold; give your "
            "own module (FILE.py:FUNCTION)"
        )
    if "input_values" in names:
        return _wave(module, sizes)
    if _beside_text(config):
        return _streamed(config, sizes)
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
    if "padding_mask" in taken:  # of the wave that the frames were made of
        inputs["padding_mask"] = torch.ones(batch, frames * _HOP, dtype=torch.bool, device="cpu")
    if "input_ids" in taken:  # places are looked up to give every token of sound its time (Music Flamingo)
        with torch.device("cpu"):
            placeholders = int(_tower_of(module)._get_feat_extract_output_lengths(torch.tensor(frames))[1])
    else:
        placeholders = placeholders_of(features or _tower_of(module).forward, inputs, batch, 1)
    note = f"samples have {frames} frames of sound, {placeholders} tokens, beside seq_len tokens of text"
    return Media(inputs, placeholders, 1, note, _TOKEN)


def _beside_text(config: Any) -> bool:
    """Whether every token of text has its frames of sound (Voxtral Realtime)."""
    return hasattr(config, "default_num_delay_tokens")


def _streamed(config: Any, sizes: Sizes) -> Media:
    batch, length = int(sizes["batch_size"]), int(sizes["seq_len"])
    frames = 2 * int(config.downsample_factor) * length  # of which a convolution takes every second
    if int(sizes.get("audio_frames", frames)) != frames:
        raise JobError(
            f"input audio_frames {sizes['audio_frames']} and seq_len {length}: a token of this model has "
            f"{frames // length} frames of sound; write audio_frames={frames} or leave it out"
        )
    inputs = {"input_features": torch.zeros(batch, int(config.audio_config.num_mel_bins), frames)}
    return Media(inputs, 0, 1, f"samples have {frames} frames of sound, {frames // length} for each of seq_len tokens")


def _wave(module: nn.Module, sizes: Sizes) -> Media:
    batch = int(sizes["batch_size"])
    samples = int(sizes.get("audio_samples", AUDIO_SECONDS * _WAVE_RATE))
    inputs = {
        "input_values": torch.zeros(batch, 1, samples),
        "padding_mask": torch.ones(batch, samples, dtype=torch.bool, device="cpu"),
    }
    placeholders = placeholders_of(_features_of(module), inputs, batch, 1)
    note = f"samples have {samples:,} values of sound, {placeholders} tokens, beside seq_len tokens of text"
    return Media(inputs, placeholders, 1, note, _TOKEN)


def _features_of(module: nn.Module) -> Any:
    owners = (getattr(module, "model", None), module)
    return next((found for each in owners if (found := getattr(each, "get_audio_features", None))), None)


def _tower_of(module: nn.Module) -> Any:
    return next(part for name, part in module.named_modules() if name.endswith("audio_tower"))
