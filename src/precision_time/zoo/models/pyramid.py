"""The feature pyramid (Lin et al. 2016, arXiv:1612.03144) and the box arithmetic that detectors share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class FeaturePyramid(nn.Module):
    """Top-down pyramid over the given stages.

    `extra` is what extends it: "pool" (P6 of Faster R-CNN) or "convs" (P6 and P7 of RetinaNet).
    """

    def __init__(self, widths: list[int], extra: str, channels: int = 256) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in widths)
        self.outer = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in widths)
        self.extra = nn.ModuleList()
        if extra == "convs":
            self.extra.extend(nn.Conv2d(channels, channels, 3, stride=2, padding=1) for _ in range(2))

    def forward(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        top = self.inner[-1](features[-1])
        levels = [self.outer[-1](top)]
        for index in range(len(features) - 2, -1, -1):
            lateral = self.inner[index](features[index])
            top = lateral + F.interpolate(top, size=lateral.shape[-2:], mode="nearest")
            levels.insert(0, self.outer[index](top))
        if self.extra:
            levels.append(self.extra[0](levels[-1]))
            levels.append(self.extra[1](F.relu(levels[-1])))
        else:
            levels.append(F.max_pool2d(levels[-1], 1, stride=2))
        return levels


def flatten_head(out: torch.Tensor, values: int) -> torch.Tensor:
    """(batch, anchors x values, height, width) to (batch, height x width x anchors, values)."""
    batch, _, height, width = out.shape
    return out.view(batch, -1, values, height, width).permute(0, 3, 4, 1, 2).reshape(batch, -1, values)


def pairwise_iou(boxes: torch.Tensor, objects: torch.Tensor) -> torch.Tensor:
    """Overlap of every box (batch or 1, n, 4) with every object (batch, m, 4), as corners: (batch, n, m)."""
    low = torch.max(boxes[:, :, None, :2], objects[:, None, :, :2])
    high = torch.min(boxes[:, :, None, 2:], objects[:, None, :, 2:])
    extent = (high - low).clamp(min=0)
    both = extent[..., 0] * extent[..., 1]
    first = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    second = (objects[..., 2] - objects[..., 0]) * (objects[..., 3] - objects[..., 1])
    return both / (first[:, :, None] + second[:, None, :] - both)


def encode(boxes: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Offsets of corner boxes from reference boxes: centre in units of the extent, extent as a logarithm."""
    extent = reference[..., 2:] - reference[..., :2]
    centre = reference[..., :2] + 0.5 * extent
    target = boxes[..., 2:] - boxes[..., :2]
    shift = (boxes[..., :2] + 0.5 * target - centre) / extent
    return torch.cat((shift, (target / extent).log()), dim=-1)


def decode(offsets: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The inverse of `encode`."""
    extent = reference[..., 2:] - reference[..., :2]
    centre = reference[..., :2] + 0.5 * extent + offsets[..., :2] * extent
    half = 0.5 * offsets[..., 2:].clamp(max=4.135).exp() * extent  # 4.135 = log(1000 / 16), as in the R-CNN codes
    return torch.cat((centre - half, centre + half), dim=-1)


def take(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of (batch, n, values) named by (batch, k)."""
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def corner_boxes(*shape: int) -> torch.Tensor:
    """Random valid boxes as corners, 16 to 80 pixels wide."""
    low = torch.rand(*shape, 2) * 100
    return torch.cat((low, low + 16 + torch.rand(*shape, 2) * 64), dim=-1)
