"""Stored decoders whose shape is a symbol, against a capture at shapes that were never seen."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from precision_time.capture import symbolic, symbolic_fit  # noqa: E402
from precision_time.capture.graph import OpGraph  # noqa: E402
from precision_time.capture.stored_apart import member_at  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.ship import DATA, REGIMES  # noqa: E402
from precision_time.zoo.templates import TEMPLATES, Template, template_for  # noqa: E402

VARIANTS = [(t, r, a) for t in TEMPLATES for a in t.attentions for r in REGIMES]
BUILDER = "models.decoder:build"


@cache
def stored(template: str, member: str) -> dict[str, Any]:
    return symbolic.load(DATA / f"template-{template}.zip", member)


def evaluated_at(template: str, variant: str, sizes: dict[str, int]) -> OpGraph:
    member = member_at(f"zoo/data/template-{template}.zip", variant, sizes)
    return symbolic.evaluate(stored(template, member), sizes)


def sizes(number: Callable[[int, int], int]) -> dict[str, int]:
    """Of a whole model or of a rank's part of it; `number` chooses between two bounds."""
    kv_heads = number(1, 6)
    return {
        "batch_size": number(1, 4),
        "seq_len": 16 * number(1, 12),
        "hidden": 8 * number(2, 24),
        "heads": kv_heads * number(1, 3),
        "kv_heads": kv_heads,
        "head_dim": 8 * number(1, 8),
        "ffn": 8 * number(1, 40),
        "vocab": 8 * number(1, 90),
        "max_positions": 192 + 8 * number(0, 40),
        "moe_ffn": 8 * number(1, 20),
        "experts": number(8, 40),
        "local_experts": number(1, 8),
        "shared_ffn": 8 * number(1, 20),
    }


SMALLEST = sizes(min)
"""One sample, one head, one key-value head: there torch views what it copies otherwise; see `stored_apart`."""


def both(template: Template, regime: str, attention: str, at: dict[str, int]) -> tuple[OpGraph, OpGraph]:
    at = at if template.grouped else {**at, "kv_heads": at["heads"]}
    wanted = {s.name: at[s.name] for s in template.symbols}
    evaluated = evaluated_at(template.name, regime if attention == "flash" else f"{regime}.math", wanted)
    inputs = {"batch_size": at["batch_size"], "seq_len": at["seq_len"]}
    entry = next(e for e in ENTRIES.values() if e.builder == template.builder)
    return evaluated, trace_entry(entry, template.config_at(wanted), inputs, regime, attention)


every_variant = pytest.mark.parametrize(
    ("template", "regime", "attention"), VARIANTS, ids=[f"{t.name}-{r}-{a}" for t, r, a in VARIANTS]
)


@every_variant
def test_a_template_is_the_model_at_that_shape(template: Template, regime: str, attention: str) -> None:
    """At the smallest shape and at one of its own, always the same."""
    chosen = sizes(random.Random(f"{template.name} {regime} {attention}").randint)
    for at in (SMALLEST, chosen):
        assert symbolic_fit.same_step(*both(template, regime, attention, at)), at


@pytest.mark.slow
@every_variant
def test_a_template_is_the_model_at_many_shapes(template: Template, regime: str, attention: str) -> None:
    @settings(max_examples=10)
    @given(st.data())
    def at(data: st.DataObject) -> None:
        chosen = sizes(lambda least, most: data.draw(st.integers(least, most)))
        assert symbolic_fit.same_step(*both(template, regime, attention, chosen))

    at()


ONES = ({"batch_size": 1}, {"kv_heads": 1}, {"heads": 1, "kv_heads": 1})


@pytest.mark.parametrize("template", TEMPLATES, ids=[t.name for t in TEMPLATES])
def test_a_template_with_one_head_or_sample(template: Template) -> None:
    """One of these alone, or the heads; all of them are one at the smallest shape above."""
    usual = {"batch_size": 2, "seq_len": 32, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 80,
             "vocab": 320, "max_positions": 48, "moe_ffn": 24, "experts": 16, "local_experts": 4,
             "shared_ffn": 40}  # fmt: skip
    for number, ones in enumerate(ONES):
        regime = REGIMES[(number + len(template.name)) % len(REGIMES)]
        assert symbolic_fit.same_step(*both(template, regime, template.attentions[0], {**usual, **ones}))


