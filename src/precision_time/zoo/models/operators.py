"""Operators of experts, windowed attention, state spaces, detection and segmentation that torch has not.

Each is a composition of torch's operators, so that a model runs on any device. Capture replaces it by the kernel that
training frameworks run (see `capture.intercept`): grouped products (cuBLAS, CUTLASS), Transformer Engine's permutation
kernels, flash attention with a window, Mamba's chunked scan, apex's focal loss, NVIDIA's dot products and embeddings of
DLRM, instance norm that reads channels last.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_library = torch.library.Library("precision_time", "FRAGMENT")
_library.define("grouped_linear(Tensor input, Tensor weight, Tensor? bias, Tensor ends) -> Tensor")
_library.define("permute(Tensor input, Tensor order, Tensor places) -> Tensor")
_library.define("unpermute(Tensor input, Tensor order, Tensor places, Tensor weights) -> Tensor")
_library.define(
    "window_attention(Tensor query, Tensor key, Tensor value, Tensor? sink, int window, float dropout_p) -> Tensor"
)
_library.define(
    "capped_attention(Tensor query, Tensor key, Tensor value, int window, float softcap, float dropout_p) -> Tensor"
)
_library.define("alibi_attention(Tensor query, Tensor key, Tensor value, float[] slopes, float dropout_p) -> Tensor")
_library.define(
    "scaled_query_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float dropout_p)"
    " -> Tensor"
)
_library.define(
    "state_scan(Tensor values, Tensor steps, Tensor step_bias, Tensor decay, Tensor b, Tensor c, Tensor skip,"
    " int chunk=128) -> Tensor"
)
_library.define("focal_loss(Tensor logits, Tensor classes) -> Tensor")
_library.define("dot_interaction(Tensor vectors, Tensor pairs, int padding) -> Tensor")
_library.define("gather_rows(Tensor table, Tensor index, ScalarType dtype) -> Tensor")
_library.define("instance_norm(Tensor input, Tensor weight, Tensor bias, float eps) -> Tensor")


def _grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """Rows `ends[e-1]` to `ends[e]` of x by the weight of expert e: (rows, k) and (experts, k, n) to (rows, n)."""
    products, start, experts = [], 0, weight.shape[0]
    balanced = [x.shape[0] * (expert + 1) // experts for expert in range(experts)]
    for expert, end in enumerate(balanced if ends.is_meta else ends.tolist()):
        product = x[start:end] @ weight[expert]
        products.append(product if bias is None else product + bias[expert])
        start = end
    return torch.cat(products)


def _permute(x: Tensor, order: Tensor, places: Tensor) -> Tensor:
    """Row i is the token of choice order[i]; `places` (tokens, topk) holds the row of each choice of a token."""
    return x.index_select(0, order // places.shape[1])


def _unpermute(y: Tensor, order: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Every token's sum over its choices, weighted: (tokens * topk, hidden) and (tokens, topk) to (tokens, hidden)."""
    chosen = y.index_select(0, places.flatten()).unflatten(0, places.shape)
    return (chosen * weights.to(y.dtype).unsqueeze(-1)).sum(1)


def _window_attention(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, window: int, dropout_p: float
) -> Tensor:
    """Causal attention to the last `window` keys (0: all), grouped heads, with a learned logit that takes no value."""
    return _written_out(query, key, value, sink, window, 0.0, dropout_p)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, softcap: float, dropout_p: float
) -> Tensor:
    """The same without the learned logit, of scores that `softcap` x tanh(score / softcap) keeps below the cap."""
    return _written_out(query, key, value, None, window, softcap, dropout_p)


def _alibi_attention(query: Tensor, key: Tensor, value: Tensor, slopes: list[float], dropout_p: float) -> Tensor:
    """Causal attention whose scores fall with the distance, by a slope of each head (ALiBi, arXiv:2108.12409)."""
    distance = torch.arange(1 - key.shape[-2], 1, device=key.device).to(query.dtype)
    bias = torch.tensor(slopes, dtype=query.dtype, device=key.device).view(1, -1, 1, 1) * distance
    return _written_out(query, key, value, None, 0, 0.0, dropout_p, bias)


def _scaled_query_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout_p: float
) -> Tensor:
    """Attention to the keys that a boolean mask allows, written out as BART's: the queries are scaled, not the scores,
    and either mask is added to the scores, as numbers that are made once for all layers."""
    if not query.is_meta:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, causal)
    scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-2, -1))
    if mask is not None:
        scores = scores + torch.empty_like(mask, dtype=scores.dtype)
    if causal:
        scores = scores + scores.new_empty(query.shape[-2], key.shape[-2])
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(F.dropout(weights, dropout_p) if dropout_p else weights, value)


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: Tensor | None,
    window: int,
    softcap: float,
    dropout_p: float,
    bias: Tensor | None = None,
) -> Tensor:
    if key.shape[1] != query.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1.0 / math.sqrt(query.shape[-1]))
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if window:
        allowed = allowed.triu(1 - window)
    scores = scores.masked_fill(~allowed, -1e4)
    if sink is not None:
        column = sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = F.softmax(scores, dim=-1)[..., : key.shape[-2]]
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return torch.matmul(weights, value)


