"""EfficientDet-D0: EfficientNet-B0, three BiFPN cells of 64 channels, separable heads.

Tan et al. 2019 (arXiv:1911.09070) as the benchmark scripts of NVIDIA DeepLearningExamples run it (`efficientdet_d0`,
not `tf_efficientdet_d0`): symmetric padding, biases in the last layers alone, focal loss in one kernel, for which
classes are padded to a multiple of eight. Batch norm is synchronised across GPUs there and local here.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.models.efficientnet import Features, norm
from precision_time.zoo.models.operators import focal_loss
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

LEVELS = 5
ANCHORS_PER_CELL = 9
NODES = ((3, 4), (2, 5), (1, 6), (0, 7), (1, 7, 8), (2, 6, 9), (3, 5, 10), (4, 11))
"""Inputs of the eight nodes of a cell: 0-4 are P3..P7, 5.. the earlier nodes."""
NODE_LEVEL = (3, 2, 1, 0, 1, 2, 3, 4)


def halve() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


def separable(channels: int, outputs: int, bias: bool = False) -> nn.Sequential:
    depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(depthwise, nn.Conv2d(channels, outputs, 1, bias=bias))


class Node(nn.Module):
    """Weighted sum of inputs brought to one level, activation, separable convolution, norm."""

    def __init__(self, node: int, widths: list[int], channels: int) -> None:
        super().__init__()
        self.sources = NODES[node]
        levels = (*range(LEVELS), *NODE_LEVEL)
        self.resample = nn.ModuleList()
        for source in self.sources:
            layers: list[nn.Module] = []
            width = widths[source] if source < LEVELS else channels
            if width != channels:
                layers += [nn.Conv2d(width, channels, 1, bias=False), norm(channels)]
            step = NODE_LEVEL[node] - levels[source]
            if step:
                layers.append(halve() if step > 0 else nn.Upsample(scale_factor=2, mode="nearest"))
            self.resample.append(nn.Sequential(*layers))
        self.weight = nn.Parameter(torch.ones(len(self.sources)))
        self.out = nn.Sequential(nn.SiLU(), separable(channels, channels), norm(channels))

    def forward(self, known: list[torch.Tensor]) -> torch.Tensor:
        inputs = [layer(known[source]) for layer, source in zip(self.resample, self.sources, strict=True)]
        weight = F.relu(self.weight.to(inputs[0].dtype))
        total = weight.sum() + 1e-4
        return self.out(torch.stack([x * weight[i] / total for i, x in enumerate(inputs)], dim=-1).sum(dim=-1))


class BiFpnCell(nn.Module):
    def __init__(self, widths: list[int], channels: int) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(Node(index, widths, channels) for index in range(len(NODES)))

    def forward(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        known = list(levels)
        for node in self.nodes:
            known.append(node(known))
        return known[-LEVELS:]


class Head(nn.Module):
    """Three separable convolutions shared by the levels, norms of each level's own, then the prediction."""

    def __init__(self, channels: int, values: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(separable(channels, channels) for _ in range(3))
        self.norms = nn.ModuleList(nn.ModuleList(norm(channels) for _ in range(LEVELS)) for _ in range(3))
        self.predict = separable(channels, values * ANCHORS_PER_CELL, bias=True)

    def forward(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = []
        for index, x in enumerate(levels):
            for conv, norms in zip(self.convs, self.norms, strict=True):
                x = F.silu(norms[index](conv(x)))
            outputs.append(self.predict(x))
        return outputs


class EfficientDet(nn.Module):
    def __init__(self, classes: int, channels: int = 64, cells: int = 3) -> None:
        super().__init__()
        self.body = Features("b0", drop=0.2)
        widths = [self.body.widths[stage] for stage in (2, 4, 6)]
        self.lift = nn.Sequential(nn.Conv2d(widths[-1], channels, 1, bias=False), norm(channels), halve())
        self.lift_again = halve()
        first = [*widths, channels, channels]
        self.cells = nn.Sequential(
            *(BiFpnCell(first if cell == 0 else [channels] * LEVELS, channels) for cell in range(cells))
        )
        self.score = Head(channels, -(-classes // 8) * 8)
        self.box = Head(channels, 4)

    def forward(self, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        stages = self.body(x)
        levels = [stages[2], stages[4], stages[6]]
        levels.append(self.lift(levels[-1]))
        levels.append(self.lift_again(levels[-1]))
        levels = self.cells(levels)
        return self.score(levels), self.box(levels)


def detection_loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Focal loss plus 50 x Huber loss (delta 0.1), per matched anchor."""
    scores, boxes = model(inputs["image"])
    count = inputs["matched"].sum() + 1.0
    score_losses, box_losses = [], []
    for level, (score, box) in enumerate(zip(scores, boxes, strict=True)):
        label, target = inputs[f"label_{level}"].flatten(1), inputs[f"box_{level}"]
        logits = score.permute(0, 2, 3, 1).contiguous().view(*label.shape, -1)
        score_losses.append(focal_loss(logits, label).sum() / count)
        error = F.huber_loss(box.permute(0, 2, 3, 1), target, delta=0.1, reduction="none")
        box_losses.append((error * (target != 0)).sum() / (4 * count))
    return torch.stack(score_losses).sum() + 50.0 * torch.stack(box_losses).sum()


def build(config: Config, sizes: Sizes) -> Workload:
    height, width = spatial(sizes, default=512)
    if height % 128 or width % 128:
        raise JobError(f"EfficientDet halves its input seven times: image_size {height}x{width} must divide by 128")
    batch = int(sizes["batch_size"])
    inputs = {"image": image(sizes, default=512), "matched": torch.ones(batch)}
    for level in range(LEVELS):
        cells = (height >> (level + 3), width >> (level + 3))
        inputs[f"label_{level}"] = torch.zeros(batch, *cells, ANCHORS_PER_CELL, dtype=torch.int64)
        inputs[f"box_{level}"] = torch.randn(batch, *cells, 4 * ANCHORS_PER_CELL)
    return Workload(EfficientDet(int(config.get("classes", 90))), inputs, detection_loss)
