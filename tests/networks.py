"""Small networks and the helpers that trace them, shared by the tests of capture and what follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.capture.graph import Call, OpGraph, OpSignature, Phase
from precision_time.capture.step import Regime, capture
from precision_time.zoo.workload import Workload


class SmallCnn(nn.Module):
    """Convolution, batch norm, pooling and a classifier, 16 x 16 images."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.deep = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(image)))
        x = F.max_pool2d(F.gelu(self.deep(x)), 2)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """A transformer layer whose attention is written out, or fused."""

    def __init__(self, hidden: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(hidden, -1)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = F.softmax(q @ k.transpose(-2, -1) * (hidden // self.heads) ** -0.5, dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallTransformer(nn.Module):
    def __init__(self, vocab: int = 64, hidden: int = 32, heads: int = 4, layers: int = 2, fused: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, fused) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cross_entropy(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    output = module(inputs["x"])
    return F.cross_entropy(output.flatten(0, -2), inputs["target"].flatten())


def cnn(batch: int = 4, width: int = 8) -> Workload:
    inputs = {"x": torch.ones(batch, 3, 16, 16), "target": torch.zeros(batch, dtype=torch.int64)}
    return Workload(SmallCnn(width), inputs, cross_entropy)


def transformer(batch: int = 2, length: int = 16, fused: bool = False, **shape: int) -> Workload:
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    return Workload(SmallTransformer(fused=fused, **shape), {"x": tokens, "target": tokens}, cross_entropy)


def total(module: nn.Module, *inputs: torch.Tensor) -> Workload:
    """A workload whose loss is the sum of the module's output."""

    def loss(model: nn.Module, named: dict[str, torch.Tensor]) -> torch.Tensor:
        out = model(*named.values())
        return (out[0] if isinstance(out, tuple) else out).sum()

    return Workload(module, {f"x{i}": value for i, value in enumerate(inputs)}, loss)


def trace(build: Callable[[], Workload], regime: str = "full", **options: Any) -> OpGraph:
    return capture(build, Regime(regime), **options)


def rows(graph: OpGraph, *phases: Phase) -> Iterator[tuple[Call, OpSignature]]:
    """Calls with their kinds, of some phases or of all."""
    for call in graph.calls:
        if not phases or call.phase in phases:
            yield call, graph.kinds[call.kind]


def names(graph: OpGraph, *phases: Phase) -> Counter[str]:
    return Counter(kind.name.removeprefix("aten.") for _, kind in rows(graph, *phases))


def only(graph: OpGraph, name: str) -> OpSignature:
    """The kind of the single call of an operator."""
    matching = [kind for _, kind in rows(graph) if kind.name == name]
    assert len(matching) == 1, f"{name}: {len(matching)} calls"
    return matching[0]


def dtypes(specs: Any) -> tuple[str, ...]:
    return tuple(s.dtype for s in specs)
