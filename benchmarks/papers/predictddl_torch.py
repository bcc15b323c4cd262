"""The encoder of PredictDDL in PyTorch, for batches of networks: what pre-training differentiates.

The same function as `precision_time.predictors.predictddl.encoder.embed`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from precision_time.predictors.predictddl import encoder as arrays
from precision_time.predictors.predictddl.network import Ints, Network
from precision_time.predictors.predictddl.paths import levels, levels_from_the_end, path_lengths
from precision_time.predictors.predictddl.primitives import CHANNEL_BINS, KERNEL_BINS, Primitive


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """One network for the encoder. `pairs` are sources over targets of edges and virtual edges, `lengths` theirs."""

    types: npt.NDArray[np.uint8]
    bins: npt.NDArray[np.uint8]
    pairs: npt.NDArray[np.int16]
    lengths: npt.NDArray[np.uint8]
    level: npt.NDArray[np.int16]
    level_back: npt.NDArray[np.int16]

    @property
    def depth(self) -> int:
        return int(self.level.max())


def graph_of(network: Network) -> Graph:
    lengths = path_lengths(network.nodes, network.edges)
    targets, sources = np.nonzero(lengths)
    return Graph(
        network.types.astype(np.uint8),
        arrays.size_bins(network).astype(np.uint8),
        np.stack([sources, targets]).astype(np.int16),
        lengths[targets, sources].astype(np.uint8),
        levels(network.nodes, network.edges).astype(np.int16),
        levels_from_the_end(network.nodes, network.edges).astype(np.int16),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The levels of a sweep in order: their nodes, and the messages that leave them.

    A message is its source's position among the level's nodes (after all of them again for a virtual edge), its target
    and its weight (1 / length).
    """

    nodes: tuple[torch.Tensor, ...]
    messages: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    back: torch.Tensor
    """Where each node is among the visited."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Networks side by side."""

    types: torch.Tensor
    bins: torch.Tensor
    sweeps: tuple[Sweep, Sweep]
    owner: torch.Tensor
    sizes: torch.Tensor


def batch_of(graphs: Sequence[Graph]) -> Batch:
    sizes = [len(each.types) for each in graphs]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    pairs = np.concatenate([each.pairs.astype(np.int64) + s for each, s in zip(graphs, starts, strict=True)], axis=1)
    lengths = np.concatenate([each.lengths for each in graphs])
    forward = np.concatenate([each.level for each in graphs]).astype(np.int64)
    backward = np.concatenate([each.level_back for each in graphs]).astype(np.int64)
    return Batch(
        torch.from_numpy(np.concatenate([each.types for each in graphs]).astype(np.int64)),
        torch.from_numpy(np.concatenate([each.bins for each in graphs]).astype(np.int64)),
        (_sweep(forward, pairs, lengths), _sweep(backward, pairs[::-1], lengths)),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
        torch.tensor(sizes, dtype=torch.float32),
    )


def _sweep(level: Ints, pairs: Ints, lengths: npt.NDArray[np.uint8]) -> Sweep:
    sizes = np.bincount(level)
    order = np.argsort(level, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    source, target = pairs
    of = level[source]
    by = np.argsort(of, kind="stable")
    cuts = np.bincount(of, minlength=len(sizes)).tolist()
    position = place[source] + np.where(lengths > 1, sizes[of], 0)
    columns = (position[by], target[by], (1.0 / lengths[by]).astype(np.float32)[:, None])
    parts = [torch.from_numpy(np.ascontiguousarray(column)).split(cuts) for column in columns]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return Sweep(torch.from_numpy(order).split(sizes.tolist()), tuple(zip(*parts, strict=True)), torch.from_numpy(back))


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


class TorchEncoder(nn.Module):
    """Networks to vectors of `width` numbers; its parameters have the names of `Encoder.arrays`."""

    def __init__(self, start: arrays.Encoder) -> None:
        super().__init__()
        width = start.width
        self.type_embedding = nn.Embedding(len(Primitive), width)
        self.channel_embedding = nn.Embedding(CHANNEL_BINS, width // 4)
        self.kernel_embedding = nn.Embedding(KERNEL_BINS, width // 4)
        self.near = _perceptron(width)
        self.far = _perceptron(width)
        self.gru = nn.GRUCell(width, width)
        self.norm = nn.LayerNorm(width)
        self.load_state_dict({name: torch.from_numpy(array).float() for name, array in start.arrays.items()})

    def encoder(self) -> arrays.Encoder:
        """The same weights for inference."""
        return arrays.Encoder({name: tensor.double().numpy() for name, tensor in self.state_dict().items()})

    def forward(self, batch: Batch) -> torch.Tensor:
        """Vectors, one row a network."""
        i, o, h, w = batch.bins.unbind(1)
        channels, kernels = self.channel_embedding, self.kernel_embedding
        states = self.type_embedding(batch.types) + torch.cat([channels(i), channels(o), kernels(h), kernels(w)], dim=1)
        for sweep in batch.sweeps:
            states = self._visit(states, sweep)
        sums = torch.zeros(len(batch.sizes), states.shape[1]).index_add(0, batch.owner, self.norm(states))
        return sums / batch.sizes[:, None]

    def _visit(self, states: torch.Tensor, sweep: Sweep) -> torch.Tensor:
        """One sweep. The messages of a level are added before the next level is visited."""
        messages = torch.zeros_like(states)
        visited = []
        for nodes, (source, target, weight) in zip(sweep.nodes, sweep.messages, strict=True):
            new = self.gru(messages[nodes], states[nodes])
            visited.append(new)
            if len(source):
                sent = torch.cat([self.near(new), self.far(new)])
                messages.index_add_(0, target, sent[source] * weight)
        return torch.cat(visited)[sweep.back]
