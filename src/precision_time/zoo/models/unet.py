"""The nnU-Net family: convolution, norm, activation; strided convolutions down and transposed ones up.

Isensee et al. 2018 (arXiv:1809.10486). One definition serves nnU-Net in NVIDIA DeepLearningExamples (MONAI
DynUNet, 2D and 3D), its TensorFlow 3D U-Net for brain tumours and the MLPerf 3D U-Net for KiTS19; they
differ by options only.
"""

from __future__ import annotations

import torch
from torch import nn

from precision_time.errors import JobError
from precision_time.zoo.models.operators import instance_norm
from precision_time.zoo.models.segmentation_loss import dice_cross_entropy, segment
from precision_time.zoo.models.vision_common import option, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

CONV: dict[int, type[nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class FusedInstanceNorm(nn.Module):
    """Instance norm as one kernel, which takes channels last: nvFuser's, of NVIDIA's scripts for volumes."""

    def __init__(self, channels: int, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=affine)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=affine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = instance_norm(x, self.weight, self.bias, self.eps)
        return result


NORMS: dict[str, dict[int, type[nn.Module]]] = {
    "instance": {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d},
    "batch": {2: nn.BatchNorm2d, 3: nn.BatchNorm3d},
}


class UNet(nn.Module):
    """`config["filters"]` has one width per level; the resolution halves between levels.

    Instance norm returns a view, so an `inplace` activation after it makes autograd copy gradients.
    """

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__()
        dims, classes = int(config.get("dims", 2)), int(config.get("classes", 4))
        filters, out_kernel = tuple(int(width) for width in config["filters"]), int(config.get("out_kernel", 1))
        self.dims, self.kernel = dims, int(config.get("kernel", 3))
        self.norm = option(config, "norm", NORMS, "instance")[dims]
        if issubclass(self.norm, NORMS["instance"][dims]) and config.get("fused_norm", 0):
            self.norm = FusedInstanceNorm
        self.slope, self.inplace = float(config.get("slope", 0.01)), bool(config.get("inplace", 0))
        inputs = (channels, *filters[:-1])
        self.down = nn.ModuleList(
            self._pair(first, second, stride=1 if level == 0 else 2)
            for level, (first, second) in enumerate(zip(inputs, filters, strict=True))
        )
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for deep, shallow in zip(filters[:0:-1], filters[-2::-1], strict=True):
            self.up.append(TRANSPOSED[dims](deep, shallow, 2, stride=2))
            self.merge.append(self._pair(2 * shallow, shallow))
        self.out = CONV[dims](filters[0], classes, out_kernel, padding=out_kernel // 2)

    def _pair(self, inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width, step in ((inputs, stride), (outputs, 1)):
            layers += [
                CONV[self.dims](width, outputs, self.kernel, step, self.kernel // 2, bias=False),
                self.norm(outputs, affine=True),
                nn.LeakyReLU(self.slope, self.inplace) if self.slope else nn.ReLU(self.inplace),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((up(x), skips.pop()), dim=1))
        return self.out(x)


def build(config: Config, sizes: Sizes) -> Workload:
    dims = int(config.get("dims", 2))
    levels = len(config["filters"])
    divisor = 2 ** (levels - 1)
    if any(side % divisor for side in spatial(sizes, dims)):
        raise JobError(f"{levels} levels halve the input: every side of image_size must divide by {divisor}")
    channels = int(sizes.get("channels", 4))
    module = UNet(config, channels)
    # Deep supervision is off, as in the published runs.
    background = bool(config.get("dice_background", 0))
    loss = dice_cross_entropy(over_batch=bool(config.get("dice_over_batch", 1)), background=background)
    return segment(module, sizes, dims, channels, 128, loss)
