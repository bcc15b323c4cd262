"""Decoders of any shape: a stored step whose symbols are width, heads, vocabulary ... serves them without torch.

A template is captured with a few layers at a grid of shapes, as named models are at a grid of sizes (see
`capture.symbolic`). It serves `gpt(layers=.., hidden=.., heads=.., ...)` of any shape and every tensor- or
expert-parallel rank of the named decoders: a rank is the same model with fewer heads, a narrower feed-forward layer and
fewer experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.zoo.shallow import Shallow
from precision_time.zoo.tables.decoders import GPT, GPT2, GPT_OSS, LLAMA, LORA, MLA, NEMOTRON
from precision_time.zoo.workload import Symbol

_SIZES = (
    Symbol("batch_size", (2, 3), 5),
    Symbol("seq_len", (64, 96, 128), 160, degree=2),
    Symbol("hidden", (64, 96), 160),
    Symbol("heads", (4, 8), 16),
    Symbol("head_dim", (16, 32), 48),
    Symbol("ffn", (80, 112), 208),
    Symbol("vocab", (320, 448), 640),
)
_GROUPED = (*_SIZES, Symbol("kv_heads", (2, 4), 8))


_ROUTED = (
    Symbol("batch_size", (2, 3), 5),
    Symbol("seq_len", (192, 256), 320),
    Symbol("hidden", (64, 96), 160),
    Symbol("heads", (4, 8), 16),
    Symbol("vocab", (320, 448), 640),
    Symbol("moe_ffn", (48, 72), 104),
    Symbol("experts", (12, 16), 24),
    Symbol("local_experts", (4, 6), 10),
)
_KV_HEADS = Symbol("kv_heads", (2, 4), 8)


@dataclass(frozen=True, slots=True)
class Template:
    """`fixed` keys of `model_config` choose the operators; `symbols` are the input sizes and the keys that vary.

    degree   the largest number of symbols whose product is a dimension; None: any number
    """

    name: str
    builder: str
    fixed: Mapping[str, Any]
    symbols: tuple[Symbol, ...]
    attentions: tuple[str, ...] = ("flash",)
    degree: int | None = None

    @property
    def _free(self) -> set[str]:
        """Keys that vary, and those on which no operator depends."""
        free = {s.name for s in self.symbols} | {"layers", "rope_theta", "kv_heads"}
        if self.fixed.get("attn") == "mla":
            free |= {"head_dim"}
        if self.fixed.get("experts") and not self.fixed.get("dense_layers"):
            free |= {"ffn"}
        return free | {"dense_layers"}

    @property
    def grouped(self) -> bool:
        """Whether the number of key/value heads differs from the number of heads."""
        return any(s.name == "kv_heads" for s in self.symbols)

    @property
    def shallow(self) -> Mapping[str, Any]:
        """The number of traced layers, and of dense ones among them, as keys of `model_config`."""
        changes = Shallow.of({**self.fixed, "layers": 10**6}).changes
        return {"dense_layers": 0, **changes}

    def matches(self, builder: str, config: Mapping[str, Any]) -> bool:
        """Whether a model of this `model_config` runs the template's operators, whatever its depth."""
        alone = not self.grouped and self.fixed.get("attn") != "mla"
        if builder != self.builder or (alone and config.get("kv_heads") != config.get("heads")):
            return False
        if any(bool(config.get(key, 0)) != bool(self.fixed.get(key, 0)) for key in _CHOICES):
            return False
        fixed = (set(config) | set(self.fixed)) - self._free
        return all(config.get(key, 0) == self.fixed.get(key, 0) for key in fixed)

    def is_as_deep(self, config: Mapping[str, Any]) -> bool:
        """Whether a model has the template's few layers."""
        return all(config.get(key, 0) == value for key, value in self.shallow.items())

    def sizes_of(self, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, int]:
        """The symbols' values of a model."""
        values = {**config, **sizes}
        if not values.get("local_experts"):
            values["local_experts"] = values.get("experts", 0)
        return {s.name: int(values[s.name]) for s in self.symbols}

    def config_at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The `model_config` to capture at these sizes."""
        shape = {name: value for name, value in sizes.items() if name not in ("batch_size", "seq_len")}
        shape.setdefault("kv_heads", shape["heads"])
        return {**self.fixed, **shape, **self.shallow}


_CHOICES = ("experts", "shared_ffn", "dense_layers")
"""Keys that change the operators where they are zero, also where they are symbols."""
_DECODER = "models.decoder:build"


def _routed(name: str, fixed: Mapping[str, Any], topk: int, *more: Symbol) -> Template:
    """A mixture of experts. Dimensions are products of up to three symbols (batch x tokens x width)."""
    routed = {**LLAMA, "experts": 1, "topk": topk, **fixed}
    return Template(name, _DECODER, routed, (*_ROUTED, *more), degree=3)


TEMPLATES: tuple[Template, ...] = (
    Template("gpt", _DECODER, GPT, _SIZES, ("flash", "math")),
    Template("gpt-dropout", _DECODER, {**GPT, "dropout": 0.1}, _SIZES, ("flash", "math")),
    Template("gpt2", _DECODER, {k: v for k, v in GPT2.items() if k != "vocab"}, _SIZES),
    Template("llama", _DECODER, LLAMA, _GROUPED),
    Template("qwen3", _DECODER, {**LLAMA, "qk_norm": 1}, _GROUPED),
    Template("nemotron", _DECODER, {k: v for k, v in NEMOTRON.items() if k != "vocab"}, _GROUPED),
    Template("llama-lora", _DECODER, LORA, _GROUPED, degree=4),
    _routed("mixtral", {"head_dim": 128}, 2, _KV_HEADS),
    _routed("qwen3-moe", {"head_dim": 128, "qk_norm": 1}, 8, _KV_HEADS),
    _routed("gpt-oss", {"head_dim": 64, **GPT_OSS}, 4, _KV_HEADS),
    _routed(
        "deepseek", {**MLA, "dense_layers": 1, "shared_ffn": 1}, 8,
        Symbol("ffn", (80, 112), 208), Symbol("shared_ffn", (40, 56), 88),
    ),
)  # fmt: skip


def template_for(builder: str, config: Mapping[str, Any], attention: str) -> Template | None:
    """The template that a model follows, if any, whatever its depth."""
    return next((t for t in TEMPLATES if attention in t.attentions and t.matches(builder, config)), None)
