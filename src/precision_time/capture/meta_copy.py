"""Copies of a user's module and batch on the meta device: the structure is copied, weights and data are not.

A module may be compiled, wrapped for data parallelism or sharded by `fully_shard` or `FullyShardedDataParallel`; the
copy is of the plain module inside, and the notes say what was left out. Attributes that are neither modules, tensors
nor plain containers are shared with the original, so that data sets and tokenizers are not copied.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from precision_time.capture.flat_shards import FLAT, FLAT_PARAMETER, FlatWeight, flat_weights, inner_of, is_flat

_LONGEST = 10_000
"""Entries of a container above which it is shared: it holds data."""
_HOOKS = tuple(name for name in vars(torch.nn.Module()) if name.endswith(("_hooks", "_hooks_with_kwargs")))
_KEPT_HOOKS = "torch.nn.utils."
"""Module of the hooks that compute a weight (weight norm, spectral norm); all others belong to the training loop."""
_COMPILED, _WRAPPED = "OptimizedModule", ("DistributedDataParallel", "DataParallel")
_REPLACED = frozenset({"_original_forward", "_old_forward"})


def unwrapped(module: torch.nn.Module) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The plain module inside of `torch.compile` and data-parallel wrappers, and a note for each that was removed.

    Modules inside it that `FullyShardedDataParallel` wraps stay wrapped, with a note; `meta_module` leaves them out.
    """
    notes = []
    while (kind := type(module).__name__) in (_COMPILED, *_WRAPPED):
        inner = module._orig_mod if kind == _COMPILED else module.module
        what = "torch.compile" if kind == _COMPILED else kind
        notes.append(f"the model is {type(inner).__name__}, taken out of {what}")
        module = inner
    if is_flat(module):
        notes.append(f"the model is {type(inner_of(module)).__name__}, taken out of {FLAT}; give layout='fsdp'")
    elif count := sum(map(is_flat, module.modules())):
        notes.append(f"{count} parts of the model are taken out of {FLAT}; give layout='fsdp'")
    return module, tuple(notes)


