"""A user's own model: `path/to/file.py:function` returns the module, example inputs, loss and optimizer.

The function runs under `torch.device("meta")`, so it allocates nothing. It returns a `Workload`, or a mapping (or a
tuple in this order) of

    model      the torch.nn.Module
    inputs     a tensor, a tuple of positional or a dict of keyword arguments of the model
    loss       function of (output, targets), of (output,) without targets, or None when the model returns its loss
    targets    optional: what the loss compares with
    optimizer  optional: a torch.optim.Optimizer, or its name

It may take `batch_size` and the job's input sizes as keyword arguments.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from precision_time.capture import symbolic
from precision_time.capture.composed_norms import composed_rms_norms
from precision_time.capture.defined_names import defined_names
from precision_time.capture.graph import OpGraph
from precision_time.capture.lengths import settle_lengths
from precision_time.capture.optimizer import OPTIMIZERS
from precision_time.capture.own_code import own_code
from precision_time.capture.regimes import channels_last, dtype_renames, regime_of, transform
from precision_time.capture.trace import require_torch
from precision_time.errors import CaptureError, JobError, nearest
from precision_time.job.code import MODULE, check_code
from precision_time.job.job import Job
from precision_time.job.precision import Precision
from precision_time.zoo.workload import Workload

if TYPE_CHECKING:
    import torch

_FIELDS = ("model", "inputs", "loss", "optimizer", "targets")


@dataclass(frozen=True, slots=True)
class UserModelStep:
    """A traced user model, with the batch size and optimizer that its function returned."""

    name: str
    graph: OpGraph
    optimizer: str
    optimizer_impl: str | None
    batch_size: int
    sizes: Mapping[str, Any]


def user_model_step(job: Job, precision: Precision, device_type: str = "cuda") -> UserModelStep:
    """The user's model in a precision."""
    traced = traced_user_model(job, precision, device_type)
    graph = symbolic.rename_dtypes(traced.graph, dtype_renames(precision))
    graph = transform(graph, precision, job.execution, device_type)
    if job.composes_rms_norms:
        graph = composed_rms_norms(graph)
    return replace(traced, graph=graph, optimizer=job.optimizer or traced.optimizer)


def traced_user_model(job: Job, precision: Precision, device_type: str = "cuda") -> UserModelStep:
    """The user's model as traced in the regime of a precision, with the optimizer that its function returned."""
    check_code(job.code, job.model)
    if not job.model.startswith(MODULE):
        _place(job)  # a wrong name is answered without PyTorch too
    require_torch(job.model)
    from precision_time.capture.step import Regime, capture
    from precision_time.capture.without_devices import WithoutDevices

    outcome: dict[str, Any] = {}

    def build() -> Workload:
        workload, optimizer, batch = _workload(job, function)
        outcome.update(optimizer=optimizer, batch=batch)
        return workload

    with own_code(job.model), WithoutDevices():
        function = _function_of(job)
        graph = capture(
            build,
            Regime(regime_of(precision)),
            attention=job.traced_attention,
            name=job.model,
            device_rules=device_type,
            channels_last=channels_last(job.memory_format, precision),
        )
        name, implementation = optimizer_of(outcome["optimizer"], device_type)
    if "shape" in job.input:
        loss = "loss of a module alone: the mean of what it returns"
        graph = replace(graph, assumptions=(*graph.assumptions, loss))
    return UserModelStep(job.model, graph, name, implementation, outcome["batch"], dict(job.input))


def user_model_workload(job: Job) -> tuple[Workload, str, str | None]:
    """The user's model with example inputs on the current device, and its optimizer: name, implementation."""
    check_code(job.code, job.model)
    with own_code(job.model):
        workload, optimizer, _ = _workload(job, _function_of(job))
        return workload, *optimizer_of(optimizer, "cpu")  # as returned, whatever the default


def _function_of(job: Job) -> Callable[..., Any]:
    """The function that makes the job's model: of "path/to/file.py:function", or of a module of this process."""
    if job.model.startswith(MODULE):
        from precision_time.capture.given_module import given_module

        return given_module(job.model).workload
    return _function(job, *_place(job))


def _place(job: Job) -> tuple[Path, str]:
    """The file of "path/to/file.py:function", and the function's name. Raises `JobError` where there is no file."""
    path_text, _, name = job.model.rpartition(":") if ".py:" in job.model else (job.model, "", "make_job")
    path = Path(path_text)
    if not path.is_file():
        raise JobError(f"model {job.model!r}: there is no file {path}; give path/to/file.py:function")
    return path, name


def _function(job: Job, path: Path, name: str) -> Callable[..., Any]:
    model = job.model
    known = defined_names(path)
    function = getattr(_load(path), name, None) if known is None or name in known else None
    if not callable(function):
        raise JobError(
            f"model {model!r}: {path.name} has no function {name!r}; it has {nearest(name, known or ()) or 'none'}; "
            f"`precision-time skeleton {path.name}` prints one to complete"
        )
    return function  # type: ignore[no-any-return]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_precision_time_job_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{path} cannot be imported as Python; name a .py file")
    module = importlib.util.module_from_spec(spec)
    search = list(sys.path)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[spec.name] = module  # dataclasses of the file look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    finally:
        sys.path[:] = search
    return module


