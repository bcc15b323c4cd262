"""Blocks and helpers that several vision models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.workload import Config, Sizes, Workload

Norm = Callable[[int], nn.Module]


def spatial(sizes: Sizes, dims: int = 2, default: int = 224) -> tuple[int, ...]:
    """Extent of the input image or volume: an int means equal sides. `image_size` wins over `volume`."""
    size = sizes.get("image_size", sizes.get("volume", default))
    if isinstance(size, int):
        return (size,) * dims
    extent = tuple(int(side) for side in size)
    if len(extent) != dims:
        raise JobError(f"image_size {size!r} has {len(extent)} sides, this model takes {dims}")
    return extent


def image(sizes: Sizes, channels: int = 3, dims: int = 2, default: int = 224) -> torch.Tensor:
    """One micro-batch of images (or volumes) on the current default device."""
    depth = int(sizes.get("channels", channels))
    return torch.randn(int(sizes["batch_size"]), depth, *spatial(sizes, dims, default))


def classify(module: nn.Module, config: Config, sizes: Sizes, default: int = 224) -> Workload:
    """Image classification: one label per image, mean cross-entropy with `label_smoothing`."""
    smoothing = float(config.get("label_smoothing", 0.0))
    labels = torch.zeros(int(sizes["batch_size"]), dtype=torch.int64)

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(inputs["image"]), inputs["label"], label_smoothing=smoothing)

    return Workload(module, {"image": image(sizes, default=default), "label": labels}, loss)


def option(config: Mapping[str, Any], key: str, choices: Mapping[str, Any], default: str) -> Any:
    """Look up a named option, and refuse an unknown name with the names that exist."""
    value = str(config.get(key, default))
    if value not in choices:
        raise JobError(f"{key}={value} is not known here; choose one of {', '.join(choices)}")
    return choices[value]


class DropPath(nn.Module):
    """Stochastic depth: drops the residual branch of whole samples (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.keep = 1.0 - rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = torch.rand(shape, dtype=x.dtype, device=x.device).add_(self.keep).floor_()
        return x.div(self.keep) * mask


def drop_path(rate: float) -> nn.Module:
    return DropPath(rate) if rate > 0 else nn.Identity()


class SqueezeExcite(nn.Module):
    """The gate of squeeze-and-excitation (Hu et al. 2018), of shape (batch, channels, 1, 1)."""

    def __init__(self, channels: int, squeeze: int, activation: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeeze, 1)
        self.activation = activation
        self.expand = nn.Conv2d(squeeze, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expand(self.activation(self.reduce(self.pool(x)))).sigmoid()


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and affine terms are constants, as detectors fine-tune with it."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def scale_and_shift(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The constant terms per channel."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = (each[:, None, None].to(x.dtype) for each in self.scale_and_shift())
        return x * scale + shift


class OneKernelFrozenBatchNorm2d(FrozenBatchNorm2d):
    """The same in the dtype of the images, as one kernel: as submissions to MLPerf script it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = (each[:, None, None].to(x.dtype) for each in self.scale_and_shift())
        return torch.addcmul(shift, x, scale)
