"""EfficientNet B0..B7, their wide-SE variants and EfficientNetV2-S.

Tan and Le 2019 (arXiv:1905.11946) and 2021 (arXiv:2104.00298); wide SE squeezes to a quarter of the
expanded width instead of the block's input (NVIDIA DeepLearningExamples). V2 was trained in TensorFlow,
whose asymmetric padding gives the same shapes as the symmetric padding here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import torch
from torch import nn

from precision_time.zoo.models.vision_common import SqueezeExcite, classify, drop_path, option
from precision_time.zoo.workload import Config, Sizes, Workload

Activation = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of equal blocks: `fused` ones expand with a full convolution in place of 1x1 plus depthwise."""

    kernel: int
    repeats: int
    expansion: int
    stride: int
    outputs: int
    fused: bool = False
    squeeze: bool = True


B0 = (
    Stage(3, 1, 1, 1, 16),
    Stage(3, 2, 6, 2, 24),
    Stage(5, 2, 6, 2, 40),
    Stage(3, 3, 6, 2, 80),
    Stage(5, 3, 6, 1, 112),
    Stage(5, 4, 6, 2, 192),
    Stage(3, 1, 6, 1, 320),
)
V2_S = (
    Stage(3, 2, 1, 1, 24, fused=True, squeeze=False),
    Stage(3, 4, 4, 2, 48, fused=True, squeeze=False),
    Stage(3, 4, 4, 2, 64, fused=True, squeeze=False),
    Stage(3, 6, 4, 2, 128),
    Stage(3, 9, 6, 1, 160),
    Stage(3, 15, 6, 2, 256),
)
VARIANTS = {
    "b0": (B0, 1.0, 1.0), "b1": (B0, 1.0, 1.1), "b2": (B0, 1.1, 1.2), "b3": (B0, 1.2, 1.4),
    "b4": (B0, 1.4, 1.8), "b5": (B0, 1.6, 2.2), "b6": (B0, 1.8, 2.6), "b7": (B0, 2.0, 3.1),
    "v2-s": (V2_S, 1.0, 1.0),
}  # fmt: skip
"""Stages, width factor, depth factor."""


def round_width(width: float, divisor: int = 8) -> int:
    """Nearest multiple of `divisor`, never more than 10 % below the width."""
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, padding: int | None = None
) -> list[nn.Module]:
    pad = kernel // 2 if padding is None else padding
    return [nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups, bias=False), norm(outputs)]


class MBConv(nn.Module):
    """Inverted residual: expand, depthwise, squeeze-excite, project; `fused` merges the first two.

    `squeeze` is the number of squeezed channels, 0 for no gate; `padding` is that of the spatial convolution.
    """

    def __init__(
        self,
        inputs: int,
        stage: Stage,
        squeeze: int,
        drop: float = 0.0,
        activation: Activation = nn.SiLU,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        hidden = round_width(inputs * stage.expansion)
        layers: list[nn.Module] = []
        if stage.fused and stage.expansion == 1:
            layers += [*conv_norm(inputs, stage.outputs, stage.kernel, stage.stride), activation()]
        elif stage.fused:
            layers += [*conv_norm(inputs, hidden, stage.kernel, stage.stride, 1, padding), activation()]
        else:
            if stage.expansion != 1:
                layers += [*conv_norm(inputs, hidden, 1), activation()]
            layers += [*conv_norm(hidden, hidden, stage.kernel, stage.stride, hidden, padding), activation()]
        self.spatial = nn.Sequential(*layers)
        self.gate = SqueezeExcite(hidden, squeeze, activation()) if squeeze else None
        direct = stage.fused and stage.expansion == 1
        self.project = nn.Identity() if direct else nn.Sequential(*conv_norm(hidden, stage.outputs, 1))
        self.residual = stage.stride == 1 and inputs == stage.outputs
        self.drop = drop_path(drop) if self.residual else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.spatial(x)
        if self.gate is not None:
            out = out * self.gate(out)
        out = self.project(out)
        return x + self.drop(out) if self.residual else out


class Features(nn.Module):
    """Stem and stages; `forward` gives the output of every stage.

    SiLU `inplace` copies its input for the backward pass (autograd does), as the published PyTorch runs did.
    """

    def __init__(self, variant: str, wide_squeeze: bool = False, drop: float = 0.0, inplace: bool = False) -> None:
        super().__init__()
        plan, width, depth = option({"variant": variant}, "variant", VARIANTS, "b0")
        stem = 24 if variant.startswith("v2") else round_width(32 * width)
        self.activation: Activation = partial(nn.SiLU, inplace=inplace)
        self.stem = nn.Sequential(*conv_norm(3, stem, 3, 2), self.activation())
        stages = [replace(s, outputs=round_width(s.outputs * width), repeats=ceil(s.repeats * depth)) for s in plan]
        total = sum(stage.repeats for stage in stages)
        self.stages = nn.ModuleList()
        self.widths: list[int] = []
        inputs, index = stem, 0
        for stage in stages:
            blocks = []
            for repeat in range(stage.repeats):
                shape = stage if repeat == 0 else replace(stage, stride=1)
                wide = inputs * stage.expansion if wide_squeeze else inputs
                squeeze = max(1, wide // 4) if stage.squeeze else 0
                blocks.append(MBConv(inputs, shape, squeeze, drop * index / total, self.activation))
                inputs, index = stage.outputs, index + 1
            self.stages.append(nn.Sequential(*blocks))
            self.widths.append(inputs)
        self.head = 1280 if variant.startswith("v2") else round_width(1280 * width)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class EfficientNet(nn.Module):
    def __init__(self, features: Features, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Sequential(
            *conv_norm(features.widths[-1], features.head, 1),
            features.activation(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(features.head, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x)[-1])


def build(config: Config, sizes: Sizes) -> Workload:
    features = Features(
        str(config.get("variant", "b0")),
        wide_squeeze=bool(config.get("wide_squeeze", 0)),
        drop=1.0 - float(config.get("survival", 1.0)),
        inplace=bool(config.get("inplace", 0)),
    )
    model = EfficientNet(features, int(config.get("classes", 1000)), float(config.get("dropout", 0.2)))
    return classify(model, config, sizes)
