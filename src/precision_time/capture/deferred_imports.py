"""Parts of torch and SciPy that importing models needs by name alone, imported where more is asked of them.

Every import of torchvision or transformers, and the first shape rule that PyTorch has in Python, import torch._dynamo,
SymPy and a part of SciPy: 1.0 to 1.5 s of processor time and 0.25 GiB, which a trace of plain sizes never uses. In
their place stand modules that have the few names of `STAND_INS`: decorators that change nothing outside of
torch.compile, and functions whose answer for a plain number or truth value is known. Any other name, any other
submodule and any symbolic size import the real module, as without this.

Only for a process that traces and ends, such as `precision-time predict`: what was decorated in the meantime stays
undecorated when the process goes on to compile something.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_SYMBOLIC_FUNCTIONS = "torch.utils._sympy.functions"


def _unchanged(function: Any = None, *_args: Any, **_options: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return (lambda decorated: decorated) if function is None else function


def _real(module: str, name: str) -> Callable[..., Any]:
    """The real function, imported by its first call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _import_real(module)
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def _plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` for plain values, the real function for others."""
    real = _real(_SHAPES, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return answer(*args) if not kwargs and all(map(_is_plain, args)) else real(*args, **kwargs)

    return call


def _is_plain(value: Any) -> bool:
    """Whether no size of the value is symbolic, in tensors as in numbers."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in (bool, int) or (isinstance(value, sys.modules["torch"].Tensor) and _is_plain(value.shape))


def _equal(one: Any, other: Any) -> bool:
    return bool(list(one) == list(other) if isinstance(one, (tuple, list)) else one == other)


_SAME = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "guarding_hint_or_throw",
         "statically_known_true")  # fmt: skip
"""Functions that return a plain value as it is."""

STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "torch._dynamo": dict.fromkeys(("disable", "allow_in_graph", "assume_constant_result"), _unchanged),
    "torch._dynamo.utils": {"is_compile_supported": _real("torch._dynamo.utils", "is_compile_supported")},
    "torch._dynamo._trace_wrapped_higher_order_op": {
        "TransformGetItemToIndex": _real("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
    },
    _SHAPES: {
        **{name: _plain(name, lambda value, *_: value) for name in _SAME},
        "sym_and": _plain("sym_and", lambda *values: reduce(operator.and_, values)),
        "sym_or": _plain("sym_or", lambda *values: reduce(operator.or_, values)),
        "sym_eq": _plain("sym_eq", _equal),
        "is_nested_int": _plain("is_nested_int", lambda _: False),
        "has_guarding_hint": _plain("has_guarding_hint", lambda _: True),
        "has_free_unbacked_symbols": _plain("has_free_unbacked_symbols", lambda _: False),
        "free_unbacked_symbols": _plain("free_unbacked_symbols", lambda _: frozenset()),
        "GuardOnDataDependentSymNode": type("GuardOnDataDependentSymNode", (Exception,), {}),  # of symbolic sizes alone
    },
    _SYMBOLIC_FUNCTIONS: {"Max": _real(_SYMBOLIC_FUNCTIONS, "Max")},  # a rule of strides imports it and never calls it
    "sympy": {"Basic": type("Basic", (), {})},  # what no value is while SymPy is not imported
    "scipy.optimize": {"linear_sum_assignment": _real("scipy.optimize", "linear_sum_assignment")},
}
"""Module -> the names that it has without being imported."""
_ROOTS = ("torch._dynamo", _SHAPES, _SYMBOLIC_FUNCTIONS, "sympy", "scipy.optimize")


class _StandIn(ModuleType):
    """A module that has the names of `STAND_INS`, and imports the real one for any other."""

    def __getattr__(self, name: str) -> Any:
        known = STAND_INS[self.__name__]
        if sys.modules.get(self.__name__, self) is self:
            if name in known:
                return known[name]
            if name.startswith("__"):
                raise AttributeError(name)
            _import_real(self.__name__)
        return getattr(sys.modules[self.__name__], name)  # also for who holds the stand-in still


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """The names are found when they are asked for; what callers take for imported is."""
        if module.__name__ == _SHAPES:
            importlib.import_module("torch.fx.experimental._config")


class _LoadedLoader(Loader):
    """Of a submodule that was imported together with its package."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it was executed."""


class _Finder(MetaPathFinder):
    """Finds the stand-ins of modules that are not imported yet."""

    def __init__(self) -> None:
        self.deferred = {root for root in _ROOTS if root not in sys.modules}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        root = next((each for each in self.deferred if name == each or name.startswith(f"{each}.")), None)
        if root is None:
            return None
        if name in STAND_INS:
            spec = ModuleSpec(name, _StandInLoader(), is_package=True)
            real = PathFinder.find_spec(name, path)
            spec.submodule_search_locations = list((real and real.submodule_search_locations) or [])
            return spec if real else None
        _import_real(root)
        return ModuleSpec(name, _LoadedLoader()) if name in sys.modules else None


def defer_imports() -> None:
    """From now on, in this process, import these modules only where more than the names of `STAND_INS` is asked."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _import_real(name: str) -> None:
    """Import the real module, and its package, in place of their stand-ins."""
    root = next(each for each in _ROOTS if name == each or name.startswith(f"{each}."))
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            finder.deferred.discard(root)
    for each in [known for known in STAND_INS if known == root or known.startswith(f"{root}.")]:
        if isinstance(sys.modules.get(each), _StandIn):
            del sys.modules[each]
    importlib.import_module(name)
