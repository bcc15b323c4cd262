"""GPUNet-0, -1 and -2: networks found by search for low latency on NVIDIA GPUs.

Wang et al. 2022 (arXiv:2205.00841); shapes from NVIDIA DeepLearningExamples, PyTorch/Classification/GPUNet,
configs batch1/GV100 0.65ms, 0.85ms and 1.75ms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from precision_time.zoo.models.efficientnet import Activation, MBConv, Stage, conv_norm
from precision_time.zoo.models.vision_common import classify, option
from precision_time.zoo.workload import Config, Sizes, Workload

Run = tuple[Stage, Activation]
RELU: Activation = partial(nn.ReLU, inplace=True)
SILU: Activation = partial(nn.SiLU, inplace=True)


def fused(repeats: int, expansion: int, outputs: int, act: Activation, kernel: int = 3, se: bool = False) -> Run:
    return Stage(kernel, repeats, expansion, 2, outputs, fused=True, squeeze=se), act


def irb(
    repeats: int,
    expansion: int,
    outputs: int,
    act: Activation,
    stride: int,
    kernel: int = 3,
    se: bool = False,
) -> Run:
    return Stage(kernel, repeats, expansion, stride, outputs, squeeze=se), act


PLANS: dict[str, tuple[int, int, tuple[Run, ...]]] = {
    "0": (
        32,
        2,
        (
            fused(2, 5, 32, RELU),
            fused(3, 5, 64, RELU),
            irb(3, 5, 256, SILU, 2),
            irb(2, 5, 704, RELU, 2, se=True),
        ),
    ),
    "1": (
        24,
        1,
        (
            fused(2, 4, 64, SILU),
            fused(2, 4, 96, SILU),
            irb(1, 2, 160, SILU, 2, se=True),
            irb(4, 5, 288, RELU, 1),
            irb(4, 4, 448, RELU, 2, se=True),
        ),
    ),
    "2": (
        32,
        3,
        (
            fused(1, 6, 32, SILU, kernel=5, se=True),
            fused(3, 3, 112, SILU),
            irb(6, 6, 144, SILU, 2),
            irb(4, 3, 160, RELU, 1, kernel=5),
            irb(8, 3, 224, SILU, 2, se=True),
            irb(7, 2, 832, RELU, 1, kernel=5),
        ),
    ),
}
"""Width of the stem, plain 3x3 convolutions after it, then runs of blocks."""


class GpuNet(nn.Module):
    def __init__(self, variant: str, classes: int, drop: float, dropout: float) -> None:
        super().__init__()
        stem, plain, runs = option({"variant": variant}, "variant", PLANS, "0")
        layers: list[nn.Module] = [nn.Sequential(*conv_norm(3, stem, 3, 2), SILU())]
        layers += [nn.Sequential(*conv_norm(stem, stem, 3), RELU()) for _ in range(plain)]
        total = plain + sum(stage.repeats for stage, _ in runs) + 2
        inputs = stem
        for stage, activation in runs:
            for repeat in range(stage.repeats):
                shape = stage if repeat == 0 else replace(stage, stride=1)
                # "same" padding of strided fused blocks is lost in the repository: they run unpadded.
                padding = 0 if shape.fused and shape.stride == 2 else None
                squeeze = inputs // 4 if stage.squeeze else 0
                rate = drop * (len(layers) + 1) / total
                layers.append(MBConv(inputs, shape, squeeze, rate, activation, padding))
                inputs = stage.outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(
            *conv_norm(inputs, 1280, 1),
            RELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(1280, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def build(config: Config, sizes: Sizes) -> Workload:
    model = GpuNet(
        str(config.get("variant", "0")),
        int(config.get("classes", 1000)),
        drop=float(config.get("drop_path", 0.2)),
        dropout=float(config.get("dropout", 0.2)),
    )
    return classify(model, config, sizes)
