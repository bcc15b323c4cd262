"""Language, speech, tabular and decoder models: published parameter counts, and a step on the meta device."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precision_time.zoo.tables import decoders, diffusion, language, open_decoders, speech_and_tables  # noqa: E402
from precision_time.zoo.workload import Workload, ZooEntry  # noqa: E402

TABLES = (language, speech_and_tables, decoders, open_decoders, diffusion)
ENTRIES = {entry.name: entry for table in TABLES for entry in table.ENTRIES}
# The published count holds for another variant than the entry's default.
PUBLISHED_VARIANT: dict[str, dict[str, Any]] = {
    "bert-large": {"vocab": 30522},
    "bart-large": {"pre_norm": 0},
    "gpt3-175b": {"vocab": 50257},
}
TRAINED = [
    "bert-base", "bart-large", "t5-base", "transformer-xl-base", "transformer-xl-large", "jasper-10x5dr", "tft",
    "gpt2", "llama3-8b", "nemotron-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "llama2-70b-lora", "dit-xl-2",
    "qwen2.5-7b", "phi-4", "deepseek-v2-lite", "wav2vec2-base", "sdxl", "wan2.1-1.3b", "sd3-medium", "sd3.5-large",
    "gemma2-2b",
]  # fmt: skip
"""Beside the smallest model of each family, whose gradients tests/test_stored_sizes.py checks."""


def build(entry: ZooEntry, batch_size: int = 2, **config: Any) -> Workload:
    module, function = entry.builder.split(":")
    if module == "models.transformers_models":
        pytest.importorskip("transformers")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    with torch.device("meta"):
        workload = builder({**entry.config, **config}, {**entry.input, "batch_size": batch_size})
    assert isinstance(workload, Workload)
    return workload


def step(workload: Workload) -> None:
    with torch.device("meta"):
        for update in workload.updates or ():
            update.loss().backward()
        if not workload.updates:
            loss = workload.loss(workload.module, workload.inputs)
            assert loss.shape == ()
            loss.backward()


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", [e.name for e in ENTRIES.values() if e.parameters])
def test_parameter_count_is_the_published_one(name: str) -> None:
    entry = ENTRIES[name]
    built = count(build(entry, **PUBLISHED_VARIANT.get(name, {})).module)
    tolerance = 2e-3 if "rounded" in entry.parameters_source else 0.0
    assert abs(built - entry.parameters) <= tolerance * entry.parameters


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_count_has_a_source(entry: ZooEntry) -> None:
    assert bool(entry.parameters) == bool(entry.parameters_source)


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_runs_without_data(name: str) -> None:
    entry = ENTRIES[name]
    workload = build(entry, **({"layers": 2} if "layers" in entry.config else {}))
    step(workload)
    without = {n for n, p in workload.module.named_parameters() if p.requires_grad and p.grad is None}
    # TFT selects among a single static variable without a context: that context's weight is never used.
    assert without <= {"static_selection.joint.context.weight"}


@pytest.mark.parametrize("head", ["pretrain", "mlm", "squad", "ner", "classify"])
def test_bert_heads(head: str) -> None:
    step(build(ENTRIES["bert-base"], head=head, layers=1))


def test_the_text_model_of_stable_diffusion_runs_forward_alone() -> None:
    entry = ENTRIES["stable-diffusion-v2"]
    sizes = {"latent_size": 16}
    module, function = entry.builder.split(":")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    with torch.device("meta"):
        workload = builder({**entry.config, "text_encoder": 1}, {**entry.input, **sizes, "batch_size": 2})
    step(workload)
    frozen = {n for n, p in workload.module.named_parameters() if p.grad is None}
    assert frozen == {f"text_encoder.{n}" for n, _ in workload.module.text_encoder.named_parameters()}
    # transformers CLIPTextModel of stable-diffusion-2: 23 layers of width 1024
    assert count(workload.module.text_encoder) == 340_387_840


def test_unknown_head_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown head"):
        build(ENTRIES["bert-base"], head="tail", layers=1)


def test_electra_squad_has_no_generator() -> None:
    workload = build(ENTRIES["electra-base"], head="squad")
    assert count(workload.module) == 108_893_186  # transformers ElectraForQuestionAnswering
    assert count(build(ENTRIES["electra-base"]).module.discriminator) == 109_483_009  # ...ForPreTraining


def test_hifigan_generator_is_the_published_size() -> None:
    module = build(ENTRIES["hifigan"]).module
    assert count(module.generator) == pytest.approx(13.92e6, rel=2e-3)  # arXiv:2010.05646: V1, without weight norm


def test_hifigan_has_two_updates_that_share_one_generator_run() -> None:
    workload = build(ENTRIES["hifigan"])
    assert workload.updates is not None
    discriminator, generator = workload.updates
    assert not discriminator.frozen
    assert list(generator.frozen) == list(workload.module.discriminators.parameters())
    discriminator.loss().backward()
    assert all(p.grad is None for p in workload.module.generator.parameters())
    assert all(p.grad is not None for p in generator.frozen)
    generator.loss().backward()
    assert all(p.grad is not None for p in workload.module.generator.parameters())


def test_decoder_derives_what_the_shape_implies() -> None:
    """A one-layer GPT whose count is worked out by hand."""
    entry = ENTRIES["gpt"]
    shape: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "max_positions": 4}
    module, _ = entry.builder.split(":")
    builder = importlib.import_module(f"precision_time.zoo.{module}").build
    with torch.device("meta"):
        workload = builder(shape, {"batch_size": 1, "seq_len": 4})
    attention = (8 * 24 + 24) + (8 * 8 + 8)
    ffn = (8 * 32 + 32) + (32 * 8 + 8)
    assert count(workload.module) == 10 * 8 + 4 * 8 + 3 * 16 + attention + ffn


@pytest.mark.parametrize(
    "change",
    [
        {"qk_norm": 1},
        {"pos": "none"},
        {"kv_heads": 1},
        {"act": "swiglu", "norm": "rmsnorm"},
        {"tied_embeddings": 0},
        {"bias": "qkv"},
        {"act": "geglu", "norm": "rmsnorm", "post_norm": 1},
        {"sliding_window": "8_five_of_six"},
        {"pos": "alibi", "kv_heads": 1},
        {"attn_softcap": 50.0, "logit_softcap": 30.0, "mtp_layers": 1},
    ],
    ids=str,
)
def test_decoder_variants_run(change: dict[str, Any]) -> None:
    step(build(ENTRIES["gpt"], layers=1, **change))


def test_every_sixth_layer_has_no_window() -> None:
    from precision_time.zoo.models.decoder import window_of
    from precision_time.zoo.shallow import Shallow

    gemma = ENTRIES["gemma3-4b"].config
    windows = [window_of(gemma, layer) for layer in range(gemma["layers"])]
    assert windows[:7] == [1024] * 5 + [0, 1024]
    shallow = Shallow.of(gemma)
    traced = [windows[shallow.stands_for(layer, gemma["layers"])] for layer in range(gemma["layers"])]
    assert (shallow.few, traced) == (12, windows)


def test_every_second_layer_of_gemma_2_has_a_window() -> None:
    """The first has one, as transformers' Gemma2Config says."""
    from transformers import Gemma2Config

    from precision_time.zoo.models.decoder import window_of

    gemma = ENTRIES["gemma2-2b"].config
    kinds = ["sliding_attention" if window_of(gemma, layer) else "full_attention" for layer in range(gemma["layers"])]
    published = Gemma2Config()
    assert (kinds, window_of(gemma, 0)) == (published.layer_types, published.sliding_window)
    caps = (published.attn_logit_softcapping, published.final_logit_softcapping)
    assert (gemma["attn_softcap"], gemma["logit_softcap"]) == caps


