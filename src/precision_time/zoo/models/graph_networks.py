"""Graph networks: whole graphs in each step (GCN, GraphSAGE), sampled neighbourhoods (GAT), batches of molecules (GIN).

As a workload a graph network is a few narrow matrix products over all nodes, and between them gathers of node rows to
edges and sums of edge rows by node, which are limited by memory traffic. Edges are lists of a source and a target
(PyTorch Geometric's `edge_index`), so that messages are written and read, one row for each edge; kernels for sparse
matrices (torch-sparse, DGL), which do not write them, move fewer bytes. Sampling, on the CPU, is part of data loading.

| builder | model | source of its shape |
|---|---|---|
| `build_full` | GCN (arXiv:1609.02907), GraphSAGE (arXiv:1706.02216) on ogbn-arxiv | OGB, examples/nodeproppred/arxiv |
| `build_gat` | GAT (arXiv:1710.10903) on ogbn-products | PyTorch Geometric, examples/ogbn_products_gat.py |
| `build_gin` | GIN (arXiv:1810.00826) on ogbg-molhiv | OGB, examples/graphproppred/mol |

Sampled nodes and edges are the most that sampling can give: no node is met twice. Real batches have fewer.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precision_time.zoo.models.text import tokens
from precision_time.zoo.models.vision_common import option
from precision_time.zoo.workload import Config, Sizes, Workload

ATOM_FEATURES = (119, 4, 12, 12, 10, 6, 6, 2, 2)
BOND_FEATURES = (5, 6, 2)
"""Values of the categorical features of OGB's molecules."""


def summed(rows: Tensor, target: Tensor, count: int) -> Tensor:
    """Sums of the rows (edges, ...) that have the same target (edges): (count, ...)."""
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, target, rows)


class GcnLayer(nn.Module):
    """A product, then the weighted sum over incoming edges; weights depend on the graph alone and are kept."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, graph: dict[str, Tensor]) -> Tensor:
        x = self.linear(x)
        messages = x.index_select(0, graph["source"]) * graph["weight"].to(x.dtype).unsqueeze(-1)
        return summed(messages, graph["target"], x.shape[0]) + self.bias


class MeanLayer(nn.Module):
    """A product of the mean over incoming edges plus one of the node itself (GraphSAGE)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, graph: dict[str, Tensor]) -> Tensor:
        total = summed(x.index_select(0, graph["source"]), graph["target"], x.shape[0])
        mean = total / graph["degree"].to(total.dtype).unsqueeze(-1)
        return self.neighbours(mean) + self.own(x)


LAYERS: dict[str, type[nn.Module]] = {"gcn": GcnLayer, "mean": MeanLayer}


