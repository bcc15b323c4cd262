"""A diffusion transformer of videos as Wan2.1 has it (arXiv:2503.20314; Wan-Video/Wan2.1, wan/modules/model.py).

Patches of a latent video (a fourth of the frames, an eighth of the sides) attend to each other and to the features of a
text; norms are shifted and scaled by the time, whose six vectors each block adds to its own. Queries and keys are
normalised over all heads. Latents and text features are inputs: the encoders ran before. The loss is that of flow
matching, the difference of noise and latents.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.errors import JobError
from precision_time.zoo.models.decoder_parts import rotate
from precision_time.zoo.models.diffusion_unet import sinusoids
from precision_time.zoo.models.text import tokens
from precision_time.zoo.models.vision_common import spatial
from precision_time.zoo.workload import Config, Sizes, Workload

Tables = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """To the video's own patches with rotary positions, or to the text without."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.query_norm, self.key_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, source: Tensor, tables: Tables | None = None) -> Tensor:
        parts = (self.query_norm(self.query(x)), self.key_norm(self.key(source)), self.value(source))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if tables is not None:
            cos, sin = (table.to(q.dtype) for table in tables)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.text_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention, self.cross = Attention(width, heads), Attention(width, heads)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
        self.modulation = nn.Parameter(torch.zeros(1, 6, width))

    def forward(self, x: Tensor, time: Tensor, text: Tensor, tables: Tables) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation + time).chunk(6, dim=1)
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + self.attention(y, y, tables) * gate1
        x = x + self.cross(self.text_norm(x), text)
        fed = self.down(F.gelu(self.up(self.norm2(x) * (1 + scale2) + shift2), approximate="tanh"))
        return x + fed * gate2


class VideoTransformer(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, rows: int) -> None:
        super().__init__()
        width, heads, channels = (int(config[key]) for key in ("hidden", "heads", "latent_channels"))
        self.patch = int(config["patch"])
        self.patches = nn.Conv3d(channels, width, (1, self.patch, self.patch), stride=(1, self.patch, self.patch))
        self.text_up, self.text_down = nn.Linear(int(config["context"]), width), nn.Linear(width, width)
        self.time_up, self.time_down = nn.Linear(256, width), nn.Linear(width, width)
        self.time_vectors = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(Block(width, heads, int(config["ffn"])) for _ in range(int(config["layers"])))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Parameter(torch.zeros(1, 2, width))
        self.head = nn.Linear(width, self.patch**2 * channels)
        self.register_buffer("cos", torch.zeros(rows, width // heads))
        self.register_buffer("sin", torch.zeros(rows, width // heads))

    def forward(self, video: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        x = self.patches(video)
        frames, height, width = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        vector = self.time_down(F.silu(self.time_up(sinusoids(steps, 256).to(x.dtype))))
        vectors = self.time_vectors(F.silu(vector)).unflatten(1, (6, -1))
        context = self.text_down(F.gelu(self.text_up(text), approximate="tanh"))
        for block in self.blocks:
            x = block(x, vectors, context, (self.cos, self.sin))
        shift, scale = (self.modulation + vector.unsqueeze(1)).chunk(2, dim=1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        squares = x.unflatten(-1, (self.patch, self.patch, -1)).unflatten(1, (frames, height, width))
        return squares.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, frames, patch = int(sizes["batch_size"]), int(sizes["frames"]), int(config["patch"])
    height, width = spatial(sizes)
    if (frames - 1) % 4 or height % (8 * patch) or width % (8 * patch):
        raise JobError(
            f"frames={frames} must be one more than a multiple of 4, and image_size={height}x{width} of {8 * patch}"
        )
    shape = (batch, int(config["latent_channels"]), (frames - 1) // 4 + 1, height // 8, width // 8)

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        share = inputs["levels"][inputs["steps"]][:, None, None, None, None]
        noisy = inputs["latents"] * (1.0 - share) + inputs["noise"] * share
        found = module(noisy.to(inputs["noise"].dtype), inputs["steps"], inputs["text"])
        return F.mse_loss(found.float(), (inputs["noise"] - inputs["latents"]).float())

    inputs = {
        "latents": torch.zeros(shape),
        "noise": torch.zeros(shape),
        "steps": tokens(batch),
        "levels": torch.ones(1000),
        "text": torch.zeros(batch, int(sizes["text_tokens"]), int(config["context"])),
    }
    rows = shape[2] * shape[3] * shape[4] // patch**2
    return Workload(VideoTransformer(config, rows), inputs, loss)
