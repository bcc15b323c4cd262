"""The graph hypernetwork's encoder (GHN-2): a network as a vector, by one round of a gated graph network.

Knyazev et al. 2021: a node starts as the embedding of its type plus four embeddings, side by side, of its channels and
its kernel. A forward sweep and then a backward sweep visit the nodes in topological order,

    m_v = sum over neighbours u of MLP(h_u) + sum over virtual edges (u, v) of MLP_ve(h_u) / length
    h_v = GRU(m_v, h_v)

where the neighbours are those before v in the forward, those behind it in the backward sweep. Layer norm; the vector is
the mean over nodes. GHN-2 decodes it into weights of the network; PredictDDL uses it as a description of the network.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_time.errors import DataError
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.paths import levels, levels_from_the_end, virtual_edges
from precision_time.predictors.predictddl.primitives import (
    CHANNEL_BINS,
    KERNEL_BINS,
    Primitive,
    channel_bin,
    kernel_bin,
)
from precision_time.shipped import ROOT, shipped_file, write_shipped

WIDTH = 32
"""Numbers of a node's state and of the graph's vector."""
WEIGHTS = ROOT / "predictors/predictddl/data/encoder.npz"
"""The pre-trained encoder that ships; `python -m benchmarks.papers.predictddl_pretraining` makes it again."""


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """One network, or several side by side, as input of the encoder.

    The names follow torch_geometric: its `Batch` offsets every field whose name contains index, so that its loader can
    batch `Data(**fields)` of many networks, while inference does not import it.
    """

    types: torch.Tensor
    bins: torch.Tensor
    edge_index: torch.Tensor
    virtual_index: torch.Tensor
    nearness: torch.Tensor
    """1 / length of the virtual edges."""
    level: torch.Tensor
    level_back: torch.Tensor
    batch: torch.Tensor
    """Which network a node is of."""


def tensors_of(network: Network) -> GraphTensors:
    """A single network."""
    edges = network.edges
    virtual, lengths = virtual_edges(network.nodes, edges)
    bins = [(channel_bin(i), channel_bin(o), kernel_bin(h), kernel_bin(w)) for i, o, h, w in network.shapes.tolist()]
    return GraphTensors(
        types=torch.from_numpy(network.types),
        bins=torch.tensor(bins, dtype=torch.int64),
        edge_index=torch.from_numpy(edges),
        virtual_index=torch.from_numpy(virtual),
        nearness=torch.from_numpy(1.0 / lengths).float(),
        level=torch.from_numpy(levels(network.nodes, edges)),
        level_back=torch.from_numpy(levels_from_the_end(network.nodes, edges)),
        batch=torch.zeros(network.nodes, dtype=torch.int64),
    )


@dataclass(slots=True)
class _Sweep:
    """The levels of a sweep in order: their nodes, and the edges that leave them as positions among the nodes."""

    nodes: tuple[torch.Tensor, ...]
    near: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    far: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]


def _sweep(level: torch.Tensor, edges: torch.Tensor, virtual: torch.Tensor, nearness: torch.Tensor) -> _Sweep:
    count = int(level.max()) + 1 if len(level) else 0
    order = torch.argsort(level, stable=True)
    sizes = torch.bincount(level, minlength=count)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - starts[level[order]]

    def by_source_level(pairs: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        of = level[pairs[0]]
        return torch.argsort(of, stable=True), torch.bincount(of, minlength=count).tolist()

    near_order, near_sizes = by_source_level(edges)
    far_order, far_sizes = by_source_level(virtual)
    near = zip(place[edges[0][near_order]].split(near_sizes), edges[1][near_order].split(near_sizes), strict=True)
    far = zip(
        place[virtual[0][far_order]].split(far_sizes),
        virtual[1][far_order].split(far_sizes),
        nearness[far_order].split(far_sizes),
        strict=True,
    )
    return _Sweep(order.split(sizes.tolist()), tuple(near), tuple(far))


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


class Encoder(nn.Module):
    """Networks to vectors of `width` numbers. Weights are drawn from torch's own random state."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.type_embedding = nn.Embedding(len(Primitive), width)
        self.channel_embedding = nn.Embedding(CHANNEL_BINS, width // 4)
        self.kernel_embedding = nn.Embedding(KERNEL_BINS, width // 4)
        self.near = _mlp(width)
        self.far = _mlp(width)
        self.gru = nn.GRUCell(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: Any) -> torch.Tensor:
        """Vectors of `GraphTensors`, or of a `Batch` of such `Data`: one row a network."""
        states = self.node_states(batch)
        sizes = torch.bincount(batch.batch)
        sums = torch.zeros(len(sizes), self.width).index_add(0, batch.batch, states)
        return sums / sizes[:, None]

    def node_states(self, batch: Any) -> torch.Tensor:
        """The state of every node after both sweeps and the norm."""
        i, o, h, w = batch.bins.unbind(1)
        sizes = (
            self.channel_embedding(i),
            self.channel_embedding(o),
            self.kernel_embedding(h),
            self.kernel_embedding(w),
        )
        states = self.type_embedding(batch.types) + torch.cat(sizes, dim=1)
        edges, virtual = batch.edge_index, batch.virtual_index
        states = self._visit(states, _sweep(batch.level, edges, virtual, batch.nearness))
        states = self._visit(states, _sweep(batch.level_back, edges.flip(0), virtual.flip(0), batch.nearness))
        return self.norm(states)

    def _visit(self, states: torch.Tensor, sweep: _Sweep) -> torch.Tensor:
        """One sweep. The messages of a level are added before the next level is visited."""
        messages = torch.zeros_like(states)
        visited = []
        for nodes, (near_from, near_to), (far_from, far_to, nearness) in zip(
            sweep.nodes, sweep.near, sweep.far, strict=True
        ):
            new = self.gru(messages[nodes], states[nodes])
            visited.append(new)
            if len(near_from):
                messages.index_add_(0, near_to, self.near(new)[near_from])
            if len(far_from):
                messages.index_add_(0, far_to, self.far(new)[far_from] * nearness[:, None])
        order = torch.cat(sweep.nodes)
        return torch.cat(visited)[torch.argsort(order)]


def random_encoder(seed: int = 0) -> Encoder:
    """An untrained encoder, for the ablation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Encoder = Encoder().eval()
        return made


def embed(encoder: Encoder, network: Network) -> Floats:
    """The vector of a network."""
    with torch.no_grad():
        return np.asarray(encoder(tensors_of(network))[0].numpy(), dtype=np.float64)


def save_encoder(encoder: Encoder, path: Path, provenance: dict[str, Any]) -> None:
    """Write the weights and their provenance as one npz."""
    packed = io.BytesIO()
    arrays = {name: tensor.detach().numpy() for name, tensor in encoder.state_dict().items()}
    np.savez_compressed(packed, provenance=np.array(json.dumps(provenance, sort_keys=True)), **arrays)
    write_shipped(path, packed.getvalue())


def load_encoder(path: Path | None = None) -> Encoder:
    """Read the encoder of an npz, by default the shipped one. Raises a `DataError` where its shapes are wrong."""
    path = path or shipped_file(WEIGHTS.relative_to(ROOT).as_posix())
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: torch.from_numpy(stored[name].copy()) for name in stored.files if name != "provenance"}
        encoder = Encoder(width=int(arrays["norm.weight"].shape[0]))
        encoder.load_state_dict(arrays)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise DataError(
            f"encoder weights {path.name!r} cannot be read ({str(error).splitlines()[0]}); make them again with "
            "python -m benchmarks.papers.predictddl_pretraining"
        ) from error
    encoder.eval()
    return encoder
