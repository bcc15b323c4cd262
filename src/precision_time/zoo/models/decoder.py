"""Dense decoder-only transformers (GPT, MPT, Llama, Nemotron): one definition for all of them.

GPT-2: Radford et al. 2019; MPT: the llm-foundry repository; Llama: Touvron et al. 2023 (arXiv:2307.09288) and
arXiv:2407.21783; Nemotron: arXiv:2402.16819. Pre-LN blocks. The shape is the `model_config` of the
measurement tables:

    layers, hidden, heads, kv_heads, head_dim, ffn, vocab
    norm = layernorm | rmsnorm
    act = gelu | gelu_tanh | relu | relu2 | swiglu
    pos = learned | rope | none
    bias, tied_embeddings, qk_norm = 0 | 1
    dropout, max_positions (rows of the learned position table), rope_theta, rotary_percent
    fused_qkv = 0 | 1: one projection for query, key and value, as GPT-2, MPT and Megatron have

Labels come already shifted, so the loss covers every position.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.text import activation, dropout, tokens, vocabulary_loss
from precision_time.zoo.workload import Config, Sizes, Workload

GROUPED_ATTENTION = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)
"""Whether torch's attention takes fewer key/value heads itself; before 2.5 they are repeated for it."""


def norm(kind: str, size: int) -> nn.Module:
    if kind == "layernorm":
        return nn.LayerNorm(size, eps=1e-5)
    if kind == "rmsnorm":
        return nn.RMSNorm(size, eps=1e-5)
    raise ValueError(f"unknown norm {kind!r}: use layernorm or rmsnorm")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (arXiv:2104.09864) on the first `cos.shape[-1]` channels of each head, the rest
    unchanged.
    """
    width = cos.shape[-1]
    rotary, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    first, second = rotary.chunk(2, dim=-1)
    rotated = rotary * cos + torch.cat((-second, first), dim=-1) * sin
    return rotated if rest is None else torch.cat((rotated, rest), dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped key/value heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, bias = int(config["hidden"]), bool(config["bias"])
        self.heads = int(config["heads"])
        self.kv_heads = int(config["kv_heads"])
        self.head_dim = int(config["head_dim"])
        self.drop = float(config["dropout"])
        query, keyvalue = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.split = [query, keyvalue, keyvalue]
        self.fused = bool(config["fused_qkv"])
        if self.fused:
            self.qkv = nn.Linear(hidden, query + 2 * keyvalue, bias=bias)
        else:
            self.query = nn.Linear(hidden, query, bias=bias)
            self.key = nn.Linear(hidden, keyvalue, bias=bias)
            self.value = nn.Linear(hidden, keyvalue, bias=bias)
        self.output = nn.Linear(query, hidden, bias=bias)
        self.qk_norm = bool(config["qk_norm"])
        if self.qk_norm:
            self.query_norm = norm(str(config["norm"]), self.head_dim)
            self.key_norm = norm(str(config["norm"]), self.head_dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.fused:
            q, k, v = self.qkv(x).split(self.split, dim=-1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (q, k, v))
        if self.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if rope is not None:
            cos, sin = (table.to(q.dtype) for table in rope)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped: dict[str, bool] = {}
        if self.kv_heads != self.heads and GROUPED_ATTENTION:
            grouped["enable_gqa"] = True
        elif self.kv_heads != self.heads:
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        drop = self.drop if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True, **grouped)
        return self.output(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """act(x W_up) W_down, or with act=swiglu: (silu(x W_gate) * x W_up) W_down."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, ffn, bias = int(config["hidden"]), int(config["ffn"]), bool(config["bias"])
        self.gated = str(config["act"]) == "swiglu"
        if self.gated:
            self.gate = nn.Linear(hidden, ffn, bias=bias)
        else:
            self.act = activation(str(config["act"]))
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = int(config["hidden"])
        self.attention_norm = norm(str(config["norm"]), hidden)
        self.attention = Attention(config)
        self.ffn_norm = norm(str(config["norm"]), hidden)
        self.ffn = FeedForward(config)
        self.dropout = dropout(float(config["dropout"]))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rope))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class Decoder(nn.Module):
    """Token ids to logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, seq_len: int) -> None:
        super().__init__()
        hidden, vocab = int(config["hidden"]), int(config["vocab"])
        self.pos = str(config["pos"])
        if self.pos not in ("learned", "rope", "none"):
            raise ValueError(f"unknown pos {self.pos!r}: use learned, rope or none")
        self.embedding = nn.Embedding(vocab, hidden)
        if self.pos == "learned":
            self.position = nn.Embedding(int(config["max_positions"]), hidden)
        elif self.pos == "rope":
            width = int(int(config["head_dim"]) * float(config["rotary_percent"]))
            inverse = float(config["rope_theta"]) ** (-torch.arange(0, width, 2).float() / width)
            angles = torch.outer(torch.arange(seq_len).float(), inverse).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        self.dropout = dropout(float(config["dropout"]))
        self.blocks = nn.ModuleList(Block(config) for _ in range(int(config["layers"])))
        self.norm = norm(str(config["norm"]), hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if bool(config["tied_embeddings"]):
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        if self.pos == "learned":
            x = x + self.position(torch.arange(input_ids.shape[1], device=input_ids.device))
        x = self.dropout(x)
        rope = (self.cos, self.sin) if self.pos == "rope" else None
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))


def complete(config: Config) -> dict[str, object]:
    """The config with every key present; what follows from other keys is derived from them."""
    hidden, heads = int(config["hidden"]), int(config["heads"])
    derived: dict[str, object] = {
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden,
        "norm": "layernorm",
        "act": "gelu",
        "pos": "learned",
        "bias": 1,
        "tied_embeddings": 1,
        "qk_norm": 0,
        "dropout": 0.0,
        "max_positions": 2048,
        "rope_theta": 10000.0,
        "rotary_percent": 1.0,
        "fused_qkv": int(str(config.get("norm", "layernorm")) == "layernorm"),
    }
    return derived | dict(config)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, seq = int(sizes["batch_size"]), int(sizes["seq_len"])
    return Workload(
        module=Decoder(complete(config), seq),
        inputs={"input_ids": tokens(batch, seq), "labels": tokens(batch, seq)},
        loss=lambda module, inputs: vocabulary_loss(module(inputs["input_ids"]), inputs["labels"]),
    )
