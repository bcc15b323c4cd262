"""The first U-Net (Ronneberger et al. 2015, arXiv:1505.04597) and its tiny variant for surface inspection.

Both as in NVIDIA DeepLearningExamples (TensorFlow): pooling down, no norm.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import JobError
from precision_time.zoo.models.segmentation_loss import dice_cross_entropy, segment
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload


def conv_pair(inputs: int, middle: int, outputs: int, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, middle, 3, padding=padding),
        nn.ReLU(inplace=True),
        nn.Conv2d(middle, outputs, 3, padding=padding),
        nn.ReLU(inplace=True),
    ]


def up_conv(inputs: int, outputs: int) -> list[nn.Module]:
    """Transposed 3x3 convolution that doubles the resolution (TensorFlow's "same")."""
    conv = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)
    return [conv, nn.ReLU(inplace=True)]


def upscale_conv(inputs: int, outputs: int) -> list[nn.Module]:
    """Nearest neighbours at twice the resolution, then a padded 2x2 convolution: that code's `deconv2d`."""
    return [
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.ZeroPad2d((0, 1, 0, 1)),
        nn.Conv2d(inputs, outputs, 2),
        nn.ReLU(inplace=True),
    ]


def crop_to(skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    top, left = (skip.shape[2] - x.shape[2]) // 2, (skip.shape[3] - x.shape[3]) // 2
    return skip[:, :, top : top + x.shape[2], left : left + x.shape[3]]


class MedicalUNet(nn.Module):
    """Unpadded 3x3 pairs 64 to 1024, centre-cropped skips; the output is 184 pixels smaller."""

    def __init__(self, channels: int, classes: int, filters: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        inputs = (channels, *filters[:-2])
        self.down = nn.ModuleList(
            nn.Sequential(*conv_pair(a, b, b, 0)) for a, b in zip(inputs, filters[:-1], strict=True)
        )
        self.bottom = nn.Sequential(
            *conv_pair(filters[-2], filters[-1], filters[-1], 0),
            nn.Dropout(0.5),
            *up_conv(filters[-1], filters[-2]),
        )
        self.up = nn.ModuleList(
            nn.Sequential(*conv_pair(2 * width, width, width, 0), *up_conv(width, width // 2))
            for width in filters[-2:0:-1]
        )
        last = filters[0]
        self.out = nn.Sequential(*conv_pair(2 * last, last, last, 0), nn.Conv2d(last, classes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for block in (*self.up, self.out):
            x = block(torch.cat((x, crop_to(skips.pop(), x)), dim=1))
        return x


class IndustrialUNet(nn.Module):
    """Padded; the repository's tinyUNet halves the width in the second convolution of every upward block."""

    def __init__(self, channels: int, filters: tuple[int, ...] = (32, 32, 64, 128, 256)) -> None:
        super().__init__()
        inputs = (channels, *filters[:-2])
        self.down = nn.ModuleList(
            nn.Sequential(*conv_pair(a, b, b, 1)) for a, b in zip(inputs, filters[:-1], strict=True)
        )
        width = filters[-1]
        self.bottom = nn.Sequential(*conv_pair(filters[-2], width, width, 1), *upscale_conv(width, width // 2))
        self.up = nn.ModuleList()
        below = width // 2
        for width in filters[-2:0:-1]:
            half = width // 2
            self.up.append(nn.Sequential(*conv_pair(below + width, width, half, 1), *upscale_conv(half, half)))
            below = half
        last = filters[0]
        self.out = nn.Sequential(*conv_pair(below + last, last, last, 1), nn.Conv2d(last, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for block in (*self.up, self.out):
            x = block(torch.cat((x, skips.pop()), dim=1))
        return x


def build_medical(config: Config, sizes: Sizes) -> Workload:
    channels = int(sizes.get("channels", 1))
    if any(side < 188 or (side - 188) % 16 for side in spatial(sizes, default=572)):
        raise JobError("the unpadded U-Net takes sides of 188 plus a multiple of 16, such as 572; change image_size")
    module = MedicalUNet(channels, int(config.get("classes", 2)))
    loss = dice_cross_entropy(over_batch=False, background=True)
    return segment(module, sizes, 2, channels, 572, loss, crop=184)


def mask_dice(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sorensen-Dice of the sigmoid; weight decay, a part of the loss in TensorFlow, is left out."""
    chance, mask = model(inputs["image"]).sigmoid(), inputs["mask"]
    both = (chance * mask).sum((1, 2, 3))
    return 1.0 - ((2.0 * both + 1e-5) / (chance.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1e-5)).mean()


def build_industrial(config: Config, sizes: Sizes) -> Workload:
    channels = int(sizes.get("channels", 1))
    filters = tuple(int(width) for width in config.get("filters", (32, 32, 64, 128, 256)))
    side = 2 ** (len(filters) - 1)
    if any(extent % side for extent in spatial(sizes, default=512)):
        raise JobError(f"{len(filters)} levels halve the input: every side of image_size must divide by {side}")
    picture = image(sizes, channels, default=512)
    inputs = {"image": picture, "mask": torch.zeros(picture.shape[0], 1, *picture.shape[2:])}
    return Workload(IndustrialUNet(channels, filters), inputs, mask_dice)
