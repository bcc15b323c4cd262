"""Models of Hugging Face that are told more of their images than pixels: FLOP and weights of steps that really run."""

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
from precision_time.errors import PrecisionTimeError  # noqa: E402
from precision_time.estimate.estimate import Estimate  # noqa: E402

TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "num_key_value_heads": 4, "vocab_size": 128, "head_dim": 16}  # fmt: skip
TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
KOSMOS: dict[str, Any] = {"vocab_size": 128, "embed_dim": 64, "layers": 2, "ffn_dim": 96, "attention_heads": 4,
                          "max_position_embeddings": 128}  # fmt: skip
ENCODED: dict[str, Any] = {**TEXT, "sliding_window": 16, "pad_token_id": 0}
SEQ, ANSWER, BATCH = 24, 8, 2


def ids(placeholders: int, place: int = 120, length: int = SEQ) -> Any:
    found = torch.ones(BATCH, placeholders + length, dtype=torch.long)
    found[:, :placeholders] = place
    return found


def places(placeholders: int) -> Any:
    return (ids(placeholders) == 120).long()


def crops() -> Any:
    """The whole image of 12 x 12 patches and one crop of it, in squares of 2 x 2 patches."""
    grid = torch.arange(144).view(6, 2, 6, 2).permute(0, 2, 1, 3).reshape(36, 4)
    return torch.cat([grid, grid + 144, grid + 288, grid + 432])


CONFIGS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int, Callable[[], dict[str, Any]]]] = {
    "molmo2": ("Molmo2ForConditionalGeneration", {
        "image_patch_id": 120, "text_config": {**TEXT, "additional_vocab_size": 16},
        "vision_config": {**TOWER, "num_key_value_heads": 4, "head_dim": 8, "image_size": [48, 48], "patch_size": 4},
        "adapter_config": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
                           "vision_feature_layer": [0, 1], "intermediate_size": 96, "text_hidden_size": 64}}, {}, 72,
        lambda: {"pixel_values": torch.zeros(2 * BATCH, 144, 48), "image_token_pooling": crops(),
                 "image_grids": torch.tensor([[6, 6, 6, 6]] * BATCH), "mm_token_type_ids": places(72)}),
    "kosmos-2": ("Kosmos2ForConditionalGeneration", {
        "text_config": KOSMOS, "vision_config": {**TOWER, "image_size": 32, "patch_size": 8}, "latent_query_num": 6},
        {}, 6, lambda: {"pixel_values": torch.zeros(BATCH, 3, 32, 32), "image_embeds_position_mask": places(6)}),
    "kosmos-2.5": ("Kosmos2_5ForConditionalGeneration", {
        "text_config": KOSMOS, "latent_query_num": 6, "vision_config": {
            **TOWER, "head_dim": 8, "patch_embed_hidden_size": 48, "max_num_patches": 16}}, {}, 6,
        lambda: {"flattened_patches": torch.zeros(BATCH, 16, 50), "image_embeds_position_mask": places(6)}),
    "idefics": ("IdeficsForVisionText2Text", {
        **TEXT, "cross_layer_interval": 1, "use_resampler": True,
        "vision_config": {"embed_dim": 32, "image_size": 32, "patch_size": 8, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "intermediate_size": 64},
        "perceiver_config": {"resampler_n_latents": 6, "resampler_depth": 1, "resampler_n_heads": 2,
                             "resampler_head_dim": 8}}, {"images": 2}, 0,
        lambda: {"pixel_values": torch.zeros(BATCH, 2, 3, 32, 32),
                 "image_attention_mask": torch.ones(BATCH, SEQ, 2, dtype=torch.long)}),
    "florence2": ("Florence2ForConditionalGeneration", {
        "image_token_id": 120, "text_config": {
            "model_type": "bart", "d_model": 64, "vocab_size": 128, "encoder_layers": 2, "decoder_layers": 2,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96},
        "vision_config": {"depths": [1, 1, 1, 1], "embed_dim": [8, 16, 32, 64], "num_heads": [1, 2, 4, 8],
                          "num_groups": [1, 2, 4, 8], "window_size": 2, "projection_dim": 64}},
        {"target_len": ANSWER, "image_size": 64}, 5, lambda: {"pixel_values": torch.zeros(BATCH, 3, 64, 64)}),
    "t5gemma2": ("T5Gemma2ForConditionalGeneration", {
        "image_token_index": 120, "eoi_token_index": 121, "decoder": ENCODED, "encoder": {
            "text_config": ENCODED, "mm_tokens_per_image": 4, "image_token_index": 120, "eoi_token_index": 121,
            "vision_config": {"model_type": "siglip_vision_model", **TOWER, "image_size": 32, "patch_size": 8}}},
        {"target_len": ANSWER}, 4, lambda: {"pixel_values": torch.zeros(BATCH, 3, 32, 32)}),
}  # fmt: skip
"""model_type -> class, config, sizes of its input, tokens of an image, its arguments."""


