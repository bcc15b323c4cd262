"""Small networks of dense, inverted and inception blocks for images of 32 or 64 pixels: own ones, and torchvision's
classes in small settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from precision_time.errors import JobError, MissingExtraError
from precision_time.zoo.models.small_residual import conv
from precision_time.zoo.models.torchvision_models import create
from precision_time.zoo.models.vision_common import classify, option
from precision_time.zoo.workload import Config, Sizes, Workload


class _DenseLayer(nn.Module):
    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside),
            nn.ReLU(),
            conv(inside, 4 * growth, 1),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            conv(4 * growth, growth),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def build_densenet(config: Config, sizes: Sizes) -> Workload:
    """DenseNet-BC for CIFAR (Huang et al. 2017): three blocks, depth 6n + 4, transitions halve the channels."""
    depth, growth = int(config["depth"]), int(config["growth"])
    if depth % 6 != 4 or depth < 10:
        raise JobError(f"depth={depth} is no DenseNet-BC; use 6n + 4: 22, 40, 100")
    width = 2 * growth
    layers: list[nn.Module] = [conv(3, width)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(_DenseLayer(width, growth))
            width += growth
        if block < 2:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), conv(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return classify(nn.Sequential(*layers, nn.Linear(width, int(config["classes"]))), config, sizes)


def build_mobilenet_v1(config: Config, sizes: Sizes) -> Workload:
    """MobileNet (Howard et al. 2017) with fewer repeats of its middle; the paper's `width` is 32."""
    w = int(config["width"])

    def unit(inside: int, out: int, kernel: int, stride: int, groups: int = 1) -> list[nn.Module]:
        return [conv(inside, out, kernel, stride, groups), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]

    layers, inside = unit(3, w, 3, 1), w
    for times, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (32, 2)):
        layers += unit(inside, inside, 3, stride, inside) + unit(inside, times * w, 1, 1)
        inside = times * w
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, int(config["classes"]))]
    return classify(nn.Sequential(*layers, *head), config, sizes)


class _Inception(nn.Module):
    """Four branches side by side (Szegedy et al. 2015): 1x1, 3x3, 5x5 and a pooled 1x1."""

    def __init__(self, inside: int, one: int, three: Sequence[int], five: Sequence[int], pooled: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            (
                _unit(inside, one, 1),
                nn.Sequential(_unit(inside, three[0], 1), _unit(three[0], three[1], 3)),
                nn.Sequential(_unit(inside, five[0], 1), _unit(five[0], five[1], 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _unit(inside, pooled, 1)),
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _unit(inside: int, out: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(conv(inside, out, kernel), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


_INCEPTIONS = (
    (64, (96, 128), (16, 32), 32), (128, (128, 192), (32, 96), 64), None, (192, (96, 208), (16, 48), 64),
    (160, (112, 224), (24, 64), 64), None, (256, (160, 320), (32, 128), 128),
)  # fmt: skip
"""Modules 3a, 3b, 4a, 4b and 5a of GoogLeNet's table 1; None: a pooling."""


def build_inception(config: Config, sizes: Sizes) -> Workload:
    """Five of GoogLeNet's nine modules behind a stem for small images, every width divided by `divide`."""
    by = int(config["divide"])
    stem = 192 // by
    layers: list[nn.Module] = [_unit(3, stem, 3), nn.MaxPool2d(2)]
    inside = stem
    for module in _INCEPTIONS:
        if module is None:
            layers.append(nn.MaxPool2d(3, 2, 1))
            continue
        one, three, five, pooled = module
        small = [[max(width // by, 1) for width in pair] for pair in (three, five)]
        layers.append(_Inception(inside, one // by, small[0], small[1], pooled // by))
        inside = one // by + small[0][1] + small[1][1] + pooled // by
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, int(config["classes"]))]
    return classify(nn.Sequential(*layers, *head), config, sizes)


class _ConvMixerLayer(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(conv(width, width, kernel, groups=width), nn.GELU(), nn.BatchNorm2d(width))
        self.pointwise = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(x + self.depthwise(x))


def build_convmixer(config: Config, sizes: Sizes) -> Workload:
    """ConvMixer (Trockman and Kolter 2023): patches, then depthwise and pointwise convolutions of one width."""
    width, patch = int(config["width"]), int(config["patch"])
    module = nn.Sequential(
        nn.Conv2d(3, width, patch, patch),
        nn.GELU(),
        nn.BatchNorm2d(width),
        *(_ConvMixerLayer(width, int(config["kernel"])) for _ in range(int(config["layers"]))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, int(config["classes"])),
    )
    return classify(module, config, sizes)


def _regnet(classes: int) -> nn.Module:
    from torchvision.models.regnet import BlockParams, RegNet

    return RegNet(  # RegNetX-200MF (Radosavovic et al. 2020, table of the RegNetX models)
        BlockParams.from_init_params(depth=13, w_0=24, w_a=36.44, w_m=2.49, group_width=8),
        num_classes=classes,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-5),
    )


def _convnext(classes: int) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths, depths = (40, 80, 160, 320), (1, 1, 3, 1)  # widths of timm's atto, half of its depth
    following = (*widths[1:], None)
    return ConvNeXt([CNBlockConfig(*each) for each in zip(widths, following, depths, strict=True)], num_classes=classes)


def _efficientnet(classes: int) -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    rows = (
        (1, 3, 1, 32, 16, 1),
        (6, 3, 2, 16, 24, 2),
        (6, 5, 2, 24, 40, 2),
        (6, 3, 2, 40, 80, 3),
        (6, 5, 1, 80, 112, 3),
        (6, 5, 2, 112, 192, 4),
        (6, 3, 1, 192, 320, 1),
    )
    # B0 (Tan and Le 2019, table 1) scaled down: half as wide, half as deep
    return EfficientNet([MBConvConfig(*row, width_mult=0.5, depth_mult=0.5) for row in rows], 0.2, 0.0, classes)


def _named(name: str, **options: float) -> Callable[[int], nn.Module]:
    def make(classes: int) -> nn.Module:
        from torchvision import models

        module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
        return module

    return make


_TORCHVISION: dict[str, Callable[[int], nn.Module]] = {
    "regnet-x-200mf": _regnet, "convnext": _convnext, "efficientnet": _efficientnet,
    "mobilenet-v2": _named("mobilenet_v2", width_mult=0.5), "mobilenet-v3-small": _named("mobilenet_v3_small"),
    "shufflenet-v2-x0.5": _named("shufflenet_v2_x0_5"), "squeezenet-1.1": _named("squeezenet1_1"),
}  # fmt: skip


def build_torchvision(config: Config, sizes: Sizes) -> Workload:
    """torchvision's classes with the strides of ImageNet, small enough for small images; `name` is the class."""
    make = option(config, "name", _TORCHVISION, "")
    try:
        module = create(lambda: make(int(config["classes"])))
    except ImportError as missing:
        raise MissingExtraError("torchvision is not installed; pip install 'precision-time[models]'") from missing
    return classify(module, config, sizes)
