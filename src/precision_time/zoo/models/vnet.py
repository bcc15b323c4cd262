"""V-Net: a residual 3D segmentation network.

Milletari et al. 2016 (arXiv:1606.04797), in the small form of NVIDIA DeepLearningExamples (TensorFlow,
hippocampus): 3 blocks down, 2 up, kernel 3, batch norm, ReLU.
"""

from __future__ import annotations

import torch
from torch import nn

from precision_time.errors import JobError
from precision_time.zoo.models.segmentation_loss import dice_loss, segment
from precision_time.zoo.models.vision_common import spatial
from precision_time.zoo.workload import Config, Sizes, Workload


def finish(conv: nn.Module) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm3d(conv.out_channels), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """`depth` convolutions of one width around a shortcut."""

    def __init__(self, width: int, kernel: int, depth: int) -> None:
        super().__init__()
        convs = (nn.Conv3d(width, width, kernel, padding=kernel // 2) for _ in range(depth))
        self.convs = nn.Sequential(*(finish(conv) for conv in convs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convs(x) + x


class VNet(nn.Module):
    def __init__(self, classes: int, width: int, down: tuple[int, ...], up: tuple[int, ...], kernel: int) -> None:
        super().__init__()
        self.stem = finish(nn.Conv3d(1, width, kernel, padding=kernel // 2))
        skips = [width]
        self.down = nn.ModuleList()
        for depth in down:
            halve = finish(nn.Conv3d(width, 2 * width, 2, stride=2))
            width *= 2
            self.down.append(nn.Sequential(halve, Residual(width, kernel, depth)))
            skips.append(width)
        skips.pop()
        self.widen = nn.ModuleList()
        self.merge = nn.ModuleList()
        for depth in up:
            skip = skips.pop()
            self.widen.append(finish(nn.ConvTranspose3d(width, skip, 2, stride=2)))
            width = 2 * skip
            self.merge.append(Residual(width, kernel, depth))
        skip = skips.pop()
        self.out = nn.Sequential(
            finish(nn.ConvTranspose3d(width, skip, 2, stride=2)),
            nn.Conv3d(skip, classes, kernel, padding=kernel // 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) + x
        skips = [x]
        for block in self.down:
            x = block(x)
            skips.append(x)
        skips.pop()
        for widen, merge in zip(self.widen, self.merge, strict=True):
            x = merge(torch.cat((widen(x), skips.pop()), dim=1))
        return self.out(x)


def build(config: Config, sizes: Sizes) -> Workload:
    down = tuple(int(depth) for depth in config.get("down", (3, 3, 3)))
    up = tuple(int(depth) for depth in config.get("up", (3, 3)))
    if len(up) + 1 != len(down):
        raise JobError(f"V-Net has one block more down than up; down={down} and up={up} do not fit")
    if any(side % 2 ** len(down) for side in spatial(sizes, 3, 32)):
        raise JobError(f"every side of the volume must divide by {2 ** len(down)}")
    width, kernel = int(config.get("filters", 16)), int(config.get("kernel", 3))
    module = VNet(int(config.get("classes", 3)), width, down, up, kernel)

    def loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return dice_loss(logits, label, over_batch=False, background=True)

    return segment(module, sizes, 3, 1, 32, loss)