class FullGraph(nn.Module):
    """Layers over all nodes with batch norm, ReLU and dropout between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, layers = int(config["hidden"]), int(config["layers"])
        layer = option(config, "aggregation", LAYERS, "gcn")
        widths = (int(config["features"]), *[hidden] * (layers - 1), int(config["classes"]))
        self.layers = nn.ModuleList(layer(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers - 1))
        self.dropout = nn.Dropout(float(config["dropout"]))

    def forward(self, x: Tensor, graph: dict[str, Tensor]) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = self.dropout(F.relu(norm(layer(x, graph))))
        found: Tensor = self.layers[-1](x, graph)
        return found


def build_full(config: Config, sizes: Sizes) -> Workload:
    """`batch_size` nodes of the graph have a label that trains; every step computes all nodes."""
    labelled, nodes, edges = (int(sizes[name]) for name in ("batch_size", "nodes", "edges"))
    inputs = {
        "features": torch.randn(nodes, int(config["features"])),
        "source": tokens(edges),
        "target": tokens(edges),
        "weight": torch.ones(edges),
        "degree": torch.ones(nodes),
        "trained": tokens(labelled),
        "label": tokens(labelled),
    }
    if str(config["aggregation"]) == "gcn":
        del inputs["degree"]
    else:
        del inputs["weight"]

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        found = model(inputs["features"], inputs).index_select(0, inputs["trained"])
        return F.cross_entropy(found, inputs["label"])

    return Workload(FullGraph(config), inputs, loss)


class GatLayer(nn.Module):
    """Every edge weighs its message by a softmax over the edges of its target, of a linear function of both ends.

    A linear layer beside it takes the target itself; `join` puts the heads side by side, else they are averaged.
    """

    def __init__(self, inputs: int, width: int, heads: int, join: bool) -> None:
        super().__init__()
        self.heads, self.join = heads, join
        self.linear = nn.Linear(inputs, heads * width, bias=False)
        self.of_source = nn.Parameter(torch.zeros(1, heads, width))
        self.of_target = nn.Parameter(torch.zeros(1, heads, width))
        outputs = heads * width if join else width
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.own = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
        rows = self.linear(x).unflatten(-1, (self.heads, -1))
        reached = self.linear(x[:count]).unflatten(-1, (self.heads, -1))
        score = (rows * self.of_source).sum(-1).index_select(0, source)
        score = F.leaky_relu(score + (reached * self.of_target).sum(-1).index_select(0, target), 0.2)
        with torch.no_grad():
            where = target.unsqueeze(-1).expand_as(score)
            most = score.new_zeros(count, self.heads).scatter_reduce(0, where, score, "amax", include_self=False)
        share = (score - most.index_select(0, target)).exp()
        share = share / (summed(share, target, count) + 1e-16).index_select(0, target)
        found = summed(rows.index_select(0, source) * share.unsqueeze(-1), target, count)
        return (found.flatten(1) if self.join else found.mean(1)) + self.bias + self.own(x[:count])


class Gat(nn.Module):
    def __init__(self, config: Config, layers: int) -> None:
        super().__init__()
        hidden, heads = int(config["hidden"]), int(config["heads"])
        widths = [int(config["features"]), *[hidden * heads] * (layers - 1)]
        self.layers = nn.ModuleList(
            GatLayer(width, hidden if place < layers - 1 else int(config["classes"]), heads, place < layers - 1)
            for place, width in enumerate(widths)
        )
        self.dropout = nn.Dropout(float(config["dropout"]))

    def forward(self, inputs: dict[str, Tensor], counts: list[int]) -> Tensor:
        x = inputs["features"]
        for place, layer in enumerate(self.layers):
            x = layer(x, inputs[f"source_{place}"], inputs[f"target_{place}"], counts[place])
            if place < len(self.layers) - 1:
                x = self.dropout(F.elu(x))
        return x


def build_gat(config: Config, sizes: Sizes) -> Workload:
    """`batch_size` nodes and `fanout` sampled neighbours of each in every layer; each node has an edge to itself."""
    batch = int(sizes["batch_size"])
    fanout = tuple(int(count) for count in config["fanout"])
    nodes = [batch]
    for count in fanout:
        nodes.append(nodes[-1] * (1 + count))
    inputs = {"features": torch.randn(nodes[-1], int(config["features"])), "label": tokens(batch)}
    counts = nodes[-2::-1]
    for place, (reached, count) in enumerate(zip(counts, reversed(fanout), strict=True)):
        inputs[f"source_{place}"] = tokens(reached * (count + 1))
        inputs[f"target_{place}"] = tokens(reached * (count + 1))

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(inputs, counts), inputs["label"])

    return Workload(Gat(config, len(fanout)), inputs, loss)


class Categories(nn.Module):
    """The sum of an embedding of each feature (rows, features)."""

    def __init__(self, sizes: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.tables[0](x[:, 0])
        for place, table in enumerate(self.tables[1:], 1):
            total = total + table(x[:, place])
        return total


class GinLayer(nn.Module):
    """Two products of the node itself plus the sum of its neighbours, each with the features of the bond."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bonds = Categories(BOND_FEATURES, width)
        self.own = nn.Parameter(torch.zeros(1))
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, graph: dict[str, Tensor]) -> Tensor:
        messages = F.relu(x.index_select(0, graph["source"]) + self.bonds(graph["bonds"]))
        found: Tensor = self.norm(self.feed((1 + self.own) * x + summed(messages, graph["target"], x.shape[0])))
        return found


class Gin(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = int(config["hidden"])
        self.atoms = Categories(ATOM_FEATURES, width)
        self.layers = nn.ModuleList(GinLayer(width) for _ in range(int(config["layers"])))
        self.dropout = nn.Dropout(float(config["dropout"]))
        self.head = nn.Linear(width, int(config["classes"]))

    def forward(self, graph: dict[str, Tensor], count: int) -> Tensor:
        x = self.atoms(graph["atoms"])
        for place, layer in enumerate(self.layers):
            x = layer(x, graph)
            x = self.dropout(F.relu(x) if place < len(self.layers) - 1 else x)
        mean = summed(x, graph["graph"], count) / graph["size"].to(x.dtype).unsqueeze(-1)
        found: Tensor = self.head(mean)
        return found


def build_gin(config: Config, sizes: Sizes) -> Workload:
    """`batch_size` molecules of `nodes` atoms and `edges` directed bonds each, joined to one graph."""
    batch = int(sizes["batch_size"])
    nodes, edges = batch * int(sizes["nodes"]), batch * int(sizes["edges"])
    inputs = {
        "atoms": tokens(nodes, len(ATOM_FEATURES)),
        "bonds": tokens(edges, len(BOND_FEATURES)),
        "source": tokens(edges),
        "target": tokens(edges),
        "graph": tokens(nodes),
        "size": torch.ones(batch),
        "label": torch.zeros(batch, int(config["classes"])),
    }

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        found = model(inputs, batch)
        return F.binary_cross_entropy_with_logits(found.float(), inputs["label"])

    return Workload(Gin(config), inputs, loss)
