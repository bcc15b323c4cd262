"""One micro-batch of a Hugging Face model with its loss: what all heads give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from precision_time.zoo.workload import Sizes

Loss = Callable[[nn.Module, dict[str, Any]], Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of a model with labels, its loss where that is not the model's own, and what was assumed."""

    inputs: dict[str, Any]
    loss: Loss | None = None
    notes: tuple[str, ...] = field(default=())


def own_loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The loss that a model returns for its labels."""
    found: Tensor = getattr(module(**inputs), "loss", None)
    return found


def sides(config: Any, sizes: Sizes) -> tuple[int, int, int]:
    side = sizes.get("image_size", getattr(config, "image_size", None)) or 224
    height, width = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    return int(getattr(config, "num_channels", None) or 3), height, width


def image(config: Any, sizes: Sizes) -> dict[str, Any]:
    return {"pixel_values": torch.zeros(int(sizes["batch_size"]), *sides(config, sizes))}
