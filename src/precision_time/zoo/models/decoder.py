"""Decoder-only transformers (GPT, MPT, Llama, Nemotron, and mixtures of experts): one definition for all of them.

GPT-2: Radford et al. 2019; MPT: the llm-foundry repository; Llama: Touvron et al. 2023 (arXiv:2307.09288) and
arXiv:2407.21783; Nemotron: arXiv:2402.16819. Pre-LN blocks. The shape is the `model_config` of the
measurement tables:

    layers, hidden, heads, kv_heads, head_dim, ffn, vocab
    norm = layernorm | rmsnorm
    act = gelu | gelu_tanh | relu | relu2 | swiglu | geglu | clamped_quick_geglu
    pos = learned | rope | yarn_rope | alibi | none (YaRN scales the table of rotations, no more; ALiBi, as in MPT's
        published weights, lowers scores by the distance)
    bias = 0 | 1 | qkv (only the projections to queries, keys and values); tied_embeddings, qk_norm = 0 | 1
    dropout, max_positions (rows of the learned position table), rope_theta, rotary_percent
    fused_qkv = 0 | 1: one projection for query, key and value, as GPT-2, MPT and Megatron have
    sliding_window = 0 | keys of every layer | 128_every_second_layer | 1024_five_of_six; post_norm = 0 | 1 (also after
        attention and feed-forward, before the sum, as in Gemma 2 and 3); attn_sink = none | learned
    attn_softcap, logit_softcap: cap x tanh(x / cap) of attention's scores and of the logits (Gemma 2); 0: none
    attn = heads | mla, with q_lora, kv_lora, qk_nope, qk_rope, v_head (see `mla`)
    experts (0: dense), topk, moe_ffn, shared_ffn (0: none), dense_layers (so many first layers), router (see `moe`)
    local_experts (held by this rank; 0: all): it still works on tokens x topk rows
    expert_groups, topk_groups: the experts of a token are of so many groups at most (node-limited routing,
        arXiv:2412.19437), which limits where it is sent; 0: no limit
    pattern, a letter for each layer: M Mamba-2, * attention, E experts or dense, each a block of its own with one norm;
        empty: attention and feed-forward in every layer. mamba_heads, mamba_head_dim, mamba_groups, mamba_state,
        mamba_taps
    mtp_layers: multi-token prediction (arXiv:2412.19437), each one block and one pass of the shared head more
    lora (rank of adapters on attention's projections, all else frozen; 0: none), lora_dropout

`heads`, `kv_heads`, `ffn`, `moe_ffn`, `shared_ffn` and `vocab` need not fit `hidden`: a tensor-parallel rank is this
model with its share of them. Labels come already shifted, so the loss covers every position.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.checks import small_number
from precision_time.zoo.models.decoder_parts import FeedForward, freeze_all_but_adapters, norm, projection, rotate
from precision_time.zoo.models.mamba import Mamba
from precision_time.zoo.models.mla import LatentAttention
from precision_time.zoo.models.moe import MixtureOfExperts
from precision_time.zoo.models.operators import alibi_attention, capped_attention, window_attention
from precision_time.zoo.models.text import dropout, tokens, vocabulary_loss
from precision_time.zoo.shallow import WINDOWED
from precision_time.zoo.tables.decoders import GPT
from precision_time.zoo.workload import Config, Sizes, Workload

GROUPED_ATTENTION = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)
"""Whether torch's attention takes fewer key/value heads itself; before 2.5 they are repeated for it."""


