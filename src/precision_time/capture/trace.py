"""Tracing a named workload: from a zoo entry to the operator graph of its step, at concrete sizes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precision_time.capture.graph import OpGraph
from precision_time.errors import CaptureError, JobError, MissingExtraError

if TYPE_CHECKING:
    from precision_time.zoo.workload import Workload, ZooEntry


def builder(entry: ZooEntry) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Workload]:
    """The function of a zoo entry that builds its workload from `model_config` and input sizes."""
    module_name, _, function_name = entry.builder.partition(":")
    try:
        module = importlib.import_module(f"precision_time.zoo.{module_name}")
        function: Callable[..., Workload] = getattr(module, function_name)
    except ImportError as error:
        raise MissingExtraError(
            f"{entry.name} is built from {error.name}, which is not installed: pip install 'precision-time[models]'"
        ) from error
    return function


def require_torch(what: str) -> None:
    """Raise `MissingExtraError` if PyTorch is not installed; `what` is the model that needs it."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"{what} must be traced, which needs PyTorch: pip install 'precision-time[torch]', or name a zoo model "
            "at its own shape (`precision-time zoo` lists them)"
        ) from error


def trace_entry(
    entry: ZooEntry,
    config: Mapping[str, Any],
    sizes: Mapping[str, Any],
    regime: str,
    attention: str,
    device_rules: str = "cuda",
    channels_last: bool = False,
    edit: Callable[[Workload], None] | None = None,
) -> OpGraph:
    """Trace a workload at concrete sizes, which needs PyTorch.

    `regime` is a value of `capture.step.Regime`; `attention` is "flash", "flash_before_2_5" (of such a PyTorch) or
    "math" (none is fused); `channels_last`: images are stored so; `edit` changes the workload before it is traced
    (`as_evaluation`, `with_few_layers`). Raises `MissingExtraError` for a library that is not installed and
    `CaptureError` for a model that cannot be traced.
    """
    require_torch(f"{entry.name} at this shape" if device_rules == "cuda" else f"{entry.name} under CPU autocast")
    from precision_time.capture.step import Regime, capture

    build = builder(entry)
    plain = {k: v for k, v in sizes.items() if isinstance(v, int)}

    def built() -> Workload:
        workload = build(config, sizes)
        if edit is not None:
            edit(workload)  # not a copy: updates may hold the workload itself
        return workload

    try:
        graph = capture(
            built,
            Regime(regime),
            attention=attention,
            name=entry.name,
            device_rules=device_rules,
            channels_last=channels_last,
        )
        return replace(graph, sizes=plain)
    except (CaptureError, JobError) as error:
        raise type(error)(f"{error}{_departures(entry, config, sizes)}") from error


def as_evaluation(workload: Workload) -> None:
    """Without a backward pass, the module as `eval()` has it."""
    workload.training = False


def with_few_layers(workload: Workload) -> None:
    """Of many equal blocks one is left, where the model's forward pass allows it (see `OpGraph.repeated`)."""
    from precision_time.capture.few_layers import leave_few

    workload.repeated = leave_few(workload.module)


def _departures(entry: ZooEntry, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """The keys in which a model that cannot be traced departs from the named one, which can."""
    usual = {**entry.config, **entry.input, "batch_size": entry.batch_size}
    changed = [f"{key}={value}" for key, value in {**config, **sizes}.items() if key in usual and usual[key] != value]
    return f"; {entry.name} with {', '.join(changed)}: correct one of these" if changed else ""
