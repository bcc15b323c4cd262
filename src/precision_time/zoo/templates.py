"""Decoders of any shape: a stored step whose symbols are width, heads, vocabulary ... serves them without torch.

A template is captured with a few layers at a grid of shapes, as named models are at a grid of sizes (see
`capture.symbolic`). It serves `gpt(layers=.., hidden=.., heads=.., ...)` of any shape and every tensor- or
expert-parallel rank of the named decoders: a rank is the same model with fewer heads, a narrower feed-forward layer and
fewer experts. Which template a model follows is decided by the keys that choose operators (`operators_of`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from precision_time.capture.graph import OpGraph
from precision_time.capture.kinds import with_attribute
from precision_time.zoo.shallow import Shallow
from precision_time.zoo.tables.decoders import GPT, GPT_OSS, LLAMA, LORA, MLA, NEMOTRON
from precision_time.zoo.tables.open_decoders import GEMMA, GEMMA2, GEMMA3, MLA_LITE, PHI3, QWEN2
from precision_time.zoo.workload import Symbol

_SIZES = (
    Symbol("batch_size", (2, 3), 5, apart=1),
    Symbol("seq_len", (64, 96, 128), 160, degree=2),
    Symbol("hidden", (64, 96), 160),
    Symbol("heads", (4, 8), 16, apart=1, apart_with=("kv_heads",)),
    Symbol("head_dim", (16, 32), 48),
    Symbol("ffn", (80, 112), 208),
    Symbol("vocab", (320, 448), 640),
)
_KV_HEADS = Symbol("kv_heads", (2, 4), 8, apart=1)
_POSITIONS = Symbol("max_positions", (176, 272), 336)
_ROUTED = (
    Symbol("batch_size", (2, 3), 5, apart=1),
    Symbol("seq_len", (192, 256), 320),
    Symbol("hidden", (64, 96), 160),
    Symbol("heads", (4, 8), 16, apart=1, apart_with=("kv_heads",)),
    Symbol("vocab", (320, 448), 640),
    Symbol("moe_ffn", (48, 72), 104),
    Symbol("experts", (12, 16), 24),
    Symbol("local_experts", (4, 6), 10),
)
_SHARED = (Symbol("ffn", (80, 112), 208), Symbol("shared_ffn", (40, 56), 88))


@dataclass(frozen=True, slots=True)
class Template:
    """`fixed` keys of `model_config` choose the operators; `symbols` are the input sizes and the keys that vary.

    degree     the largest number of symbols whose product is a dimension; None: any number
    products   the products of symbols that are dimensions, numbers of elements or sums of such; empty: any
    """

    name: str
    builder: str
    fixed: Mapping[str, Any]
    symbols: tuple[Symbol, ...]
    attentions: tuple[str, ...] = ("flash",)
    degree: int | None = None
    products: tuple[tuple[str, ...], ...] = ()

    @property
    def grouped(self) -> bool:
        """Whether the number of key/value heads may differ from the number of heads."""
        return any(s.name == "kv_heads" for s in self.symbols)

    @property
    def shallow(self) -> Shallow:
        """The layers that the template was captured with, and the dense ones among them."""
        return Shallow.stored(self.fixed)

    def matches(self, builder: str, config: Mapping[str, Any]) -> bool:
        """Whether a model of this `model_config` runs the template's operators, whatever its depth."""
        alone = not self.grouped and self.fixed.get("attn") != "mla"
        if builder != self.builder or (alone and config.get("kv_heads") != config.get("heads")):
            return False
        head_dim = None if self.fixed.get("attn") == "mla" else self.fixed.get("head_dim")
        if head_dim not in (None, config.get("head_dim")):
            return False
        return operators_of(config) == operators_of(self.fixed)

    def sizes_of(self, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, int]:
        """The symbols' values of a model."""
        values = {**config, **sizes}
        if not values.get("local_experts"):
            values["local_experts"] = values.get("experts", 0)
        return {s.name: int(values[s.name]) for s in self.symbols}

    def with_values(self, graph: OpGraph, config: Mapping[str, Any]) -> OpGraph:
        """The step with the model's own probability of dropout and window, where the template has others."""
        kinds = graph.kinds
        if (stored := float(self.fixed["dropout"])) != (wanted := float(config["dropout"])):
            kinds = with_attribute(kinds, _PROBABILITIES, stored, wanted)
        if (window := _width(self.fixed)) != _width(config):
            kinds = with_attribute(kinds, ("window",), window, _width(config))
        return graph if kinds is graph.kinds else replace(graph, kinds=kinds)

    def config_at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The `model_config` to capture at these sizes."""
        shape = {name: value for name, value in sizes.items() if name not in ("batch_size", "seq_len")}
        shape.setdefault("kv_heads", shape["heads"])
        return {**self.fixed, **shape, **self.shallow.changes}


def _width(config: Mapping[str, Any]) -> int:
    """Tokens of the window."""
    return int(str(config["sliding_window"]).partition("_")[0])


_PROBABILITIES = ("p", "dropout_p")
"""Attributes that hold a probability of dropout."""
_WIDTHS = frozenset({
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "rope_theta", "max_positions",
    "experts", "local_experts", "moe_ffn", "shared_ffn", "dense_layers", "expert_groups", "topk_groups",
})  # fmt: skip
"""Keys that give sizes, or that no operator depends on."""
_ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "experts": ("topk", "router"),
    "pattern": ("mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state", "mamba_taps"),
    "lora": ("lora_dropout",),
}
"""Keys that are read where another one is set."""
_CAPS = ("attn_softcap", "logit_softcap")
_LATENT = ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v_head")
_SAME_OPERATORS: Mapping[tuple[str, Any], Any] = {
    ("act", "gelu_tanh"): "gelu",  # one kernel with another formula
    ("pos", "yarn_rope"): "rope",  # another table of rotations
    ("pos", "alibi"): "none",  # a number for each head that a fused kernel reads; others are traced
    ("attn_sink", "0"): "none",
}


def operators_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a decoder's `model_config` that choose its operators, in one spelling; 0 for experts it lacks.

    Left out are sizes, keys without effect beside the others, the probability of dropout and the caps beyond being
    positive, and the width of a window that some layers have.
    """
    config = {"rotary_percent": 1.0, **config}
    kept = {key: _SAME_OPERATORS.get((key, value), value) for key, value in config.items() if key not in _WIDTHS}
    for key, others in _ONLY_WITH.items():
        if not config.get(key):
            kept = {other: value for other, value in kept.items() if other not in others}
    _, part, layers = str(config["sliding_window"]).partition("_")
    if part:  # of any width, which is an attribute of attention
        kept["sliding_window"] = layers
    if kept["pos"] != "rope":
        kept.pop("rotary_percent")
    if config["attn"] == "mla":  # its own head sizes stand for head_dim
        kept.pop("fused_qkv", None)
    else:
        kept = {key: value for key, value in kept.items() if key not in _LATENT}
        kept.setdefault("fused_qkv", int(config["norm"] == "layernorm"))
    experts = bool(config["experts"])
    kept |= {key: experts and bool(config[key]) for key in ("experts", "shared_ffn", "dense_layers")}
    kept |= {key: float(kept[key]) > 0.0 for key in _CAPS if key in kept}
    return {**kept, "dropout": float(config["dropout"]) > 0.0}


