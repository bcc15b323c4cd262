"""ResNet, ResNeXt and SE-ResNeXt.

He et al. 2015 (arXiv:1512.03385), Xie et al. 2016 (arXiv:1611.05431), Hu et al. 2017 (arXiv:1709.01507).
`variant` v1.5 strides in the 3x3 convolution of a bottleneck (torchvision, NVIDIA DeepLearningExamples),
v1 in the first 1x1.
"""

from __future__ import annotations

import torch
from torch import nn

from precision_time.zoo.models.vision_common import Norm, SqueezeExcite, classify, option
from precision_time.zoo.workload import Config, Sizes, Workload

STAGES: dict[int, tuple[int, ...]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
VARIANTS = {"v1": True, "v1.5": False}
"""Does the first 1x1 convolution carry the stride?"""


class Block(nn.Module):
    """A residual block: two 3x3 convolutions (basic) or 1x1, 3x3, 1x1 (bottleneck, grouped for ResNeXt)."""

    def __init__(self, convs: nn.Sequential, shortcut: nn.Module | None, gate: nn.Module | None) -> None:
        super().__init__()
        self.convs = convs
        self.shortcut = shortcut
        self.gate = gate
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.convs(x)
        residual = x if self.shortcut is None else self.shortcut(x)
        if self.gate is None:
            out += residual
        else:
            out = torch.addcmul(residual, out, self.gate(out))
        return self.relu(out)


class ResNet(nn.Module):
    """The convolutional body; `forward` gives the output of every stage.

    `strides` has one entry per stage built, so a detector can stop early or keep a stage's resolution.
    """

    def __init__(
        self,
        depth: int,
        *,
        groups: int = 1,
        group_width: int = 64,
        squeeze_excite: bool = False,
        stride_in_1x1: bool = False,
        norm: Norm = nn.BatchNorm2d,
        strides: tuple[int, ...] = (1, 2, 2, 2),
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.bottleneck = depth >= 50
        self.groups, self.group_width = groups, group_width
        self.squeeze_excite, self.stride_in_1x1 = squeeze_excite, stride_in_1x1
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            norm(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.ModuleList()
        self.widths: list[int] = []
        width = 64
        for stage, stride in enumerate(strides):
            planes = 64 * 2**stage
            blocks = []
            for index in range(STAGES[depth][stage]):
                blocks.append(self._block(width, planes, stride if index == 0 else 1))
                width = planes * (4 if self.bottleneck else 1)
            self.stages.append(nn.Sequential(*blocks))
            self.widths.append(width)

    def _block(self, inputs: int, planes: int, stride: int) -> Block:
        outputs = planes * (4 if self.bottleneck else 1)
        if self.bottleneck:
            inner = planes * self.group_width // 64 * self.groups
            first, second = (stride, 1) if self.stride_in_1x1 else (1, stride)
            layers = [
                *self._conv(inputs, inner, 1, first),
                nn.ReLU(inplace=True),
                *self._conv(inner, inner, 3, second, self.groups),
                nn.ReLU(inplace=True),
                *self._conv(inner, outputs, 1, 1),
            ]
        else:
            layers = [
                *self._conv(inputs, outputs, 3, stride),
                nn.ReLU(inplace=True),
                *self._conv(outputs, outputs, 3, 1),
            ]
        shortcut = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Sequential(*self._conv(inputs, outputs, 1, stride))
        gate = SqueezeExcite(outputs, outputs // 16, nn.ReLU(inplace=True)) if self.squeeze_excite else None
        return Block(nn.Sequential(*layers), shortcut, gate)

    def _conv(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, self.norm(outputs)]

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features

    def freeze(self, stages: int) -> None:
        """Freeze the stem and the first `stages` stages."""
        for part in (self.stem, *self.stages[:stages]):
            part.requires_grad_(False)


class Classifier(nn.Module):
    """Body, global average pooling and one linear layer."""

    def __init__(self, body: ResNet, classes: int) -> None:
        super().__init__()
        self.body = body
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(body.widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.pool(self.body(x)[-1]).flatten(1))


def build(config: Config, sizes: Sizes) -> Workload:
    body = ResNet(
        int(config.get("depth", 50)),
        groups=int(config.get("groups", 1)),
        group_width=int(config.get("group_width", 64)),
        squeeze_excite=bool(config.get("squeeze_excite", 0)),
        stride_in_1x1=option(config, "variant", VARIANTS, "v1.5"),
        channels=int(sizes.get("channels", 3)),
    )
    return classify(Classifier(body, int(config.get("classes", 1000))), config, sizes)
