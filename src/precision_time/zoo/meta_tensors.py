"""Small tensors with values beside those of the meta device, and masks whose values nobody has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def tensors_of(trees: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors in arguments or results of an operator, which are nested in tuples, lists and mappings alone."""
    found: list[torch.Tensor] = []
    _enter(trees, found)
    return found


def _enter(trees: Iterable[Any], found: list[torch.Tensor]) -> None:
    for tree in trees:
        if isinstance(tree, torch.Tensor):
            found.append(tree)
        elif isinstance(tree, (tuple, list)):
            _enter(tree, found)
        elif isinstance(tree, dict):
            _enter(tree.values(), found)


def beside_meta(func: Any, args: Any, kwargs: Any, tensors: Iterable[torch.Tensor]) -> tuple[Any, Any]:
    """The arguments of an operator, with tensors that hold values on the meta device where one of them already is.

    Models compute with the sizes and places of images, which are known, and read weights, which are not. A mask that
    has values selects as many elements as it says. `tensors` are those of the arguments; where nothing moves the
    arguments themselves are returned.
    """
    on_meta = with_values = False
    for each in tensors:
        if each.is_meta:
            on_meta = True
        elif each.ndim > 0:
            with_values = True
    if not (on_meta and with_values):
        return args, kwargs
    if func.overloadpacket in _INDEXED:
        args = (args[0], _places(args[1]), *args[2:])
    moved: tuple[Any, Any] = tree_map(_on_meta, (args, kwargs))
    return moved


_INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)


def _places(indices: Any) -> list[Any]:
    """Indices with masks that have values replaced by the places that they select."""
    places: list[Any] = []
    for each in indices:
        mask = each is not None and each.dtype == torch.bool and not each.is_meta
        places += each.nonzero().unbind(1) if mask else [each]
    return places


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.is_meta or not value.ndim:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class BesideMeta(TorchDispatchMode):
    """Runs operators on the arguments of `beside_meta`, and branches on values that nobody has as on true."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        args, kwargs = beside_meta(func, args, kwargs, tensors_of((args, kwargs)))
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:
            return True
        return func(*args, **kwargs)


@contextmanager
def everything_selected() -> Iterator[None]:
    """A mask on the meta device selects everything."""
    import torch.fx.experimental._config as settings

    usual = settings.meta_nonzero_assume_all_nonzero
    settings.meta_nonzero_assume_all_nonzero = True
    try:
        yield
    finally:
        settings.meta_nonzero_assume_all_nonzero = usual
