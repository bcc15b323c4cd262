"""Configs of Hugging Face: head and inputs of each architecture, what is assumed, and what is refused."""

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
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.hf_families import family_of_config  # noqa: E402

SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48}
TEXT: dict[str, Any] = {**SMALL, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300}


def estimate(folder: Path, config: dict[str, Any], **fields: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return predict_time(f"hf:{path}", precision="bf16", batch_size=2, gpu="h100-80gb-sxm", **fields)


def test_text_alone_trains_the_language_model_of_a_model_with_images(tmp_path: Path) -> None:
    vision = {**SMALL, "image_size": 28, "patch_size": 14}
    both = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {"model_type": "gemma3_text", **TEXT}, "vision_config": vision}  # fmt: skip
    found = estimate(tmp_path, both, input={"images": 0})
    alone = estimate(tmp_path, {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], **TEXT})
    assert "text alone" in " ".join(found.assumptions)
    assert found.parameters > alone.parameters  # the vision tower is there
    trained = [{k: v for k, v in each.memory.by_category.items() if "optimizer" in k} for each in (found, alone)]
    assert trained[0] == trained[1] != {}  # and is frozen
    assert found.step.p50 == pytest.approx(alone.step.p50, rel=0.1)


def test_whisper_reads_thirty_seconds_of_sound(tmp_path: Path) -> None:
    shape = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 300,
             "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}  # fmt: skip
    whisper = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], **shape}
    short, long = (
        estimate(tmp_path, {**whisper, "max_source_positions": n}, input={"target_len": 16}) for n in (500, 1500)
    )
    assert sum(long.flops_per_step.values()) > 2 * sum(short.flops_per_step.values())


