"""Decoders whose whole shape is a symbol: one stored step answers for every width, depth and vocabulary without torch.

A template is captured with a few layers at a grid of shapes, as named models are at a grid of sizes (see
`capture.symbolic`). It serves `gpt(layers=.., hidden=.., heads=.., ...)` of any shape and every tensor-parallel rank of
the named decoders: a rank is the same model with fewer heads and a narrower feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.zoo.tables.decoders import GPT, GPT2, LLAMA, NEMOTRON
from precision_time.zoo.workload import Symbol

LAYERS = 3
"""A first, a middle and a last block: what is between them is like the middle one."""

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


@dataclass(frozen=True, slots=True)
class Template:
    """`fixed` words of `model_config` choose the operators; `symbols` are the input sizes and the words that vary."""

    name: str
    builder: str
    fixed: Mapping[str, Any]
    symbols: tuple[Symbol, ...]
    attentions: tuple[str, ...] = ("flash",)

    @property
    def grouped(self) -> bool:
        """Whether key/value heads are a size of their own."""
        return any(s.name == "kv_heads" for s in self.symbols)

    def matches(self, builder: str, config: Mapping[str, Any]) -> bool:
        """Whether a model of this `model_config` runs the template's operators."""
        free = {s.name for s in self.symbols} | {"layers", "rope_theta", "kv_heads"}
        if builder != self.builder or (not self.grouped and config.get("kv_heads") != config.get("heads")):
            return False
        words = (set(config) | set(self.fixed)) - free
        return all(config.get(word, 0) == self.fixed.get(word, 0) for word in words)

    def config_at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The `model_config` to capture at these sizes."""
        shape = {name: value for name, value in sizes.items() if name not in ("batch_size", "seq_len")}
        shape.setdefault("kv_heads", shape["heads"])
        return {**self.fixed, **shape, "layers": LAYERS}


_DECODER = "models.decoder:build"
TEMPLATES: tuple[Template, ...] = (
    Template("gpt", _DECODER, GPT, _SIZES, ("flash", "math")),
    Template("gpt-dropout", _DECODER, {**GPT, "dropout": 0.1}, _SIZES, ("flash", "math")),
    Template("gpt2", _DECODER, {k: v for k, v in GPT2.items() if k != "vocab"}, _SIZES),
    Template("llama", _DECODER, LLAMA, _GROUPED),
    Template("qwen3", _DECODER, {**LLAMA, "qk_norm": 1}, _GROUPED),
    Template("nemotron", _DECODER, {k: v for k, v in NEMOTRON.items() if k != "vocab"}, _GROUPED),
)


def template_for(builder: str, config: Mapping[str, Any], attention: str) -> Template | None:
    """The template that a model follows, if any."""
    return next((t for t in TEMPLATES if attention in t.attentions and t.matches(builder, config)), None)
