"""The YOLOv8 detectors: one convolutional network at five depths and widths.

Shape: ultralytics/cfg/models/v8/yolov8.yaml of the ultralytics repository, which also states the parameter counts and
FLOPs. Backbone of strided convolutions and C2f blocks (every bottleneck's output is joined), pooling at three ranges
(SPPF), a pyramid up and down, and a head without anchors whose boxes and classes have convolutions of their own. A side
of a box is the mean of a distribution over 16 distances.

The loss is that of task-aligned assignment (arXiv:2108.07755): for every object the ten cells inside it with the best
product of score and overlap learn its box (complete IoU, arXiv:1911.08287, and the distribution's two nearest bins,
arXiv:2006.04388), all cells the classes. Every image has `objects` boxes, as many as the fullest image of a batch of
four-image mosaics; the cells of objects are taken without regard to cells that two objects share.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.models.pyramid import corner_boxes, take
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

BINS = 16
"""Distances that a side of a box is a distribution over."""
STRIDES = (8, 16, 32)
BEST = 10
"""Cells that learn an object."""


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    layers = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layers, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second = conv(width, width, 3), conv(width, width, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Two halves, a chain of bottlenecks on the second, and one convolution of all of them."""

    def __init__(self, inputs: int, outputs: int, count: int, shortcut: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = conv(inputs, 2 * half)
        self.chain = nn.ModuleList(Bottleneck(half, shortcut) for _ in range(count))
        self.leave = conv((2 + count) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.chain:
            parts.append(block(parts[-1]))
        found: Tensor = self.leave(torch.cat(parts, 1))
        return found


class Pooled(nn.Module):
    """Maxima over 5, 9 and 13 cells beside the input (SPPF)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = conv(width, width // 2), conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        found: Tensor = self.leave(torch.cat(parts, 1))
        return found


def head(inputs: int, width: int, values: int) -> nn.Sequential:
    return nn.Sequential(conv(inputs, width, 3), conv(width, width, 3), nn.Conv2d(width, values, 1))


class Yolo(nn.Module):
    """Gives logits of distances (batch, cells, 4 x 16) and of classes (batch, cells, classes)."""

    def __init__(self, depth: float, width: float, widest: int, classes: int) -> None:
        super().__init__()
        a, b, c, d, e = (8 * math.ceil(min(size, widest) * width / 8) for size in (64, 128, 256, 512, 1024))
        few, many = max(round(3 * depth), 1), max(round(6 * depth), 1)
        self.stem = nn.Sequential(conv(3, a, 3, 2), conv(a, b, 3, 2), C2f(b, b, few, True))
        self.third = nn.Sequential(conv(b, c, 3, 2), C2f(c, c, many, True))
        self.fourth = nn.Sequential(conv(c, d, 3, 2), C2f(d, d, many, True))
        self.fifth = nn.Sequential(conv(d, e, 3, 2), C2f(e, e, few, True), Pooled(e))
        self.up4, self.up3 = C2f(e + d, d, few, False), C2f(d + c, c, few, False)
        self.to4, self.down4 = conv(c, c, 3, 2), C2f(c + d, d, few, False)
        self.to5, self.down5 = conv(d, d, 3, 2), C2f(d + e, e, few, False)
        of_box, of_class = max(16, c // 4, 4 * BINS), max(c, min(classes, 100))
        self.box = nn.ModuleList(head(size, of_box, 4 * BINS) for size in (c, d, e))
        self.score = nn.ModuleList(head(size, of_class, classes) for size in (c, d, e))
        self.register_buffer("bins", torch.arange(BINS, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        third = self.third(self.stem(x))
        fourth = self.fourth(third)
        fifth = self.fifth(fourth)
        middle = self.up4(torch.cat((F.interpolate(fifth, scale_factor=2.0), fourth), 1))
        low = self.up3(torch.cat((F.interpolate(middle, scale_factor=2.0), third), 1))
        middle = self.down4(torch.cat((self.to4(low), middle), 1))
        high = self.down5(torch.cat((self.to5(middle), fifth), 1))
        levels = (low, middle, high)
        boxes = [part(level).flatten(2) for part, level in zip(self.box, levels, strict=True)]
        scores = [part(level).flatten(2) for part, level in zip(self.score, levels, strict=True)]
        return torch.cat(boxes, 2).transpose(1, 2), torch.cat(scores, 2).transpose(1, 2)


def complete_iou(one: Tensor, other: Tensor) -> Tensor:
    """Overlap less the distance of the centres and the difference in shape, of boxes (..., 4) by their corners."""
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    size, other_size = one[..., 2:] - one[..., :2], other[..., 2:] - other[..., :2]
    overlap = both / (size.prod(-1) + other_size.prod(-1) - both + 1e-7)
    around = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    centres = (one[..., :2] + one[..., 2:] - other[..., :2] - other[..., 2:]) / 2
    distance = centres.square().sum(-1) / (around.square().sum(-1) + 1e-7)
    first, second = (torch.atan(each[..., 0] / (each[..., 1] + 1e-7)) for each in (size, other_size))
    shape = 4 / math.pi**2 * (first - second).square()
    with torch.no_grad():
        weight = shape / (shape - overlap + 1.0 + 1e-7)
    return overlap - distance - weight * shape


def assigned(boxes: Tensor, scores: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The cells that learn each object (batch, objects, 10), and the class targets of all cells.

    boxes (batch, cells, 4) by corners in pixels, scores (batch, cells, classes) from 0 to 1.
    """
    wanted, label, cells = inputs["box"], inputs["label"], inputs["cells"]
    sides = torch.cat((cells - wanted[:, :, None, :2], wanted[:, :, None, 2:] - cells), -1)
    inside = (sides.amin(-1) > 1e-9).to(scores.dtype)
    overlap = complete_iou(wanted.unsqueeze(2), boxes.unsqueeze(1)).clamp(min=0) * inside
    chance = scores.transpose(1, 2).gather(1, label.unsqueeze(-1).expand(-1, -1, cells.shape[0])) * inside
    aligned = chance.sqrt() * overlap.pow(6)
    best = aligned.topk(BEST, dim=-1).indices
    chosen = torch.zeros_like(aligned).scatter_(-1, best, 1.0) * inside
    owner = (overlap * chosen).argmax(1)
    aligned = aligned * chosen
    weight = aligned * overlap.amax(-1, keepdim=True) / (aligned.amax(-1, keepdim=True) + 1e-9)
    of_cell = label.gather(1, owner)
    target = torch.zeros_like(scores).scatter_(2, of_cell.unsqueeze(-1), 1.0) * weight.amax(1).unsqueeze(-1)
    return best, target


def detection_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    distances, scores = model(inputs["image"])
    distances, scores = distances.float(), scores.float()
    cells, stride = inputs["cells"], inputs["stride"]
    mean = distances.unflatten(-1, (4, BINS)).softmax(-1) @ model.bins
    boxes = torch.cat((cells / stride - mean[..., :2], cells / stride + mean[..., 2:]), -1)
    with torch.no_grad():
        best, target = assigned(boxes * stride, scores.sigmoid(), inputs)
    total = target.sum().clamp(min=1.0)
    of_class = F.binary_cross_entropy_with_logits(scores, target, reduction="none").sum() / total
    rows = best.flatten(1)
    weight = target.sum(-1).gather(1, rows)
    aim = inputs["box"].repeat_interleave(BEST, 1) / stride[rows]
    of_box = ((1.0 - complete_iou(take(boxes, rows), aim)) * weight).sum() / total
    places = (cells / stride)[rows]
    sides = torch.cat((places - aim[..., :2], aim[..., 2:] - places), -1).clamp(0, BINS - 1.01)
    logits = take(distances, rows).unflatten(-1, (4, BINS)).flatten(0, 2)
    left = sides.long()
    above = sides - left
    near = F.cross_entropy(logits, left.flatten(), reduction="none").view_as(sides) * (1.0 - above)
    far = F.cross_entropy(logits, left.flatten() + 1, reduction="none").view_as(sides) * above
    of_distance = ((near + far).mean(-1) * weight).sum() / total
    return 7.5 * of_box + 0.5 * of_class + 1.5 * of_distance


def build(config: Config, sizes: Sizes) -> Workload:
    height, width = spatial(sizes, default=640)
    if height % STRIDES[-1] or width % STRIDES[-1]:
        raise JobError(f"every side of image_size must be a multiple of {STRIDES[-1]}, as 640; change image_size")
    batch, objects = int(sizes["batch_size"]), int(config["objects"])
    count = sum((height // stride) * (width // stride) for stride in STRIDES)
    module = Yolo(
        float(config["depth_multiple"]), float(config["width_multiple"]), int(config["max_channels"]),
        int(config["classes"]),
    )  # fmt: skip
    inputs = {
        "image": image(sizes, default=640),
        "cells": torch.zeros(count, 2),
        "stride": torch.ones(count, 1),
        "box": corner_boxes(batch, objects),
        "label": torch.zeros(batch, objects, dtype=torch.int64),
    }
    return Workload(module, inputs, detection_loss)
