"""SSD at 300 pixels on a ResNet whose third stage keeps its resolution.

Liu et al. 2015 (arXiv:1512.02325) as in NVIDIA DeepLearningExamples (ResNet-50, batch norm in the extra
blocks) and in the MLPerf reference (ResNet-34, biases instead).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.checks import small_number
from precision_time.errors import JobError
from precision_time.zoo.models.resnet import ResNet
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

BOXES_PER_CELL = (4, 6, 6, 6, 4, 4)
EXTRA_WIDTHS = (512, 512, 256, 256, 256)
EXTRA_SQUEEZE = (256, 256, 128, 128, 128)
EXTRA_STRIDES = (2, 2, 2, 1, 1)


def extra_block(inputs: int, squeeze: int, outputs: int, stride: int, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for conv in (
        nn.Conv2d(inputs, squeeze, 1, bias=not batch_norm),
        nn.Conv2d(squeeze, outputs, 3, stride, padding=1 if stride == 2 else 0, bias=not batch_norm),
    ):
        layers += [conv, *([nn.BatchNorm2d(conv.out_channels)] if batch_norm else []), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Ssd300(nn.Module):
    """Gives box offsets (batch, 4, anchors) and class scores (batch, classes, anchors)."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = ResNet(depth, strides=(1, 2, 1))
        widths = (self.body.widths[-1], *EXTRA_WIDTHS)
        self.extra = nn.ModuleList(
            extra_block(inputs, squeeze, outputs, stride, batch_norm=depth >= 50)
            for inputs, squeeze, outputs, stride in zip(
                widths[:-1], EXTRA_SQUEEZE, EXTRA_WIDTHS, EXTRA_STRIDES, strict=True
            )
        )
        pairs = list(zip(widths, BOXES_PER_CELL, strict=True))
        self.box = nn.ModuleList(nn.Conv2d(width, 4 * boxes, 3, padding=1) for width, boxes in pairs)
        self.score = nn.ModuleList(nn.Conv2d(width, classes * boxes, 3, padding=1) for width, boxes in pairs)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = [self.body(x)[-1]]
        for block in self.extra:
            features.append(block(features[-1]))
        batch = x.shape[0]
        boxes = [conv(f).reshape(batch, 4, -1) for conv, f in zip(self.box, features, strict=True)]
        scores = [conv(f).reshape(batch, self.classes, -1) for conv, f in zip(self.score, features, strict=True)]
        return torch.cat(boxes, 2), torch.cat(scores, 2)


def anchor_count(side: int) -> int:
    """Default boxes of a square image: 8732 at 300 pixels."""
    side = -(-side // 8)
    count = BOXES_PER_CELL[0] * side**2
    for boxes, stride in zip(BOXES_PER_CELL[1:], EXTRA_STRIDES, strict=True):
        side = -(-side // 2) if stride == 2 else side - 2
        count += boxes * side**2
    return count


def multibox_loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Smooth L1 on matched anchors plus cross-entropy with three hard negatives for each positive."""
    boxes, scores = model(inputs["image"])
    anchors, target, label = inputs["anchors"], inputs["box"], inputs["label"]
    matched = label > 0
    positives = matched.sum(dim=1)

    centre = 10.0 * (target[:, :2] - anchors[:, :2]) / anchors[:, 2:]
    extent = 5.0 * (target[:, 2:] / anchors[:, 2:]).log()
    offset = F.smooth_l1_loss(boxes, torch.cat((centre, extent), dim=1), reduction="none").sum(dim=1)
    box_loss = (matched.float() * offset).sum(dim=1)

    each = F.cross_entropy(scores, label, reduction="none")
    _, order = each.detach().masked_fill(matched, 0.0).sort(dim=1, descending=True)
    _, rank = order.sort(dim=1)
    negatives = rank < (3 * positives).clamp(max=matched.shape[1]).unsqueeze(-1)
    score_loss = (each * (matched.float() + negatives.float())).sum(dim=1)

    positive = (positives > 0).float()
    return ((box_loss + score_loss) * positive / positives.float().clamp(min=1e-6)).mean()


def build(config: Config, sizes: Sizes) -> Workload:
    # `backbone` may be a description such as resnet50_to_conv4_stride1.
    backbone = str(config.get("backbone", "resnet50"))
    depth = backbone.removeprefix("resnet").split("_")[0]
    if small_number(depth) is None:
        raise JobError(f"backbone={backbone} is not a ResNet; write resnet34, resnet50 or resnet101")
    classes = int(config.get("classes", 81))
    height, width = spatial(sizes, default=300)
    if height != width:
        raise JobError(f"SSD300 takes square images, image_size is {height}x{width}; give one number")
    batch, anchors = int(sizes["batch_size"]), anchor_count(height)
    inputs = {
        "image": image(sizes, default=300),
        "anchors": torch.rand(1, 4, anchors),
        "box": torch.rand(batch, 4, anchors),
        "label": torch.zeros(batch, anchors, dtype=torch.int64),
    }
    return Workload(Ssd300(int(depth), classes), inputs, multibox_loss)
