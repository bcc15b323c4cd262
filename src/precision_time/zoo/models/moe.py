"""A mixture of experts: router, dispatch, grouped products, combine, and a shared expert beside them.

Mixtral (arXiv:2401.04088), Qwen3 (arXiv:2505.09388), DeepSeek-V3 (arXiv:2412.19437), GPT-OSS (arXiv:2508.10925): `topk`
of `experts` for every token, none dropped, scores over all experts and made one over the chosen. Selection by groups of
experts, balancing losses and the bias that balances are left out: they touch tokens x experts numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from precision_time.zoo.models.decoder_parts import GATED, FeedForward, biased
from precision_time.zoo.models.operators import grouped_linear, permute, unpermute
from precision_time.zoo.models.text import activation
from precision_time.zoo.workload import Config


class Router(nn.Module):
    """Tokens to (weights, experts), each (tokens, topk)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        experts, kind = int(config["experts"]), str(config["router"])
        if kind not in ("softmax", "sigmoid"):
            raise ValueError(f"unknown router {kind!r}: use softmax or sigmoid")
        if not 0 < int(config["topk"]) <= experts:
            raise ValueError(f"topk={config['topk']} of {experts} experts: use 1 to {experts}")
        self.sigmoid, self.topk = kind == "sigmoid", int(config["topk"])
        self.linear = nn.Linear(int(config["hidden"]), experts, bias=biased(config))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(x).float()
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        weights, chosen = scores.topk(self.topk, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen


class Dispatch(nn.Module):
    """Tokens in the order of their experts, one row for each choice.

    Of the experts, this rank holds `local`; with several ranks as many rows come from others as go to them.
    """

    def __init__(self, experts: int, local: int) -> None:
        super().__init__()
        self.experts, self.local = experts, local

    def forward(self, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        choices = chosen.flatten()
        order = choices.argsort()
        numbers = torch.arange(choices.shape[0], device=x.device)
        places = torch.empty_like(order).scatter_(0, order, numbers).view_as(chosen)
        counts = torch.zeros(self.experts, dtype=torch.int64, device=x.device)
        ends = counts.scatter_add_(0, choices, torch.ones_like(choices)).cumsum(0)[: self.local]
        return permute(x, order, places), order, places, ends


class Experts(nn.Module):
    """Feed-forward blocks, one for each expert, as grouped products; gate and up are one product."""

    def __init__(self, config: Config, local: int) -> None:
        super().__init__()
        hidden, width, act = int(config["hidden"]), int(config["moe_ffn"]), str(config["act"])
        self.gated = GATED.get(act)
        if not self.gated:
            self.act = activation(act)
        wide = 2 * width if self.gated else width
        self.up = nn.Parameter(torch.empty(local, hidden, wide))
        self.down = nn.Parameter(torch.empty(local, width, hidden))
        self.up_bias = nn.Parameter(torch.zeros(local, wide)) if biased(config) else None
        self.down_bias = nn.Parameter(torch.zeros(local, hidden)) if biased(config) else None
        for weight in (self.up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        y = grouped_linear(x, self.up, self.up_bias, ends)
        y = self.gated(*y.chunk(2, dim=-1)) if self.gated else self.act(y)
        return grouped_linear(y, self.down, self.down_bias, ends)


class Combine(nn.Module):
    """Rows back to their tokens, summed with the router's weights."""

    def forward(self, y: Tensor, order: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        return unpermute(y, order, places, weights)


class MixtureOfExperts(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        experts = int(config["experts"])
        local = int(config["local_experts"]) or experts
        self.router = Router(config)
        self.dispatch = Dispatch(experts, local)
        self.experts = Experts(config, local)
        self.combine = Combine()
        shared = int(config["shared_ffn"])
        self.shared = FeedForward(config, shared) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens)
        rows, order, places, ends = self.dispatch(tokens, chosen)
        mixed = self.combine(self.experts(rows, ends), order, places, weights).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)
