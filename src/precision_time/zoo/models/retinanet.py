"""RetinaNet on ResNeXt-50 32x4d, the single-stage detector of MLPerf training 2.0 and later.

Lin et al. 2017 (arXiv:1708.02002) as in the MLPerf reference: frozen batch norm, stem and first stage
frozen, P3..P7. Batch norm is one kernel in the dtype of the images, and chains of pointwise operators (batch norm with
what follows) are one kernel each, as is the focal loss: so the submissions have them. The reference loops over the
images of a batch in its loss; here the same arithmetic is done on the whole batch at once, with masks where it selects
rows. Every image has `objects` boxes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.zoo.models.operators import focal_loss
from precision_time.zoo.models.pyramid import (
    FeaturePyramid,
    corner_boxes,
    encode,
    flatten_head,
    pairwise_iou,
    take,
)
from precision_time.zoo.models.resnet import ResNet
from precision_time.zoo.models.vision_common import OneKernelFrozenBatchNorm2d, image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

ANCHORS_PER_CELL = 9
STRIDES = (8, 16, 32, 64, 128)


def head(values: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(256, ANCHORS_PER_CELL * values, 3, padding=1))


class RetinaNet(nn.Module):
    """Gives class logits (batch, anchors, classes) and box offsets (batch, anchors, 4)."""

    def __init__(self, classes: int, groups: int, group_width: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = ResNet(50, groups=groups, group_width=group_width, norm=OneKernelFrozenBatchNorm2d)
        self.body.freeze(1)
        self.pyramid = FeaturePyramid(self.body.widths[1:], extra="convs")
        self.score = head(classes)
        self.box = head(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = self.pyramid(self.body(x)[1:])
        scores = [flatten_head(self.score(level), self.classes) for level in levels]
        boxes = [flatten_head(self.box(level), 4) for level in levels]
        return torch.cat(scores, 1), torch.cat(boxes, 1)


def detection_loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    scores, boxes = model(inputs["image"])
    overlap, matched = pairwise_iou(inputs["anchors"], inputs["box"]).max(dim=2)
    positive = (overlap >= 0.5).float()
    count = positive.sum(dim=1).clamp(min=1)

    label = inputs["label"].gather(1, matched)
    classes = torch.where(overlap >= 0.5, label, torch.where(overlap < 0.4, -1, -2))
    score_loss = focal_loss(scores, classes) / count

    wanted = encode(take(inputs["box"], matched), inputs["anchors"])
    distance = F.l1_loss(boxes, wanted, reduction="none") * positive.unsqueeze(-1)
    return (score_loss + distance.sum(dim=(1, 2)) / count).mean()


def build(config: Config, sizes: Sizes) -> Workload:
    classes = int(config.get("classes", 264))
    batch, objects = int(sizes["batch_size"]), int(config.get("objects", 8))
    height, width = spatial(sizes, default=800)
    anchors = ANCHORS_PER_CELL * sum(-(-height // s) * -(-width // s) for s in STRIDES)
    inputs = {
        "image": image(sizes, default=800),
        "anchors": corner_boxes(1, anchors),
        "box": corner_boxes(batch, objects),
        "label": torch.zeros(batch, objects, dtype=torch.int64),
    }
    module = RetinaNet(classes, int(config.get("groups", 32)), int(config.get("group_width", 4)))
    return Workload(module, inputs, detection_loss)
