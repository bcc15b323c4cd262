"""Small residual and plain convolutional networks for images of 32 or 64 pixels, as their papers define them for CIFAR.

`width` scales every layer, so that one core trains an epoch of a few hundred images in seconds; at the papers' width
the parameter counts are the published ones (tests/test_small_networks.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.models.vision_common import SqueezeExcite, classify, option, spatial
from precision_time.zoo.workload import Config, Sizes, Workload


def conv(inside: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False)


class _Shortcut(nn.Module):
    """Identity that skips pixels and pads channels with zeros: no parameters (He et al. 2016, option A)."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.pad, self.stride = (out - inside) // 2, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))


class BasicBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int, squeeze: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(inside, out, 3, stride), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = conv(out, out), nn.BatchNorm2d(out)
        self.gate = SqueezeExcite(out, max(out // 4, 4), nn.ReLU()) if squeeze else None
        self.shortcut = nn.Identity() if stride == 1 and inside == out else _Shortcut(inside, out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.gate is not None:
            y = y * self.gate(y)
        return F.relu(y + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """Norm and activation before each convolution; the first of a stage projects what both branches share."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inside), conv(inside, out, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(out), conv(out, out)
        self.project = None if stride == 1 and inside == out else conv(inside, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(x))
        kept = x if self.project is None else self.project(y)
        y = self.conv1(y)
        return self.conv2(F.relu(self.norm2(y))) + kept


class GroupedBottleneck(nn.Module):
    """The block of ResNeXt: a grouped 3x3 convolution between two 1x1 ones."""

    def __init__(self, inside: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        middle = out // 2
        self.body = nn.Sequential(
            conv(inside, middle, 1),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            conv(middle, middle, 3, stride, groups),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            conv(middle, out, 1),
            nn.BatchNorm2d(out),
        )
        self.project = (
            nn.Identity()
            if stride == 1 and inside == out
            else nn.Sequential(conv(inside, out, 1, stride), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.project(x))


def _stages(make: type[nn.Module], blocks: int, widths: Sequence[int], inside: int, *more: object) -> list[nn.Module]:
    stages: list[nn.Module] = []
    for stage, out in enumerate(widths):
        for block in range(blocks):
            stages.append(make(inside, out, 2 if stage and not block else 1, *more))
            inside = out
    return stages


def _head(width: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


def build_resnet(config: Config, sizes: Sizes) -> Workload:
    """ResNet for CIFAR (He et al. 2016, section 4.2), depth 6n + 2 and `width` 16 there, with or without SE gates."""
    depth, width = int(config["depth"]), int(config["width"])
    if depth % 6 != 2 or depth < 8:
        raise JobError(f"depth={depth} is no ResNet for CIFAR; use 6n + 2: 20, 32, 44, 56")
    widths = [width, 2 * width, 4 * width]
    body = _stages(BasicBlock, depth // 6, widths, width, bool(int(config["squeeze_excite"])))
    stem = [conv(3, width), nn.BatchNorm2d(width), nn.ReLU()]
    return classify(nn.Sequential(*stem, *body, *_head(widths[-1], int(config["classes"]))), config, sizes)


def build_wide_resnet(config: Config, sizes: Sizes) -> Workload:
    """Wide ResNet (Zagoruyko and Komodakis 2016): pre-activation, depth 6n + 4, `widen` times as wide as `width`."""
    depth, width, widen = int(config["depth"]), int(config["width"]), int(config["widen"])
    if depth % 6 != 4 or depth < 10:
        raise JobError(f"depth={depth} is no wide ResNet; use 6n + 4: 10, 16, 22, 28")
    widths = [width * widen, 2 * width * widen, 4 * width * widen]
    body = _stages(PreActivationBlock, depth // 6, widths, width)
    last = [nn.BatchNorm2d(widths[-1]), nn.ReLU(), *_head(widths[-1], int(config["classes"]))]
    return classify(nn.Sequential(conv(3, width), *body, *last), config, sizes)


def build_resnext(config: Config, sizes: Sizes) -> Workload:
    """ResNeXt for CIFAR (Xie et al. 2017): bottlenecks of `groups` groups, depth 9n + 2."""
    depth, width, groups = int(config["depth"]), int(config["width"]), int(config["groups"])
    if depth % 9 != 2 or depth < 11 or width % (2 * groups):
        raise JobError(
            f"depth={depth}, width={width}, groups={groups} is no ResNeXt; take depth 9n + 2 and a "
            "width that is a multiple of 2 groups"
        )
    widths = [width, 2 * width, 4 * width]
    body = _stages(GroupedBottleneck, depth // 9, widths, width // 2, groups)
    stem = [conv(3, width // 2), nn.BatchNorm2d(width // 2), nn.ReLU()]
    return classify(nn.Sequential(*stem, *body, *_head(widths[-1], int(config["classes"]))), config, sizes)


_VGG = {
    "11": (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"),
    "13": (1, 1, "M", 2, 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"),
}


def build_vgg(config: Config, sizes: Sizes) -> Workload:
    """VGG 11 or 13 with batch norm and one linear layer, as it is used on CIFAR; `width` 64 is the paper's."""
    width, inside = int(config["width"]), 3
    layers: list[nn.Module] = []
    for item in option(config, "depth", _VGG, "11"):
        if item == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inside, item * width, 3, padding=1), nn.BatchNorm2d(item * width), nn.ReLU(inplace=True)]
        inside = item * width
    return classify(nn.Sequential(*layers, *_head(inside, int(config["classes"]))), config, sizes)


def build_lenet(config: Config, sizes: Sizes) -> Workload:
    """LeNet-5 (LeCun et al. 1998) on three channels with ReLU: 62,006 parameters at 32 pixels and ten classes."""
    height, width = (((side - 4) // 2 - 4) // 2 for side in spatial(sizes))
    module = nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, int(config["classes"])),
    )
    return classify(module, config, sizes)


def build_alexnet(config: Config, sizes: Sizes) -> Workload:
    """AlexNet's five convolutions and three linear layers (Krizhevsky 2014) with strides that suit small images."""
    w, hidden = int(config["width"]), int(config["hidden"])
    module = nn.Sequential(
        nn.Conv2d(3, w, 3, 2, 1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(w, 3 * w, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(3 * w, 6 * w, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6 * w, 4 * w, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4 * w, 4 * w, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(16 * w, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, int(config["classes"])),
    )
    return classify(module, config, sizes)


def build_network_in_network(config: Config, sizes: Sizes) -> Workload:
    """Network in network (Lin et al. 2014): each convolution is followed by two of 1x1; `width` 192 is the paper's."""
    w, classes = int(config["width"]), int(config["classes"])

    def block(inside: int, kernel: int, widths: Sequence[int]) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for k, out in zip((kernel, 1, 1), widths, strict=True):
            layers += [nn.Conv2d(inside, out, k, padding=k // 2), nn.ReLU(inplace=True)]
            inside = out
        return layers

    module = nn.Sequential(
        *block(3, 5, (w, 5 * w // 6, w // 2)),
        nn.MaxPool2d(3, 2, 1),
        nn.Dropout(0.5),
        *block(w // 2, 5, (w, w, w)),
        nn.AvgPool2d(3, 2, 1),
        nn.Dropout(0.5),
        *block(w, 3, (w, w, classes)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return classify(module, config, sizes)
