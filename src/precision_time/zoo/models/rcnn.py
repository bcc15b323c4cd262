"""Faster R-CNN and Mask R-CNN with a feature pyramid, at fixed shapes.

Ren et al. 2015 (arXiv:1506.01497), He et al. 2017 (arXiv:1703.06870) with the settings of
maskrcnn-benchmark: stem and first stage frozen, frozen batch norm, 3 anchors on P2..P6, 512 sampled
regions per image, a quarter of them objects.

What a graph of fixed shapes cannot hold, and what stands in for it:

* Region sizes depend on the data. RoIAlign on the level that fits a region becomes bilinear sampling
  (`grid_sample`) of the same 2x2 points per bin followed by their mean, with a fixed share of the regions on
  each level (`LEVEL_SHARE`, assumed). It writes the samples that the fused RoIAlign kernel keeps in
  registers: 4x its output.
* Non-maximum suppression is left out: the best `PROPOSALS` of all levels are kept.
* The code base loops over images in matching and sampling; here they are batched.
* Every image has `objects` boxes, and mask targets arrive cropped to 28x28.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.zoo.models.pyramid import (
    FeaturePyramid,
    corner_boxes,
    decode,
    encode,
    flatten_head,
    pairwise_iou,
    take,
)
from precision_time.zoo.models.resnet import ResNet
from precision_time.zoo.models.vision_common import FrozenBatchNorm2d, image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

ANCHORS_PER_CELL = 3
STRIDES = (4, 8, 16, 32, 64)
BEST_PER_LEVEL = 2000
PROPOSALS = 1000
RPN_SAMPLES = 256
REGIONS = 512
OBJECT_REGIONS = REGIONS // 4
LEVEL_SHARE = (2, 4, 8, 8)
"""One half, a quarter, an eighth, an eighth of the regions are pooled from P2, P3, P4, P5."""


class RegionProposal(nn.Module):
    """Objectness (batch, anchors, 1) and offsets (batch, anchors, 4) of every level."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(256, 256, 3, padding=1)
        self.score = nn.Conv2d(256, ANCHORS_PER_CELL, 1)
        self.box = nn.Conv2d(256, 4 * ANCHORS_PER_CELL, 1)

    def forward(self, levels: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        hidden = [F.relu(self.conv(level)) for level in levels]
        scores = [flatten_head(self.score(h), 1) for h in hidden]
        return scores, [flatten_head(self.box(h), 4) for h in hidden]


def pool_regions(levels: list[torch.Tensor], boxes: torch.Tensor, size: int) -> torch.Tensor:
    """RoIAlign in plain operators: `size` x `size` bins of 2x2 samples for `boxes` (batch, regions, 4).

    Gives (batch x regions, channels, size, size).
    """
    regions = boxes.shape[1]
    parts = boxes.split([regions // share for share in LEVEL_SHARE], dim=1)
    steps = (torch.arange(2 * size, device=boxes.device) + 0.5) / (2 * size)
    pooled = []
    for level, stride, part in zip(levels, STRIDES, parts, strict=False):
        batch, count, _ = part.shape
        height, width = level.shape[-2:]
        low, extent = part[..., None, :2], part[..., None, 2:] - part[..., None, :2]
        points = (low + extent * steps[:, None]) / stride
        x = points[..., 0] * (2 / width) - 1
        y = points[..., 1] * (2 / height) - 1
        shape = (batch, count, 2 * size, 2 * size)
        grid = torch.stack((x[:, :, None, :].expand(shape), y[:, :, :, None].expand(shape)), dim=-1)
        grid = grid.reshape(batch, count * 2 * size, 2 * size, 2)
        samples = F.grid_sample(level, grid.to(level.dtype), align_corners=False)
        bins = F.avg_pool2d(samples, 2).view(batch, -1, count, size, size)
        pooled.append(bins.transpose(1, 2))
    return torch.cat(pooled, dim=1).flatten(0, 1)


class MaskHead(nn.Sequential):
    """Four convolutions, one doubling of the resolution, one mask per class."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [
            nn.ConvTranspose2d(256, 256, 2, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, classes, 1),
        ]
        super().__init__(*layers)


class Rcnn(nn.Module):
    def __init__(self, body: ResNet, classes: int, masks: bool) -> None:
        super().__init__()
        self.classes = classes
        self.body = body
        self.pyramid = FeaturePyramid(body.widths, extra="pool")
        self.rpn = RegionProposal()
        self.box_head = nn.Sequential(
            nn.Flatten(), nn.Linear(256 * 49, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.score = nn.Linear(1024, classes)
        self.box = nn.Linear(1024, 4 * classes)
        self.mask = MaskHead(classes) if masks else None

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the losses of both stages; the second depends on the proposals of the first."""
        levels = self.pyramid(self.body(inputs["image"]))
        scores, offsets = self.rpn(levels)
        with torch.no_grad():
            proposals = self._propose(scores, offsets, inputs["anchors"])
            regions, label, target = self._sample(torch.cat((proposals, inputs["box"]), dim=1), inputs)
        loss = self._proposal_loss(torch.cat(scores, 1), torch.cat(offsets, 1), inputs)
        loss = loss + self._region_loss(levels, regions, label, target)
        if self.mask is not None:
            loss = loss + self._mask_loss(levels, regions, label, inputs["mask"])
        return loss

    def _propose(self, scores: list[torch.Tensor], offsets: list[torch.Tensor], anchors: torch.Tensor) -> torch.Tensor:
        boxes, chances = [], []
        sizes = [score.shape[1] for score in scores]
        for score, offset, level in zip(scores, offsets, anchors.split(sizes, dim=1), strict=True):
            best, index = score.squeeze(-1).sigmoid().topk(min(BEST_PER_LEVEL, score.shape[1]), dim=1)
            reference = take(level.expand(index.shape[0], -1, -1), index)
            boxes.append(decode(take(offset, index), reference).clamp(min=0))
            chances.append(best)
        _, index = torch.cat(chances, 1).topk(PROPOSALS, dim=1)
        return take(torch.cat(boxes, 1), index)

    def _sample(
        self, proposals: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """512 regions per image, objects first, with their class and box target."""
        overlap, matched = pairwise_iou(proposals, inputs["box"]).max(dim=2)
        positive = (overlap >= 0.5).float()
        _, index = (positive + torch.rand_like(positive)).topk(REGIONS, dim=1)
        matched = matched.gather(1, index)
        label = inputs["label"].gather(1, matched) * positive.gather(1, index).to(torch.int64)
        regions = take(proposals, index)
        return regions, label, encode(take(inputs["box"], matched), regions)

    def _proposal_loss(
        self, scores: torch.Tensor, offsets: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        anchors = inputs["anchors"]
        with torch.no_grad():
            overlap, matched = pairwise_iou(anchors, inputs["box"]).max(dim=2)
            positive = (overlap >= 0.7).float()
            ignored = ((overlap >= 0.3) & (overlap < 0.7)).float()
            _, index = (positive - ignored + torch.rand_like(positive)).topk(RPN_SAMPLES, dim=1)
            wanted = positive.gather(1, index).unsqueeze(-1)
            boxes = take(inputs["box"], matched.gather(1, index))
            target = encode(boxes, take(anchors.expand(boxes.shape[0], -1, -1), index))
        score_loss = F.binary_cross_entropy_with_logits(take(scores, index), wanted)
        distance = F.smooth_l1_loss(take(offsets, index), target, beta=1 / 9, reduction="none")
        return score_loss + (distance * wanted).sum() / wanted.numel()

    def _region_loss(
        self, levels: list[torch.Tensor], regions: torch.Tensor, label: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.box_head(pool_regions(levels, regions, 7))
        flat = label.flatten()
        score_loss = F.cross_entropy(self.score(hidden), flat)
        offsets = self.box(hidden).view(-1, self.classes, 4)
        chosen = offsets.gather(1, flat.view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1)
        distance = F.smooth_l1_loss(chosen, target.flatten(0, 1), reduction="none")
        return score_loss + (distance * (flat > 0).unsqueeze(-1)).sum() / flat.numel()

    def _mask_loss(
        self, levels: list[torch.Tensor], regions: torch.Tensor, label: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        assert self.mask is not None
        masks = self.mask(pool_regions(levels, regions[:, :OBJECT_REGIONS], 14))
        flat = label[:, :OBJECT_REGIONS].reshape(-1, 1, 1, 1)
        chosen = masks.gather(1, flat.expand(-1, 1, *masks.shape[-2:])).squeeze(1)
        return F.binary_cross_entropy_with_logits(chosen, target)


def total_loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(inputs)


def build(config: Config, sizes: Sizes) -> Workload:
    masks = bool(config.get("masks", 1))
    classes = int(config.get("classes", 81))
    groups = int(config.get("groups", 1))
    body = ResNet(
        int(config.get("depth", 50)),
        groups=groups,
        group_width=int(config.get("group_width", 64)),
        stride_in_1x1=groups == 1,  # the Caffe2 ResNet weights; ResNeXt strides in the 3x3
        norm=FrozenBatchNorm2d,
    )
    body.freeze(1)
    height, width = spatial(sizes)
    batch, objects = int(sizes["batch_size"]), int(config.get("objects", 8))
    anchors = ANCHORS_PER_CELL * sum(-(-height // s) * -(-width // s) for s in STRIDES)
    inputs = {
        "image": image(sizes),
        "anchors": corner_boxes(1, anchors),
        "box": corner_boxes(batch, objects),
        "label": torch.ones(batch, objects, dtype=torch.int64),
    }
    if masks:
        inputs["mask"] = torch.zeros(batch * OBJECT_REGIONS, 28, 28)
    return Workload(Rcnn(body, classes, masks), inputs, total_loss)
