"""Small networks over patches of an image: vision transformers, poolers and MLP mixers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import JobError, MissingExtraError
from precision_time.zoo.models.torchvision_models import create
from precision_time.zoo.models.vision_common import classify, option, spatial
from precision_time.zoo.workload import Config, Sizes, Workload


def grid(config: Config, sizes: Sizes) -> tuple[int, int]:
    """Patches along height and width. Raises `JobError` where the image is no whole number of patches."""
    patch = int(config["patch"])
    height, width = spatial(sizes)
    if height % patch or width % patch:
        raise JobError(f"image_size {height}x{width} is no multiple of patch={patch}; use one, or another patch")
    return height // patch, width // patch


class Patches(nn.Module):
    """A strided convolution whose output is a sequence of tokens."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


def _mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Block(nn.Module):
    """A pre-norm transformer block; what mixes the tokens is given."""

    def __init__(self, width: int, mixer: nn.Module, hidden: int) -> None:
        super().__init__()
        self.norm1, self.mixer = nn.LayerNorm(width), mixer
        self.norm2, self.mlp = nn.LayerNorm(width), _mlp(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al. 2021) with one class token, or DeiT's two and their heads averaged (Touvron et al. 2021).

    Unlike DeiT's training there is no teacher: the loss is that of the averaged heads.
    """

    def __init__(self, tokens: int, config: Config) -> None:
        super().__init__()
        width, heads, extra = int(config["hidden"]), int(config["heads"]), int(config["class_tokens"])
        self.patches = Patches(width, int(config["patch"]))
        self.first = nn.Parameter(torch.zeros(1, extra, width))
        self.position = nn.Parameter(torch.randn(1, tokens + extra, width) * 0.02)
        self.blocks = nn.Sequential(
            *(Block(width, Attention(width, heads), 4 * width) for _ in range(int(config["layers"])))
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, int(config["classes"])) for _ in range(extra))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.position
        x = self.norm(self.blocks(x)[:, : len(self.heads)])
        features = [head(x[:, index]) for index, head in enumerate(self.heads)]
        return features[0] if len(features) == 1 else torch.stack(features).mean(0)


class CompactTransformer(nn.Module):
    """CCT (Hassani et al. 2021): convolutional tokens and a learned pooling over them in place of a class token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = int(config["hidden"])
        layers: list[nn.Module] = []
        for inside, out in ((3, width // 2), (width // 2, width)):
            layers += [nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        self.tokens = nn.Sequential(*layers, nn.Flatten(2))
        self.blocks = nn.Sequential(
            *(Block(width, Attention(width, int(config["heads"])), 2 * width) for _ in range(int(config["layers"])))
        )
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, 1)
        self.head = nn.Linear(width, int(config["classes"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.tokens(x).transpose(1, 2)))
        weights = self.pool(x).softmax(1)
        return self.head((weights.transpose(1, 2) @ x).squeeze(1))


class _TokenMlp(nn.Module):
    """MLP-Mixer's (Tolstikhin et al. 2021): the same MLP over the tokens for every channel."""

    def __init__(self, tokens: int, hidden: int) -> None:
        super().__init__()
        self.mlp = _mlp(tokens, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x.transpose(1, 2)).transpose(1, 2)


class _TokenLinear(nn.Module):
    """ResMLP's (Touvron et al. 2022): one linear layer over the tokens, scaled by channel."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(tokens, tokens), nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.linear(x.transpose(1, 2)).transpose(1, 2)


class _GatedBlock(nn.Module):
    """gMLP (Liu et al. 2021): half of the channels gate the other half after a linear layer over the tokens."""

    def __init__(self, width: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, hidden)
        self.gate_norm, self.spatial = nn.LayerNorm(hidden // 2), nn.Conv1d(tokens, tokens, 1)
        self.outer = nn.Linear(hidden // 2, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, v = F.gelu(self.inner(self.norm(x))).chunk(2, -1)
        return x + self.outer(u * self.spatial(self.gate_norm(v)))


class _TokenMean(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x).mean(1))


class _PoolBlock(nn.Module):
    """PoolFormer's (Yu et al. 2022): tokens are mixed by average pooling alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.pool, self.norm2 = nn.GroupNorm(1, width), nn.AvgPool2d(3, 1, 1), nn.GroupNorm(1, width)
        self.mlp = nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.pool(y) - y
        return x + self.mlp(self.norm2(x))


def build_vit(config: Config, sizes: Sizes) -> Workload:
    """ViT or, with `class_tokens` 2, DeiT."""
    rows, columns = grid(config, sizes)
    return classify(VisionTransformer(rows * columns, config), config, sizes)


def build_cct(config: Config, sizes: Sizes) -> Workload:
    """Compact convolutional transformer."""
    return classify(CompactTransformer(config), config, sizes)


def build_mixer(config: Config, sizes: Sizes) -> Workload:
    """MLP-Mixer, ResMLP or gMLP by `mixing`: mlp, linear or gated."""
    rows, columns = grid(config, sizes)
    tokens, width = rows * columns, int(config["hidden"])
    kinds = {
        "mlp": lambda: Block(width, _TokenMlp(tokens, width // 2), 4 * width),
        "linear": lambda: Block(width, _TokenLinear(tokens, width), 4 * width),
        "gated": lambda: _GatedBlock(width, 6 * width, tokens),
    }
    make = option(config, "mixing", kinds, "mlp")
    blocks = (make() for _ in range(int(config["layers"])))
    head = _TokenMean(width, int(config["classes"]))
    return classify(nn.Sequential(Patches(width, int(config["patch"])), *blocks, head), config, sizes)


def build_mlp(config: Config, sizes: Sizes) -> Workload:
    """A plain multilayer perceptron over all pixels."""
    height, width = spatial(sizes)
    layers: list[nn.Module] = [nn.Flatten()]
    inside, hidden = 3 * height * width, int(config["hidden"])
    for _ in range(int(config["layers"])):
        layers += [nn.Linear(inside, hidden), nn.ReLU(inplace=True)]
        inside = hidden
    return classify(nn.Sequential(*layers, nn.Linear(inside, int(config["classes"]))), config, sizes)


def build_poolformer(config: Config, sizes: Sizes) -> Workload:
    """PoolFormer of two stages."""
    width = int(config["hidden"])
    half = int(config["layers"]) // 2
    module = nn.Sequential(
        nn.Conv2d(3, width, 4, 4),
        *(_PoolBlock(width) for _ in range(half)),
        nn.Conv2d(width, 2 * width, 2, 2),
        *(_PoolBlock(2 * width) for _ in range(half)),
        nn.GroupNorm(1, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, int(config["classes"])),
    )
    return classify(module, config, sizes)


def build_swin(config: Config, sizes: Sizes) -> Workload:
    """torchvision's Swin transformer in two stages with windows of 4 x 4."""
    try:
        from torchvision.models.swin_transformer import SwinTransformer
    except ImportError as missing:
        raise MissingExtraError("torchvision is not installed; pip install 'precision-time[models]'") from missing
    width, layers, patch = int(config["hidden"]), int(config["layers"]), int(config["patch"])
    grid(config, sizes)
    module = create(
        lambda: SwinTransformer(
            [patch, patch],
            width,
            [layers // 2] * 2,
            [2, 4],
            [4, 4],
            stochastic_depth_prob=0.0,
            num_classes=int(config["classes"]),
        )
    )
    return classify(module, config, sizes)
