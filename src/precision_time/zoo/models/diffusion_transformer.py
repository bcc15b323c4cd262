"""Diffusion transformers: DiT (arXiv:2212.09748), SD3 (arXiv:2403.03206), Flux (black-forest-labs/flux, model.py).

DiT: patches of a latent image, blocks whose norms are shifted and scaled by the time and class (adaLN-Zero). Flux: text
and image tokens first in blocks with weights of their own and a common attention ("double"), then as one sequence in
blocks whose attention and feed-forward run side by side ("single"); rotary positions, normalised queries and keys. SD3
("MMDiT") has blocks of the first kind alone, learned by patches with fixed positions; its last block leaves the text.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.decoder_parts import rotate
from precision_time.zoo.models.diffusion_unet import sinusoids
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Config, Sizes, Workload

Pair = tuple[Tensor, Tensor]


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _plain_norm(size: int) -> nn.Module:
    return nn.LayerNorm(size, eps=1e-6, elementwise_affine=False)


def _shifted(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TwoLayers(nn.Module):
    """Linear, SiLU, linear: of the time and of other vectors."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class DiTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = _plain_norm(width), _plain_norm(width)
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(vector)).chunk(6, dim=-1)
        q, k, v = (_heads(y, self.heads) for y in self.qkv(_shifted(self.norm1(x), shift1, scale1)).chunk(3, dim=-1))
        mixed = self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + gate1.unsqueeze(1) * mixed
        fed = self.down(F.gelu(self.up(_shifted(self.norm2(x), shift2, scale2)), approximate="tanh"))
        return x + gate2.unsqueeze(1) * fed


