"""Models of text and images of Hugging Face: inputs, frozen parts, and FLOP against PyTorch's own counter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from precision_time import predict_time  # noqa: E402
from precision_time.errors import CaptureError, JobError  # noqa: E402
from precision_time.estimate.estimate import Estimate  # noqa: E402

TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "num_key_value_heads": 4, "vocab_size": 128}  # fmt: skip
VISION: dict[str, Any] = {"hidden_size": 32, "image_size": 56, "intermediate_size": 64, "num_attention_heads": 4,
                          "num_hidden_layers": 2, "patch_size": 14}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 120,
    "text_config": {"model_type": "llama", **TEXT}, "vision_feature_layer": -1,
    "vision_config": {"model_type": "clip_vision_model", **VISION, "projection_dim": 16},
}  # fmt: skip
PALIGEMMA: dict[str, Any] = {
    "model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"], "image_token_index": 120,
    "text_config": {"model_type": "gemma", **TEXT, "head_dim": 16}, "projection_dim": 64,
    "vision_config": {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 120,
    "text_config": {"model_type": "qwen2_5_vl_text", **TEXT, "rope_scaling": {"type": "mrope", "rope_type": "default",
                                                                              "mrope_section": [2, 3, 3]}},
    "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 64,
                      "patch_size": 14, "spatial_merge_size": 2, "window_size": 56, "fullatt_block_indexes": [1]},
}  # fmt: skip
SEQ, BATCH = 24, 2


def estimate(folder: Path, config: dict[str, Any], **fields: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    given = {"seq_len": SEQ, **fields.pop("input", {})}
    return predict_time(f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input=given, **fields)


def really_trained(config: dict[str, Any], inputs: dict[str, Any]) -> tuple[int, int]:
    """Parameters, and FLOP of one step that really runs on the CPU, by PyTorch's counter."""
    options = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **options), attn_implementation="eager"
    )
    with FlopCounterMode(display=False) as counter:
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def sequence(placeholders: int) -> Any:
    ids = torch.ones(BATCH, SEQ + placeholders, dtype=torch.long)
    ids[:, :placeholders] = 120
    return ids


@pytest.mark.parametrize(("config", "placeholders"), [(LLAVA, 16), (PALIGEMMA, 16)])
def test_flops_and_weights_are_those_of_a_real_step(config: dict[str, Any], placeholders: int, tmp_path: Path) -> None:
    inputs = {"pixel_values": torch.zeros(BATCH, 3, 56, 56), "input_ids": sequence(placeholders)}
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    if config is LLAVA:
        del inputs["token_type_ids"]
    parameters, flops = really_trained(config, inputs)
    found = estimate(tmp_path, config, attention="math")
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)
    assert f"1 image of 56 x 56 pixels, {placeholders} tokens" in " ".join(found.assumptions)


def test_patches_of_qwen_are_those_of_a_real_step(tmp_path: Path) -> None:
    rows, placeholders = 8, 16
    inputs = {"pixel_values": torch.zeros(BATCH * rows * rows, 3 * 2 * 14 * 14), "input_ids": sequence(placeholders),
              "image_grid_thw": torch.tensor([[1, rows, rows]] * BATCH)}  # fmt: skip
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == 120).int()
    parameters, flops = really_trained(QWEN, inputs)
    found = estimate(tmp_path, QWEN, input={"image_size": 112}, attention="math")
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)


def test_frozen_parts_have_no_gradient(tmp_path: Path) -> None:
    def states(freeze: str) -> float:
        found = estimate(tmp_path, LLAVA, model_config={"freeze": freeze})
        return sum(size for name, size in found.memory.by_category.items() if "optimizer" in name)

    found = {word: states(word) for word in ("none", "vision", "language", "both")}
    assert found["none"] > found["vision"] > found["both"] > 0
    assert found["none"] > found["language"] > found["both"]
    vision, language = found["none"] - found["vision"], found["none"] - found["language"]
    assert found["none"] - found["both"] == pytest.approx(vision + language)


def test_more_images_are_more_work_and_none_is_text_alone(tmp_path: Path) -> None:
    none, one, two = (estimate(tmp_path, LLAVA, input={"images": n}) for n in (0, 1, 2))
    assert "text alone" in " ".join(none.assumptions)
    assert sum(none.flops_per_step.values()) < sum(one.flops_per_step.values()) < sum(two.flops_per_step.values())


def test_an_image_that_patches_do_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        (JobError, CaptureError), match=r"image_size 100x100 does not divide .* write image_size=112x112"
    ):
        estimate(tmp_path, QWEN, input={"image_size": 100})


def test_a_part_that_the_model_lacks_cannot_be_frozen(tmp_path: Path) -> None:
    bert = {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    with pytest.raises(JobError, match="freeze 'vision': no weights of a vision tower"):
        estimate(tmp_path, bert, model_config={"freeze": "vision"})
