"""A named model with a job's `model_config`: keys are checked, and sizes that follow from others are derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import JobError, nearest


def with_overrides(model: str, default: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`default` updated by `overrides`, with the sizes that depend on an overridden one derived again.

    Unless overridden, a transformer's key/value heads follow its heads, its head size is hidden / heads, and its
    feed-forward width keeps its ratio to the hidden size. Raises `JobError` for unknown keys and for a number of heads
    that does not divide the hidden size.
    """
    for key in overrides:
        if key not in default:
            known = f"; nearest: {nearest(key, default)}" if default else ""
            raise JobError(f"model_config {key!r} is not known to {model}{known}; correct or remove it")
    config = {**default, **overrides}
    if "hidden" in overrides or "heads" in overrides:
        _derive(config, default, overrides)
    _check_heads(model, config)
    return config


def _derive(config: dict[str, Any], default: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    hidden, heads = config.get("hidden"), config.get("heads")
    if "ffn" in default and "ffn" not in overrides and hidden:
        config["ffn"] = round(default["ffn"] * hidden / default["hidden"])
    if "kv_heads" in default and "kv_heads" not in overrides and default["kv_heads"] == default["heads"]:
        config["kv_heads"] = heads
    if "head_dim" in default and "head_dim" not in overrides and hidden and heads:
        config["head_dim"] = hidden // heads


def _check_heads(model: str, config: Mapping[str, Any]) -> None:
    heads, hidden = config.get("heads"), config.get("hidden")
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return
    if heads < 1 or hidden < 1:
        raise JobError(f"model_config of {model} has heads={heads}, hidden={hidden}; both must be at least 1")
    derived = config.get("head_dim", hidden // heads) == hidden // heads
    if derived and hidden % heads:
        raise JobError(
            f"model_config hidden={hidden} of {model} is not a multiple of heads={heads}; "
            f"use hidden={hidden - hidden % heads or heads} or give head_dim"
        )
    kv_heads = config.get("kv_heads", heads)
    if isinstance(kv_heads, int) and (kv_heads < 1 or heads % kv_heads):
        raise JobError(f"model_config kv_heads={kv_heads} of {model} does not divide heads={heads}; use a divisor")
