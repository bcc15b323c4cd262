"""A named model with a job's `model_config` and `input`: values are checked, and sizes that follow are derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError, nearest
from precision_time.zoo.shape_fields import INPUT, config_field
from precision_time.zoo.workload import ZooEntry


def with_overrides(entry: ZooEntry, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The entry's config updated by `overrides`, with the sizes that depend on an overridden one derived again.

    Unless overridden, a transformer's key/value heads follow its heads, its head size is hidden / heads, and its
    feed-forward width keeps its ratio to the hidden size. Raises `JobError` for unknown keys, values outside their
    range, and sizes that do not divide each other.
    """
    model, default = entry.name, entry.config
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in default:
            known = f"; nearest: {nearest(key, default)}" if default else ""
            raise JobError(f"model_config {key!r} is not known to {model}{known}; correct or remove it")
        given[key] = config_field(entry.builder, key).type(f"model_config.{key}", value)
    config = {**default, **given}
    if "hidden" in given or "heads" in given:
        _derive(config, default, given)
    _check_heads(model, config)
    _check_experts(model, config)
    return config


def checked_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Input sizes with checked values; raises `JobError` for a value outside its range."""
    return {
        key: INPUT[key].type(f"input.{key}", value) if key in INPUT and value is not None else value
        for key, value in sizes.items()
    }


def _derive(config: dict[str, Any], default: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    hidden, heads = config.get("hidden"), config.get("heads")
    if "ffn" in default and "ffn" not in overrides and hidden:
        config["ffn"] = max(1, round(default["ffn"] * hidden / default["hidden"]))
    if "kv_heads" in default and "kv_heads" not in overrides and default["kv_heads"] == default["heads"]:
        config["kv_heads"] = heads
    if "head_dim" in default and "head_dim" not in overrides and hidden and heads:
        config["head_dim"] = hidden // heads


_HEADS = (("heads", "hidden", "head_dim"), ("generator_heads", "generator_hidden", "generator_head_dim"))
"""(heads, the width that they divide, the key that gives their size instead)."""


def _check_heads(model: str, config: Mapping[str, Any]) -> None:
    for heads_key, hidden_key, size_key in _HEADS:
        heads, hidden = config.get(heads_key), config.get(hidden_key)
        if heads is None or hidden is None:
            continue
        if config.get(size_key, hidden // heads) == hidden // heads and hidden % heads:
            raise JobError(
                f"model_config {hidden_key}={hidden} of {model} is not a multiple of {heads_key}={heads}; "
                f"use {hidden_key}={hidden - hidden % heads or heads} or give head_dim"
            )
    heads = config.get("heads")
    if heads is not None and heads % config.get("kv_heads", heads):
        raise JobError(
            f"model_config kv_heads={config['kv_heads']} of {model} does not divide heads={heads}; use a divisor"
        )


def _check_experts(model: str, config: Mapping[str, Any]) -> None:
    experts = config.get("experts")
    if not experts:
        return
    if not 1 <= config["topk"] <= experts:
        raise JobError(
            f"model_config topk={config['topk']} of {model} is not from 1 to experts={experts}; a token takes so many"
        )
    if not config["moe_ffn"]:
        raise JobError(f"model_config moe_ffn of {model} is 0 with experts={experts}; give the width of one expert")
    if config["local_experts"] > experts:
        raise JobError(f"model_config local_experts={config['local_experts']} of {model} is above experts={experts}")
