"""Limits of whole models: legal keys whose product is absurd, and models too long to trace, are one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from precision_time import predict_time
from precision_time.errors import CaptureError, JobError
from precision_time.timeline import trace

ABSURD = (
    ({"layers": 10_000, "hidden": 10**6, "heads": 1000, "ffn": 10**7}, {}, "parameters at this model_config"),
    ({}, {"seq_len": 10**8, "attention": "math"}, "tensor of .* bytes"),
)
REFUSED = (
    ({"vocab": -1}, "model_config.vocab must be a whole number of tokens from 1"),
    ({"kv_heads": 0.5}, "model_config.kv_heads must be a whole number of heads"),
    ({"layers": 1e9}, "model_config.layers must be a whole number of layers from 1 to 10,000"),
    ({"hidden": "x"}, "model_config.hidden must be a whole number"),
    ({"heads": [1, 2]}, "model_config.heads must be a whole number"),
    ({"ffn": 1e308}, "model_config.ffn must be a whole number"),
    ({"hidden": 8}, "hidden=8 of gpt is not a multiple of heads=12"),
    ({"experts": 8, "topk": 9, "moe_ffn": 64}, "topk=9 of gpt is not from 1 to experts=8"),
    ({"experts": 8, "topk": 2}, "moe_ffn of gpt is 0"),
)


@pytest.mark.parametrize(("config", "words"), REFUSED)
def test_a_shape_that_cannot_be_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        predict_time("gpt", model_config=config)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("resnet50", {"image_size": -224}), ("resnet50", {"image_size": "1x2x3"}), ("unet3d", {"volume": 0}),
     ("bert-large", {"seq_len": "1..999999999999"}), ("gpt2", {"seq_len": 12.5}), ("dit-xl-2", {"latent_size": "x"})],
)  # fmt: skip
def test_input_sizes_that_cannot_be_are_refused(model: str, sizes: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=f"input.{next(iter(sizes))}"):
        predict_time(model, input=sizes)


@pytest.mark.parametrize(("config", "more", "words"), ABSURD)
def test_an_absurd_product_of_legal_sizes_is_refused(config: dict[str, Any], more: dict[str, Any], words: str) -> None:
    inputs = {key: value for key, value in more.items() if key == "seq_len"}
    rest = {key: value for key, value in more.items() if key != "seq_len"}
    with pytest.raises(JobError, match=words):
        predict_time("gpt", model_config=config, input=inputs, **rest)


def test_a_model_too_long_to_trace_is_refused_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from precision_time.capture import limits, tracer

    monkeypatch.setattr(tracer, "MOST_DISPATCHED", 200)
    with pytest.raises(CaptureError, match=r"more than 200 operators.*small-cct with layers=7: correct"):
        predict_time("small-cct", model_config={"layers": 7})
    monkeypatch.setattr(limits, "MOST_BUILT", 20)
    with pytest.raises(CaptureError, match=r"more than 20 operators.*layers=8"):
        predict_time("small-cct", model_config={"layers": 8})


def test_a_deep_decoder_costs_no_more_than_a_shallow_one() -> None:
    assert predict_time("gpt", model_config={"layers": 10_000}).step.p50 > predict_time("gpt").step.p50


@pytest.mark.parametrize("content", [{"num_hidden_layers": 10**9}, {"hidden_size": 1e30}, {"depths": [2, 10**6]}])
def test_numbers_of_a_hugging_face_config_are_bounded(content: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from precision_time.zoo.models.huggingface import check_numbers

    with pytest.raises(JobError, match=f"config.json has {next(iter(content))}"):
        check_numbers(content, "config.json")


def test_a_trace_that_would_be_huge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_EVENTS", 100)
    with pytest.raises(JobError, match=r"a trace of this step has [\d,]+ operators, and at most 100 are drawn"):
        predict_time("gpt2").trace_events()
    deep = predict_time(
        "llama3-70b", model_config={"layers": 1024}, gpus=512, layout="pp=512", grad_accum=5000, precision="bf16"
    )
    with pytest.raises(JobError, match=r"grad_accum makes 5,000 micro-batches, of which at most 4,370 on 512 stages"):
        deep.trace_events()


def test_networks_that_a_library_fixes_by_name_may_make_more_tensors() -> None:
    from precision_time.capture.limits import MOST_BUILT, MOST_BUILT_BY_NAME, most_built

    assert most_built("timm:maxvit_xlarge_tf_512") == MOST_BUILT_BY_NAME
    assert most_built("small-cct") == MOST_BUILT < MOST_BUILT_BY_NAME
