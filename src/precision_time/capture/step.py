"""Trace one micro-step (forward, loss, backward) of a `Workload` on the meta device, in one dtype regime.

Nothing is allocated and nothing is computed. The optimizer is not traced here: its operators follow from the
parameters alone (`optimizer`), so one trace serves every optimizer.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch

from precision_time.capture.channels_last import convert, converted
from precision_time.capture.graph import Category, OpGraph, Parameter, Phase
from precision_time.capture.intercept import region
from precision_time.capture.limits import most_built
from precision_time.capture.own_code import where
from precision_time.capture.tracer import BudgetedBuild, Tracer, dtype_name
from precision_time.errors import CaptureError, PrecisionTimeError
from precision_time.zoo.workload import Update, Workload


class Regime(str, Enum):
    """The three ways in which dtypes flow through a step; every precision is one of them with a low dtype."""

    FULL = "full"  # everything in float32 (fp64: renamed)
    AUTOCAST = "autocast"  # float32 weights, low precision by the lists of autocast
    HALF = "half"  # weights and activations in the low precision


def capture(
    build: Callable[[], Workload],
    regime: Regime,
    *,
    low_precision: torch.dtype = torch.bfloat16,
    attention: str = "flash",
    name: str = "model",
    device_rules: str = "cuda",
    channels_last: bool = False,
    tracer: Tracer | None = None,
) -> OpGraph:
    """The `OpGraph` of one forward + loss + backward, or of an evaluation's forward + loss.

    `build` constructs the workload; it is called under `torch.device("meta")`. `tracer` replaces the default one, for a
    caller that observes the operators; its memory format holds. Raises `CaptureError` when the model cannot run without
    data.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with BudgetedBuild(most_built(name)):
                workload = build()
            tracer = tracer or Tracer(device_rules == "cpu", channels_last)
            return _trace(workload, regime, low_precision, attention, name, device_rules, tracer)
    except PrecisionTimeError:
        raise
    except NotImplementedError as error:
        raise CaptureError(
            f"{name} runs an operator that has no shape rule on the meta device ({_first_line(error)}){where(error)}: "
            "replace it, or keep it out of the training step"
        ) from error
    except RecursionError as error:
        raise CaptureError(f"{name} calls itself without end (RecursionError) when traced; correct it") from error
    except RuntimeError as error:
        if _MIXED.search(str(error)):
            raise CaptureError(
                f"{name} mixes tensors of fp32 and 16 bits, which PyTorch refuses in a real step too "
                f"({_first_line(error)}){where(error)}; write precision fp32 or tf32, or cast them in the model"
            ) from error
        raise CaptureError(f"{name} could not be traced without data: {_first_line(error)}{where(error)}") from error
    except Exception as error:  # raised by the user's code
        raise CaptureError(f"{name} raised {type(error).__name__} when traced: {_first_line(error)}") from error


_MIXED = re.compile(r"same dtype|expected scalar type")
"""What PyTorch says of products and kernels whose tensors have two dtypes."""


def _first_line(error: Exception) -> str:
    try:
        return next(iter(str(error).splitlines()), "no message")
    except Exception:  # of own code
        return "its message cannot be read"


def _trace(
    workload: Workload,
    regime: Regime,
    low: torch.dtype,
    attention: str,
    name: str,
    device_rules: str,
    tracer: Tracer,
) -> OpGraph:
    module = workload.module
    _require_meta(module, name)
    if regime is Regime.HALF:
        module.to(low)
        workload.inputs = {
            k: v.to(low) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for k, v in workload.inputs.items()
        }
    if tracer.channels_last:
        convert(module)
        workload.inputs = {k: converted(v) for k, v in workload.inputs.items()}
    module.train(workload.training)
    parameters = dict(module.named_parameters())
    for tensor in (*parameters.values(), *module.buffers()):
        tracer.storage_index(tensor, Category.WEIGHTS)
    for value in workload.inputs.values():
        if isinstance(value, torch.Tensor):
            tracer.storage_index(value, Category.INPUTS)
    ready: dict[str, int] = {}
    autocast_dtype = low if regime is Regime.AUTOCAST else None
    handles = [
        p.register_post_accumulate_grad_hook(_gradient_hook(tracer, ready, n))
        for n, p in parameters.items()
        if p.requires_grad
    ]
    updates = workload.updates or [Update(lambda: workload.loss(module, workload.inputs))]
    with _module_paths(module, tracer):
        for update in updates:
            frozen = [p for p in update.frozen if p.requires_grad]
            for parameter in frozen:
                parameter.requires_grad_(False)
            tracer.phase = Phase.FORWARD
            with torch.set_grad_enabled(workload.training), tracer, region(autocast_dtype, attention, device_rules):
                loss = update.loss()
            _require_scalar(loss, name)
            if workload.training:
                tracer.phase = Phase.BACKWARD
                with tracer:
                    loss.backward()
            del loss
            for parameter in frozen:
                parameter.requires_grad_(True)
    for handle in handles:
        handle.remove()
    described = tuple(_described(n, p, ready.get(n, -1)) for n, p in parameters.items())
    storages = tracer.finish()
    return OpGraph(
        name=name,
        kinds=tuple(tracer.kinds),
        calls=tuple(tracer.calls),
        modules=tuple(tracer.modules),
        storages=tuple(storages),
        parameters=described,
        buffer_bytes=sum(b.numel() * b.element_size() for b in module.buffers()),
        assumptions=(*workload.assumptions, *sorted(tracer.assumptions)),
        repeated=workload.repeated,
    )


def _require_scalar(loss: object, name: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise CaptureError(
            f"the loss of {name} is {shape}, not one number; reduce it, for example by .mean(), or give a loss"
        )


def _gradient_hook(tracer: Tracer, ready: dict[str, int], name: str) -> Callable[[torch.Tensor], None]:
    """Enters into `ready` the call after which the gradient of a parameter is complete."""

    def hook(parameter: torch.Tensor) -> None:
        ready[name] = len(tracer.calls) - 1
        if parameter.grad is not None:
            tracer.storage_index(parameter.grad, Category.GRADIENTS)

    return hook


def _described(name: str, parameter: torch.nn.Parameter, ready: int) -> Parameter:
    gradient = parameter if parameter.grad is None else parameter.grad
    return Parameter(
        name,
        tuple(parameter.shape),
        dtype_name(parameter.dtype),
        dtype_name(gradient.dtype),
        ready,
        parameter.requires_grad,
    )


def _require_meta(module: torch.nn.Module, name: str) -> None:
    for parameter_name, parameter in module.named_parameters():
        if parameter.device.type != "meta":
            raise CaptureError(
                f"parameter {parameter_name} of {name} lives on {parameter.device}: build the model inside the "
                "function given to precision-time (it runs under torch.device('meta')), or call .to('meta') on it"
            )


@contextmanager
def _module_paths(module: torch.nn.Module, tracer: Tracer) -> Iterator[None]:
    """Keep `tracer.module_stack` at the module that is running; after the root module the loss begins."""
    handles: list[Any] = []
    for path, child in module.named_modules():

        def enter(_module: Any, _args: Any, path: str = path) -> None:
            tracer.module_stack.append(path)
            if path == "" and tracer.phase is Phase.LOSS:
                tracer.phase = Phase.FORWARD

        def leave(_module: Any, _args: Any, _output: Any, path: str = path) -> None:
            tracer.module_stack.pop()
            if path == "":
                tracer.phase = Phase.LOSS

        handles.append(child.register_forward_pre_hook(enter))
        handles.append(child.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
