"""Dice and its sum with cross-entropy, for segmentation networks in two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Sizes, Workload

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def dice_loss(logits: torch.Tensor, label: torch.Tensor, over_batch: bool, background: bool) -> torch.Tensor:
    """One minus the Dice overlap of the softmax with one-hot labels (batch, *space), per class.

    `over_batch` sums the batch into the overlap (MONAI `batch=True`); class 0 counts with `background`.
    """
    chance = logits.softmax(dim=1)
    target = torch.zeros_like(chance).scatter_(1, label.unsqueeze(1), 1.0)
    if not background:
        chance, target = chance[:, 1:], target[:, 1:]
    axes = list(range(2, chance.ndim))
    axes = [0, *axes] if over_batch else axes
    both = (chance * target).sum(axes)
    either = chance.sum(axes) + target.sum(axes)
    return (1.0 - (2.0 * both + 1e-5) / (either + 1e-5)).mean()


def dice_cross_entropy(over_batch: bool = True, background: bool = False) -> Loss:
    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return dice_loss(logits, label, over_batch, background) + F.cross_entropy(logits, label)

    return loss


def segment(
    module: nn.Module, sizes: Sizes, dims: int, channels: int, default: int, loss: Loss, crop: int = 0
) -> Workload:
    """Labels for every pixel; valid convolutions lose `crop` pixels of each side's extent."""
    extent = [side - crop for side in spatial(sizes, dims, default)]
    label = torch.zeros(int(sizes["batch_size"]), *extent, dtype=torch.int64)

    def run(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss(model(inputs["image"]), inputs["label"])

    return Workload(module, {"image": image(sizes, channels, dims, default), "label": label}, run)