def test_named_decoders_have_a_template() -> None:
    named = [e for e in ENTRIES.values() if e.builder == BUILDER]
    without = {e.name for e in named if template_for(BUILDER, e.config, "flash") is None}
    assert without == {"nemotron-3-nano"}  # a hybrid
    assert template_for(BUILDER, ENTRIES["llama3-8b"].config, "math") is None  # traced, which needs torch
    assert template_for("models.vision:build", ENTRIES["llama3-8b"].config, "flash") is None


def test_what_changes_the_operators_changes_the_template() -> None:
    def name(config: dict[str, Any], attention: str = "flash") -> str | None:
        template = template_for(BUILDER, config, attention)
        return template and template.name

    llama, gpt = dict(ENTRIES["llama3-8b"].config), dict(ENTRIES["gpt"].config)
    assert name(llama) == "llama"
    assert name({**llama, "rope_theta": 1.0, "layers": 7, "pos": "yarn_rope", "topk": 3}) == "llama"
    assert name({**llama, "qk_norm": 1, "tied_embeddings": 1, "dropout": 0.3}) == "qwen3-tied-dropout"
    assert name({**llama, "act": "gelu"}) is None
    assert name({**llama, "rotary_percent": 0.5}) is None
    assert name({**llama, "mtp_layers": 1}) is None
    assert name(gpt) == "gpt"
    assert name({**gpt, "kv_heads": 3, "max_positions": 4096, "act": "gelu_tanh", "q_lora": 7}) == "gpt"
    assert name({**gpt, "dropout": 0.2}, "math") == "gpt-dropout-math"
    assert name({**gpt, "kv_heads": 3}, "math") is None
    assert name({**gpt, "pos": "rope", "bias": 0, "tied_embeddings": 0}) == "gpt-rope-nobias-untied"
    assert name({**gpt, "pos": "alibi", "bias": 0}) == name({**gpt, "pos": "none", "bias": 0}) == "gpt-nopos-nobias"
    assert name({**gpt, "pos": "alibi", "bias": 0}, "math") is None  # there the bias is added to the scores
    assert name({**ENTRIES["mixtral-8x7b"].config, "head_dim": 64}) is None
    gemma = ENTRIES["gemma3-4b"].config
    assert name({**gemma, "sliding_window": "256_five_of_six"}) == "gemma3"
    assert name({**gemma, "sliding_window": "256_every_second_layer"}) is None
    capped = ENTRIES["gemma2-9b"].config
    assert name({**capped, "sliding_window": "256_every_second_layer", "attn_softcap": 20.0}) == "gemma2"
    assert name({**capped, "logit_softcap": 0.0}) is None
    assert name({**llama, "bias": "qkv"}) == "qwen2"
    assert name({**llama, "bias": "qkv", "qk_norm": 1}) is None
    assert len({t.name for t in TEMPLATES}) == len(TEMPLATES)


def test_a_template_serves_windows_of_any_width() -> None:
    shape = {"layers": 12, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 80, "vocab": 320}
    config = {**ENTRIES["gemma3-4b"].config, **shape, "sliding_window": "96_five_of_six"}
    template = template_for(BUILDER, config, "flash")
    assert template is not None
    sizes = template.sizes_of(config, {"batch_size": 2, "seq_len": 128})
    found = template.with_values(evaluated_at(template.name, "half", sizes), config)
    traced = trace_entry(ENTRIES["gemma3-4b"], config, {"batch_size": 2, "seq_len": 128}, "half", "flash")
    assert symbolic_fit.same_step(found, traced)
    assert {kind.int_attr("window", 0) for kind in found.kinds if "attention" in kind.name} == {0, 96}


@pytest.mark.parametrize("changes", [
    {"dropout": 0.25},
    {"act": "gelu_tanh", "dropout": 0.1},
    {"max_positions": 96},  # shorter than the sequence: as torch shapes it
    {"pos": "rope", "max_positions": 7, "lora_dropout": 0.5},
    {"pos": "alibi", "dropout": 0.0},
], ids=str)  # fmt: skip
def test_a_template_serves_other_words_for_its_operators(changes: dict[str, Any]) -> None:
    config = {**ENTRIES["gpt"].config, "layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 80}
    config |= {"vocab": 320, **changes}
    template = template_for(BUILDER, config, "flash")
    assert template is not None
    sizes = template.sizes_of(config, {"batch_size": 2, "seq_len": 128})
    found = template.with_values(evaluated_at(template.name, "half", sizes), config)
    traced = trace_entry(ENTRIES["gpt"], config, {"batch_size": 2, "seq_len": 128}, "half", "flash")
    assert symbolic_fit.same_step(found, traced)
