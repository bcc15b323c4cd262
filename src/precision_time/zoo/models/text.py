"""What the builders of text models share: token inputs, masks, activations, the vocabulary loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def tokens(*shape: int) -> Tensor:
    """Token, position or class numbers: int64, as the embedding and the losses take them."""
    return torch.zeros(shape, dtype=torch.int64)


def dropout(p: float) -> nn.Module:
    """A dropout layer, or nothing at all for p = 0 (`nn.Dropout(0)` would still launch a kernel)."""
    return nn.Dropout(p) if p > 0 else nn.Identity()


def key_mask(attention_mask: Tensor) -> Tensor:
    """[batch, seq] of 0/1 to the boolean [batch, 1, 1, seq] that scaled-dot-product attention broadcasts."""
    return attention_mask.to(torch.bool)[:, None, None, :]


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The pointwise nonlinearity of a feed-forward block, by its name in `model_config`."""
    table: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square(),
    }
    if name not in table:
        raise ValueError(f"unknown activation {name!r}: use one of {', '.join(sorted(table))}")
    return table[name]


class FeedForward(nn.Module):
    """act(x W_up) W_down."""

    def __init__(self, hidden: int, width: int, act: str) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width)
        self.down = nn.Linear(width, hidden)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class VocabularyLoss(nn.Module):
    """`vocabulary_loss` as a module of its own, where it is not the end of the step."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return vocabulary_loss(logits, labels)


def vocabulary_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, logits flattened to [tokens, vocabulary]."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