def _state_scan(
    x: Tensor, steps: Tensor, step_bias: Tensor, decay: Tensor, b: Tensor, c: Tensor, skip: Tensor, chunk: int = 128
) -> Tensor:
    """y_t = sum over s <= t of (c_t . b_s) exp(-(a_s+1 + .. + a_t)) d_s x_s, plus skip x_t, for each head.

    d is the step, softplus(steps + bias), and a = exp(decay) d. Written out over all pairs of positions; x is (batch,
    length, heads, size), b and c (batch, length, groups, state). Kernels compute it by chunks of so many positions.
    """
    d = F.softplus(steps.float() + step_bias.float()).transpose(1, 2)
    passed = (d * torch.exp(decay.float())[:, None]).cumsum(-1)
    b, c = (y.float().repeat_interleave(x.shape[2] // y.shape[2], 2).transpose(1, 2) for y in (b, c))
    fading = (passed.unsqueeze(-2) - passed.unsqueeze(-1)).tril()
    weights = (c @ b.mT) * fading.exp().tril() * d.unsqueeze(-2)
    y = (weights @ x.float().transpose(1, 2)).transpose(1, 2) + skip.float()[:, None] * x
    return y.to(x.dtype)


def _focal_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Sum of the sigmoid focal losses of every image (alpha 0.25, gamma 2; Lin et al. 2017, arXiv:1708.02002).

    logits (images, anchors, classes); classes (images, anchors) is -1 for the background, -2 for what does not count.
    """
    positive = (classes >= 0).unsqueeze(-1).to(logits.dtype)
    target = torch.zeros_like(logits).scatter_(2, classes.clamp(min=0).unsqueeze(-1), positive)
    chance = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    right = chance * target + (1 - chance) * (1 - target)
    weight = 0.25 * target + 0.75 * (1 - target)
    losses: Tensor = weight * entropy * (1 - right) ** 2
    return (losses * (classes > -2).unsqueeze(-1)).sum(dim=(1, 2), dtype=torch.float32)


def _dot_interaction(vectors: Tensor, pairs: Tensor, padding: int) -> Tensor:
    """The first vector of each sample, then the products of `pairs` of its vectors, then zeros: (samples, vectors,
    width) to (samples, width + pairs + padding). `pairs` counts the flat positions of a matrix of all products."""
    products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)
    first = vectors[:, 0].to(products.dtype)
    return torch.cat((first, products, products.new_zeros(vectors.shape[0], padding)), dim=1)


def _gather_rows(table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of a table by number, in another dtype."""
    return F.embedding(index, table).to(dtype)


def _instance_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.instance_norm(x, None, None, weight, bias, True, 0.1, eps)


_library.impl("grouped_linear", _grouped_linear, "CompositeImplicitAutograd")
_library.impl("permute", _permute, "CompositeImplicitAutograd")
_library.impl("unpermute", _unpermute, "CompositeImplicitAutograd")
_library.impl("window_attention", _window_attention, "CompositeImplicitAutograd")
_library.impl("capped_attention", _capped_attention, "CompositeImplicitAutograd")
_library.impl("alibi_attention", _alibi_attention, "CompositeImplicitAutograd")
_library.impl("scaled_query_attention", _scaled_query_attention, "CompositeImplicitAutograd")
_library.impl("state_scan", _state_scan, "CompositeImplicitAutograd")
_library.impl("focal_loss", _focal_loss, "CompositeImplicitAutograd")
_library.impl("dot_interaction", _dot_interaction, "CompositeImplicitAutograd")
_library.impl("gather_rows", _gather_rows, "CompositeImplicitAutograd")
_library.impl("instance_norm", _instance_norm, "CompositeImplicitAutograd")

grouped_linear = torch.ops.precision_time.grouped_linear
permute = torch.ops.precision_time.permute
unpermute = torch.ops.precision_time.unpermute
window_attention = torch.ops.precision_time.window_attention
capped_attention = torch.ops.precision_time.capped_attention
alibi_attention = torch.ops.precision_time.alibi_attention
scaled_query_attention = torch.ops.precision_time.scaled_query_attention
state_scan = torch.ops.precision_time.state_scan
focal_loss = torch.ops.precision_time.focal_loss
dot_interaction = torch.ops.precision_time.dot_interaction
gather_rows = torch.ops.precision_time.gather_rows
instance_norm = torch.ops.precision_time.instance_norm