def test_every_pixel_has_a_label_in_segmentation(tmp_path: Path) -> None:
    shape = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
             "decoder_hidden_size": 16}  # fmt: skip
    segformer = {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"], **shape}
    found = estimate(tmp_path, segformer, input={"image_size": 64})
    assert not found.unsupported


def test_classes_of_deberta_need_no_data(tmp_path: Path) -> None:
    shape = {**SMALL, "vocab_size": 300, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    deberta = {"model_type": "deberta-v2", "architectures": ["DebertaV2ForSequenceClassification"], **shape}
    assert estimate(tmp_path, {**deberta, "id2label": {"0": "a", "1": "b", "2": "c"}}).step.p50 > 0


@pytest.mark.parametrize(("names", "said"), [
    ([], "trained as MaskedLM, since its config names no architecture"),
    (["BertModel"], "trained as MaskedLM, since its config names BertModel, which has no loss"),
    (["BertForMaskedLM"], None),
])  # fmt: skip
def test_a_head_that_nobody_named_is_said(names: list[str], said: str | None, tmp_path: Path) -> None:
    found = estimate(tmp_path, {"model_type": "bert", "architectures": names, **SMALL, "vocab_size": 300})
    heads = [note for note in found.assumptions if note.startswith("trained as")]
    assert heads == ([said] if said else [])


DETECTOR: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                            "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
                            "num_queries": 20}  # fmt: skip
HEADS: dict[str, tuple[dict[str, Any], dict[str, int], str]] = {
    "BertForMultipleChoice": ({"model_type": "bert", **SMALL, "vocab_size": 300}, {}, "4 choices"),
    "Wav2Vec2ForCTC": ({"model_type": "wav2vec2", **SMALL, "num_conv_pos_embedding_groups": 2},
                       {"audio_samples": 8000, "target_len": 10}, "8,000 values of sound"),
    "HubertForSequenceClassification": ({"model_type": "hubert", **SMALL, "num_conv_pos_embedding_groups": 2},
                                        {"audio_samples": 8000}, "8,000 values of sound"),
    "DetrForObjectDetection": ({"model_type": "detr", **DETECTOR}, {"image_size": 64}, "matched to boxes on the host"),
    "YolosForObjectDetection": ({"model_type": "yolos", **SMALL, "image_size": [64, 64], "patch_size": 16,
                                 "num_detection_tokens": 20}, {}, "matched to boxes on the host"),
    "ViTForMaskedImageModeling": ({"model_type": "vit", **SMALL, "image_size": 32}, {}, ""),
    "VideoMAEForVideoClassification": ({"model_type": "videomae", **SMALL, "image_size": 32}, {"frames": 16}, ""),
    "CLIPModel": ({"model_type": "clip", "text_config": TEXT, "vision_config": {**SMALL, "image_size": 32}}, {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_heads_and_what_their_inputs_are(name: str, tmp_path: Path) -> None:
    config, sizes, said = HEADS[name]
    found = estimate(tmp_path, {**config, "architectures": [name]}, input=sizes)
    assert not found.unsupported
    assert said in " ".join(found.assumptions)


SPEAKS: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
                          "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 300,
                          "num_labels": 2}  # fmt: skip
T5: dict[str, Any] = {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
                      "vocab_size": 300, "num_labels": 2}  # fmt: skip
REAL: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "BartForSequenceClassification": ("SequenceClassification", {"model_type": "bart", **SPEAKS}, {"seq_len": 16}),
    "T5ForSequenceClassification": ("SequenceClassification", T5, {"seq_len": 16}),
    "XLNetForQuestionAnsweringSimple": ("QuestionAnswering", {
        "model_type": "xlnet", "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48, "vocab_size": 300},
        {"seq_len": 16}),
    "WhisperForAudioClassification": ("AudioClassification", {
        "model_type": "whisper", **SPEAKS, "max_source_positions": 40, "num_mel_bins": 16}, {}),
    "MoonshineForConditionalGeneration": ("SpeechSeq2Seq", {
        "model_type": "moonshine", "hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
        "vocab_size": 300}, {"audio_samples": 8000, "target_len": 10}),
    "Siglip2ForImageClassification": ("ImageClassification", {
        "model_type": "siglip2", "num_labels": 2,
        "vision_config": {**SMALL, "num_patches": 16, "patch_size": 8, "num_channels": 3}}, {}),
    "AlbertForPreTraining": ("PreTraining", {
        "model_type": "albert", **SMALL, "embedding_size": 16, "vocab_size": 300}, {"seq_len": 16}),
}  # fmt: skip


def really_trained(name: str) -> tuple[int, int]:
    """Parameters and FLOP of one step of two samples that really runs, by PyTorch's counter."""
    head, config, sizes = REAL[name]
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    settings.update({"decoder_start_token_id": 0, "pad_token_id": 0})
    model = getattr(transformers, f"AutoModelFor{head}").from_config(settings, attn_implementation="eager").train()
    ids, one = torch.full((2, sizes.get("seq_len", 10)), 5), torch.zeros(2, dtype=torch.long)
    ids[:, -1] = getattr(settings, "eos_token_id", None) or 0
    inputs: dict[str, Any] = {"input_ids": ids, "labels": one}
    if head == "QuestionAnswering":
        inputs = {"input_ids": ids, "start_positions": one, "end_positions": one}
    elif head == "AudioClassification":
        inputs = {"input_features": torch.zeros(2, 16, 80), "labels": one}
    elif head == "SpeechSeq2Seq":
        inputs = {"input_values": torch.zeros(2, 8000), "labels": ids}
    elif head == "ImageClassification":
        inputs = {"pixel_values": torch.zeros(2, 16, 192), "pixel_attention_mask": torch.ones(2, 16), "labels": one,
                  "spatial_shapes": torch.tensor([[4, 4], [4, 4]])}  # fmt: skip
    elif head == "PreTraining":
        inputs = {"input_ids": ids, "labels": ids, "sentence_order_label": one}
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


@pytest.mark.parametrize("name", REAL)
def test_heads_are_those_of_a_real_step(name: str, tmp_path: Path) -> None:
    parameters, flops = really_trained(name)
    _, config, sizes = REAL[name]
    found = estimate(tmp_path, {**config, "architectures": [name]}, input=sizes, attention="math")
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)


def test_a_detector_that_keeps_boxes_in_fp32_is_refused_in_pure_half_as_pytorch_does(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"model_type": "d_fine", "num_queries": 20, "decoder_layers": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**shape, "architectures": ["DFineForObjectDetection"]}), encoding="utf-8")
    given: dict[str, Any] = {"batch_size": 2, "gpu": "h100-80gb-sxm", "input": {"image_size": 64}}
    found = predict_time(f"hf:{path}", precision="amp-bf16", **given)
    assert "matched to boxes on the host" in " ".join(found.assumptions)
    sentence = r"DFineForObjectDetection \(model_type d_fine\) multiplies tensors of fp32 .*; write precision amp-bf16"
    with pytest.raises(CaptureError, match=sentence):
        predict_time(f"hf:{path}", precision="bf16", **given)
    settings = transformers.AutoConfig.for_model(**shape)
    model = transformers.AutoModelForObjectDetection.from_config(settings).bfloat16().train()
    labels = [{"class_labels": torch.tensor([0]), "boxes": torch.full((1, 4), 0.3, dtype=torch.bfloat16)}] * 2
    with pytest.raises(RuntimeError, match="same dtype"):
        model(pixel_values=torch.zeros(2, 3, 64, 64, dtype=torch.bfloat16), labels=labels)


