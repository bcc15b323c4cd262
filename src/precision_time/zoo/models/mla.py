"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): queries, keys and values through low ranks.

Keys and queries have `qk_nope` channels without and `qk_rope` with rotary positions, the latter one key for all heads.
In training the latents are expanded: attention runs with heads of qk_nope + qk_rope and values of `v_head` channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.decoder_parts import norm, projection, rotate
from precision_time.zoo.workload import Config


class LatentAttention(nn.Module):
    """`q_lora=0`: queries in one projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, kind = int(config["hidden"]), str(config["norm"])
        self.heads, self.drop = int(config["heads"]), float(config["dropout"])
        self.nope, self.rope, self.v_head = (int(config[key]) for key in ("qk_nope", "qk_rope", "v_head"))
        self.q_lora, self.kv_lora = int(config["q_lora"]), int(config["kv_lora"])
        if not (self.kv_lora and self.rope and self.v_head):
            raise ValueError("attn=mla needs kv_lora, qk_nope, qk_rope and v_head")
        queries = self.heads * (self.nope + self.rope)
        if self.q_lora:
            self.q_down = projection(config, hidden, self.q_lora)
            self.q_norm = norm(kind, self.q_lora)
        self.q_up = projection(config, self.q_lora or hidden, queries)
        self.kv_down = projection(config, hidden, self.kv_lora + self.rope)
        self.kv_norm = norm(kind, self.kv_lora)
        self.kv_up = projection(config, self.kv_lora, self.heads * (self.nope + self.v_head))
        self.output = projection(config, self.heads * self.v_head, hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        latent = self.q_norm(self.q_down(x)) if self.q_lora else x
        q = self.q_up(latent).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        compressed, k_rope = self.kv_down(x).split([self.kv_lora, self.rope], dim=-1)
        kv = self.kv_up(self.kv_norm(compressed)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = kv.split([self.nope, self.v_head], dim=-1)
        k_rope = k_rope.unsqueeze(1)
        if rope is not None:
            cos, sin = (table.to(q.dtype) for table in rope)
            q, k_rope = rotate(q, cos, sin), rotate(k_rope, cos, sin)
        k = torch.cat((k_rope.expand(-1, self.heads, -1, -1), k), dim=-1)
        drop = self.drop if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        return self.output(context.transpose(1, 2).flatten(2))
