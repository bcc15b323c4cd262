"""Autocast for the meta device: kernels at one autocast dispatch key make a traced step dispatch as on CUDA.

The dispatcher calls autocast kernels above autograd and inside every composite operator. Meta tensors have no autocast,
and the CUDA kernels ignore them; so this module registers its kernels at the key `AutocastPrivateUse1`, which no device
uses, and enables the key while a step is captured. This reproduces autocast at the level where torch runs it: inside
composite operators, with nested `torch.autocast(enabled=False)` regions, and with gradient dtypes set by autograd.

The same key handles operators that the meta device would decompose and a GPU would not: scaled dot-product attention,
dropout, recurrent layers, RMS norm and weight norm (see `fused`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from precision_time.capture import experts, fused
from precision_time.capture.autocast import CLASSES, CastClass
from precision_time.errors import CaptureError
from precision_time.zoo.models import operators as _operators  # noqa: F401  (enters the operators of models)

_KEY = "AutocastPrivateUse1"
_DISPATCH_KEY = torch._C.DispatchKey.AutocastPrivateUse1
_KEY_SET = torch._C.DispatchKeySet(_DISPATCH_KEY)


@dataclass
class Region:
    """One traced forward pass: the device whose rules apply, the attention kernel, and the cache of weight casts.

    Whether autocast is on, and to which dtype, is torch's own state: the model may change it as it runs.
    `cache` is keyed on a weight's id, which Python gives to another tensor once the weight is gone; each entry
    therefore has a weak reference to its weight and holds for that weight alone, as in PyTorch (autocast_mode.cpp).
    """

    device: str = "cuda"
    attention: str = "flash"
    cache: dict[tuple[int, torch.dtype], tuple[weakref.ref[torch.Tensor], torch.Tensor]] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return bool(torch.is_autocast_enabled(self.device))

    @property
    def dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype(self.device)


_region: ContextVar[Region | None] = ContextVar("precision_time_region", default=None)


def _eligible(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype, region: Region) -> Any:
    """PyTorch's `cached_cast`: leaf fp32 weights are cast once per region."""
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype, region) for item in value)
    if not _eligible(value) or value.dtype == dtype:
        return value
    leaf = value.requires_grad and value.is_leaf and not value._is_view() and value.dtype == torch.float32
    if not (leaf and dtype == region.dtype and torch.is_autocast_cache_enabled()):
        return value.to(dtype)
    key = (id(value), dtype)
    weight, cast = region.cache.get(key, (None, None))
    if weight is None or weight() is not value:
        cast = value.to(dtype)
        region.cache[key] = (weakref.ref(value), cast)
    return cast


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for item in args:
        if isinstance(item, (list, tuple)):
            yield from _tensors(item)
        elif _eligible(item):
            yield item


def _widest(args: Any, region: Region) -> torch.dtype:
    dtypes = {t.dtype for t in _tensors(args)}
    if torch.float32 in dtypes:
        return torch.float32
    return next(iter(dtypes), region.dtype)


def _cast_kernel(op: Any, name: str) -> Callable[..., Any]:
    """The autocast kernel of one operator: cast its arguments by its class, then run it with the key disabled."""
    names = [a.name for a in op._schema.arguments]
    takes_dtype = "dtype" in names
    by_position = takes_dtype and not op._schema.arguments[names.index("dtype")].kwarg_only
    dtype_position = names.index("dtype") if by_position else len(names)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        region = _region.get()
        cls = CastClass.PASS_THROUGH
        if region is not None and region.active:
            cls = _classes(region.device).get(name, cls)
        if region is None or cls is CastClass.PASS_THROUGH:
            # As without a kernel here: the operators inside a composite operator still get theirs.
            return op.redispatch(keys.remove(_DISPATCH_KEY), *args, **kwargs)
        if cls is CastClass.BANNED:
            raise CaptureError(
                f"{name} is unsafe under autocast and PyTorch refuses it: use binary_cross_entropy_with_logits, "
                "or choose a precision without autocast"
            )
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            if cls is CastClass.LOW_PRECISION:
                target = region.dtype
            elif cls is CastClass.FP32:
                target = torch.float32
            elif cls is CastClass.PROMOTE:
                target = _widest((*args, *kwargs.values()), region)
            else:
                target = None
            if target is not None:
                args = _cast(args, target, region)
                kwargs = {k: _cast(v, target, region) for k, v in kwargs.items()}
            elif cls is CastClass.FP32_OUTPUT and args and _eligible(args[0]):
                if len(args) > dtype_position:
                    kwargs["dtype"] = args[dtype_position]
                    args = args[:dtype_position]
                if name in fused.SOFTMAXES and kwargs.get("dtype") is None:
                    return fused.softmax_to_float(op, name, *args, *(v for k, v in kwargs.items() if k == "dim"))
                if takes_dtype and kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float32
                elif not takes_dtype:
                    args = _cast(args, torch.float32, region)
            return op(*args, **kwargs)

    return kernel


_ATTENTIONS = (
    fused.window_attention, fused.capped_attention, fused.alibi_attention, fused.scaled_query_attention
)  # fmt: skip