def estimate(folder: Path, kind: str, **sizes: Any) -> Estimate:
    name, config, of_input, *_ = CONFIGS[kind]
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, "architectures": [name], **config}), encoding="utf-8")
    return predict_time(
        f"hf:{path}",
        precision="fp32",
        batch_size=BATCH,
        gpu="h100-80gb-sxm",
        input={"seq_len": SEQ, **of_input, **sizes},
        attention="math",
    )


def really_trained(kind: str, inputs: dict[str, Any]) -> tuple[int, int]:
    name, config, *_ = CONFIGS[kind]
    settings = transformers.AutoConfig.for_model(kind, **config)
    model = getattr(transformers, name)._from_config(settings, attn_implementation="eager").train()
    return sum(p.numel() for p in model.parameters()), flops_of(model, **inputs)


def flops_of(model: Any, **inputs: Any) -> int:
    """FLOP of a step by PyTorch's counter; of convolutions by hand, since it takes the backward passes of depthwise
    ones for those of whole ones."""
    convolved = []

    def convolution(layer: Any, given: Any, out: Any) -> None:
        once = 2 * out.numel() * layer.weight[0].numel()
        convolved.append(once * (1 + layer.weight.requires_grad + given[0].requires_grad))

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(convolution)
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    others = sum(count for name, count in counts.items() if not name.startswith("aten.convolution"))
    return int(others + sum(convolved))


@pytest.mark.parametrize("kind", CONFIGS)
def test_places_are_those_of_a_real_step(kind: str, tmp_path: Path) -> None:
    _, _, sizes, placeholders, arguments = CONFIGS[kind]
    text = ids(placeholders)
    labels = torch.ones(BATCH, ANSWER, dtype=torch.long) if "target_len" in sizes else text
    parameters, flops = really_trained(kind, {**arguments(), "input_ids": text, "labels": labels})
    found = estimate(tmp_path, kind)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)
    assert (f"{placeholders} tokens, beside" if placeholders else "2 images of 32 x 32 pixels") in found.assumptions[0]


@pytest.mark.parametrize("kind", ["molmo2", "t5gemma2"])
def test_text_alone_is_that_of_a_real_step(kind: str, tmp_path: Path) -> None:
    labels = torch.ones(BATCH, ANSWER if kind == "t5gemma2" else SEQ, dtype=torch.long)
    inputs = {"input_ids": ids(0), "labels": labels}
    if kind == "molmo2":
        inputs["mm_token_type_ids"] = torch.zeros(BATCH, SEQ, dtype=torch.long)
    _, flops = really_trained(kind, inputs)
    found = estimate(tmp_path, kind, images=0)
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.002)
    assert "text alone" in found.assumptions[0]


def test_kosmos_has_one_image(tmp_path: Path) -> None:
    with pytest.raises(PrecisionTimeError, match="has one image"):
        estimate(tmp_path, "kosmos-2", images=2)


def test_missing_images_are_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForSequenceClassification"], "text_config": TEXT,
              "vision_config": {"model_type": "siglip_vision_model", **TOWER, "image_size": 32, "patch_size": 8},
              "mm_tokens_per_image": 4}  # fmt: skip
    path.write_text(json.dumps(config), encoding="utf-8")
    found = predict_time(f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input={"seq_len": SEQ})
    assert "samples have no images, which this model can take" in found.assumptions


def test_boxes_of_all_layers_are_those_of_a_real_step(tmp_path: Path) -> None:
    """DEIMv2's losses of boxes take those that any layer matched; here all layers match the same."""
    config: dict[str, Any] = {"model_type": "deimv2", "num_queries": 20, "decoder_layers": 2}
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForObjectDetection.from_config(settings, attn_implementation="eager").train()
    boxes = [{"class_labels": torch.zeros(7, dtype=torch.long), "boxes": torch.full((7, 4), 0.3)}] * BATCH
    flops = flops_of(model, pixel_values=torch.randn(BATCH, 3, 128, 128), labels=boxes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "architectures": ["Deimv2ForObjectDetection"]}), encoding="utf-8")
    found = predict_time(
        f"hf:{path}",
        precision="fp32",
        batch_size=BATCH,
        gpu="h100-80gb-sxm",
        input={"image_size": 128},
        attention="math",
    )
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)


def test_detectors_without_a_loss_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "pp_doclayout_v3", "architectures": ["PPDocLayoutV3ForObjectDetection"]}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(PrecisionTimeError, match="pp_doclayout_v3 has no loss in transformers"):
        predict_time(f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm")
