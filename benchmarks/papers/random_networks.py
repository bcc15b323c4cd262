"""Random networks to pre-train the encoder on: the layer graphs of architectures that nobody has to build or run.

Eight kinds (cells as in DARTS, convolutional, transformer, mixer, recurrent, fully connected, U-shaped, message
passing), each with random depth, width, kernels, blocks and image or sequence size. FLOPs and bytes of every node
follow from its shape, with the same conventions as captured graphs: a multiply-add is two FLOP, tensors of four bytes
an element pass through memory once, weights do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from precision_time.predictors.predictddl.network import Network
from precision_time.predictors.predictddl.primitives import Primitive


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What a node gives: channels at `height` x `width` positions."""

    node: int
    channels: int
    height: int
    width: int

    @property
    def positions(self) -> int:
        return self.height * self.width

    @property
    def numel(self) -> int:
        return self.channels * self.positions


@dataclass(slots=True)
class _Builder:
    types: list[int] = field(default_factory=list)
    shapes: list[tuple[int, int, int, int]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    parameters: int = 0

    def add(
        self,
        kind: Primitive,
        inputs: Sequence[_Tensor],
        channels: int,
        size: tuple[int, int],
        kernel: tuple[int, int] = (0, 0),
        flops: float = 0.0,
        weights: int = 0,
    ) -> _Tensor:
        node = len(self.types)
        made = _Tensor(node, channels, *size)
        self.types.append(int(kind))
        self.shapes.append((inputs[0].channels if inputs else channels, channels, *kernel))
        self.edges += [(each.node, node) for each in sorted(set(inputs), key=lambda t: t.node)]
        self.flops.append(flops)
        self.bytes.append(4.0 * (sum(t.numel for t in inputs) + made.numel) if inputs else 0.0)
        self.parameters += weights
        return made

    def input(self, channels: int, height: int, width: int) -> _Tensor:
        return self.add(Primitive.INPUT, [], channels, (height, width), (height, width))

    def conv(
        self, x: _Tensor, channels: int, kernel: int, stride: int = 1, groups: int = 1, dilation: int = 1
    ) -> _Tensor:
        kind = Primitive.SEP_CONV if groups > 1 else Primitive.DIL_CONV if dilation > 1 else Primitive.CONV
        size = (max(1, x.height // stride), max(1, x.width // stride))
        weights = x.channels // groups * channels * kernel * kernel
        return self.add(kind, [x], channels, size, (kernel, kernel), 2.0 * weights * size[0] * size[1], weights)

    def linear(self, x: _Tensor, channels: int) -> _Tensor:
        weights = x.channels * channels
        return self.add(
            Primitive.LINEAR, [x], channels, (x.height, x.width), (1, 1), 2.0 * weights * x.positions, weights
        )

    def same(self, kind: Primitive, *inputs: _Tensor, per_element: float = 1.0) -> _Tensor:
        x = inputs[0]
        weights = 2 * x.channels if kind in (Primitive.BN, Primitive.LN) else 0
        return self.add(kind, inputs, x.channels, (x.height, x.width), (0, 0), per_element * x.numel, weights)

    def norm(self, kind: Primitive, x: _Tensor) -> _Tensor:
        return self.same(kind, x, per_element=8.0)

    def pool(self, x: _Tensor, kernel: int, stride: int, kind: Primitive = Primitive.MAX_POOL) -> _Tensor:
        size = (max(1, x.height // stride), max(1, x.width // stride))
        return self.add(kind, [x], x.channels, size, (kernel, kernel), float(x.channels * size[0] * size[1]))

    def whole(self, x: _Tensor) -> _Tensor:
        return self.add(Primitive.GLOB_AVG, [x], x.channels, (1, 1), (x.height, x.width), float(x.numel))

    def concat(self, *inputs: _Tensor) -> _Tensor:
        x = inputs[0]
        return self.add(Primitive.CONCAT, inputs, sum(t.channels for t in inputs), (x.height, x.width))

    def attention(self, *inputs: _Tensor) -> _Tensor:
        query = inputs[0]
        width = inputs[-1].channels // (3 if len(inputs) == 1 else 1)
        keys = inputs[-1].positions
        flops = 4.0 * query.positions * keys * width
        return self.add(Primitive.MSA, inputs, width, (query.height, query.width), (keys, 1), flops)

    def network(self, name: str) -> Network:
        return Network(
            name,
            np.array(self.types, dtype=np.int64),
            np.array(self.shapes, dtype=np.int64),
            np.array(self.edges, dtype=np.int64).reshape(-1, 2).T.copy(),
            np.array(self.flops),
            np.array(self.bytes),
            self.parameters,
        )


def _pick(chance: np.random.Generator, *choices: int) -> int:
    return int(chance.choice(choices))


def _head(net: _Builder, x: _Tensor, chance: np.random.Generator) -> None:
    net.linear(net.whole(x), _pick(chance, 10, 100, 200, 1000))


def _unit(net: _Builder, x: _Tensor, channels: int, kernel: int, stride: int, norm: bool, groups: int = 1) -> _Tensor:
    x = net.conv(x, channels, kernel, stride, groups)
    return net.same(Primitive.ACT, net.norm(Primitive.BN, x) if norm else x)


def _convolutional(net: _Builder, chance: np.random.Generator) -> None:
    size = _pick(chance, 28, 32, 64, 96, 128, 224)
    x = net.input(_pick(chance, 1, 3), size, size)
    width = _pick(chance, 8, 16, 24, 32, 64, 96)
    norm = chance.random() < 0.85
    stem = _pick(chance, 3, 3, 5, 7)
    x = _unit(net, x, width, stem, 1 if size <= 64 else 2, norm)
    if size > 64:
        x = net.pool(x, 3, 2)
    block = _BLOCKS[int(chance.integers(len(_BLOCKS)))]
    kernel = _pick(chance, 3, 3, 3, 5, 7)
    for stage in range(_pick(chance, 2, 3, 4)):
        for i in range(_pick(chance, 1, 2, 3, 4)):
            x = block(net, x, width << stage, 2 if stage and not i else 1, kernel, norm, chance)
        if chance.random() < 0.15:
            x = net.pool(x, 2, 2)
    _head(net, x, chance)


def _plain(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, _chance: np.random.Generator
) -> _Tensor:
    x = _unit(net, x, width, kernel, 1, norm)
    return net.pool(x, 2, 2) if stride > 1 else x


def _residual(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, chance: np.random.Generator
) -> _Tensor:
    grouped = 4 if width % 4 == 0 and chance.random() < 0.3 else 1
    y = _unit(net, x, width, kernel, stride, norm, grouped if x.channels % grouped == 0 else 1)
    y = net.norm(Primitive.BN, net.conv(y, width, kernel))
    if chance.random() < 0.25:
        y = _squeeze(net, y)
    if x.channels != width or stride > 1:
        x = net.norm(Primitive.BN, net.conv(x, width, 1, stride))
    return net.same(Primitive.ACT, net.same(Primitive.SUM, x, y))


def _bottleneck(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, chance: np.random.Generator
) -> _Tensor:
    y = _unit(net, x, max(4, width // 4), 1, 1, norm)
    y = _unit(net, y, y.channels, kernel, stride, norm)
    y = net.norm(Primitive.BN, net.conv(y, width, 1))
    if x.channels != width or stride > 1:
        x = net.norm(Primitive.BN, net.conv(x, width, 1, stride))
    return net.same(Primitive.ACT, net.same(Primitive.SUM, x, y))


def _separable(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, chance: np.random.Generator
) -> _Tensor:
    wide = x.channels * _pick(chance, 1, 3, 6)
    y = _unit(net, x, wide, 1, 1, norm) if wide > x.channels else x
    y = _unit(net, y, wide, kernel, stride, norm, wide)
    if chance.random() < 0.3:
        y = _squeeze(net, y)
    y = net.norm(Primitive.BN, net.conv(y, width, 1))
    return net.same(Primitive.SUM, x, y) if x.channels == width and stride == 1 else y


def _dense(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, _chance: np.random.Generator
) -> _Tensor:
    if stride > 1:
        x = net.pool(net.conv(x, max(4, x.channels // 2), 1), 2, 2)
    for _ in range(3):
        y = net.same(Primitive.ACT, net.norm(Primitive.BN, x) if norm else x)
        x = net.concat(x, net.conv(y, max(4, width // 4), kernel))
    return x


def _branches(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, norm: bool, chance: np.random.Generator
) -> _Tensor:
    part = max(4, width // 4)
    some = [
        _unit(net, x, part, 1, stride, norm),
        _unit(net, _unit(net, x, part, 1, 1, norm), part, kernel, stride, norm),
        _unit(net, net.pool(x, 3, 1), part, 1, stride, norm),
    ]
    if chance.random() < 0.3:
        some.append(net.same(Primitive.ACT, net.conv(x, part, kernel, stride, dilation=2)))
    return net.concat(*some)


def _modern(
    net: _Builder, x: _Tensor, width: int, stride: int, kernel: int, _norm: bool, _chance: np.random.Generator
) -> _Tensor:
    """Depthwise convolution, layer norm and two linear layers (ConvNeXt, ConvMixer)."""
    if x.channels != width or stride > 1:
        x = net.conv(net.norm(Primitive.LN, x), width, max(2, stride), stride)
    y = net.norm(Primitive.LN, net.conv(x, width, kernel + 2, 1, width))
    y = net.linear(net.same(Primitive.ACT, net.linear(y, 4 * width)), width)
    return net.same(Primitive.SUM, x, y)


def _cells(net: _Builder, chance: np.random.Generator) -> None:
    """Cells as in DARTS (Liu et al. 2019) and GHN-2's DeepNets-1M: a normal and a reduction cell, drawn once.

    A cell has four nodes, each the sum of two operations on two earlier results (the cells before and the nodes so
    far); its result is the concatenation of the nodes. Reduction cells, at a third and at two thirds of the depth,
    halve the resolution and double the channels.
    """
    size = _pick(chance, 32, 32, 64, 224)
    x = net.input(3, size, size)
    width, depth = _pick(chance, 8, 16, 24, 32, 48, 64), _pick(chance, 2, 3, 4, 5)
    x = net.norm(Primitive.BN, net.conv(x, 3 * width, 3, 1 if size <= 64 else 4))
    normal, reduction = _drawn_cell(chance), _drawn_cell(chance)
    before = x
    for number in range(depth):
        halves = number in (depth // 3, 2 * depth // 3) and number > 0
        width *= 2 if halves else 1
        before, x = x, _cell(net, (before, x), reduction if halves else normal, width, 2 if halves else 1)
    _head(net, x, chance)


_Choice = tuple[int, int]
"""Which earlier result, and which of `_OPERATIONS`."""


def _drawn_cell(chance: np.random.Generator) -> list[tuple[_Choice, _Choice]]:
    count = len(_OPERATIONS)
    return [
        tuple((int(i), int(chance.integers(count))) for i in chance.choice(2 + node, 2, replace=False))  # type: ignore[misc]
        for node in range(4)
    ]


def _cell(
    net: _Builder, inputs: tuple[_Tensor, _Tensor], drawn: list[tuple[_Choice, _Choice]], width: int, stride: int
) -> _Tensor:
    least = min(each.height for each in inputs)
    results = [
        net.norm(Primitive.BN, net.conv(net.same(Primitive.ACT, each), width, 1, max(1, each.height // least)))
        for each in inputs
    ]
    for node in drawn:
        some = [_OPERATIONS[kind](net, results[i], stride if i < 2 else 1) for i, kind in node]
        results.append(net.same(Primitive.SUM, *some))
    return net.concat(*results[2:])


def _separable_twice(net: _Builder, x: _Tensor, stride: int, kernel: int) -> _Tensor:
    for each in (stride, 1):
        x = net.conv(net.same(Primitive.ACT, x), x.channels, kernel, each, x.channels)
        x = net.norm(Primitive.BN, net.conv(x, x.channels, 1))
    return x


def _dilated(net: _Builder, x: _Tensor, stride: int, kernel: int) -> _Tensor:
    x = net.conv(net.same(Primitive.ACT, x), x.channels, kernel, stride, 1, 2)
    return net.norm(Primitive.BN, net.conv(x, x.channels, 1))


def _skipped(net: _Builder, x: _Tensor, stride: int) -> _Tensor:
    return x if stride == 1 else net.norm(Primitive.BN, net.conv(net.same(Primitive.ACT, x), x.channels, 1, stride))


def _attended(net: _Builder, x: _Tensor, stride: int) -> _Tensor:
    x = _skipped(net, x, stride)
    if x.positions > 1024:  # as GHN-2, attention is for small resolutions
        return net.norm(Primitive.BN, net.conv(x, x.channels, 3))
    return net.linear(net.attention(net.linear(net.norm(Primitive.LN, x), 3 * x.channels)), x.channels)


_OPERATIONS: tuple[Callable[[_Builder, _Tensor, int], _Tensor], ...] = (
    lambda net, x, stride: net.norm(Primitive.BN, net.pool(x, 3, stride)),
    lambda net, x, stride: net.norm(Primitive.BN, net.pool(x, 3, stride, Primitive.AVG_POOL)),
    _skipped,
    lambda net, x, stride: _separable_twice(net, x, stride, 3),
    lambda net, x, stride: _separable_twice(net, x, stride, 5),
    lambda net, x, stride: _dilated(net, x, stride, 3),
    lambda net, x, stride: _dilated(net, x, stride, 5),
    lambda net, x, stride: net.norm(Primitive.BN, net.conv(net.same(Primitive.ACT, x), x.channels, 3, stride)),
    lambda net, x, stride: net.norm(Primitive.BN, net.conv(net.same(Primitive.ACT, x), x.channels, 1, stride)),
    lambda net, x, stride: _squeeze(net, _skipped(net, x, stride)),
    _attended,
)
"""The operations of DARTS, and those that DeepNets-1M adds: convolutions, squeeze and excitation, attention."""


def _squeeze(net: _Builder, x: _Tensor) -> _Tensor:
    gate = net.conv(net.whole(x), max(2, x.channels // 8), 1)
    gate = net.same(Primitive.ACT, net.conv(net.same(Primitive.ACT, gate), x.channels, 1))
    return net.same(Primitive.CSE, x, gate)


_Block = Callable[[_Builder, _Tensor, int, int, int, bool, np.random.Generator], _Tensor]
_BLOCKS: tuple[_Block, ...] = (_plain, _residual, _bottleneck, _separable, _dense, _branches, _modern)


def _tokens(net: _Builder, chance: np.random.Generator) -> _Tensor:
    """Patches of an image or tokens of a text, as channels at positions."""
    width = _pick(chance, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    if chance.random() < 0.7:
        size, patch = _pick(chance, 32, 64, 128, 224), _pick(chance, 4, 8, 16)
        return net.conv(net.input(3, size, size), width, patch, patch)
    length = _pick(chance, 32, 64, 128, 256, 512)
    tokens = net.input(1, length, 1)
    vocabulary = _pick(chance, 1000, 8192, 32000, 50257)
    return net.add(Primitive.EMBEDDING, [tokens], width, (length, 1), (0, 0), 0.0, vocabulary * width)


def _transformer(net: _Builder, chance: np.random.Generator) -> None:
    x = _tokens(net, chance)
    fused, gated, wide = chance.random() < 0.6, chance.random() < 0.2, _pick(chance, 2, 3, 4)
    before = chance.random() < 0.8
    for _ in range(_pick(chance, 2, 3, 4, 6, 8)):
        y = net.norm(Primitive.LN, x) if before else x
        seen = [net.linear(y, 3 * x.channels)] if fused else [net.linear(y, x.channels) for _ in range(3)]
        x = net.same(Primitive.SUM, x, net.linear(net.attention(*seen), x.channels))
        x = x if before else net.norm(Primitive.LN, x)
        y = net.norm(Primitive.LN, x) if before else x
        up = net.same(Primitive.ACT, net.linear(y, wide * x.channels))
        up = net.same(Primitive.CSE, up, net.linear(y, wide * x.channels)) if gated else up
        x = net.same(Primitive.SUM, x, net.linear(up, x.channels))
        x = x if before else net.norm(Primitive.LN, x)
    _head(net, net.norm(Primitive.LN, x), chance)


def _mixer(net: _Builder, chance: np.random.Generator) -> None:
    x = _tokens(net, chance)
    pooled = chance.random() < 0.2
    for _ in range(_pick(chance, 2, 4, 6, 8)):
        y = net.norm(Primitive.LN, x)
        turned = _Tensor(y.node, y.positions, y.channels, 1)  # linear over positions
        if pooled:
            y = net.pool(y, 3, 1, Primitive.AVG_POOL)
        else:
            mixed = net.linear(net.same(Primitive.ACT, net.linear(turned, 2 * x.positions)), x.positions)
            y = _Tensor(mixed.node, x.channels, x.height, x.width)
        x = net.same(Primitive.SUM, x, y)
        y = net.norm(Primitive.LN, x)
        x = net.same(Primitive.SUM, x, net.linear(net.same(Primitive.ACT, net.linear(y, 4 * x.channels)), x.channels))
    _head(net, net.norm(Primitive.LN, x), chance)


def _recurrent(net: _Builder, chance: np.random.Generator) -> None:
    if chance.random() < 0.5:
        x = _tokens(net, chance)
    else:
        length = _pick(chance, 28, 32, 64, 128)
        x = net.input(_pick(chance, 28, 80, 96, 192), length, 1)
    gates, hidden = _pick(chance, 1, 3, 4), _pick(chance, 32, 64, 96, 128, 256, 512)
    for _ in range(_pick(chance, 1, 1, 2, 3)):
        weights = gates * hidden * (x.channels + hidden)
        flops = 2.0 * weights * x.positions
        x = net.add(Primitive.RNN, [x], hidden, (x.height, x.width), (x.positions, gates), flops, weights)
    _head(net, x, chance)


def _connected(net: _Builder, chance: np.random.Generator) -> None:
    x = net.input(_pick(chance, 16, 64, 784, 3072, 12288), 1, 1)
    for _ in range(_pick(chance, 2, 3, 4, 6)):
        x = net.same(Primitive.ACT, net.linear(x, _pick(chance, 64, 128, 256, 512, 1024)))
    net.linear(x, _pick(chance, 1, 10, 200))


def _u_shaped(net: _Builder, chance: np.random.Generator) -> None:
    size, width, norm = _pick(chance, 32, 64, 128), _pick(chance, 8, 16, 32, 64), bool(chance.random() < 0.6)
    x = net.input(_pick(chance, 1, 3), size, size)
    kept = []
    for depth in range(_pick(chance, 2, 3, 4)):
        x = _unit(net, _unit(net, x, width << depth, 3, 1, norm), width << depth, 3, 1, norm)
        kept.append(x)
        x = net.pool(x, 2, 2)
    for wide in reversed(kept):
        weights = 4 * x.channels * wide.channels
        size2 = (wide.height, wide.width)
        flops = 2.0 * weights * x.positions
        up = net.add(Primitive.DIL_CONV, [x], wide.channels, size2, (2, 2), flops, weights)
        x = _unit(net, net.concat(wide, up), wide.channels, 3, 1, norm)
    net.conv(x, _pick(chance, 1, 2, 21), 1)


def _messages(net: _Builder, chance: np.random.Generator) -> None:
    """A graph network: gather along edges, add up at nodes, a linear layer."""
    x = _tokens(net, chance)
    neighbours = _pick(chance, 4, 9, 16)
    for _ in range(_pick(chance, 2, 3, 4, 6)):
        seen = net.add(Primitive.EMBEDDING, [x], x.channels, (x.positions, neighbours))
        added = net.add(Primitive.AVG_POOL, [seen], x.channels, (x.height, x.width), (neighbours, 1), float(seen.numel))
        y = net.same(Primitive.SUM, net.linear(x, x.channels), net.linear(added, x.channels))
        x = net.same(Primitive.ACT, net.norm(Primitive.LN, y))
    _head(net, x, chance)


_KINDS: tuple[tuple[Callable[[_Builder, np.random.Generator], None], float], ...] = (
    (_cells, 0.25), (_convolutional, 0.35), (_transformer, 0.15), (_mixer, 0.08), (_recurrent, 0.05),
    (_connected, 0.03), (_u_shaped, 0.05), (_messages, 0.04),
)  # fmt: skip


def random_network(chance: np.random.Generator) -> Network:
    """One network, of a kind drawn by chance."""
    kind = int(chance.choice(len(_KINDS), p=[share for _, share in _KINDS]))
    net = _Builder()
    _KINDS[kind][0](net, chance)
    return net.network(_KINDS[kind][0].__name__.strip("_"))


def random_networks(count: int, seed: int) -> list[Network]:
    chance = np.random.default_rng(seed)
    return [random_network(chance) for _ in range(count)]