class Attention(nn.Module):
    """Causal attention with grouped key/value heads; `window` > 0: to so many last keys."""

    def __init__(self, config: Config, window: int = 0) -> None:
        super().__init__()
        hidden = int(config["hidden"])
        self.heads = int(config["heads"])
        self.kv_heads = int(config["kv_heads"])
        self.head_dim = int(config["head_dim"])
        self.drop = float(config["dropout"])
        query, keyvalue = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.split = [query, keyvalue, keyvalue]
        self.fused = bool(config["fused_qkv"])
        if self.fused:
            self.qkv = projection(config, hidden, query + 2 * keyvalue, qkv=True)
        else:
            self.query = projection(config, hidden, query, qkv=True)
            self.key = projection(config, hidden, keyvalue, qkv=True)
            self.value = projection(config, hidden, keyvalue, qkv=True)
        self.output = projection(config, query, hidden)
        self.qk_norm = bool(config["qk_norm"])
        if self.qk_norm:
            self.query_norm = norm(str(config["norm"]), self.head_dim)
            self.key_norm = norm(str(config["norm"]), self.head_dim)
        self.window = window
        self.softcap = float(config["attn_softcap"])
        alibi = str(config["pos"]) == "alibi"
        self.slopes = [2.0 ** (-8.0 / self.heads * (head + 1)) for head in range(self.heads)] if alibi else None
        self.sink = nn.Parameter(torch.zeros(self.heads)) if _sinks(config) else None

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
        drop = self.drop if self.training else 0.0
        if self.slopes is not None:
            context = alibi_attention(q, k, v, self.slopes, drop)
            return self.output(context.transpose(1, 2).flatten(2))
        if self.softcap:
            context = capped_attention(q, k, v, self.window, self.softcap, drop)
            return self.output(context.transpose(1, 2).flatten(2))
        if self.window or self.sink is not None:
            context = window_attention(q, k, v, self.sink, self.window, drop)
            return self.output(context.transpose(1, 2).flatten(2))
        grouped: dict[str, bool] = {}
        if self.kv_heads != self.heads and GROUPED_ATTENTION:
            grouped["enable_gqa"] = True
        elif self.kv_heads != self.heads:
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True, **grouped)
        return self.output(context.transpose(1, 2).flatten(2))


def _sinks(config: Config) -> bool:
    kind = str(config["attn_sink"])
    if kind not in ("none", "0", "learned"):
        raise ValueError(f"unknown attn_sink {kind!r}: use none or learned")
    return kind == "learned"


def window_of(config: Config, layer: int) -> int:
    """Keys a query of this layer sees; 0: all before it. GPT-OSS begins with a layer that has the window, every sixth
    layer of Gemma 3 has none."""
    width, _, which = str(config["sliding_window"]).partition("_")
    if small_number(width) is None or which not in ("", *WINDOWED):
        raise ValueError(
            f"sliding_window={config['sliding_window']!r} is not a width: use 128, 128_every_second_layer or "
            "128_five_of_six"
        )
    period = WINDOWED.get(which, 0)
    return 0 if period and layer % period == period - 1 else int(width)


