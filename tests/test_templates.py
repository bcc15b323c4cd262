"""Stored decoders whose shape is a symbol, against a capture at shapes that were never seen."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from precision_time.capture import symbolic, symbolic_fit  # noqa: E402
from precision_time.capture.graph import OpGraph  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.ship import DATA, REGIMES  # noqa: E402
from precision_time.zoo.templates import TEMPLATES, Template, template_for  # noqa: E402

VARIANTS = [(t, r, a) for t in TEMPLATES for a in t.attentions for r in REGIMES]
BUILDER = "models.decoder:build"


@cache
def stored(template: str, variant: str) -> dict[str, Any]:
    return symbolic.load(DATA / f"template-{template}.zip", variant)


@st.composite
def sizes(draw: Any, fewest: int) -> dict[str, int]:
    """Of a whole model or of a rank's part of it."""
    kv_heads = draw(st.integers(fewest, 6))
    return {
        "batch_size": draw(st.integers(fewest, 4)),
        "seq_len": 16 * draw(st.integers(1, 12)),
        "hidden": 8 * draw(st.integers(2, 24)),
        "heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "head_dim": 8 * draw(st.integers(1, 8)),
        "ffn": 8 * draw(st.integers(1, 40)),
        "vocab": 8 * draw(st.integers(1, 90)),
        "moe_ffn": 8 * draw(st.integers(1, 20)),
        "experts": draw(st.integers(8, 40)),
        "local_experts": draw(st.integers(fewest, 8)),
        "shared_ffn": 8 * draw(st.integers(1, 20)),
    }


def both(template: Template, regime: str, attention: str, at: dict[str, int]) -> tuple[OpGraph, OpGraph]:
    at = at if template.grouped else {**at, "kv_heads": at["heads"]}
    wanted = {s.name: at[s.name] for s in template.symbols}
    evaluated = symbolic.evaluate(stored(template.name, regime if attention == "flash" else f"{regime}.math"), wanted)
    inputs = {"batch_size": at["batch_size"], "seq_len": at["seq_len"]}
    entry = next(e for e in ENTRIES.values() if e.builder == template.builder)
    return evaluated, trace_entry(entry, template.config_at(wanted), inputs, regime, attention)


@pytest.mark.parametrize(
    ("template", "regime", "attention"), VARIANTS, ids=[f"{t.name}-{r}-{a}" for t, r, a in VARIANTS]
)
def test_a_template_is_the_model_at_that_shape(template: Template, regime: str, attention: str) -> None:
    @settings(max_examples=3)
    @given(sizes(2))
    def at(chosen: dict[str, int]) -> None:
        assert symbolic_fit.same_step(*both(template, regime, attention, chosen))

    at()


@pytest.mark.parametrize("template", TEMPLATES, ids=[t.name for t in TEMPLATES])
def test_sizes_of_one_differ_by_copies_only(template: Template) -> None:
    """A single head or sample lets torch view where it copies otherwise: the stored step has those copies too many."""
    one = {"batch_size": 1, "seq_len": 32, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 80,
           "vocab": 320, "moe_ffn": 24, "experts": 16, "local_experts": 4, "shared_ffn": 40}  # fmt: skip
    evaluated, traced = both(template, "half", "flash", one)

    def counted(graph: OpGraph) -> Counter[str]:
        return Counter(graph.kinds[c.kind].name for c in graph.calls)

    extra = counted(evaluated)
    extra.subtract(counted(traced))
    assert {name for name, count in extra.items() if count} <= {"aten.clone", "aten.sum"}
    assert all(count >= 0 for count in extra.values())


def test_named_decoders_have_a_template() -> None:
    named = [e for e in ENTRIES.values() if e.builder == BUILDER]
    without = {e.name for e in named if template_for(BUILDER, e.config, "flash") is None}
    assert without == {"nemotron-3-nano"}  # a hybrid
    assert template_for(BUILDER, ENTRIES["llama3-8b"].config, "math") is None  # traced, which needs torch
    assert template_for("models.vision:build", ENTRIES["llama3-8b"].config, "flash") is None


def test_what_changes_the_operators_changes_the_template() -> None:
    llama = dict(ENTRIES["llama3-8b"].config)
    assert template_for(BUILDER, llama, "flash").name == "llama"  # type: ignore[union-attr]
    assert template_for(BUILDER, {**llama, "qk_norm": 1}, "flash").name == "qwen3"  # type: ignore[union-attr]
    assert template_for(BUILDER, {**llama, "act": "gelu"}, "flash") is None
    assert template_for(BUILDER, {**llama, "rope_theta": 1.0, "layers": 7}, "flash").name == "llama"  # type: ignore[union-attr]
    gpt = dict(ENTRIES["gpt"].config)
    assert template_for(BUILDER, {**gpt, "kv_heads": 3}, "flash") is None
    assert template_for(BUILDER, {**gpt, "max_positions": 4096}, "flash") is None