def meta_module(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of an unwrapped module on the meta device; ties between weights stay, hooks of training loops do not.

    A module in `FullyShardedDataParallel` is copied without it, with whole weights.
    """
    copier = _Copier()
    wrappers = [each for each in module.modules() if is_flat(each)]
    plain = [each for each in module.modules() if not is_flat(each)]
    for each in plain:
        copier.add(each)
    for each in wrappers:
        copier.modules[id(each)] = copier.modules[id(inner_of(each))]
    weights = [weight for each in wrappers for weight in flat_weights(each)]
    views = {(id(weight.module), weight.name) for weight in weights}
    for each in plain:
        copier.fill(each, {name for owner, name in views if owner == id(each)})
    for each in wrappers:
        copier.modules[id(each)]._parameters.pop(FLAT_PARAMETER, None)
    copier.restore(weights)
    copied: torch.nn.Module = copier.modules[id(module)]
    return copied


def meta_tensors(value: Any) -> Any:
    """A batch with every tensor replaced by one on the meta device of the same shape, strides and dtype."""
    return _Copier().value(value)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in the order of its containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)


def with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """A batch with its tensors replaced, in the order of `tensors_of`."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return _like_mapping(value, {key: with_tensors(each, tensors) for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        return _like_sequence(value, [with_tensors(each, tensors) for each in value])
    return value


def _like_mapping(value: Mapping[Any, Any], content: dict[Any, Any]) -> Any:
    """A mapping of the same class where it can be made from a dict (`BatchEncoding`), else a dict."""
    if type(value) is dict:
        return content
    try:
        return type(value)(content)  # type: ignore[call-arg]
    except Exception:
        return content


def _like_sequence(value: list[Any] | tuple[Any, ...], content: list[Any]) -> Any:
    if isinstance(value, tuple):
        return type(value)(*content) if hasattr(value, "_fields") else tuple(content)
    return content


class _Copier:
    """What was copied, by the identity of the original."""

    def __init__(self) -> None:
        self.modules: dict[int, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}

    def add(self, module: torch.nn.Module) -> None:
        """An empty copy of one module, of its class before `fully_shard`."""
        kind: Any = type(module)
        if any(each.__name__ == "FSDPModule" for each in kind.__bases__):
            kind = kind.__mro__[2]  # FSDP<Class>, FSDPModule, Class
        self.modules[id(module)] = kind.__new__(kind)

    def fill(self, module: torch.nn.Module, views: Collection[str] = ()) -> None:
        """Everything that the copy of a module holds but `views`, attributes that are views of a flat tensor."""
        held = {name: value for name, value in _state(module).items() if name not in views}
        for name in _REPLACED & held.keys():  # accelerate replaces `forward` by one with autocast or with hooks
            held.pop("forward", None)
            held.pop(name)
        kept = {name: _kept_hooks(held.pop(name)) for name in _HOOKS if isinstance(held.get(name), OrderedDict)}
        kept |= {name: held.pop(name) for name in _HOOKS if name in held}
        state = {**{name: self.value(value) for name, value in held.items()}, **kept}
        copied = self.modules[id(module)]
        if type(copied).__setstate__ is torch.nn.Module.__setstate__:
            copied.__dict__.update(state)
        else:
            copied.__setstate__(state)

    def restore(self, weights: Sequence[FlatWeight]) -> None:
        """Give modules their weights that were in flat shards; those of other modules (not copied) are left out."""
        whole: dict[tuple[int, str], torch.nn.Parameter | None] = {}
        for module, name, parameter, tied in sorted(weights, key=lambda weight: weight.tied is not None):
            whole[id(module), name] = parameter if tied is None else whole.get(tied)
            copied = self.modules.get(id(module))
            if copied is not None:
                copied._parameters[name] = whole[id(module), name]

    def value(self, value: Any) -> Any:
        """The copy of an attribute or of a part of a batch."""
        if isinstance(value, torch.nn.Module):
            return self.modules[id(value)] if id(value) in self.modules else self._unregistered(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, types.MethodType) and id(value.__self__) in self.modules:
            return types.MethodType(value.__func__, self.modules[id(value.__self__)])
        if isinstance(value, (dict, list, tuple, set, deque, Mapping)) and len(value) <= _LONGEST:
            return self._container(value)
        return value

    def _unregistered(self, module: torch.nn.Module) -> Any:
        """A module that is held without being registered, for example in a list."""
        new = [each for each in module.modules() if id(each) not in self.modules]
        for each in new:
            self.add(each)
        for each in new:
            self.fill(each)
        return self.modules[id(module)]

    def _container(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _like_mapping(value, {key: self.value(each) for key, each in value.items()})
        if isinstance(value, (list, tuple)):
            return _like_sequence(value, [self.value(each) for each in value])
        return type(value)(value)

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor without memory, of the whole shape where ranks hold shards (`DTensor`, ZeRO-3 of DeepSpeed)."""
        if id(value) not in self.tensors:
            with torch.no_grad():
                size = tuple(getattr(value, "ds_shape", value.shape))
                whole = value.layout is torch.strided and size == tuple(value.shape)
                stride = tuple(value.stride()) if whole else None
                copied = (
                    torch.empty(size, dtype=value.dtype, device="meta")
                    if stride is None
                    else torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
                )
            if isinstance(value, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=value.requires_grad)
            else:
                copied.requires_grad_(value.requires_grad and value.is_leaf)
            self.tensors[id(value)] = copied
        return self.tensors[id(value)]


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """What a module holds, as it would be pickled: a metric leaves out its wrapped methods, Lightning its trainer."""
    getter = getattr(type(module), "__getstate__", None)
    if getter is None or getter is getattr(object, "__getstate__", None):
        return dict(module.__dict__)
    try:
        return dict(getter(module))
    except Exception:  # modules with parametrizations refuse to be pickled
        return dict(module.__dict__)


def _kept_hooks(hooks: OrderedDict[int, Any]) -> OrderedDict[int, Any]:
    kept = {key: hook for key, hook in hooks.items() if type(hook).__module__.startswith(_KEPT_HOOKS)}
    return OrderedDict(kept)
