"""The model of a fusing compiler: chains by hand, and what fusion may never do."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from networks import cnn, names, rows, total, trace, transformer  # noqa: E402
from precision_time.capture.fusion import fuse_pointwise  # noqa: E402
from precision_time.capture.graph import OpGraph, OpSignature, Phase  # noqa: E402
from precision_time.capture.replace_calls import Signatures  # noqa: E402
from precision_time.timing.operators import WorkOptions, touched, works  # noqa: E402


def sizes(graph: OpGraph) -> tuple[float, int, float]:
    """Bytes moved, kernels launched, FLOPs of products."""
    work = [w for _, k in rows(graph) for w in (works(k, WorkOptions()) or [touched(k)])]
    return (sum(w.bytes for w in work), sum(w.launches for w in work),
            sum(w.flops for w in work if w.math != "vector"))  # fmt: skip


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.tanh(x * self.scale) + 1.0)


def test_a_chain_becomes_one_kernel() -> None:
    """x * scale, tanh, + 1, sigmoid: reads x and scale, writes the product's tanh and the result for the backward."""
    plain = trace(lambda: total(Chain(), torch.ones(32, 64)))
    fused = fuse_pointwise(plain)
    assert names(plain, Phase.FORWARD) == {"mul": 1, "tanh": 1, "add": 1, "sigmoid": 1}
    (kind,) = [k for c, k in rows(fused, Phase.FORWARD)]
    assert kind.name == "pt.fused_pointwise"
    assert kind.attr("operators") == 4
    assert sorted(s.shape for s in kind.inputs) == [(32, 64), (64,)]
    assert [s.shape for s in kind.outputs] == [(32, 64), (32, 64)]


@pytest.mark.parametrize("regime", ["full", "autocast", "half"])
@pytest.mark.parametrize("build", [cnn, transformer, lambda: transformer(fused=True)], ids=["cnn", "math", "flash"])
def test_fusion_never_adds_bytes_kernels_or_products(build: Any, regime: str) -> None:
    plain = trace(build, regime)
    fused = fuse_pointwise(plain)
    before, after = sizes(plain), sizes(fused)
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert after[2] == before[2]
    if build is not cnn:  # whose only pointwise operators stand alone
        assert after[0] < before[0]
        assert len(fused.calls) < len(plain.calls)


@pytest.mark.parametrize("build", [cnn, transformer], ids=["cnn", "transformer"])
def test_lifetimes_and_gradients_follow(build: Any) -> None:
    plain, fused = (f(trace(build, "autocast")) for f in (lambda g: g, fuse_pointwise))
    assert [p.name for p in fused.parameters] == [p.name for p in plain.parameters]
    for before, after in zip(plain.parameters, fused.parameters, strict=True):
        assert fused.calls[after.ready].phase is Phase.BACKWARD
        assert after.ready <= before.ready
    order = [p.name for p in sorted(plain.parameters, key=lambda p: p.ready)]
    ready = {p.name: p.ready for p in fused.parameters}
    assert [ready[n] for n in order] == sorted(ready.values())
    for storage in fused.storages:
        assert -1 <= storage.born <= storage.dies <= len(fused.calls)
    assert [c.phase for c in fused.calls] == sorted(c.phase for c in fused.calls)


def test_the_gradient_of_softmax_is_one_kernel_with_or_without_neighbours() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(64, 32, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(self.scores(x).softmax(-1), -1)

    plain = trace(lambda: total(Weights(), torch.ones(16, 64)))
    assert names(plain, Phase.BACKWARD)["_softmax_backward_data"] == 1
    fused = fuse_pointwise(plain)
    assert names(fused, Phase.BACKWARD)["_softmax_backward_data"] == 0
    (kind,) = [k for _, k in rows(fused, Phase.BACKWARD) if k.name == "pt.fused_pointwise"]
    assert (kind.attr("operators"), [s.numel for s in (*kind.inputs, *kind.outputs)]) == (1, [16 * 32] * 3)
    assert fuse_pointwise(fused).kinds == fused.kinds


def test_groups_end_at_phases_and_at_other_sizes() -> None:
    class Shrinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.tanh(x * self.scale)[:, :32].relu())

    fused = fuse_pointwise(trace(lambda: total(Shrinks(), torch.ones(32, 64))))
    kinds = [k for _, k in rows(fused, Phase.FORWARD)]
    assert [k.attr("operators") for k in kinds] == [2, 2]
    for call, kind in rows(fused):
        if kind.name == "pt.fused_pointwise":
            assert call.phase in (Phase.FORWARD, Phase.BACKWARD)


class Gated(nn.Module):
    """SwiGLU on one product: both halves of it are read."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return F.silu(gate) * value


def test_two_parts_of_one_tensor_are_both_read() -> None:
    fused = fuse_pointwise(trace(lambda: total(Gated(), torch.ones(32, 64))))
    (kind,) = [k for _, k in rows(fused, Phase.FORWARD) if k.name == "pt.fused_pointwise"]
    assert sum(s.numel for s in kind.inputs) == 32 * 128


def test_a_tensor_used_twice_is_read_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return torch.tanh(y) * y

    fused = fuse_pointwise(trace(lambda: total(Twice(), torch.ones(32, 64))))
    (kind,) = [k for _, k in rows(fused, Phase.FORWARD) if k.name == "pt.fused_pointwise"]
    assert sum(s.numel for s in kind.inputs) == 32 * 64


def test_fusing_twice_changes_nothing_more() -> None:
    once = fuse_pointwise(trace(transformer, "autocast"))
    again = fuse_pointwise(once)
    assert sizes(once) == sizes(again)


def test_signatures_keep_the_numbers_of_the_graph() -> None:
    a, b, c = (OpSignature(name, (), ()) for name in "abc")
    signatures = Signatures([a, b, a])
    assert [signatures(b), signatures(c), signatures(c)] == [1, 3, 3]
    assert list(signatures) == [a, b, a, c]
    assert signatures(a) in (0, 2)
    fresh = Signatures()
    assert [fresh(b), fresh(a), fresh(b)] == [0, 1, 0]
