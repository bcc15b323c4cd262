"""Encoder-decoder transformers: BART and T5.

BART: Lewis et al. 2019 (arXiv:1910.13461). T5: Raffel et al. 2019 (arXiv:1910.10683), version 1.0 of the
published checkpoints: ReLU feed-forward, RMS norm without bias, relative position buckets shared by all
layers of a stack, no scaling of the attention scores, one embedding for source, target and (scaled by hidden
** -0.5) logits. `head_dim` is hidden / heads in BART unless given: a tensor-parallel rank has fewer heads of that size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.operators import scaled_query_attention
from precision_time.zoo.models.text import FeedForward, dropout, key_mask, tokens, vocabulary_loss
from precision_time.zoo.workload import Config, Sizes, Workload


class Attention(nn.Module):
    """Self- or cross-attention. `scale` None is the usual 1 / sqrt(head size)."""

    def __init__(self, hidden: int, heads: int, head_dim: int, bias: bool, drop: float, scale: float | None) -> None:
        super().__init__()
        self.head_dim, self.drop, self.scale = head_dim, drop, scale
        self.query = nn.Linear(hidden, heads * head_dim, bias=bias)
        self.key = nn.Linear(hidden, heads * head_dim, bias=bias)
        self.value = nn.Linear(hidden, heads * head_dim, bias=bias)
        self.output = nn.Linear(heads * head_dim, hidden, bias=bias)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        query, drop = split(self.query(x)), self.drop if self.training else 0.0
        if self.scale is None:
            context = scaled_query_attention(
                query, split(self.key(source)), split(self.value(source)), mask, causal, drop
            )
            return self.output(context.transpose(1, 2).flatten(2))
        if mask is not None and mask.is_floating_point():
            mask = mask.to(query.dtype)
        context = F.scaled_dot_product_attention(
            query,
            split(self.key(source)),
            split(self.value(source)),
            attn_mask=mask,
            dropout_p=drop,
            is_causal=causal,
            scale=self.scale,
        )
        return self.output(context.transpose(1, 2).flatten(2))


def tied_head(word: nn.Embedding) -> nn.Linear:
    """Logits through the transposed word embedding."""
    head = nn.Linear(word.embedding_dim, word.num_embeddings, bias=False)
    head.weight = word.weight
    return head


class BartLayer(nn.Module):
    """A layer of either stack; `pre_norm` normalises before each sub-block instead of after the sum."""

    def __init__(self, config: Config, cross: bool) -> None:
        super().__init__()
        hidden, heads, ffn = int(config["hidden"]), int(config["heads"]), int(config["ffn"])
        drop = float(config["attention_dropout"])
        head_dim = int(config.get("head_dim", hidden // heads))
        self.pre_norm = bool(config["pre_norm"])
        self.attention = Attention(hidden, heads, head_dim, True, drop, None)
        self.attention_norm = nn.LayerNorm(hidden)
        self.cross = cross
        if cross:
            self.cross_attention = Attention(hidden, heads, head_dim, True, drop, None)
            self.cross_norm = nn.LayerNorm(hidden)
        self.ffn = FeedForward(hidden, ffn, str(config["act"]))
        self.ffn_norm = nn.LayerNorm(hidden)
        self.dropout = dropout(float(config["dropout"]))

    def forward(
        self, x: Tensor, mask: Tensor | None, source: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        y = self.attention_norm(x) if self.pre_norm else x
        x = x + self.dropout(self.attention(y, y, mask, causal=self.cross))
        x = x if self.pre_norm else self.attention_norm(x)
        if source is not None:
            y = self.cross_norm(x) if self.pre_norm else x
            x = x + self.dropout(self.cross_attention(y, source, source_mask))
            x = x if self.pre_norm else self.cross_norm(x)
        y = self.ffn_norm(x) if self.pre_norm else x
        x = x + self.dropout(self.ffn(y))
        return x if self.pre_norm else self.ffn_norm(x)


class BartStack(nn.Module):
    """Shared word embedding + learned positions, normalised, then the layers (and a last norm when
    pre-LN).
    """

    def __init__(self, config: Config, word: nn.Embedding, cross: bool) -> None:
        super().__init__()
        hidden = int(config["hidden"])
        self.word = word
        self.position = nn.Embedding(int(config["max_positions"]) + 2, hidden)  # BART offsets positions by 2
        self.norm = nn.LayerNorm(hidden)
        self.dropout = dropout(float(config["dropout"]))
        self.layers = nn.ModuleList(BartLayer(config, cross) for _ in range(int(config["layers"])))
        self.last_norm = nn.LayerNorm(hidden) if bool(config["pre_norm"]) else nn.Identity()

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device) + 2
        x = self.dropout(self.norm(self.word(ids) + self.position(positions)))
        for layer in self.layers:
            x = layer(x, mask, source, source_mask)
        return self.last_norm(x)


class Bart(nn.Module):
    final_logits_bias: Tensor
    """Zero, as transformers and NVIDIA's script have it, and never trained."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        word = nn.Embedding(int(config["vocab"]), int(config["hidden"]))
        self.encoder = BartStack(config, word, cross=False)
        self.decoder = BartStack(config, word, cross=True)
        self.head = tied_head(word)
        self.register_buffer("final_logits_bias", torch.zeros(1, int(config["vocab"])))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        mask = key_mask(inputs["attention_mask"])
        source = self.encoder(inputs["input_ids"], mask)
        x = self.decoder(inputs["decoder_ids"], None, source, mask)
        return self.head(x) + self.final_logits_bias


