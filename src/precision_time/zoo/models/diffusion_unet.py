"""The U-Net of Stable Diffusion v2 (arXiv:2112.10752; configs/stable-diffusion/v2-inference-v.yaml of its repository).

One training step: noise of a random strength on cached latents, the U-Net's guess of it given a text, the squared
error. Four levels of two residual blocks, each with a transformer over the positions except at the lowest resolution;
attention to the positions and to 77 text tokens. With `text_encoder` the frozen OpenCLIP-H text model (24 layers of
width 1024, of which the last is not run) runs forward first; else its result is an input.

SDXL (arXiv:2307.01952) has three levels, transformers of `depths` layers in each of them and in the middle, and a
vector of pooled text and image sizes (`pooled`) beside the time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.errors import JobError
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Config, Sizes, Workload


class Attention(nn.Module):
    """Heads of one size from positions to `context` (or to themselves)."""

    def __init__(self, width: int, context: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context, width, bias=False)
        self.value = nn.Linear(context, width, bias=False)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            y.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for y in (self.query(x), self.key(source), self.value(source))
        )
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, context: int, head: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, width, head)
        self.cross = Attention(width, context, head)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.cross(self.norm2(x), context)
        value, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        return x + self.down(value * F.gelu(gate))


class Transformer(nn.Module):
    """Positions of an image as a sequence."""

    def __init__(self, width: int, context: int, head: int, depth: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.layer = Layer(width, context, head)
        self.more = nn.ModuleList(Layer(width, context, head) for _ in range(depth - 1))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        rows = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        rows = self.leave(self._layers(rows, context))
        return x + rows.transpose(1, 2).reshape(x.shape)

    def _layers(self, rows: Tensor, context: Tensor) -> Tensor:
        rows = self.layer(rows, context)
        for layer in self.more:
            rows = layer(rows, context)
        return rows


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Stage(nn.Module):
    """A residual block and a transformer of `depth` layers, if any."""

    def __init__(self, inputs: int, outputs: int, time: int, context: int, head: int, depth: int) -> None:
        super().__init__()
        self.residual = Residual(inputs, outputs, time)
        self.transformer = Transformer(outputs, context, head, depth) if depth else None

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, context)


def sinusoids(steps: Tensor, width: int) -> Tensor:
    frequencies = torch.exp(torch.arange(width // 2, device=steps.device) * (-9.21034 / (width // 2)))
    angles = steps.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _depths(config: Config, levels: int) -> list[int]:
    """Transformer layers of each level; by default one, and none at the lowest resolution."""
    if "depths" not in config:
        return [1] * (levels - 1) + [0]
    depths = [int(depth) for depth in str(config["depths"]).split("-")]
    if len(depths) != levels:
        raise JobError(f"depths={config['depths']} has {len(depths)} levels, multipliers has {levels}; give as many")
    return depths


class DiffusionUNet(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, context, head = int(config["channels"]), int(config["context"]), int(config["head"])
        self.width = width
        widths = [width * int(factor) for factor in str(config["multipliers"]).split("-")]
        blocks, latent, time = int(config["blocks"]), int(config["latent_channels"]), 4 * width
        depths = _depths(config, len(widths))
        self.time_up, self.time_down = nn.Linear(width, time), nn.Linear(time, time)
        pooled = int(config.get("pooled", 0))
        self.pooled: nn.Sequential | None = None
        if pooled:
            self.pooled = nn.Sequential(nn.Linear(pooled, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(latent, width, 3, padding=1)
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        held, current = [width], width
        for level, outputs in enumerate(widths):
            last = level == len(widths) - 1
            for _ in range(blocks):
                self.down.append(Stage(current, outputs, time, context, head, depths[level]))
                current = outputs
                held.append(current)
            if not last:
                self.smaller.append(nn.Conv2d(current, current, 3, stride=2, padding=1))
                held.append(current)
        self.middle = Stage(current, current, time, context, head, max(1, depths[-1]))
        self.middle_last = Residual(current, current, time)
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for level, outputs in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(Stage(current + held.pop(), outputs, time, context, head, depths[level]))
                current = outputs
            if level:
                self.larger.append(nn.Conv2d(current, current, 3, padding=1))
        self.blocks = blocks
        self.norm = nn.GroupNorm(32, current)
        self.leave = nn.Conv2d(current, latent, 3, padding=1)

    def forward(self, x: Tensor, steps: Tensor, context: Tensor, pooled: Tensor | None = None) -> Tensor:
        wave = sinusoids(steps, self.width).to(x.dtype)
        time = self.time_down(F.silu(self.time_up(wave)))
        if self.pooled is not None:
            time = time + self.pooled(pooled)
        x = self.enter(x)
        held = [x]
        for i, stage in enumerate(self.down):
            x = stage(x, time, context)
            held.append(x)
            if (i + 1) % self.blocks == 0 and i + 1 < len(self.down):
                x = self.smaller[i // self.blocks](x)
                held.append(x)
        x = self.middle_last(self.middle(x, time, context), time)
        for i, stage in enumerate(self.up):
            x = stage(torch.cat((x, held.pop()), dim=1), time, context)
            if (i + 1) % (self.blocks + 1) == 0 and i + 1 < len(self.up):
                x = self.larger[i // (self.blocks + 1)](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(F.silu(self.norm(x)))


class TextLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TextEncoder(nn.Module):
    """OpenCLIP ViT-H/14's text model up to the layer before its last, frozen."""

    def __init__(self, width: int = 1024, layers: int = 23, heads: int = 16, vocab: int = 49408) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocab, width), nn.Parameter(torch.zeros(77, width))
        self.layers = nn.ModuleList(TextLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class StableDiffusion(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.unet = DiffusionUNet(config)
        self.text_encoder = TextEncoder(int(config["context"])) if bool(config["text_encoder"]) else None

    def forward(
        self,
        latents: Tensor,
        noise: Tensor,
        steps: Tensor,
        levels: Tensor,
        text: Tensor,
        pooled: Tensor | None = None,
    ) -> Tensor:
        kept = levels[steps][:, None, None, None].to(latents.dtype)
        noisy = latents * kept.sqrt() + noise * (1.0 - kept).sqrt()
        context = text if self.text_encoder is None else self.text_encoder(text)
        return self.unet(noisy, steps, context, pooled)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, side, length = int(sizes["batch_size"]), int(sizes["latent_size"]), int(sizes["text_tokens"])
    channels, encodes = int(config["latent_channels"]), bool(config["text_encoder"])
    shape = (batch, channels, side, side)
    text = tokens(batch, length) if encodes else torch.zeros(batch, length, int(config["context"]))
    inputs = {
        "latents": torch.zeros(shape),
        "noise": torch.zeros(shape),
        "steps": tokens(batch),
        "levels": torch.ones(1000),
        "text": text,
    }
    if config.get("pooled"):
        inputs["pooled"] = torch.zeros(batch, int(config["pooled"]))
    return Workload(
        module=StableDiffusion(config),
        inputs=inputs,
        loss=lambda module, inputs: F.mse_loss(module(**inputs).float(), inputs["noise"].float()),
    )