def test_choices_are_sequences_of_their_own(tmp_path: Path) -> None:
    bert = {"model_type": "bert", **SMALL, "num_hidden_layers": 8, "vocab_size": 300}
    four, one = (
        sum(estimate(tmp_path, {**bert, "architectures": [name]}).flops_per_step.values())
        for name in ("BertForMultipleChoice", "BertForNextSentencePrediction")
    )
    assert four == pytest.approx(4 * one, rel=0.02)


@pytest.mark.parametrize("name", ["Mask2FormerForUniversalSegmentation", "BertForSomethingElse"])
def test_a_head_of_unknown_loss_is_refused_and_never_another_job(name: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=f"architecture '{name}' has a head whose loss is not known"):
        estimate(tmp_path, {"model_type": "bert", "architectures": [name], **SMALL})


@pytest.mark.parametrize(("config", "sentence"), [
    ({"model_type": "kimi_vl", "architectures": ["KimiVLForConditionalGeneration"]},
     r"model_type 'kimi_vl' is not among the \d{3,} of transformers .*never run here; nearest: .*kimi_k25"),
    ({"model_type": "nemotron", "architectures": ["NemotronForCausalLM"], "num_attention_heads": 0},
     r"transformers cannot build NemotronForCausalLM \(model_type nemotron\) from this config \(.*; complete the file"),
    ({"model_type": "splinter", "architectures": ["SplinterForPreTraining"], **SMALL},
     r"SplinterForPreTraining \(model_type splinter\) decides by values of its data .*; give your own module"),
    ({"model_type": "lxmert", "architectures": ["LxmertForPreTraining"], **SMALL},
     r"LxmertForPreTraining .* made for its head, input_ids, labels \(ValueError: .visual_feats. cannot be .None."),
    ({"model_type": "flava", "architectures": ["FlavaForPreTraining"]},
     r"FlavaForPreTraining returns no loss for input_ids, labels.*; give your own module .* and a loss"),
])  # fmt: skip
def test_a_model_that_is_refused_is_named_with_the_reason(
    config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises((JobError, CaptureError), match=sentence):
        estimate(tmp_path, config)


@pytest.mark.parametrize(("config", "family"), [
    ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "llama"),
    ({"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}, "decoder"),
    ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, "decoder"),
    ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "gemma"),
    ({"model_type": "funnel", "architectures": ["FunnelForMaskedLM"]}, "hf"),
    ({"model_type": ["bert"], "architectures": 5, "text_config": 3}, "hf"),
])  # fmt: skip
def test_the_family_of_a_config(config: dict[str, Any], family: str) -> None:
    assert family_of_config(config) == family
    assert family in {"hf", "decoder", *(entry.family for entry in ENTRIES.values())}


def test_a_decoder_of_hugging_face_is_as_sure_as_one_of_the_zoo(tmp_path: Path) -> None:
    """Not as unsure as a step in pure half precision of any other network: that is a factor of two."""
    shape = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4, "intermediate_size": 14336}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape, "vocab_size": 32000}
    found = estimate(tmp_path, llama, input={"seq_len": 2048})
    zoo = predict_time("llama3-8b", precision="bf16", batch_size=2, gpu="h100-80gb-sxm", input={"seq_len": 2048})
    assert found.step.p90 / found.step.p50 == pytest.approx(zoo.step.p90 / zoo.step.p50, rel=0.1)


def test_a_folder_is_the_config_in_it(tmp_path: Path) -> None:
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT}
    by_file = estimate(tmp_path, llama)
    by_folder = predict_time(f"hf:{tmp_path}", precision="bf16", batch_size=2, gpu="h100-80gb-sxm")
    assert by_folder.step == by_file.step
    (tmp_path / "config.json").unlink()
    with pytest.raises(JobError, match=r"there is no file .*config\.json; give the path of a Hugging Face config"):
        predict_time(f"hf:{tmp_path}")