class RelativeBias(nn.Module):
    """T5's additive attention bias: one learned number per head and logarithmic bucket of distance."""

    def __init__(self, heads: int, buckets: int, reach: int, bidirectional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets, self.reach, self.bidirectional = buckets, reach, bidirectional

    def forward(self, length: int, mask: Tensor) -> Tensor:
        return self._of(length).masked_fill(~mask, -1e4)

    def _of(self, length: int) -> Tensor:
        position = torch.arange(length, device=self.table.weight.device)
        distance = position[None, :] - position[:, None]
        buckets = self.buckets
        offset = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            offset = (distance > 0).to(torch.int64) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(distance.float() / exact) / math.log(self.reach / exact)
        far = (exact + (ratio * (buckets - exact)).to(torch.int64)).clamp(max=buckets - 1)
        bucket = offset + torch.where(distance < exact, distance, far)
        return self.table(bucket).permute(2, 0, 1).unsqueeze(0)


class T5FeedForward(nn.Module):
    """relu(x W_up) W_down with dropout between. The layer calls its parts, so that nothing holds x meanwhile."""

    def __init__(self, hidden: int, width: int, drop: float) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width, bias=False)
        self.act = nn.ReLU()
        self.dropout = dropout(drop)
        self.down = nn.Linear(width, hidden, bias=False)


class T5Layer(nn.Module):
    def __init__(self, config: Config, cross: bool) -> None:
        super().__init__()
        hidden, heads, ffn = int(config["hidden"]), int(config["heads"]), int(config["ffn"])
        head_dim, drop = int(config["head_dim"]), float(config["dropout"])
        self.attention = Attention(hidden, heads, head_dim, False, drop, 1.0)
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-6)
        if cross:
            self.cross_attention = Attention(hidden, heads, head_dim, False, drop, 1.0)
            self.cross_norm = nn.RMSNorm(hidden, eps=1e-6)
        self.ffn = T5FeedForward(hidden, ffn, drop)
        self.ffn_norm = nn.RMSNorm(hidden, eps=1e-6)
        self.dropout = dropout(drop)

    def forward(
        self, x: Tensor, bias: Tensor, source: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.dropout(self.attention(y, y, bias))
        if source is not None:
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), source, source_mask))
        hidden = self.ffn.dropout(self.ffn.act(self.ffn.up(self.ffn_norm(x))))
        return x + self.dropout(self.ffn.down(hidden))


class T5Stack(nn.Module):
    def __init__(self, config: Config, word: nn.Embedding, cross: bool) -> None:
        super().__init__()
        self.word, self.causal = word, cross
        self.bias = RelativeBias(int(config["heads"]), 32, 128, bidirectional=not cross)
        self.layers = nn.ModuleList(T5Layer(config, cross) for _ in range(int(config["layers"])))
        self.norm = nn.RMSNorm(int(config["hidden"]), eps=1e-6)
        self.dropout = dropout(float(config["dropout"]))

    def forward(
        self, ids: Tensor, mask: Tensor, source: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        x = self.dropout(self.word(ids))
        bias = self.bias(ids.shape[1], mask)
        for layer in self.layers:
            x = layer(x, bias, source, source_mask)
        return self.dropout(self.norm(x))


class T5(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = int(config["hidden"]) ** -0.5
        word = nn.Embedding(int(config["vocab"]), int(config["hidden"]))
        self.encoder = T5Stack(config, word, cross=False)
        self.decoder = T5Stack(config, word, cross=True)
        self.head = tied_head(word)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        mask = key_mask(inputs["attention_mask"])
        source = self.encoder(inputs["input_ids"], mask)
        ids = inputs["decoder_ids"]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        x = self.decoder(ids, causal, source, mask)
        return self.head(x * self.scale)


def workload(module: nn.Module, sizes: Sizes) -> Workload:
    """Source of `seq_len` with a padding mask, target of `target_len` (the source's length unless given)."""
    batch, seq = int(sizes["batch_size"]), int(sizes["seq_len"])
    target = int(sizes.get("target_len", seq))
    inputs = {"input_ids": tokens(batch, seq), "attention_mask": tokens(batch, seq)}
    inputs |= {"decoder_ids": tokens(batch, target), "labels": tokens(batch, target)}
    return Workload(module, inputs, lambda m, i: vocabulary_loss(m(i), i["labels"]))


def build_bart(config: Config, sizes: Sizes) -> Workload:
    return workload(Bart(config), sizes)


def build_t5(config: Config, sizes: Sizes) -> Workload:
    return workload(T5(config), sizes)