_DECODER = "models.decoder:build"
_TOKENS = ("batch_size", "seq_len")
_PRODUCTS = (
    *((*_TOKENS, width) for width in ("hidden", "ffn", "vocab")),
    *((*_TOKENS, heads, "head_dim") for heads in ("heads", "kv_heads")),
    *(("hidden", heads, "head_dim") for heads in ("heads", "kv_heads")),
    *(("hidden", width) for width in ("ffn", "vocab", "max_positions")),
    (*_TOKENS, "seq_len", "heads"),
)
"""Activations, weights, and the scores of unfused attention."""
_DROPOUT = 0.1


def _dense() -> list[Template]:
    """GPT-like and Llama-like decoders: biases, a tied head, dropout and normalised queries in all combinations.

    Unfused attention ships for GPT-like decoders with as many key/value heads as heads: otherwise torch repeats them.
    """
    off_or_on = (0, 1)
    templates: list[Template] = []
    for pos, bias, tied, drop in itertools.product(("learned", "rope"), off_or_on, off_or_on, off_or_on):
        fixed = {**GPT, "pos": pos, "bias": bias, "tied_embeddings": tied, "dropout": drop * _DROPOUT}
        fixed = {key: value for key, value in fixed.items() if key != "max_positions"}
        sizes = (*_SIZES, _POSITIONS) if pos == "learned" else _SIZES
        name = _name("gpt", pos == "rope" and "rope", not bias and "nobias", not tied and "untied", drop and "dropout")
        templates.append(Template(name, _DECODER, fixed, (*sizes, _KV_HEADS), products=_PRODUCTS))
        if pos == "learned" and bias:
            templates.append(Template(f"{name}-math", _DECODER, fixed, sizes, ("math",), products=_PRODUCTS))
    for bias in off_or_on:
        fixed = {**GPT, "pos": "none", "bias": bias}
        fixed = {key: value for key, value in fixed.items() if key != "max_positions"}
        name = _name("gpt-nopos", not bias and "nobias")
        templates.append(Template(name, _DECODER, fixed, (*_SIZES, _KV_HEADS), products=_PRODUCTS))
    for norms, bias, tied, drop in itertools.product(off_or_on, off_or_on, off_or_on, off_or_on):
        fixed = {**LLAMA, "qk_norm": norms, "bias": bias, "tied_embeddings": tied, "dropout": drop * _DROPOUT}
        name = _name("qwen3" if norms else "llama", bias and "bias", tied and "tied", drop and "dropout")
        templates.append(Template(name, _DECODER, fixed, (*_SIZES, _KV_HEADS), products=_PRODUCTS))
    return templates


