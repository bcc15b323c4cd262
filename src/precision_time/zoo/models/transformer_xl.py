"""Transformer-XL: attention over a cached segment with relative positions, adaptive embedding and softmax.

Dai et al. 2019 (arXiv:1901.02860); sizes and time-first layout of the NVIDIA DeepLearningExamples version.
The attention is written out, for no fused kernel computes its shifted position term.

The adaptive softmax sends each target to the head or to one of the tail clusters, so its shapes depend on
the data. Here a fixed share of every sequence's tokens, `cluster_shares`, goes to each tail: an estimate
from a power law of word frequencies, not a measurement (it leaves 93 % of the tokens to the 19,997 words of
the head). The shares are rounded to whole tokens of a sequence; finding them (`nonzero`, a device
synchronisation) is not modelled.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.text import dropout, tokens
from precision_time.zoo.workload import Config, Sizes, Workload


def cluster_edges(config: Config) -> list[tuple[int, int]]:
    """(first, last + 1) word of the head and of each tail cluster."""
    edges = [0, *(int(c) for c in config["cutoffs"]), int(config["vocab"])]
    return list(itertools.pairwise(edges))


def shift(x: Tensor) -> Tensor:
    """Aligns scores of relative distance: row i of [batch, heads, query, key] moves left by query - 1 - i."""
    batch, heads, query, key = x.shape
    padded = torch.cat((x.new_zeros(batch, heads, query, 1), x), dim=3)
    return padded.view(batch, heads, key + 1, query)[:, :, 1:].reshape(batch, heads, query, key)


class RelativeAttention(nn.Module):
    """Content score + shifted position score, masked softmax, dropout, weighted sum; post-LN residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, self.heads = int(config["hidden"]), int(config["heads"])
        self.head_dim = hidden // self.heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.relative = nn.Linear(hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.dropout = dropout(float(config["dropout"]))
        self.attention_dropout = dropout(float(config["attention_dropout"]))
        self.norm = nn.LayerNorm(hidden)

    def forward(
        self, x: Tensor, memory: Tensor, position: Tensor, biases: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, self.head_dim))

        length = x.shape[0]
        q, k, v = (split(y) for y in self.qkv(torch.cat((memory, x), dim=0)).chunk(3, dim=-1))
        q = q[-length:]
        content = torch.einsum("ibnd,jbnd->bnij", q + biases[0], k)
        distance = torch.einsum("ibnd,jnd->bnij", q + biases[1], split(self.relative(position)))
        score = (content + shift(distance)) * self.head_dim**-0.5
        weights = score.masked_fill(mask, float("-inf")).softmax(dim=-1)
        context = torch.einsum("bnij,jbnd->ibnd", self.attention_dropout(weights), v)
        return self.norm(x + self.dropout(self.output(context.flatten(2))))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, ffn = int(config["hidden"]), int(config["ffn"])
        self.attention = RelativeAttention(config)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)
        self.dropout = dropout(float(config["dropout"]))
        self.norm = nn.LayerNorm(hidden)

    def forward(
        self, x: Tensor, memory: Tensor, position: Tensor, biases: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        x = self.attention(x, memory, position, biases, mask)
        hidden = self.dropout(F.relu(self.up(x)))
        return self.norm(x + self.dropout(self.down(hidden)))


class AdaptiveVocabulary(nn.Module):
    """Embedding and output weights of the clusters, tied. div_val = 1: one table as wide as the model;
    otherwise cluster i has hidden / div_val ** i channels and a projection, shared by input and output except
    the head's.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, division = int(config["hidden"]), int(config["div_val"])
        self.edges, self.hidden = cluster_edges(config), hidden
        if division == 1:
            self.tables = nn.ModuleList([nn.Embedding(int(config["vocab"]), hidden)])
            self.projections = nn.ParameterList()
        else:
            widths = [hidden // division**i for i in range(len(self.edges))]
            self.tables = nn.ModuleList(
                nn.Embedding(last - first, width) for (first, last), width in zip(self.edges, widths, strict=True)
            )
            self.projections = nn.ParameterList(nn.Parameter(torch.empty(hidden, w)) for w in widths)
            self.head_projection = nn.Parameter(torch.empty(hidden, hidden))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(last - first)) for first, last in self.edges)
        self.cluster_weight = nn.Parameter(torch.zeros(len(self.edges) - 1, hidden))
        self.cluster_bias = nn.Parameter(torch.zeros(len(self.edges) - 1))

    def embed(self, ids: Tensor, rows: list[Tensor]) -> Tensor:
        """Words to vectors; `rows` are the flat positions whose input word lies in each tail cluster."""
        if not self.projections:
            return self.tables[0](ids) * self.hidden**0.5
        flat = ids.flatten()
        # The head embeds every position: a tail word's row is overwritten below.
        x = F.linear(self.tables[0](flat), self.projections[0])
        for table, projection, row in zip(self.tables[1:], self.projections[1:], rows, strict=True):
            x = x.index_copy(0, row, F.linear(table(flat.index_select(0, row)), projection))
        return x.view(*ids.shape, self.hidden) * self.hidden**0.5

    def logits(self, x: Tensor, cluster: int) -> Tensor:
        first, last = self.edges[cluster]
        bias = self.biases[cluster]
        if self.projections:
            weight = self.tables[cluster].weight
            projection = self.projections[cluster] if cluster else self.head_projection
            x = x @ projection
        else:
            weight = self.tables[0].weight[first:last]
        if cluster == 0:
            weight = torch.cat((weight, self.cluster_weight))
            bias = torch.cat((bias, self.cluster_bias))
        return F.linear(x, weight, bias)

    def loss(self, x: Tensor, labels: Tensor, rows: list[Tensor]) -> Tensor:
        """Negative log-likelihood, averaged; head over every token, each tail over its share."""
        head = F.log_softmax(self.logits(x, 0), dim=1)
        loss = -head.gather(1, labels.clamp(max=head.shape[1] - 1).unsqueeze(1)).squeeze(1)
        for cluster, row in enumerate(rows, start=1):
            tail = F.log_softmax(self.logits(x.index_select(0, row), cluster), dim=1)
            target = labels.index_select(0, row) - self.edges[cluster][0]
            nll = -head.index_select(0, row)[:, -cluster] - tail.gather(1, target.unsqueeze(1)).squeeze(1)
            loss = loss.index_copy(0, row, nll)
        return loss.float().mean()


class TransformerXL(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.hidden, heads = int(config["hidden"]), int(config["heads"])
        self.vocabulary = AdaptiveVocabulary(config)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.hidden // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, self.hidden // heads))
        self.layers = nn.ModuleList(Layer(config) for _ in range(int(config["layers"])))
        self.dropout = dropout(float(config["dropout"]))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """The loss; the next segment's memory is computed (as in training) and dropped."""
        ids, memory = inputs["input_ids"], inputs["memory"]
        rows = [inputs[name] for name in sorted(inputs) if name.startswith("rows")]
        embedded = self.vocabulary.embed(ids, rows)
        query, key = ids.shape[0], ids.shape[0] + memory.shape[1]

        distance = torch.arange(key - 1, -1, -1, device=ids.device).to(embedded.dtype)
        exponent = torch.arange(0, self.hidden, 2, device=ids.device).to(embedded.dtype) / self.hidden
        angles = torch.outer(distance, 10000.0**-exponent)
        position = self.dropout(torch.cat((angles.sin(), angles.cos()), dim=-1))
        mask = torch.ones(query, key, dtype=torch.bool, device=ids.device).triu(1 + key - query)

        x = self.dropout(embedded)
        states = [x]
        for index, layer in enumerate(self.layers):
            x = layer(x, memory[index], position, (self.content_bias, self.position_bias), mask)
            states.append(x)
        with torch.no_grad():
            torch.cat((memory, torch.stack(states)), dim=1)[:, -memory.shape[1] :].detach()
        flat = self.dropout(x).flatten(0, 1)
        return self.vocabulary.loss(flat, inputs["labels"].flatten(), rows)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, seq, mem = int(sizes["batch_size"]), int(sizes["seq_len"]), int(sizes["mem_len"])
    inputs = {"input_ids": tokens(seq, batch), "labels": tokens(seq, batch)}
    inputs["memory"] = torch.zeros(int(config["layers"]) + 1, mem, batch, int(config["hidden"]))
    for index, share in enumerate(config["cluster_shares"]):
        inputs[f"rows{index}"] = tokens(max(1, round(float(share) * seq)) * batch)
    return Workload(TransformerXL(config), inputs, lambda module, inputs: module(inputs))
