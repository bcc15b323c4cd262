"""Models of Hugging Face that take images as patches, or write the text of an image: FLOP and weights of steps that
really run, by PyTorch's counter."""

from __future__ import annotations

import json
from collections.abc import Callable
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
TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
ROPE: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
SEQ, BATCH = 24, 2


def grid(rows: int) -> Any:
    return torch.tensor([[1, rows, rows]] * BATCH)


CONFIGS: dict[str, tuple[str, dict[str, Any], int, int, Callable[[], dict[str, Any]]]] = {
    "lfm2_vl": ("Lfm2VlForConditionalGeneration", {
        "downsample_factor": 2, "projector_hidden_size": 48, "text_config": {
            "model_type": "lfm2", **TEXT, "layer_types": ["full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        "vision_config": {"model_type": "siglip2_vision_model", **TOWER, "patch_size": 16, "num_patches": 16}}, 64, 4,
        lambda: {"pixel_values": torch.zeros(BATCH, 16, 768), "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
                 "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long)}),
    "minicpmv4_6": ("MiniCPMV4_6ForConditionalGeneration", {
        "vision_config": {**TOWER, "patch_size": 16, "image_size": 128, "insert_layer_id": 0},
        "text_config": {"model_type": "qwen3", **TEXT}}, 128, 4,
        lambda: {"pixel_values": torch.zeros(1, 3, 16, 16 * 128), "target_sizes": torch.tensor([[8, 8]] * BATCH)}),
    "kimi_k25": ("Kimi_K25ForConditionalGeneration", {
        "projection_hidden_size": 32, "text_config": {
            "model_type": "deepseek_v3", **TEXT, "head_dim": 8, "q_lora_rank": 24, "kv_lora_rank": 16,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 2},
        "vision_config": {**TOWER, "patch_size": 14, "pos_emb_height": 8, "pos_emb_width": 8}}, 56, 4,
        lambda: {"pixel_values": torch.zeros(BATCH * 16, 3, 14, 14), "image_grid_thw": grid(4)}),
    "paddleocr_vl": ("PaddleOCRVLForConditionalGeneration", {
        "text_config": {**TEXT, "rope_parameters": ROPE},
        "vision_config": {**TOWER, "patch_size": 14, "image_size": 56}}, 56, 4,
        lambda: {"pixel_values": torch.zeros(BATCH * 16, 3, 14, 14), "image_grid_thw": grid(4)}),
    "video_llama_3": ("VideoLlama3ForConditionalGeneration", {
        "vision_config": {**TOWER, "patch_size": 14}, "text_config": {"model_type": "qwen2", **TEXT}}, 56, 16,
        lambda: {"pixel_values": torch.zeros(BATCH * 16, 588), "image_grid_thw": grid(4),
                 "image_merge_sizes": torch.ones(BATCH, dtype=torch.long)}),
    "qwen2_5_omni_thinker": ("Qwen2_5OmniThinkerForConditionalGeneration", {
        "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 64,
                          "patch_size": 14, "spatial_merge_size": 2, "window_size": 56, "fullatt_block_indexes": [1]},
        "audio_config": {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
                         "output_dim": 64, "num_mel_bins": 16}, "text_config": {**TEXT, "rope_parameters": ROPE}},
        112, 16, lambda: {"pixel_values": torch.zeros(BATCH * 64, 3 * 2 * 196), "image_grid_thw": grid(8)}),
}  # fmt: skip
"""model_type -> class, config, side of an image, tokens of one, its arguments."""


def estimate(folder: Path, config: dict[str, Any], **sizes: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return predict_time(
        f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input=sizes, attention="math"
    )


def really_trained(config: dict[str, Any], inputs: dict[str, Any]) -> tuple[int, int]:
    options = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **options), attn_implementation="eager"
    ).train()
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


@pytest.mark.parametrize("kind", CONFIGS)
def test_patches_are_those_of_a_real_step(kind: str, tmp_path: Path) -> None:
    name, config, side, placeholders, arguments = CONFIGS[kind]
    config = {"model_type": kind, "architectures": [name], "image_token_id": 120, **config}
    ids = torch.ones(BATCH, placeholders + SEQ, dtype=torch.long)
    ids[:, :placeholders] = 120
    inputs = {**arguments(), "input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    if "rope_parameters" in config["text_config"]:
        inputs["position_ids"] = torch.arange(ids.shape[1]).expand(3, BATCH, -1)
    parameters, flops = really_trained(config, inputs)
    found = estimate(tmp_path, config, seq_len=SEQ, image_size=side)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)
    assert f"1 image of {side} x {side} pixels, {placeholders} tokens" in found.assumptions[0]


def test_the_text_of_an_image_is_that_of_a_real_step(tmp_path: Path) -> None:
    decoder = {"model_type": "trocr", "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4,
               "decoder_ffn_dim": 96, "vocab_size": 128, "is_decoder": True, "add_cross_attention": True,
               "cross_attention_hidden_size": 32}  # fmt: skip
    encoder = {"model_type": "vit", **TOWER, "image_size": 64, "patch_size": 16}
    config = {"model_type": "vision-encoder-decoder", "architectures": ["VisionEncoderDecoderModel"],
              "encoder": encoder, "decoder": decoder, "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
    inputs = {"pixel_values": torch.zeros(BATCH, 3, 64, 64), "labels": torch.ones(BATCH, SEQ, dtype=torch.long)}
    parameters, flops = really_trained(config, inputs)
    found = estimate(tmp_path, config, seq_len=SEQ)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)
    assert "1 image of 64 x 64 pixels; seq_len is the text that the decoder writes" in found.assumptions[0]


def test_patches_of_pix2struct_are_those_of_a_real_step(tmp_path: Path) -> None:
    vision = {"hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 64, "d_kv": 8, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    text = {"vocab_size": 128, "hidden_size": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = {"model_type": "pix2struct", "architectures": ["Pix2StructForConditionalGeneration"],
              "vision_config": vision, "text_config": text, "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
    inputs = {"flattened_patches": torch.zeros(BATCH, 2048, 50), "labels": torch.ones(BATCH, SEQ, dtype=torch.long)}
    parameters, flops = really_trained(config, inputs)
    found = estimate(tmp_path, config, seq_len=SEQ)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)
