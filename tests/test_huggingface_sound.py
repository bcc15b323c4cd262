"""Models of text and sound of Hugging Face: FLOP and weights of steps that really run, by PyTorch's counter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from precision_time import predict_time  # noqa: E402
from precision_time.estimate.estimate import Estimate  # noqa: E402

TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "num_key_value_heads": 4, "vocab_size": 128, "head_dim": 16}  # fmt: skip
WHISPER: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
                           "num_mel_bins": 16, "max_source_positions": 40}  # fmt: skip
OF_VOXTRAL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2,
                              "num_attention_heads": 4, "num_mel_bins": 16, "max_source_positions": 40}  # fmt: skip
ASR: dict[str, Any] = {**WHISPER, "n_window": 50, "n_window_infer": 100, "output_dim": 64, "downsample_hidden_size": 16,
                       "max_position_embeddings": 40}  # fmt: skip
CONFORMER: dict[str, Any] = {"input_dim": 16, "num_layers": 2, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 4,
                             "dim_head": 8, "output_dim": 24, "context_size": 20, "max_pos_emb": 64}  # fmt: skip
QFORMER: dict[str, Any] = {"model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "intermediate_size": 64, "encoder_hidden_size": 32}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "qwen2_audio": ("Qwen2AudioForConditionalGeneration", {
        "audio_config": WHISPER, "audio_token_index": 120, "text_config": {"model_type": "qwen2", **TEXT}}, 80, 20),
    "voxtral": ("VoxtralForConditionalGeneration", {
        "audio_config": OF_VOXTRAL, "audio_token_id": 120, "projector_hidden_act": "gelu",
        "text_config": {"model_type": "llama", **TEXT}}, 80, 10),
    "qwen3_asr": ("Qwen3ASRForConditionalGeneration", {
        "audio_config": ASR, "audio_token_id": 120, "text_config": {"model_type": "qwen3", **TEXT}}, 200, 26),
    "granite_speech": ("GraniteSpeechForConditionalGeneration", {
        "encoder_config": CONFORMER, "projector_config": QFORMER, "audio_token_index": 120, "window_size": 15,
        "text_config": {"model_type": "granite", **TEXT}}, 60, 12),
}  # fmt: skip
"""model_type -> class, config, frames, tokens that the sound takes the place of."""
SEQ, BATCH = 24, 2


def estimate(folder: Path, config: dict[str, Any], **sizes: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return predict_time(
        f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input=sizes, attention="math"
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_sound_is_that_of_a_real_step(kind: str, tmp_path: Path) -> None:
    name, config, frames, placeholders = CONFIGS[kind]
    settings = transformers.AutoConfig.for_model(kind, **config)
    model = getattr(transformers, name)._from_config(settings, attn_implementation="eager").train()
    ids = torch.ones(BATCH, placeholders + SEQ, dtype=torch.long)
    ids[:, :placeholders] = 120
    inputs = {
        "input_features": torch.zeros(BATCH, *((frames, 16) if kind == "granite_speech" else (16, frames))),
        "input_ids": ids,
    }
    mask = {"qwen2_audio": "feature_attention_mask", "qwen3_asr": "input_features_mask"}.get(kind)
    if mask:
        inputs[mask] = torch.ones(BATCH, frames, dtype=torch.long)
    if kind == "qwen2_audio":
        inputs["attention_mask"] = torch.ones_like(ids)
    with FlopCounterMode(display=False) as counter:
        model(**inputs, labels=ids).loss.backward()
    flops = counter.get_total_flops()
    if kind == "granite_speech":  # the counter takes backward passes of depthwise convolutions for those of whole ones
        counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
        flops += 2 * counts["aten.convolution"] - counts["aten.convolution_backward"]
    found = estimate(
        tmp_path, {"model_type": kind, "architectures": [name], **config}, seq_len=SEQ, audio_frames=frames
    )
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)
    assert f"samples have {frames} frames of sound, {placeholders} tokens" in found.assumptions[0]


ENCODER: dict[str, Any] = {"num_filters": 4, "depths": [1, 1], "downsampling_ratios": [4], "hidden_size": 16,
                           "ffn_expansion": 2}  # fmt: skip
STREAMED: dict[str, Any] = {**OF_VOXTRAL, "head_dim": 8, "num_key_value_heads": 4, "sliding_window": 16}
OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, int], int]] = {
    "moss_transcribe_diarize": ("MossTranscribeDiarizeForConditionalGeneration", {
        "audio_config": OF_VOXTRAL, "audio_token_id": 120, "audio_merge_size": 4,
        "text_config": {"model_type": "qwen3", **TEXT}}, {"audio_frames": 80}, 10),
    "voxtral_realtime": ("VoxtralRealtimeForConditionalGeneration", {
        "audio_config": STREAMED, "downsample_factor": 4, "text_config": {**TEXT, "sliding_window": 16}}, {}, 0),
    "vibevoice_asr": ("VibeVoiceAsrForConditionalGeneration", {
        "acoustic_tokenizer_encoder_config": ENCODER, "semantic_tokenizer_encoder_config": ENCODER,
        "acoustic_tokenizer_chunk_size": 1000, "audio_token_id": 120, "text_config": {"model_type": "qwen2", **TEXT}},
        {"audio_samples": 40}, 10),
}  # fmt: skip
"""model_type -> class, config, sizes of its input, tokens that the sound takes the place of."""


def with_sound(kind: str, ids: Any) -> dict[str, Any]:
    if kind == "voxtral_realtime":
        return {"input_features": torch.zeros(BATCH, 16, 8 * SEQ)}
    if kind == "vibevoice_asr":
        return {"input_values": torch.zeros(BATCH, 1, 40), "padding_mask": torch.ones(BATCH, 40, dtype=torch.bool)}
    mask, wave = torch.ones(BATCH, 80, dtype=torch.long), torch.ones(BATCH, 80 * 160, dtype=torch.long)
    return {"input_features": torch.zeros(BATCH, 16, 80), "input_features_mask": mask, "padding_mask": wave}


@pytest.mark.parametrize("kind", OTHERS)
def test_sound_of_other_models_is_that_of_a_real_step(kind: str, tmp_path: Path) -> None:
    name, config, sizes, placeholders = OTHERS[kind]
    settings = transformers.AutoConfig.for_model(kind, **config)
    settings.use_cache = settings.get_text_config().use_cache = False
    model = getattr(transformers, name)._from_config(settings, attn_implementation="eager").train()
    ids = torch.ones(BATCH, placeholders + SEQ, dtype=torch.long)
    ids[:, :placeholders] = 120
    with FlopCounterMode(display=False) as counter:
        model(**with_sound(kind, ids), input_ids=ids, labels=ids).loss.backward()
    found = estimate(tmp_path, {"model_type": kind, "architectures": [name], **config}, seq_len=SEQ, **sizes)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert (f", {placeholders} tokens" if placeholders else "8 for each of seq_len tokens") in found.assumptions[0]


def test_a_text_and_its_spoken_codes_are_those_of_a_real_step(tmp_path: Path) -> None:
    part = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 4, "head_dim": 16}  # fmt: skip
    decoder = {**part, "cross_num_attention_heads": 4, "cross_head_dim": 16, "cross_num_key_value_heads": 4,
               "cross_hidden_size": 64, "vocab_size": 80, "num_channels": 3}  # fmt: skip
    config = {"encoder_config": {**part, "vocab_size": 64}, "decoder_config": decoder, "bos_token_id": 77,
              "eos_token_id": 78, "pad_token_id": 79, "delay_pattern": [0, 1, 2]}  # fmt: skip
    settings = transformers.DiaConfig(**config)
    model = transformers.DiaForConditionalGeneration._from_config(settings, attn_implementation="eager").train()
    ids, codes = torch.ones(BATCH, SEQ, dtype=torch.long), torch.ones(BATCH, 10, 3, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, decoder_input_ids=codes, labels=torch.ones(3 * BATCH, 10).long()).loss.backward()
    found = estimate(
        tmp_path,
        {"model_type": "dia", "architectures": ["DiaForConditionalGeneration"], **config},
        seq_len=SEQ,
        audio_frames=10,
    )
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == pytest.approx(counter.get_total_flops(), rel=0.001)
    assert "10 frames of sound, of 3 codes each" in found.assumptions[0]