class DiT(nn.Module):
    """The noise (and its variance, learned) of a latent image of a class."""

    place: Tensor

    def __init__(self, config: Config, side: int) -> None:
        super().__init__()
        width, patch, channels = int(config["hidden"]), int(config["patch"]), int(config["latent_channels"])
        self.patch = patch
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.time = TwoLayers(256, width)
        self.classes = nn.Embedding(int(config["classes"]) + 1, width)
        self.register_buffer("place", torch.zeros(1, (side // patch) ** 2, width))
        self.blocks = nn.ModuleList(DiTBlock(width, int(config["heads"])) for _ in range(int(config["layers"])))
        self.norm, self.modulation = _plain_norm(width), nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, patch * patch * channels * 2)

    def forward(self, x: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        rows = self.patches(x).flatten(2).transpose(1, 2) + self.place
        vector = self.time(sinusoids(steps, 256).to(x.dtype)) + self.classes(labels)
        for block in self.blocks:
            rows = block(rows, vector)
        rows = self.head(_shifted(self.norm(rows), *self.modulation(F.silu(vector)).chunk(2, dim=-1)))
        side = x.shape[-1] // self.patch
        squares = rows.unflatten(-1, (self.patch, self.patch, -1)).unflatten(1, (side, side))
        return squares.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def build_dit(config: Config, sizes: Sizes) -> Workload:
    """Squared error of the noise, and of the variance's channels as DiT's bound on the likelihood costs about that."""
    batch, side, channels = int(sizes["batch_size"]), int(sizes["latent_size"]), int(config["latent_channels"])
    shape = (batch, channels, side, side)

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        noise, levels = inputs["noise"], inputs["levels"][inputs["steps"]][:, None, None, None]
        noisy = inputs["latents"] * levels.sqrt() + noise * (1.0 - levels).sqrt()
        guess, spread = module(noisy.to(noise.dtype), inputs["steps"], inputs["labels"]).float().chunk(2, dim=1)
        return F.mse_loss(guess, noise.float()) + 0.001 * (spread.exp() * (guess.detach() - noise).square()).mean()

    return Workload(
        module=DiT(config, side),
        inputs={
            "latents": torch.zeros(shape),
            "noise": torch.zeros(shape),
            "steps": tokens(batch),
            "labels": tokens(batch),
            "levels": torch.ones(1000),
        },
        loss=loss,
    )


class Mmdit(nn.Module):
    """SD3: the velocity of a latent image given text tokens and a pooled text; `qk_norm` as in SD3.5."""

    place: Tensor

    def __init__(self, config: Config, side: int) -> None:
        super().__init__()
        width, patch, channels = int(config["hidden"]), int(config["patch"]), int(config["latent_channels"])
        heads, layers, norms = int(config["heads"]), int(config["layers"]), bool(config["qk_norm"])
        self.patch = patch
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("place", torch.zeros(1, (side // patch) ** 2, width), persistent=False)
        self.text = nn.Linear(int(config["context"]), width)
        self.time, self.pooled = TwoLayers(256, width), TwoLayers(int(config["pooled"]), width)
        self.blocks = nn.ModuleList(JointBlock(width, heads, norms, place == layers - 1) for place in range(layers))
        self.norm, self.modulation = _plain_norm(width), nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, patch * patch * channels)

    def forward(self, image: Tensor, text: Tensor, pooled: Tensor, steps: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.place
        vector = self.time(sinusoids(steps * 1000.0, 256).to(image.dtype)) + self.pooled(pooled)
        context = self.text(text)
        for block in self.blocks:
            context, x = block(context, x, vector)
        rows = self.head(_shifted(self.norm(x), *self.modulation(F.silu(vector)).chunk(2, dim=-1)))
        side = image.shape[-1] // self.patch
        squares = rows.unflatten(-1, (self.patch, self.patch, -1)).unflatten(1, (side, side))
        return squares.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


class JointStream(nn.Module):
    """The weights of text or image tokens in a block; `last`: only keys, queries and values of them are needed."""

    def __init__(self, width: int, heads: int, norms: bool, last: bool) -> None:
        super().__init__()
        self.heads = heads
        self.modulation, self.norm1 = nn.Linear(width, (2 if last else 6) * width), _plain_norm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        size = width // heads
        self.query_norm, self.key_norm = (nn.RMSNorm(size, eps=1e-6) if norms else nn.Identity() for _ in range(2))
        if not last:
            self.output, self.norm2 = nn.Linear(width, width), _plain_norm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def project(self, x: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = _shifted(self.norm1(x), shift, scale)
        q, k, v = (_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        return self.query_norm(q), self.key_norm(k), v

    def leave(self, x: Tensor, mixed: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        gate, shift, scale, gate2 = rest
        x = x + gate.unsqueeze(1) * self.output(mixed)
        fed = self.down(F.gelu(self.up(_shifted(self.norm2(x), shift, scale)), approximate="tanh"))
        return x + gate2.unsqueeze(1) * fed


class JointBlock(nn.Module):
    """Both kinds of tokens attend to all of them."""

    def __init__(self, width: int, heads: int, norms: bool, last: bool) -> None:
        super().__init__()
        self.text = JointStream(width, heads, norms, last)
        self.image = JointStream(width, heads, norms, False)
        self.last = last

    def forward(self, text: Tensor, image: Tensor, vector: Tensor) -> Pair:
        active = F.silu(vector)
        of_text = self.text.modulation(active).chunk(2 if self.last else 6, dim=-1)
        of_image = self.image.modulation(active).chunk(6, dim=-1)
        pairs = zip(self.image.project(image, *of_image[:2]), self.text.project(text, *of_text[:2]), strict=True)
        q, k, v = (torch.cat(pair, dim=2) for pair in pairs)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        first, second = mixed.split([image.shape[1], text.shape[1]], dim=1)
        image = self.image.leave(image, first, of_image[2:])
        return text if self.last else self.text.leave(text, second, of_text[2:]), image


def build_sd3(config: Config, sizes: Sizes) -> Workload:
    """Rectified flow between latent image and noise; latents and encodings of the text come with the data."""
    batch, side = int(sizes["batch_size"]), int(sizes["latent_size"])
    shape = (batch, int(config["latent_channels"]), side, side)

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        clean, noise, at = inputs["latents"], inputs["noise"], inputs["steps"]
        part = at[:, None, None, None]
        guess = module((1.0 - part) * clean + part * noise, inputs["text"], inputs["pooled"], at)
        return F.mse_loss(guess.float(), (noise - clean).float())

    return Workload(
        module=Mmdit(config, side),
        inputs={
            "latents": torch.zeros(shape),
            "noise": torch.zeros(shape),
            "text": torch.zeros(batch, int(sizes["text_tokens"]), int(config["context"])),
            "pooled": torch.zeros(batch, int(config["pooled"])),
            "steps": torch.zeros(batch),
        },
        loss=loss,
    )


class FluxStream(nn.Module):
    """The weights of one kind of tokens (text or image) in a double block."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1, self.norm2 = _plain_norm(width), _plain_norm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads, eps=1e-6), nn.RMSNorm(width // heads, eps=1e-6)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def project(self, x: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (_heads(y, self.heads) for y in self.qkv(_shifted(self.norm1(x), shift, scale)).chunk(3, dim=-1))
        return self.query_norm(q), self.key_norm(k), v

    def feed(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(_shifted(self.norm2(x), shift, scale)), approximate="tanh"))


class DoubleBlock(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.text, self.image = FluxStream(width, heads, ffn), FluxStream(width, heads, ffn)

    def forward(self, text: Tensor, image: Tensor, vector: Tensor, rope: Pair) -> Pair:
        active = F.silu(vector)
        of_text, of_image = (stream.modulation(active).chunk(6, dim=-1) for stream in (self.text, self.image))
        pairs = zip(self.text.project(text, *of_text[:2]), self.image.project(image, *of_image[:2]), strict=True)
        q, k, v = (torch.cat(pair, dim=2) for pair in pairs)
        mixed = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v).transpose(1, 2).flatten(2)
        first, second = mixed.split([text.shape[1], image.shape[1]], dim=1)
        text = text + of_text[2].unsqueeze(1) * self.text.output(first)
        image = image + of_image[2].unsqueeze(1) * self.image.output(second)
        text = text + of_text[5].unsqueeze(1) * self.text.feed(text, *of_text[3:5])
        return text, image + of_image[5].unsqueeze(1) * self.image.feed(image, *of_image[3:5])


class SingleBlock(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.split = heads, [3 * width, ffn]
        self.modulation, self.norm = nn.Linear(width, 3 * width), _plain_norm(width)
        self.enter, self.leave = nn.Linear(width, 3 * width + ffn), nn.Linear(width + ffn, width)
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads, eps=1e-6), nn.RMSNorm(width // heads, eps=1e-6)

    def forward(self, x: Tensor, vector: Tensor, rope: Pair) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(vector)).chunk(3, dim=-1)
        qkv, fed = self.enter(_shifted(self.norm(x), shift, scale)).split(self.split, dim=-1)
        q, k, v = (_heads(y, self.heads) for y in qkv.chunk(3, dim=-1))
        q, k = rotate(self.query_norm(q), *rope), rotate(self.key_norm(k), *rope)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + gate.unsqueeze(1) * self.leave(torch.cat((mixed, F.gelu(fed, approximate="tanh")), dim=-1))


class Flux(nn.Module):
    """`guidance` adds the vector of the distilled "dev" model."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, length: int) -> None:
        super().__init__()
        width, heads, ffn = int(config["hidden"]), int(config["heads"]), int(config["ffn"])
        latent = int(config["latent_channels"]) * 4
        self.image, self.text = nn.Linear(latent, width), nn.Linear(int(config["context"]), width)
        self.time, self.pooled = TwoLayers(256, width), TwoLayers(int(config["pooled"]), width)
        self.guidance = TwoLayers(256, width) if bool(config["guidance"]) else None
        self.double_blocks = nn.ModuleList(DoubleBlock(width, heads, ffn) for _ in range(int(config["double_blocks"])))
        self.single_blocks = nn.ModuleList(SingleBlock(width, heads, ffn) for _ in range(int(config["single_blocks"])))
        self.norm, self.modulation = _plain_norm(width), nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, latent)
        self.register_buffer("cos", torch.zeros(length, width // heads), persistent=False)
        self.register_buffer("sin", torch.zeros(length, width // heads), persistent=False)

    def forward(self, image: Tensor, text: Tensor, pooled: Tensor, steps: Tensor) -> Tensor:
        wave = sinusoids(steps * 1000.0, 256).to(image.dtype)
        vector = self.time(wave) + self.pooled(pooled)
        if self.guidance is not None:
            vector = vector + self.guidance(wave)
        x, context = self.image(image), self.text(text)
        rope = (self.cos.to(x.dtype), self.sin.to(x.dtype))
        for block in self.double_blocks:
            context, x = block(context, x, vector, rope)
        x = torch.cat((context, x), dim=1)
        for block in self.single_blocks:
            x = block(x, vector, rope)
        x = _shifted(self.norm(x[:, context.shape[1] :]), *self.modulation(F.silu(vector)).chunk(2, dim=-1))
        return self.head(x)


def build_flux(config: Config, sizes: Sizes) -> Workload:
    """Rectified flow: a point between image and noise, the velocity between them. Encodings come with the data."""
    batch, length = int(sizes["batch_size"]), int(sizes["text_tokens"])
    patches, latent = (int(sizes["latent_size"]) // 2) ** 2, int(config["latent_channels"]) * 4

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        clean, noise, at = inputs["latents"], inputs["noise"], inputs["steps"]
        part = at[:, None, None]
        guess = module((1.0 - part) * clean + part * noise, inputs["text"], inputs["pooled"], at)
        return F.mse_loss(guess.float(), (noise - clean).float())

    return Workload(
        module=Flux(config, patches + length),
        inputs={
            "latents": torch.zeros(batch, patches, latent),
            "noise": torch.zeros(batch, patches, latent),
            "text": torch.zeros(batch, length, int(config["context"])),
            "pooled": torch.zeros(batch, int(config["pooled"])),
            "steps": torch.zeros(batch),
        },
        loss=loss,
    )
