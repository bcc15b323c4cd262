"""Temporal Fusion Transformer for interpretable forecasting.

Lim et al. 2019 (arXiv:1912.09363); sizes of the NVIDIA DeepLearningExamples electricity and traffic
configurations. The attention shares one value head and averages the heads, so it is written out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.text import dropout, tokens
from precision_time.zoo.workload import Config, Sizes, Workload

EPS = 1e-3


class Gate(nn.Module):
    """Gated linear unit."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.linear(x))


class GatedResidual(nn.Module):
    """Dense, ELU, dense, gate, skip and norm; an optional static context joins the first dense layer."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int | None = None, context: bool = False, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second = nn.Linear(hidden, hidden)
        self.dropout = dropout(drop)
        self.gate = Gate(hidden, outputs or hidden)
        self.skip = nn.Linear(inputs, outputs) if outputs else nn.Identity()
        self.norm = nn.Identity() if outputs == 1 else nn.LayerNorm(outputs or hidden, eps=EPS)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.first(x)
        if self.context is not None and context is not None:
            y = y + self.context(context).unsqueeze(1)
        y = self.gate(self.dropout(self.second(F.elu(y))))
        return self.norm(y + self.skip(x))


class VariableSelection(nn.Module):
    """A softmax over the variables weighs their separately transformed embeddings."""

    def __init__(self, hidden: int, variables: int, drop: float) -> None:
        super().__init__()
        self.joint = GatedResidual(hidden * variables, hidden, variables, context=True)
        self.each = nn.ModuleList(GatedResidual(hidden, hidden, drop=drop) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        weights = F.softmax(self.joint(x.flatten(-2), context), dim=-1)
        transformed = torch.stack([grn(x[..., i, :]) for i, grn in enumerate(self.each)], dim=-1)
        return torch.matmul(transformed, weights.unsqueeze(-1)).squeeze(-1)


class InterpretableAttention(nn.Module):
    mask: Tensor

    def __init__(self, hidden: int, heads: int, steps: int, drop: float) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.qkv = nn.Linear(hidden, (2 * heads + 1) * self.width, bias=False)
        self.output = nn.Linear(self.width, hidden, bias=False)
        self.dropout = dropout(drop)
        self.register_buffer("mask", torch.full((1, steps, steps), float("-inf")).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        full = self.heads * self.width
        q, k, v = self.qkv(x).split((full, full, self.width), dim=-1)
        q = q.unflatten(-1, (self.heads, self.width)).permute(0, 2, 1, 3)
        k = k.unflatten(-1, (self.heads, self.width)).permute(0, 2, 3, 1)
        score = torch.matmul(q, k) * self.width**-0.5 + self.mask
        context = torch.matmul(F.softmax(score, dim=3), v.unsqueeze(1)).mean(dim=1)
        return self.dropout(self.output(context))


class Tft(nn.Module):
    """Known inputs over all steps, observed target over the past; quantiles of the future steps."""

    def __init__(self, config: Config, past: int, steps: int) -> None:
        super().__init__()
        hidden, drop, known = int(config["hidden"]), float(config["dropout"]), int(config["known_inputs"])
        self.past = past
        self.static_embedding = nn.Embedding(int(config["static_classes"]), hidden)
        self.known_vectors = nn.Parameter(torch.empty(known, hidden))
        self.known_bias = nn.Parameter(torch.zeros(known, hidden))
        self.target_vectors = nn.Parameter(torch.empty(1, hidden))
        self.target_bias = nn.Parameter(torch.zeros(1, hidden))
        self.static_selection = VariableSelection(hidden, 1, drop)
        self.contexts = nn.ModuleList(GatedResidual(hidden, hidden, drop=drop) for _ in range(4))
        self.past_selection = VariableSelection(hidden, known + 1, drop)
        self.future_selection = VariableSelection(hidden, known, drop)
        self.past_lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.future_lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.input_gate, self.input_norm = Gate(hidden, hidden), nn.LayerNorm(hidden, eps=EPS)
        self.enrichment = GatedResidual(hidden, hidden, context=True, drop=drop)
        self.attention = InterpretableAttention(hidden, int(config["heads"]), steps, drop)
        self.attention_gate, self.attention_norm = Gate(hidden, hidden), nn.LayerNorm(hidden, eps=EPS)
        self.feed_forward = GatedResidual(hidden, hidden, drop=drop)
        self.output_gate, self.output_norm = Gate(hidden, hidden), nn.LayerNorm(hidden, eps=EPS)
        self.quantiles = nn.Linear(hidden, int(config["quantiles"]))

    def forward(self, static: Tensor, known: Tensor, target: Tensor) -> Tensor:
        past = self.past
        static_inputs = self.static_embedding(static[:, 0])
        known_inputs = known.unsqueeze(-1) * self.known_vectors + self.known_bias
        observed = target.unsqueeze(-1) * self.target_vectors + self.target_bias

        selected = self.static_selection(static_inputs)
        choose, enrich, h, c = (grn(selected) for grn in self.contexts)
        past_inputs = torch.cat((known_inputs[:, :past], observed[:, :past]), dim=-2)
        past_features = self.past_selection(past_inputs, choose)
        future_features = self.future_selection(known_inputs[:, past:], choose)
        history, state = self.past_lstm(past_features, (h.unsqueeze(0), c.unsqueeze(0)))
        future, _ = self.future_lstm(future_features, state)

        features = torch.cat((past_features, future_features), dim=1)
        temporal = self.input_norm(self.input_gate(torch.cat((history, future), dim=1)) + features)
        enriched = self.enrichment(temporal, enrich)
        attended = self.attention(enriched)[:, past:]
        attended = self.attention_norm(self.attention_gate(attended) + enriched[:, past:])
        decoded = self.output_gate(self.feed_forward(attended))
        return self.quantiles(self.output_norm(decoded + temporal[:, past:]))


def quantile_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Pinball loss of the quantiles 0.1, 0.5 and 0.9, summed over quantiles."""
    levels = torch.arange(1, 2 * predictions.shape[-1], 2, device=predictions.device) / (2 * predictions.shape[-1])
    error = predictions - targets
    return torch.maximum((1 - levels) * error, -levels * error).mean(dim=(0, 1)).sum()


def build(config: Config, sizes: Sizes) -> Workload:
    batch, past = int(sizes["batch_size"]), int(sizes["encoder_steps"])
    steps = past + int(sizes["decoder_steps"])
    inputs = {
        "static": tokens(batch, steps, 1),
        "known": torch.zeros(batch, steps, int(config["known_inputs"])),
        "target": torch.zeros(batch, steps, 1),
    }

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        predictions = module(inputs["static"], inputs["known"], inputs["target"])
        return quantile_loss(predictions.float(), inputs["target"][:, past:].float())

    return Workload(Tft(config, past, steps), inputs, loss)