def _name(*parts: object) -> str:
    return "-".join(str(part) for part in parts if part)


def _routed(name: str, fixed: Mapping[str, Any], topk: int, *more: Symbol) -> Template:
    """A mixture of experts. Dimensions are products of up to three symbols (batch x tokens x width)."""
    routed = {**LLAMA, "experts": 1, "topk": topk, **fixed}
    return Template(name, _DECODER, routed, (*_ROUTED, *more), degree=3)


TEMPLATES: tuple[Template, ...] = (
    *_dense(),
    Template(
        "nemotron", _DECODER, {k: v for k, v in NEMOTRON.items() if k != "vocab"}, (*_SIZES, _KV_HEADS),
        products=_PRODUCTS,
    ),
    Template("qwen2", _DECODER, QWEN2, (*_SIZES, _KV_HEADS), products=_PRODUCTS),
    Template("qwen2-tied", _DECODER, {**QWEN2, "tied_embeddings": 1}, (*_SIZES, _KV_HEADS), products=_PRODUCTS),
    Template("phi3", _DECODER, PHI3, (*_SIZES, _KV_HEADS), products=_PRODUCTS),
    Template("gemma", _DECODER, GEMMA, (*_SIZES, _KV_HEADS), products=_PRODUCTS),
    Template(
        "gemma2", _DECODER, {**GEMMA2, "sliding_window": "512_every_second_layer"}, (*_SIZES, _KV_HEADS),
        products=_PRODUCTS,
    ),
    Template(
        "gemma3", _DECODER, {**GEMMA3, "sliding_window": "512_five_of_six"}, (*_SIZES, _KV_HEADS), products=_PRODUCTS,
    ),
    Template("llama-lora", _DECODER, LORA, (*_SIZES, _KV_HEADS), degree=4),
    _routed("mixtral", {"head_dim": 128}, 2, _KV_HEADS),
    _routed("qwen3-moe", {"head_dim": 128, "qk_norm": 1}, 8, _KV_HEADS),
    _routed("gpt-oss", {"head_dim": 64, **GPT_OSS}, 4, _KV_HEADS),
    _routed("deepseek", {**MLA, "dense_layers": 1, "shared_ffn": 1}, 8, *_SHARED),
    _routed("deepseek-lite", {**MLA_LITE, "dense_layers": 1, "shared_ffn": 1}, 6, *_SHARED),
)  # fmt: skip


def template_for(builder: str, config: Mapping[str, Any], attention: str) -> Template | None:
    """The template that a model follows, if any, whatever its depth."""
    return next((t for t in TEMPLATES if attention in t.attentions and t.matches(builder, config)), None)
