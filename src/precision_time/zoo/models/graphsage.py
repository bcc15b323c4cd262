"""GraphSAGE on sampled neighbourhoods.

Hamilton et al. 2017 (arXiv:1706.02216) with the settings of the OGB ogbn-products example: 3 layers of
256, mean aggregation, 15, 10 and 5 sampled neighbours. Nodes and edges per batch are fixed at the most
that sampling can give: no node is met twice. On ogbn-products real batches meet many nodes twice and have
fewer.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.zoo.workload import Config, Sizes, Workload


class SageLayer(nn.Module):
    """Linear of the mean of the neighbours plus linear of the node itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(inputs, outputs)
        self.own = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, nodes: int) -> torch.Tensor:
        messages = x.index_select(0, source)
        total = messages.new_zeros(nodes, x.shape[1]).index_add(0, target, messages)
        degree = messages.new_zeros(nodes).index_add(0, target, messages.new_ones(target.shape[0]))
        mean = total / degree.clamp(min=1).unsqueeze(-1)
        return self.neighbours(mean) + self.own(x[:nodes])


class GraphSage(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = (features, *[hidden] * (layers - 1), classes)
        self.layers = nn.ModuleList(SageLayer(a, b) for a, b in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: dict[str, torch.Tensor], nodes: list[int]) -> torch.Tensor:
        x = inputs["features"]
        for index, layer in enumerate(self.layers):
            x = layer(x, inputs[f"source_{index}"], inputs[f"target_{index}"], nodes[index])
            if index < len(self.layers) - 1:
                x = self.dropout(F.relu(x))
        return x


def build(config: Config, sizes: Sizes) -> Workload:
    batch = int(sizes["batch_size"])
    fanout = tuple(int(count) for count in config.get("fanout", (15, 10, 5)))
    features = int(config.get("features", 100))
    classes = int(config.get("classes", 47))
    nodes = [batch]  # targets first: each hop adds `count` neighbours to every node known so far
    for count in fanout:
        nodes.append(nodes[-1] * (1 + count))
    inputs = {
        "features": torch.randn(nodes[-1], features),
        "label": torch.zeros(batch, dtype=torch.int64),
    }
    targets = nodes[-2::-1]  # nodes that each layer computes, outermost hop first
    for index, (reached, count) in enumerate(zip(targets, reversed(fanout), strict=True)):
        inputs[f"source_{index}"] = torch.zeros(reached * count, dtype=torch.int64)
        inputs[f"target_{index}"] = torch.zeros(reached * count, dtype=torch.int64)
    hidden, dropout = int(config.get("hidden", 256)), float(config.get("dropout", 0.5))
    module = GraphSage(features, hidden, classes, len(fanout), dropout)

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(inputs, targets), inputs["label"])

    return Workload(module, inputs, loss)
