"""What the layers of decoders share: norms, rotary positions, projections with adapters, gated activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.text import activation, dropout
from precision_time.zoo.workload import Config


def norm(kind: str, size: int) -> nn.Module:
    if kind == "layernorm":
        return nn.LayerNorm(size, eps=1e-5)
    if kind == "rmsnorm":
        return nn.RMSNorm(size, eps=1e-5)
    raise ValueError(f"unknown norm {kind!r}: use layernorm or rmsnorm")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (arXiv:2104.09864) on the first `cos.shape[-1]` channels of each head, the rest
    unchanged.
    """
    width = cos.shape[-1]
    rotary, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    first, second = rotary.chunk(2, dim=-1)
    rotated = rotary * cos + torch.cat((-second, first), dim=-1) * sin
    return rotated if rest is None else torch.cat((rotated, rest), dim=-1)


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank adapter beside it (arXiv:2106.09685), scaled by alpha / rank = 2."""

    def __init__(self, inputs: int, outputs: int, bias: bool, rank: int, drop: float) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.lora_a = nn.Linear(inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.dropout = dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.lora_b(2.0 * self.lora_a(self.dropout(x)))


def biased(config: Config, qkv: bool = False) -> bool:
    """Whether a linear layer has a bias; with `bias=qkv` only the projections to queries, keys and values have one."""
    return qkv if config["bias"] == "qkv" else bool(config["bias"])


def projection(config: Config, inputs: int, outputs: int, qkv: bool = False) -> nn.Linear:
    """A linear layer of attention (`qkv`: to queries, keys or values); `lora` gives it an adapter of that rank."""
    bias, rank = biased(config, qkv), int(config["lora"])
    if rank:
        return LoraLinear(inputs, outputs, bias, rank, float(config["lora_dropout"]))
    return nn.Linear(inputs, outputs, bias=bias)


def freeze_all_but_adapters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _clamped_quick_geglu(gate: Tensor, up: Tensor) -> Tensor:
    """GPT-OSS: both halves clamped at 7, the gate by sigmoid(1.702 x), one added to the other half."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)


def _gelu(gate: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh")


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return _gelu(gate) * up


GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": _swiglu,
    "geglu": _geglu,
    "clamped_quick_geglu": _clamped_quick_geglu,
}


_OF_GATE: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": _gelu}
"""Activation of the gate alone."""


class FeedForward(nn.Module):
    """act(x W_up) W_down, or with a gated act: act(x W_gate, x W_up) W_down."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        hidden, bias, act = int(config["hidden"]), biased(config), str(config["act"])
        self.gated, self.of_gate = GATED.get(act), _OF_GATE.get(act)
        if self.gated:
            self.gate = nn.Linear(hidden, width, bias=bias)
        else:
            self.act = activation(act)
        self.up = nn.Linear(hidden, width, bias=bias)
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.of_gate:  # as written everywhere, before the other half is computed
            return self.down(self.of_gate(self.gate(x)) * self.up(x))
        if self.gated:
            return self.down(self.gated(self.gate(x), self.up(x)))
        return self.down(self.act(self.up(x)))
