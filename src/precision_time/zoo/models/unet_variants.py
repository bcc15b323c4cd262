"""Padded U-Nets for images: with batch norm, with attention gates, with residual units, on a ResNet.

- `build_padded`: the U-Net of milesial/Pytorch-UNet: padded pairs of convolutions without bias, batch norm.
- `build_attention`: attention gates on the skips (Oktay et al. 2018, arXiv:1804.03999) as in LeeJunHyun's
  Image_Segmentation: upsampling by nearest neighbours and a convolution, biases beside batch norm.
- `build_residual`: Deep ResUNet (Zhang et al. 2018, arXiv:1711.10684): pre-activated residual units, strides down,
  upsampling by nearest neighbours; three levels.
- `build_encoder`: a ResNet of torchvision as the way down (Unet of segmentation_models_pytorch): nearest neighbours,
  concatenation, pairs of convolutions without bias.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.models.resnet import ResNet
from precision_time.zoo.models.segmentation_loss import dice_cross_entropy, segment
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload


def _unit(inputs: int, outputs: int, kernel: int = 3, bias: bool = False) -> list[nn.Module]:
    """Convolution, batch norm, ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _pair(inputs: int, outputs: int, bias: bool = False) -> nn.Sequential:
    return nn.Sequential(*_unit(inputs, outputs, bias=bias), *_unit(outputs, outputs, bias=bias))


class PaddedUNet(nn.Module):
    """Halves by maxima, doubles by transposed convolutions."""

    def __init__(self, channels: int, classes: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(_pair(a, b) for a, b in pairwise((channels, *filters)))
        steps = list(pairwise(filters[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, shallow, 2, 2) for deep, shallow in steps)
        self.merge = nn.ModuleList(_pair(2 * shallow, shallow) for _, shallow in steps)
        self.out = nn.Conv2d(filters[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat((skip, up(x)), 1))
        found: Tensor = self.out(x)
        return found


class Gate(nn.Module):
    """How much of a skip passes, from the skip and from what comes from below: one number for each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 2
        self.below, self.skip = (nn.Sequential(nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner)) for _ in range(2))
        self.share = nn.Sequential(nn.Conv2d(inner, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:
        return skip * self.share(F.relu(self.below(below) + self.skip(skip)))


class AttentionUNet(nn.Module):
    def __init__(self, channels: int, classes: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(_pair(a, b, bias=True) for a, b in pairwise((channels, *filters)))
        steps = list(pairwise(filters[::-1]))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), *_unit(deep, shallow, bias=True)) for deep, shallow in steps
        )
        self.gate = nn.ModuleList(Gate(shallow) for _, shallow in steps)
        self.merge = nn.ModuleList(_pair(2 * shallow, shallow, bias=True) for _, shallow in steps)
        self.out = nn.Conv2d(filters[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, gate, merge, skip in zip(self.up, self.gate, self.merge, skips[-2::-1], strict=True):
            x = up(x)
            x = merge(torch.cat((gate(x, skip), x), 1))
        found: Tensor = self.out(x)
        return found


class ResidualUnit(nn.Module):
    """Batch norm, ReLU, convolution, twice, beside a 1x1 convolution; the `first` unit begins with its convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, first: bool = False) -> None:
        super().__init__()
        before: list[nn.Module] = [] if first else [nn.BatchNorm2d(inputs), nn.ReLU()]
        self.body = nn.Sequential(
            *before,
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x) + self.shortcut(x)
        return found


class ResidualUNet(nn.Module):
    """`filters` are the widths of the way down and of the bridge below it."""

    def __init__(self, channels: int, classes: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList([ResidualUnit(channels, filters[0], first=True)])
        self.down.extend(ResidualUnit(a, b, stride=2) for a, b in pairwise(filters))
        self.up = nn.ModuleList(ResidualUnit(deep + shallow, shallow) for deep, shallow in pairwise(filters[::-1]))
        self.out = nn.Conv2d(filters[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(torch.cat((F.interpolate(x, scale_factor=2.0), skip), 1))
        found: Tensor = self.out(x)
        return found


class EncoderUNet(nn.Module):
    """The five feature maps of a ResNet, and a decoder of `filters` channels."""

    def __init__(self, depth: int, classes: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.body = ResNet(depth)
        deep = (64, *self.body.widths)[::-1]
        skips = (*deep[1:], 0)
        inputs = (deep[0], *filters[:-1])
        self.up = nn.ModuleList(
            _pair(below + skip, width) for below, skip, width in zip(inputs, skips, filters, strict=True)
        )
        self.out = nn.Conv2d(filters[-1], classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        half = self.body.stem[:3](x)
        features = [half]
        x = self.body.stem[3](half)
        for stage in self.body.stages:
            x = stage(x)
            features.append(x)
        features.reverse()
        for place, block in enumerate(self.up, 1):
            x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat((x, features[place]), 1) if place < len(features) else x)
        found: Tensor = self.out(x)
        return found


def mask_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Binary cross-entropy and Dice of one class."""
    logits, mask = model(inputs["image"]).float(), inputs["mask"]
    chance = logits.sigmoid()
    dice = 1.0 - (2.0 * (chance * mask).sum() + 1.0) / (chance.sum() + mask.sum() + 1.0)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice


def _workload(module: nn.Module, config: Config, sizes: Sizes, levels: int) -> Workload:
    """One class is a mask, several are labels; every side is a multiple of what the way down divides by."""
    divisor = 2**levels
    if any(side % divisor for side in spatial(sizes, default=512)):
        raise JobError(f"{levels} levels halve the input: every side of image_size must divide by {divisor}")
    if int(config["classes"]) > 1:
        return segment(module, sizes, 2, 3, 512, dice_cross_entropy(over_batch=True, background=True))
    picture = image(sizes, default=512)
    return Workload(module, {"image": picture, "mask": torch.zeros_like(picture[:, :1])}, mask_loss)


def _filters(config: Config) -> tuple[int, ...]:
    return tuple(int(width) for width in config["filters"])


def build_padded(config: Config, sizes: Sizes) -> Workload:
    filters = _filters(config)
    module = PaddedUNet(int(sizes.get("channels", 3)), int(config["classes"]), filters)
    return _workload(module, config, sizes, len(filters) - 1)


def build_attention(config: Config, sizes: Sizes) -> Workload:
    filters = _filters(config)
    module = AttentionUNet(int(sizes.get("channels", 3)), int(config["classes"]), filters)
    return _workload(module, config, sizes, len(filters) - 1)


def build_residual(config: Config, sizes: Sizes) -> Workload:
    filters = _filters(config)
    module = ResidualUNet(int(sizes.get("channels", 3)), int(config["classes"]), filters)
    return _workload(module, config, sizes, len(filters) - 1)


def build_encoder(config: Config, sizes: Sizes) -> Workload:
    filters = _filters(config)
    return _workload(EncoderUNet(int(config["depth"]), int(config["classes"]), filters), config, sizes, len(filters))
