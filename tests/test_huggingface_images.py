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
BLIP2: dict[str, Any] = {
    "model_type": "blip-2", "architectures": ["Blip2ForConditionalGeneration"], "num_query_tokens": 8,
    "image_token_index": 120, "vision_config": VISION,
    "qformer_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                       "encoder_hidden_size": 32, "vocab_size": 64},
    "text_config": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "ffn_dim": 96, "vocab_size": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 128},
}  # fmt: skip
AYA: dict[str, Any] = {
    "model_type": "aya_vision", "architectures": ["AyaVisionForConditionalGeneration"], "image_token_index": 120,
    "vision_config": {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
    "text_config": {"model_type": "cohere2", **TEXT, "eos_token_id": 1}, "downsample_factor": 2,
}  # fmt: skip
OVIS: dict[str, Any] = {
    "model_type": "ovis2", "architectures": ["Ovis2ForConditionalGeneration"], "image_token_id": 120, "hidden_size": 64,
    "vision_config": {**VISION, "vocab_size": 64, "hidden_stride": 2}, "text_config": {"model_type": "qwen2", **TEXT},
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "image_token_id": 120,
    "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
                      "patch_size": 16, "num_key_value_heads": 4, "head_dim": 8, "position_embedding_size": 64},
    "text_config": {**TEXT, "head_dim": 16, "global_head_dim": 16, "hidden_size_per_layer_input": 8,
                    "vocab_size_per_layer_input": 128, "num_global_key_value_heads": 2,
                    "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip
GIT: dict[str, Any] = {
    "model_type": "git", "architectures": ["GitForCausalLM"], "vision_config": VISION, "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
SEQ, BATCH = 24, 2


def estimate(folder: Path, config: dict[str, Any], **fields: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    given = {"seq_len": SEQ, **fields.pop("input", {})}
    return predict_time(f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input=given, **fields)


def really_trained(config: dict[str, Any], inputs: dict[str, Any], labels: Any = None) -> tuple[int, int]:
    """Parameters, and FLOP of one step that really runs on the CPU, by PyTorch's counter."""
    options = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **options), attn_implementation="eager"
    )
    with FlopCounterMode(display=False) as counter:
        model(**inputs, labels=inputs["input_ids"] if labels is None else labels).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def sequence(placeholders: int) -> Any:
    ids = torch.ones(BATCH, SEQ + placeholders, dtype=torch.long)
    ids[:, :placeholders] = 120
    return ids


@pytest.mark.filterwarnings("ignore:.*token_id must be")
@pytest.mark.parametrize(("config", "placeholders"), [(LLAVA, 16), (PALIGEMMA, 16), (BLIP2, 8), (AYA, 4), (OVIS, 4)])
def test_flops_and_weights_are_those_of_a_real_step(config: dict[str, Any], placeholders: int, tmp_path: Path) -> None:
    inputs = {"pixel_values": torch.zeros(BATCH, 3, 56, 56), "input_ids": sequence(placeholders)}
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    if config is not PALIGEMMA:
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


def test_patches_of_gemma_4_are_those_of_a_real_step(tmp_path: Path) -> None:
    side, placeholders = 6, 4  # 96 pixels in patches of 16, of which 3 x 3 become a token
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
    ids = sequence(placeholders)
    inputs = {"pixel_values": torch.zeros(BATCH, side * side, 3 * 16 * 16), "input_ids": ids,
              "image_position_ids": places.expand(BATCH, -1, -1), "mm_token_type_ids": (ids == 120).int()}  # fmt: skip
    parameters, flops = really_trained(GEMMA4, inputs)
    found = estimate(tmp_path, GEMMA4, input={"image_size": 96}, attention="math")
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)
    assert "1 image of 768 x 768 pixels, 256 tokens" in " ".join(estimate(tmp_path, GEMMA4).assumptions)
    with pytest.raises((JobError, CaptureError), match=r"squares of 48 pixels.*write image_size=96x96"):
        estimate(tmp_path, GEMMA4, input={"image_size": 100})


def test_captions_of_git_are_those_of_a_real_step(tmp_path: Path) -> None:
    options = {key: value for key, value in GIT.items() if key != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("git", **options))
    ids = torch.ones(BATCH, SEQ, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, pixel_values=torch.zeros(BATCH, 3, 56, 56)).loss.backward()
    found = estimate(tmp_path, GIT, attention="math")
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert "1 image of 56 x 56 pixels" in found.assumptions[0]


@pytest.mark.parametrize("kind", ["instructblip", "instructblipvideo"])
@pytest.mark.parametrize("written", [False, True])  # by a decoder, or by T5
def test_images_read_with_a_question_are_those_of_a_real_step(kind: str, written: bool, tmp_path: Path) -> None:
    text = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
            "vocab_size": 128, "decoder_start_token_id": 0}  # fmt: skip
    video = kind.endswith("video")
    config = {**BLIP2, "model_type": kind, "text_config": text if written else BLIP2["text_config"],
              "architectures": [f"InstructBlip{'Video' * video}ForConditionalGeneration"],
              "video_token_index" if video else "image_token_index": 120}  # fmt: skip
    frames, placeholders = (3, 24) if video else (1, 8)
    pixels, ids = torch.zeros(BATCH, frames, 3, 56, 56), sequence(placeholders)
    inputs = {"pixel_values": pixels if video else pixels[:, 0], "input_ids": ids,
              "qformer_input_ids": torch.zeros(BATCH, SEQ, dtype=torch.long)}  # fmt: skip
    labels = torch.ones(BATCH, 10, dtype=torch.long) if written else ids
    parameters, flops = really_trained(config, inputs, labels)
    found = estimate(tmp_path, config, attention="math", input={"frames": frames, "target_len": 10})
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)
    said = "1 video of 3 frames of 56 x 56" if video else "1 image of 56 x 56"
    assert f"{said} pixels, {placeholders} tokens" in found.assumptions[0]


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
