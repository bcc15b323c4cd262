"""Small recurrent networks over the rows of an image, and small graph networks over its patches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.zoo.models.small_tokens import Patches, grid
from precision_time.zoo.models.vision_common import classify, option, spatial
from precision_time.zoo.workload import Config, Sizes, Workload


class RowReader(nn.Module):
    """Reads an image row by row (three channels side by side) and classifies by the last output."""

    def __init__(self, cell: type[nn.Module], width: int, config: Config) -> None:
        super().__init__()
        hidden, both = int(config["hidden"]), bool(int(config["bidirectional"]))
        self.recurrent = cell(3 * width, hidden, int(config["layers"]), batch_first=True, bidirectional=both)
        self.head = nn.Linear(hidden * (1 + both), int(config["classes"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.permute(0, 2, 1, 3).flatten(2)
        return self.head(self.recurrent(rows)[0][:, -1])


def neighbours(rows: int, columns: int) -> torch.Tensor:
    """The symmetrically normalised adjacency of a grid in which each cell touches itself and its eight neighbours."""
    r = torch.arange(rows).repeat_interleave(columns)
    c = torch.arange(columns).repeat(rows)
    near = ((r[:, None] - r).abs() <= 1) & ((c[:, None] - c).abs() <= 1)
    adjacency = near.float()
    scale = adjacency.sum(1).rsqrt()
    return scale[:, None] * adjacency * scale


class GridConvolution(nn.Module):
    """A graph convolution (Kipf and Welling 2017) over the fixed grid of patches, with a residual."""

    def __init__(self, width: int, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("adjacency", neighbours(rows, columns))
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.adjacency @ self.linear(self.norm(x)))


class NearestConvolution(nn.Module):
    """Vision GNN's (Han et al. 2022): max-relative convolution over the nearest nodes, found anew in each layer."""

    def __init__(self, width: int, nearest: int) -> None:
        super().__init__()
        self.nearest = nearest
        self.norm1, self.enter, self.leave = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(2 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(self.norm1(x))
        b, n, d = y.shape
        with torch.no_grad():
            unit = F.normalize(y, dim=-1)
            index = (unit @ unit.transpose(1, 2)).topk(self.nearest, -1).indices
        near = y.gather(1, index.reshape(b, n * self.nearest, 1).expand(-1, -1, d)).view(b, n, self.nearest, d)
        relative = (near - y.unsqueeze(2)).amax(2)
        x = x + self.leave(F.gelu(torch.cat([y, relative], -1)))
        return x + self.mlp(self.norm2(x))


class GraphNetwork(nn.Module):
    """Patches as nodes with a learned position, layers over the graph, the mean of the nodes."""

    def __init__(self, rows: int, columns: int, config: Config) -> None:
        super().__init__()
        width = int(config["hidden"])
        kinds = {
            "grid": lambda: GridConvolution(width, rows, columns),
            "nearest": lambda: NearestConvolution(width, int(config["neighbours"])),
        }
        make = option(config, "edges", kinds, "grid")
        self.patches = Patches(width, int(config["patch"]))
        self.position = nn.Parameter(torch.randn(1, rows * columns, width) * 0.02)
        self.layers = nn.Sequential(*(make() for _ in range(int(config["layers"]))))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, int(config["classes"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.patches(x) + self.position)).mean(1))


def build_recurrent(config: Config, sizes: Sizes) -> Workload:
    """LSTM or GRU (`cell`) over the rows."""
    cell = option(config, "cell", {"lstm": nn.LSTM, "gru": nn.GRU}, "lstm")
    return classify(RowReader(cell, spatial(sizes)[1], config), config, sizes)


def build_graph(config: Config, sizes: Sizes) -> Workload:
    """A graph network with edges to the neighbours in the `grid`, or to the `nearest` nodes."""
    return classify(GraphNetwork(*grid(config, sizes), config), config, sizes)
