"""Experts of Switch Transformers, whose loop over the tokens of each depends on data: with as many tokens for each.

Tokens choose one expert, which takes at most `expert_capacity` tokens of a sequence (arXiv:2101.03961); others pass by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_MODULE, _LAYER = "transformers.models.switch_transformers.modeling_switch_transformers", "SwitchTransformersSparseMLP"


def assumed_experts(config: Any, sizes: Any) -> tuple[str, ...]:
    """What is assumed of a model's experts; nothing for a model that has none of this kind."""
    if getattr(config, "model_type", "") != "switch_transformers":
        return ()
    length = max(int(sizes["seq_len"]), int(sizes.get("target_len", 0)))
    even = -(-length // int(config.num_experts))
    over = even > int(config.expert_capacity)
    capacity = f", up to expert_capacity {config.expert_capacity} of a sequence" if over else ""
    return (f"experts get as many tokens each{capacity}; finding them on the host is left out",)


@contextmanager
def even_experts(module: nn.Module) -> Iterator[None]:
    """While a model runs: its sparse layers share their tokens out evenly."""
    layers = [each for each in module.modules() if type(each).__name__ == _LAYER and type(each).__module__ == _MODULE]
    for each in layers:
        each.forward = _evenly(each)
    try:
        yield
    finally:
        for each in layers:
            del each.forward


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