class Block(nn.Module):
    def __init__(self, config: Config, layer: int = 0) -> None:
        super().__init__()
        hidden, attn = int(config["hidden"]), str(config["attn"])
        if attn not in ("heads", "mla"):
            raise ValueError(f"unknown attn {attn!r}: use heads or mla")
        self.attention_norm = norm(str(config["norm"]), hidden)
        self.attention = LatentAttention(config) if attn == "mla" else Attention(config, window_of(config, layer))
        self.ffn_norm = norm(str(config["norm"]), hidden)
        self.sparse = bool(config["experts"]) and layer >= int(config["dense_layers"])
        if self.sparse:
            self.moe = MixtureOfExperts(config)
        else:
            self.ffn = FeedForward(config, int(config["ffn"]))
        self.dropout = dropout(float(config["dropout"]))
        self.post_norm = bool(config["post_norm"])
        if self.post_norm:
            self.attention_post_norm = norm(str(config["norm"]), hidden)
            self.ffn_post_norm = norm(str(config["norm"]), hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        feed = self.moe if self.sparse else self.ffn
        if self.post_norm:
            x = x + self.dropout(self.attention_post_norm(self.attention(self.attention_norm(x), rope)))
            return x + self.dropout(self.ffn_post_norm(feed(self.ffn_norm(x))))
        x = x + self.dropout(self.attention(self.attention_norm(x), rope))
        return x + self.dropout(feed(self.ffn_norm(x)))


class HybridBlock(nn.Module):
    """One of Mamba, attention and feed-forward (`kind`), with its norm."""

    def __init__(self, config: Config, kind: str, layer: int) -> None:
        super().__init__()
        size = norm(str(config["norm"]), int(config["hidden"]))
        self.kind = kind
        if kind == "M":
            self.mamba_norm, self.mamba = size, Mamba(config)
        elif kind == "*":
            self.attention_norm, self.attention = size, Attention(config, window_of(config, layer))
        elif config["experts"]:
            self.ffn_norm, self.moe = size, MixtureOfExperts(config)
        else:
            self.ffn_norm, self.ffn = size, FeedForward(config, int(config["ffn"]))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.kind == "M":
            return x + self.mamba(self.mamba_norm(x))
        if self.kind == "*":
            return x + self.attention(self.attention_norm(x), rope)
        return x + (self.moe if hasattr(self, "moe") else self.ffn)(self.ffn_norm(x))


def _block(config: Config, layer: int) -> nn.Module:
    pattern = str(config["pattern"] or "")
    if set(pattern) - set("M*E"):
        raise ValueError(f"pattern={pattern!r}: use the letters M (Mamba), * (attention) and E (experts or dense)")
    return HybridBlock(config, pattern[layer % len(pattern)], layer) if pattern else Block(config, layer)


class NextToken(nn.Module):
    """Multi-token prediction: the hidden state and the embedding of the token after, joined, through one more block."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        hidden, kind = int(config["hidden"]), str(config["norm"])
        self.hidden_norm, self.embedding_norm = norm(kind, hidden), norm(kind, hidden)
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)
        self.block = Block(config, layer)
        self.norm = norm(kind, hidden)

    def forward(self, x: Tensor, following: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        joined = torch.cat((self.hidden_norm(x), self.embedding_norm(following)), dim=-1)
        return self.block(self.projection(joined), rope)


class Decoder(nn.Module):
    """Token ids to logits; with multi-token prediction to a tuple of them, the next token's first."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, seq_len: int) -> None:
        super().__init__()
        hidden, vocab = int(config["hidden"]), int(config["vocab"])
        self.pos = str(config["pos"])
        if self.pos not in ("learned", "rope", "yarn_rope", "alibi", "none"):
            raise ValueError(f"unknown pos {self.pos!r}: use learned, rope, yarn_rope, alibi or none")
        self.embedding = nn.Embedding(vocab, hidden)
        if self.pos == "learned":
            self.position = nn.Embedding(int(config["max_positions"]), hidden)
        elif self.pos not in ("none", "alibi"):
            size = int(config["qk_rope"] if config["attn"] == "mla" else config["head_dim"])
            width = int(size * float(config["rotary_percent"]))
            inverse = float(config["rope_theta"]) ** (-torch.arange(0, width, 2).float() / width)
            angles = torch.outer(torch.arange(seq_len).float(), inverse).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        self.dropout = dropout(float(config["dropout"]))
        layers, more = int(config["layers"]), int(config["mtp_layers"])
        self.blocks = nn.ModuleList(_block(config, layer) for layer in range(layers))
        self.norm = norm(str(config["norm"]), hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if bool(config["tied_embeddings"]):
            self.head.weight = self.embedding.weight
        self.softcap = float(config["logit_softcap"])
        self.mtp = nn.ModuleList(NextToken(config, layers + i) for i in range(more))
        if config["lora"]:
            freeze_all_but_adapters(self)

    def forward(self, input_ids: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.embedding(input_ids)
        if self.pos == "learned":
            x = x + self.position(torch.arange(input_ids.shape[1], device=input_ids.device))
        x = self.dropout(x)
        rope = (self.cos, self.sin) if self.pos in ("rope", "yarn_rope") else None
        for block in self.blocks:
            x = block(x, rope)
        if not self.mtp:
            return self._logits(self.norm(x))
        logits = [self._logits(self.norm(x))]
        for further in self.mtp:
            input_ids = input_ids.roll(-1, 1)
            x = further(x, self.embedding(input_ids), rope)
            logits.append(self._logits(further.norm(x)))
        return tuple(logits)

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def _loss(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Cross-entropy of the next token, and a tenth of the mean of those after it (the weight of DeepSeek-V3's end)."""
    if isinstance(logits, Tensor):
        return vocabulary_loss(logits, labels)
    first, *further = (vocabulary_loss(each, labels) for each in logits)
    return first + 0.1 / len(further) * torch.stack(further).sum()


def complete(config: Config) -> dict[str, object]:
    """The config with every key present; what follows from other keys is derived from them."""
    hidden, heads = int(config["hidden"]), int(config["heads"])
    derived: dict[str, object] = {
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden,
        **GPT,
        "rope_theta": 10000.0,
        "rotary_percent": 1.0,
        "post_norm": 0,
        "attn_softcap": 0.0,
        "logit_softcap": 0.0,
        "fused_qkv": int(str(config.get("norm", "layernorm")) == "layernorm"),
    }
    return derived | dict(config)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, seq = int(sizes["batch_size"]), int(sizes["seq_len"])
    return Workload(
        module=Decoder(complete(config), seq),
        inputs={"input_ids": tokens(batch, seq), "labels": tokens(batch, seq)},
        loss=lambda module, inputs: _loss(module(inputs["input_ids"]), inputs["labels"]),
    )
