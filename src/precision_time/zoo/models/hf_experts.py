"""Experts whose work depends on data in transformers' own loops: with as many tokens for each.

Switch Transformers: tokens choose one expert, which takes at most `expert_capacity` tokens of a sequence
(arXiv:2101.03961); others pass by. LongCat-Flash: of `moe_topk` choices of a token some are experts that return it as
it is (arXiv:2509.01322); the products of the others are grouped, as those of transformers' other mixtures are. JetMoE:
each expert has its own product, of as many rows as chose it, as those of DBRX have. NLLB-MoE: transformers takes the
mask of chosen experts for their numbers, so that expert 1 computes every token once and expert 0 once for each expert
that did not get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def assumed_experts(config: Any, sizes: Any) -> tuple[str, ...]:
    """What is assumed of a model's experts; nothing for a model that has none of this kind."""
    kind = getattr(config, "model_type", "")
    if kind in ("dbrx", "jetmoe"):
        return ("experts get as many tokens each",)
    if kind == "longcat_flash":
        total = config.n_routed_experts + (config.zero_expert_num or 0)
        share = config.n_routed_experts / total
        return (
            f"experts get as many tokens each, so that {share:.0%} of the choices are experts that "
            "compute; their products are grouped into one kernel, where transformers loops over the experts",
        )
    if kind == "nllb-moe":
        return (f"as transformers runs it, experts 0 and 1 alone compute every token, {config.num_experts} times",)
    if kind != "switch_transformers":
        return ()
    length = max(int(sizes["seq_len"]), int(sizes.get("target_len", 0)))
    even = -(-length // int(config.num_experts))
    over = even > int(config.expert_capacity)
    capacity = f", up to expert_capacity {config.expert_capacity} of a sequence" if over else ""
    return (f"experts get as many tokens each{capacity}; finding them on the host is left out",)


def _evenly(layer: Any) -> Any:
    def forward(hidden_states: Tensor) -> Tensor:
        batch, length, width = hidden_states.shape
        router, experts = layer.router, layer.experts
        chosen, weights, _ = router(hidden_states)
        hidden_states = hidden_states.view(-1, width)
        chosen, weights = chosen.view(-1, 1, router.num_experts), weights.view(-1, 1)
        result = torch.zeros_like(hidden_states)
        torch.greater(chosen.permute(2, 1, 0).sum(dim=(-1, -2)), 0)
        each, more = divmod(batch * length, experts.num_experts)
        for number in range(experts.num_experts):
            count = min(each + (number < more), batch * router.expert_capacity)
            places = torch.zeros(count, dtype=torch.long)
            current = hidden_states[None, places].reshape(-1, width)
            made = experts[f"expert_{number}"](current) * weights[places, 0, None]
            result.index_add_(0, places, made.to(hidden_states.dtype))
        return result.reshape(batch, length, width)

    return forward


def _with_identities(experts: Any) -> Any:
    def forward(hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        from transformers.integrations.moe import _grouped_linear

        tokens, choices = chosen.shape
        computing = experts.num_routed_experts
        rows = tokens * choices * computing // experts.total_experts
        by_expert, order = chosen.reshape(-1).sort()
        selected = hidden_states[order // choices]
        counts = torch.histc(by_expert.int(), bins=experts.total_experts, min=0, max=experts.total_experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        made = selected[:0]
        if rows:
            gate, up = _grouped_linear(selected[:rows], experts.gate_up_proj, ends).chunk(2, dim=-1)
            made = _grouped_linear(experts.act_fn(gate) * up, experts.down_proj, ends[:computing])
        result = torch.cat([made, selected[rows:].to(made.dtype)]) * weights.reshape(-1)[order, None]
        places = torch.empty_like(order)
        places[order] = torch.arange(tokens * choices)
        return result[places].view(tokens, choices, -1).sum(1).to(hidden_states.dtype)

    return forward


def _with_counts(router: Any) -> Any:
    usual = router.forward

    def forward(hidden_states: Tensor) -> Any:
        with _Shares(hidden_states.shape[0] * router.top_k):
            return usual(hidden_states)

    return forward


def _by_mask(experts: Any) -> Any:
    def forward(hidden_states: Tensor, router_mask: Tensor, router_probs: Tensor) -> Tensor:
        count, width = hidden_states.shape
        result = torch.zeros_like(hidden_states)
        chosen = torch.nn.functional.one_hot(router_mask, num_classes=experts.num_experts).permute(2, 1, 0)
        torch.greater(chosen.sum(dim=(-1, -2)), 0)
        for number, rows in enumerate((count * (experts.num_experts - 1), count)):
            places = torch.zeros(rows, dtype=torch.long)
            current = hidden_states[None, places].reshape(-1, width)
            made = experts[f"expert_{number}"](current) * router_probs[places, places, None]
            if experts.moe_token_dropout > 0:
                made = experts.token_dropout(made)
            result.index_add_(0, places, made.to(hidden_states.dtype))
        return result

    return forward


def _in_turn(experts: Any) -> Any:
    def forward(hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        batch, width = hidden_states.shape[0], experts.hidden_size
        hidden_states = hidden_states.reshape(-1, width)
        result = torch.zeros_like(hidden_states)
        mask = torch.nn.functional.one_hot(chosen, num_classes=experts.num_experts + 1).permute(2, 1, 0)
        torch.greater(mask.sum(dim=(-1, -2)), 0)
        shape = (-1, experts.ffn_hidden_size, width)
        each, more = divmod(chosen.numel(), experts.num_experts)
        for number in range(experts.num_experts):
            places = torch.zeros(each + (number < more), dtype=torch.long)
            v1, w1, w2 = (getattr(experts.mlp, name).view(shape)[number] for name in ("v1", "w1", "w2"))
            made = experts.mlp(hidden_states[places], w1, v1, w2).view(-1, width) * weights[places, places, None]
            result.index_add_(0, places, made)
        return result.view(batch, -1, width)

    return forward


class _Shares(TorchFunctionMode):
    """A router asks how many tokens chose each expert."""

    def __init__(self, choices: int) -> None:
        self._choices = choices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and args[0].is_meta and args[0].ndim == 1:
            each, more = divmod(self._choices, args[0].shape[0])
            return [each + (number < more) for number in range(args[0].shape[0])]
        return func(*args, **(kwargs or {}))


EVEN: dict[str, Callable[[Any], Any]] = {
    "switch_transformers.modeling_switch_transformers.SwitchTransformersSparseMLP": _evenly,
    "longcat_flash.modeling_longcat_flash.LongcatFlashExperts": _with_identities,
    "jetmoe.modeling_jetmoe.JetMoeTopKGating": _with_counts,
    "dbrx.modeling_dbrx.DbrxExperts": _in_turn,
    "nllb_moe.modeling_nllb_moe.NllbMoeExperts": _by_mask,
}
"""Layers of transformers' models -> what makes their forward."""