@pytest.mark.parametrize("window", [0, 3])
def test_capped_attention_is_that_of_transformers(window: int) -> None:
    """On real tensors, with scores far above the cap."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    from precision_time.zoo.models.operators import capped_attention

    torch.manual_seed(0)
    query = 30 * torch.randn(2, 4, 6, 8)
    key, value = torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    mask = torch.full((6, 6), -1e4).triu(1) + (torch.full((6, 6), -1e4).tril(-window) if window else 0)
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    theirs, _ = eager_attention_forward(module, query, key, value, mask, scaling=8**-0.5, softcap=20.0)
    ours = capped_attention(query, key, value, window, 20.0, 0.0).transpose(1, 2)
    assert torch.allclose(ours, theirs, atol=1e-5)
    uncapped = capped_attention(query, key, value, window, 1e9, 0.0).transpose(1, 2)
    assert not torch.allclose(uncapped, theirs, atol=1e-2)


def test_alibi_is_that_of_transformers() -> None:
    """On real tensors, with grouped heads; the bias of MPT, written out."""
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    from precision_time.zoo.models.operators import alibi_attention

    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    bias = build_mpt_alibi_tensor(4, 6).view(1, 4, 1, 6)
    repeated = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    scores = query @ repeated[0].mT * 8**-0.5 + bias + torch.full((6, 6), -torch.inf).triu(1)
    slopes = [2.0 ** (-2.0 * head) for head in range(1, 5)]
    found = alibi_attention(query, key, value, slopes, 0.0)
    assert torch.allclose(found, scores.softmax(-1) @ repeated[1], atol=1e-5)
    plain = torch.nn.functional.scaled_dot_product_attention(query, *repeated, is_causal=True)
    assert not torch.allclose(found, plain, atol=1e-2)


def test_mpt_7b_with_alibi_has_the_count_of_its_weights() -> None:
    """mosaicml/mpt-7b has 6,649,286,656; its norms have no bias, which those of torch here have."""
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn": 16384, "vocab": 50432}
    shape |= {"bias": 0, "pos": "alibi"}
    assert count(build(ENTRIES["gpt"], **shape).module) == 6_649_286_656 + (2 * 32 + 1) * 4096


def test_logits_are_capped() -> None:
    from precision_time.zoo.models.decoder import build as build_decoder

    shape = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 11, "logit_softcap": 0.01}
    logits = build_decoder(shape, {"batch_size": 1, "seq_len": 4}).module(torch.tensor([[1, 2, 3, 4]]))
    assert 0.009 < logits.abs().max() <= 0.01


def test_decoder_computes_causal_attention() -> None:
    """On real tensors: a later token does not change earlier logits, with rotary positions and grouped
    heads.
    """
    from precision_time.zoo.models.decoder import build as build_decoder

    shape = {
        "layers": 1,
        "hidden": 16,
        "heads": 4,
        "kv_heads": 2,
        "vocab": 11,
        "pos": "rope",
        "act": "swiglu",
    }
    workload = build_decoder(shape, {"batch_size": 1, "seq_len": 6})
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    other = torch.tensor([[1, 2, 3, 4, 5, 7]])
    first, second = workload.module(ids), workload.module(other)
    assert torch.allclose(first[:, :-1], second[:, :-1])
    assert not torch.allclose(first[:, -1], second[:, -1])


def test_relative_shift_aligns_distances() -> None:
    """Row i of Transformer-XL's position scores starts query - 1 - i columns later."""
    from precision_time.zoo.models.transformer_xl import shift

    scores = torch.arange(12.0).view(1, 1, 3, 4)
    shifted = shift(scores)[0, 0]
    assert shifted[2].tolist() == scores[0, 0, 2].tolist()
    assert shifted[1, :3].tolist() == scores[0, 0, 1, 1:].tolist()
    assert shifted[0, :2].tolist() == scores[0, 0, 0, 2:].tolist()


HF_CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "image_size": 32,
    },
}


@pytest.mark.parametrize("model", HF_CONFIGS)
def test_hugging_face_config(model: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from precision_time.zoo.models.huggingface import build as build_hf

    path = tmp_path / "config.json"
    path.write_text(json.dumps(HF_CONFIGS[model]), encoding="utf-8")
    with torch.device("meta"):
        workload = build_hf({"path": str(path)}, {"batch_size": 2, "seq_len": 8})
    step(workload)
