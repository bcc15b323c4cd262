"""The Mamba-2 layer (arXiv:2405.21060), as hybrid models have it in place of attention in most layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.decoder_parts import biased, norm
from precision_time.zoo.models.operators import state_scan
from precision_time.zoo.workload import Config


class Mamba(nn.Module):
    """One projection gives gate, values, input and output vectors of the state, and step sizes; a short causal
    convolution, the scan, a gated norm, a projection back.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, bias = int(config["hidden"]), biased(config)
        self.heads, self.head_dim = int(config["mamba_heads"]), int(config["mamba_head_dim"])
        self.groups, self.state = int(config["mamba_groups"]), int(config["mamba_state"])
        if not (self.heads and self.head_dim and self.groups and self.state):
            raise ValueError("Mamba layers need mamba_heads, mamba_head_dim, mamba_groups and mamba_state")
        width, vectors = self.heads * self.head_dim, self.groups * self.state
        self.split = [width, width + 2 * vectors, self.heads]
        self.parts = [width, vectors, vectors]
        taps = int(config["mamba_taps"])
        self.enter = nn.Linear(hidden, sum(self.split), bias=bias)
        self.convolution = nn.Conv1d(self.split[1], self.split[1], taps, padding=taps - 1, groups=self.split[1])
        self.step_bias = nn.Parameter(torch.zeros(self.heads))
        self.decay = nn.Parameter(torch.zeros(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = norm("rmsnorm", width)
        self.leave = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, mixed, steps = self.enter(x).split(self.split, dim=-1)
        mixed = F.silu(self.convolution(mixed.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        values, b, c = mixed.split(self.parts, dim=-1)
        values = values.unflatten(-1, (self.heads, -1))
        b, c = (y.unflatten(-1, (self.groups, -1)) for y in (b, c))
        y = state_scan(values, steps, self.step_bias, self.decay, b, c, self.skip)
        return self.leave(self.norm(y.flatten(2) * F.silu(gate)))
