"""Recommendation: neural collaborative filtering (NeuMF) and DLRM.

NeuMF: He et al. 2017 (arXiv:1708.05031). DLRM: Naumov et al. 2019 (arXiv:1906.00091). Sizes of the NVIDIA
DeepLearningExamples versions.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.operators import dot_interaction, gather_rows
from precision_time.zoo.models.text import dropout, tokens
from precision_time.zoo.workload import Config, Sizes, Workload


class NeuMF(nn.Module):
    """A matrix-factorisation product beside an MLP over the concatenated embeddings; one logit per pair."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        users, items, factors = int(config["users"]), int(config["items"]), int(config["mf_dim"])
        widths = [int(width) for width in config["mlp"]]
        self.mf_user = nn.Embedding(users, factors)
        self.mf_item = nn.Embedding(items, factors)
        self.mlp_user = nn.Embedding(users, widths[0] // 2)
        self.mlp_item = nn.Embedding(items, widths[0] // 2)
        self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = dropout(float(config["dropout"]))
        self.final = nn.Linear(widths[-1] + factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.mf_user(user) * self.mf_item(item)
        x = torch.cat((self.mlp_user(user), self.mlp_item(item)), dim=1)
        for layer in self.mlp:
            x = self.dropout(F.relu(layer(x)))
        return self.final(torch.cat((product, x), dim=1)).squeeze(-1)


def build_ncf(config: Config, sizes: Sizes) -> Workload:
    batch = int(sizes["batch_size"])
    return Workload(
        module=NeuMF(config),
        inputs={"user": tokens(batch), "item": tokens(batch), "labels": torch.zeros(batch)},
        loss=lambda module, inputs: F.binary_cross_entropy_with_logits(
            module(inputs["user"], inputs["item"]).float(), inputs["labels"].float()
        ),
    )


def mlp(widths: list[int], last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (a, b) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(a, b))
        if last_relu or index < len(widths) - 2:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class Tables(nn.Module):
    """All embedding tables in one, looked up with an offset per feature.

    sparse: as the source does it, whose table has no dense gradient and stays out of the optimizer. One kernel gathers
    the rows in the dtype of autocast, and one writes their gradients in that of the table (gather_gpu_fused.cu), which
    a gradient scaler divides by its scale; plain SGD adds them to their rows. Otherwise the table is an ordinary weight
    with a dense gradient as large as itself.
    """

    offsets: Tensor

    def __init__(self, sizes: list[int], width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(sum(sizes), width), requires_grad=not sparse)
        self.register_buffer("offsets", tokens(len(sizes)), persistent=False)
        self.sparse = sparse

    def forward(self, features: Tensor, dtype: torch.dtype) -> Tensor:
        index, table = features + self.offsets, self.table
        if not self.sparse:
            return F.embedding(index, table).to(dtype)
        rows = gather_rows(table, index, dtype)

        def update(grad: Tensor) -> Tensor:
            grad = grad.contiguous()
            values = grad.flatten(0, 1).to(table.dtype, copy=True)
            if grad.dtype != table.dtype:  # under autocast, which is taken for float16's
                values.mul_(1.0)
            table.index_add_(0, index.flatten(), values, alpha=-1.0)
            return grad

        rows.requires_grad_(True)
        rows.register_hook(update)
        return rows


class Dlrm(nn.Module):
    """Dense features through an MLP, pairwise dot products of all feature vectors, an MLP to one logit."""

    pairs: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, bottom = int(config["embedding_dim"]), [int(w) for w in config["bottom"]]
        table_sizes = [int(size) for size in config["tables"]]
        self.tables = Tables(table_sizes, width, bool(config["sparse"]))
        self.bottom = mlp([int(config["numerical"]), *bottom], last_relu=True)
        vectors = len(table_sizes) + 1
        self.vectors = vectors
        interactions = vectors * (vectors - 1) // 2
        # One zero column keeps the top layer's input a multiple of 8, as the source pads it.
        self.padding = -(width + interactions) % 8
        self.register_buffer("pairs", tokens(interactions), persistent=False)
        self.top = mlp([width + interactions + self.padding, *(int(w) for w in config["top"]), 1], last_relu=False)

    def forward(self, dense: Tensor, features: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.cat((x.unsqueeze(1), self.tables(features, x.dtype)), dim=1)
        return self.top(dot_interaction(vectors, self.pairs, self.padding)).squeeze(-1)


def build_dlrm(config: Config, sizes: Sizes) -> Workload:
    batch, numerical = int(sizes["batch_size"]), int(config["numerical"])
    return Workload(
        module=Dlrm(config),
        inputs={
            "dense": torch.zeros(batch, numerical),
            "features": tokens(batch, len(config["tables"])),
            "labels": torch.zeros(batch),
        },
        loss=lambda module, inputs: F.binary_cross_entropy_with_logits(
            module(inputs["dense"], inputs["features"]).float(), inputs["labels"].float()
        ),
    )