def _workload(job: Job, function: Callable[..., Any]) -> tuple[Workload, Any, int]:
    shape = job.input.get("shape")
    if inspect.isclass(function) and hasattr(function, "named_parameters"):
        return _alone(job, function(), shape)
    accepted = inspect.signature(function).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    keywords: dict[str, Any] = {}
    wanted = {**settle_lengths(job.input)[0], **({"batch_size": job.batch_size} if job.batch_size else {})}
    if shape is not None and not {"shape", "batch_size"} & set(accepted) and not anything:
        wanted = {}  # of a module alone
    for key, value in wanted.items():
        if key not in accepted and not anything:
            raise JobError(
                f"{key} {value!r} was given, but {job.model} takes no argument {key}; "
                f"add it to the function, or leave {key} to its example inputs"
            )
        keywords[key] = value
    returned = function(**keywords)
    if hasattr(returned, "named_parameters"):
        return _alone(job, returned, shape)
    if isinstance(returned, Workload):
        return returned, "sgd", _batch(job, returned.inputs)
    if isinstance(returned, (tuple, list)):
        returned = dict(zip(_FIELDS, returned, strict=False))
    if not isinstance(returned, Mapping) or "model" not in returned or "inputs" not in returned:
        raise CaptureError(
            f"{job.model} returned {type(returned).__name__}; return a dict with model, inputs, loss and optimizer"
        )
    unknown = set(returned) - set(_FIELDS)
    if unknown:
        raise CaptureError(
            f"{job.model} returned the unknown field {sorted(unknown)[0]!r}; "
            f"nearest: {nearest(sorted(unknown)[0], _FIELDS)}"
        )
    if not hasattr(returned["model"], "named_parameters"):
        raise CaptureError(
            f"{job.model} returned {type(returned['model']).__name__} as model; return the torch.nn.Module itself"
        )
    inputs = returned["inputs"]
    named = _named(inputs)
    workload = Workload(returned["model"], named, _loss(inputs, returned.get("loss"), returned.get("targets")))
    if returned.get("targets") is not None:
        workload.inputs["__targets__"] = returned["targets"]
    return workload, returned.get("optimizer", "sgd"), _batch(job, named)


def _alone(job: Job, module: Any, shape: Any) -> tuple[Workload, Any, int]:
    """A module without inputs and a loss."""
    from precision_time.capture.module_alone import sample_of, some_loss

    sample = sample_of(job, shape)
    return Workload(module, _named(sample), _loss(sample, some_loss(job.model), None)), "sgd", len(sample)


def _named(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    positional = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return {f"__{i}__": value for i, value in enumerate(positional)}


def _batch(job: Job, inputs: Mapping[str, Any]) -> int:
    for value in inputs.values():
        if getattr(value, "ndim", 0):
            return int(value.shape[0])
    raise CaptureError(f"{job.model}: no input is a tensor, so the batch size is unknown; return example tensors")


def _loss(inputs: Any, loss: Any, targets: Any) -> Callable[[torch.nn.Module, dict[str, Any]], Any]:
    def run(module: torch.nn.Module, named: dict[str, Any]) -> Any:
        values = {k: v for k, v in named.items() if k != "__targets__"}
        output = module(**values) if isinstance(inputs, Mapping) else module(*values.values())
        if loss is None:
            return output if hasattr(output, "backward") else output.loss
        return loss(output) if targets is None else loss(output, named["__targets__"])

    return run


_EIGHT_BIT = dict.fromkeys(("adamw8bit", "adam8bit", "pagedadamw8bit", "pagedadam8bit"), "adamw-8bit")
"""Classes of bitsandbytes whose kernel is that of 8-bit AdamW."""


def optimizer_of(optimizer: Any, device_type: str) -> tuple[str, str | None]:
    """Name and implementation of a `torch.optim` optimizer, or of its name; None: the device's default.

    Raises `CaptureError` for an optimizer whose passes over the weights are not known.
    """
    if optimizer is None:
        return "sgd", None
    if isinstance(optimizer, str):
        return optimizer.lower(), None
    name = type(optimizer).__name__.lower()
    name = _EIGHT_BIT.get(name, name)
    if name not in OPTIMIZERS:
        raise CaptureError(
            f"optimizer {type(optimizer).__name__} has no operator table; nearest: {nearest(name, OPTIMIZERS)}; "
            "set optimizer to the one closest in its passes over the weights"
        )
    settings = getattr(optimizer, "defaults", {})
    if settings.get("fused"):
        return name, "fused"
    if settings.get("foreach") and device_type == "cpu":
        return name, "foreach"
    return name, "single" if settings.get("foreach") is False else None
