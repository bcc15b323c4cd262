"""Longformer and LED by their configs: FLOP of steps that really run, by PyTorch's counter."""

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

LONGFORMER: dict[str, Any] = {
    "model_type": "longformer", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 128, "attention_window": [16, 16],
}  # fmt: skip
LED: dict[str, Any] = {
    "model_type": "led", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 128,
    "attention_window": [16, 16],
}  # fmt: skip
SEQ, BATCH = 40, 2  # not a multiple of the window: the model pads


def estimate(folder: Path, config: dict[str, Any], **sizes: int) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    given = {"seq_len": SEQ, **sizes}
    return predict_time(
        f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input=given, attention="math"
    )


def really_trained(config: dict[str, Any], factory: str, head: str, given: int | None) -> tuple[int, int]:
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    model = getattr(transformers, factory).from_config(settings).train()
    shape = (BATCH, 4, SEQ) if head == "MultipleChoice" else (BATCH, SEQ)
    ids, one = torch.ones(shape, dtype=torch.long), torch.zeros(BATCH, dtype=torch.long)
    inputs = {"input_ids": ids}
    if head == "QuestionAnswering":
        inputs |= {"start_positions": one, "end_positions": one}
    else:
        inputs["labels"] = one if head in ("SequenceClassification", "MultipleChoice") else ids % 2
    if given is not None:
        inputs["global_attention_mask"] = torch.zeros_like(ids)
        inputs["global_attention_mask"][..., :given] = 1
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


@pytest.mark.parametrize(
    ("config", "head", "given", "sizes", "said"),
    [
        (LONGFORMER, "MaskedLM", None, {}, "no token attends"),
        (LONGFORMER, "TokenClassification", None, {}, "no token attends"),
        (LONGFORMER, "MaskedLM", 3, {"global_tokens": 3}, "3 tokens of a sequence attend"),
        (LONGFORMER, "SequenceClassification", None, {}, "1 token of a sequence attends"),  # the model finds it
        (LONGFORMER, "QuestionAnswering", 16, {}, "16 tokens of a sequence attend"),
        (LONGFORMER, "QuestionAnswering", 5, {"global_tokens": 5}, "5 tokens of a sequence attend"),
        (LONGFORMER, "MultipleChoice", 16, {}, "16 tokens of a sequence attend"),
        (LED, "ConditionalGeneration", None, {}, "no token attends"),
        (LED, "ConditionalGeneration", 1, {"global_tokens": 1}, "1 token of a sequence attends"),
    ],
)
def test_attention_within_windows_is_that_of_a_real_step(
    config: dict[str, Any], head: str, given: int | None, sizes: dict[str, int], said: str, tmp_path: Path
) -> None:
    factory = "AutoModelForSeq2SeqLM" if config is LED else f"AutoModelFor{head}"
    parameters, flops = really_trained(config, factory, head, given)
    name = {"led": "LED", "longformer": "Longformer"}[config["model_type"]]
    found = estimate(tmp_path, {**config, "architectures": [f"{name}For{head}"]}, **sizes)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == flops
    assert any(said in note and "all others (global attention" in note for note in found.assumptions)


def test_more_tokens_than_a_sequence_has_are_refused(tmp_path: Path) -> None:
    config = {**LONGFORMER, "architectures": ["LongformerForQuestionAnswering"]}
    with pytest.raises((JobError, CaptureError), match="global_tokens 50 is above seq_len 40"):
        estimate(tmp_path, config, global_tokens=50)