def _model_operator_kernel(op: Any, replacement: Callable[..., Any], low_precision: bool) -> Callable[..., Any]:
    """The kernel of an operator in `zoo.models.operators`, which the trace shows instead of its composition."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        region = _region.get()
        written_out = replacement in _ATTENTIONS and region is not None and region.attention == "math"
        if region is None or written_out:
            return op.redispatch(keys.remove(_DISPATCH_KEY), *args, **kwargs)
        if region.active and low_precision:
            with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
                args = tuple(_cast(value, region.dtype, region) for value in args)
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            return replacement(*args, **kwargs)

    return kernel


def _fused_kernel(op: Any, name: str, replacement: Callable[..., Any], low_precision: bool) -> Callable[..., Any]:
    # By the lists, not by what this build registers of them: the operator is that of current PyTorch on any build.
    unlisted = CastClass.LOW_PRECISION if low_precision else CastClass.PASS_THROUGH

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        region = _region.get()
        if region is None:
            return op.redispatch(keys.remove(_DISPATCH_KEY), *args, **kwargs)
        cls = CLASSES[region.device].get(name, unlisted)
        if region.active and cls is not CastClass.PASS_THROUGH:
            target = torch.float32 if cls is CastClass.FP32 else region.dtype
            with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
                args = _cast(args, target, region)
                kwargs = {k: _cast(v, target, region) for k, v in kwargs.items()}
        if name == "scaled_dot_product_attention" and region.attention == "math":
            return fused.unfused_attention(*args, **kwargs)  # the key stays enabled: each operator is cast by its class
        if name == "scaled_dot_product_attention" and args[0].dim() != 4:
            math = fused.unfused_attention if region.attention == "flash_before_2_5" else fused.math_attention
            with torch.autocast(region.device, enabled=False):  # but dropout stays one kernel
                return math(*args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            return replacement(*args, **kwargs)

    return kernel


@cache
def registered(device: str) -> frozenset[str]:
    """The operators for which the running build has an autocast kernel on `device`, as the dispatcher names them."""
    key = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}[device]
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(
        n.removeprefix("aten::")
        for n in names
        if n.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(n, key)
    )


@cache
def _classes(device: str) -> dict[str, CastClass]:
    known = CLASSES[device]
    return {name: known[name] for name in registered(device) if name in known}


def _overload(name: str) -> Any | None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return None if packet is None else getattr(packet, overload or "default", None)


@cache
def _install() -> tuple[object, ...]:
    """Register the kernels, once per process; they do nothing outside a `Region`. The result keeps them alive."""
    fallback = torch._C._dispatch_library("IMPL", "_", _KEY)
    fallback.fallback_fallthrough()
    library = torch.library.Library("aten", "IMPL")
    replaced = {**fused.REPLACEMENTS, "_grouped_mm": (experts.torch_grouped_mm, False)}
    names = {name for table in CLASSES.values() for name in table} - set(replaced)
    for name in sorted(names):
        op = _overload(name)
        if op is not None:
            library.impl(name, _cast_kernel(op, name), _KEY, with_keyset=True)
    for name, (replacement, low_precision) in replaced.items():
        op = _overload(name)
        if op is not None:
            library.impl(name, _fused_kernel(op, name, replacement, low_precision), _KEY, with_keyset=True)
    operators = torch.library.Library("precision_time", "IMPL")
    for name, (replacement, low_precision) in (
        *experts.REPLACEMENTS.items(),
        ("window_attention", (fused.window_attention, True)),
        ("capped_attention", (fused.capped_attention, True)),
        ("alibi_attention", (fused.alibi_attention, True)),
        ("scaled_query_attention", (fused.scaled_query_attention, True)),
        ("instance_norm", (fused.instance_norm, False)),
    ):
        op = getattr(torch.ops.precision_time, name).default
        operators.impl(name, _model_operator_kernel(op, replacement, low_precision), _KEY, with_keyset=True)
    return fallback, library, operators


@contextmanager
def _nested_regions(device: str) -> Iterator[None]:
    """Let model code enter `torch.autocast` regions and ask for their state, for the traced device or for
    `x.device.type` ("meta").

    Without this torch switches a CUDA region off on a machine without CUDA, and refuses one for meta.
    """
    original = torch.autocast.__init__
    questions = {name: getattr(torch, name) for name in ("is_autocast_enabled", "get_autocast_dtype")}

    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        traced = device_type in ("meta", device)
        original(self, device if traced else device_type, dtype, enabled and not traced, cache_enabled)
        if traced:
            self._enabled = enabled

    def answering(question: Any) -> Any:
        def answer(*of: str, **named: str) -> Any:
            words = {name: device if word == "meta" else word for name, word in named.items()}
            return question(*(device if word == "meta" else word for word in of), **words)

        return answer

    torch.autocast.__init__ = init
    for name, question in questions.items():
        setattr(torch, name, answering(question))
    try:
        yield
    finally:
        torch.autocast.__init__ = original
        for name, question in questions.items():
            setattr(torch, name, question)


@contextmanager
def region(dtype: torch.dtype | None, attention: str = "flash", device: str = "cuda") -> Iterator[Region]:
    """Dispatch the enclosed forward pass as `device` would under autocast to `dtype` (None: no autocast)."""
    _install()
    current = Region(device, attention)
    token = _region.set(current)
    was_enabled = torch.is_autocast_enabled(device)
    was_dtype = torch.get_autocast_dtype(device)
    try:
        torch.set_autocast_enabled(device, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(device, dtype)
        include = torch._C._dispatch_tls_local_include_set().add(_DISPATCH_KEY)
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(_DISPATCH_KEY)
        with _nested_regions(device), torch._C._ForceDispatchKeyGuard(include, exclude):
            yield current
    finally:
        torch.set_autocast_enabled(device, was_enabled)
        torch.set_autocast_dtype(device, was_dtype)
        current.cache.clear()
        _region.reset(token)
