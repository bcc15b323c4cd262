"""Caches of results of functions, bounded together by bytes.

Every cache whose number of keys grows with what is asked is made by `bounded`. They share two budgets: results of one
job (`BUDGET`), and what the jobs of one model and precision have in common (`STRUCTURES`), which takes longer to make
and serves far more jobs than a result, so that results never displace it. When the entries of a budget hold more than
its limit, those that were used longest ago are dropped, from whichever cache they are. One order of age for all is what
frees memory: an entry's key holds the objects it was derived from (a step, its graph), so these go only when everything
derived from them goes, and all of it was last used by the same job. Each addition drops as much as it brings, so no job
pays for many others.

A function whose arguments are few and fixed (a catalog, a data file of the package) keeps `functools.cache`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

LIMIT_BYTES, STRUCTURE_BYTES = 36 << 20, 92 << 20
"""Of all entries of a budget together, by `size_of`. A process that has predicted any number of jobs stays under 400 MB
with them (benchmarks/results/soak.md)."""
_LARGEST = 0.75
"""Share of the limit above which a result is not kept: it alone would displace everything else."""
_ENTRY_BYTES = 400
"""Of an entry besides its result: a slot of the table, the key, the record."""
_SMALL = frozenset({int, float, bool, type(None), type, FunctionType})
"""Types of values that are small, or that many entries share: they count as part of what holds them."""
_NAME = 64
"""Longest text that is taken for a name, which many entries share."""


class _Entry:
    """A result, its bytes, and where it is kept. Compared by identity."""

    __slots__ = ("key", "nbytes", "result", "table")

    def __init__(self, result: Any, nbytes: int, table: dict[Hashable, _Entry], key: Hashable) -> None:
        self.result, self.nbytes, self.table, self.key = result, nbytes, table, key


class Budget:
    """Caches that share a number of bytes. `by_age`: their entries, the last used last."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.lock = threading.RLock()
        self.tables: list[dict[Hashable, _Entry]] = []
        self.by_age: OrderedDict[_Entry, None] = OrderedDict()

    def add(self, table: dict[Hashable, _Entry], key: Hashable, result: Any, nbytes: int) -> Any:
        """Keep a result; returns the one that is kept, which another thread may have found first."""
        with self.lock:
            if nbytes > self.limit_bytes * _LARGEST:
                return result
            entry = _Entry(result, nbytes, table, key)
            known = table.setdefault(key, entry)
            if known is not entry:
                return known.result
            self.by_age[entry] = None
            self.held_bytes += nbytes
            while self.held_bytes > self.limit_bytes:
                oldest, _ = self.by_age.popitem(last=False)
                del oldest.table[oldest.key]
                self.held_bytes -= oldest.nbytes
        return result

    def clear(self, table: dict[Hashable, _Entry]) -> None:
        with self.lock:
            for entry in table.values():
                del self.by_age[entry]
                self.held_bytes -= entry.nbytes
            table.clear()


BUDGET = Budget(LIMIT_BYTES)
STRUCTURES = Budget(STRUCTURE_BYTES)


class Cache(NamedTuple):
    """What is known of one cache: its function, entries and budget."""

    name: str
    table: dict[Hashable, _Entry]
    budget: Budget

    @property
    def held_bytes(self) -> int:
        return sum(entry.nbytes for entry in list(self.table.values()))

    def clear(self) -> None:
        """Drop all entries."""
        self.budget.clear(self.table)


CACHES: list[Cache] = []
"""Every cache of the modules that are loaded."""


def bounded(*without: type, budget: Budget = BUDGET) -> Callable[[Function], Function]:
    """A decorator: keeps results of a function by its positional arguments, of which there may be any number.

    `without`: types within a result that do not count, since the cache that makes them counts them. A result is the
    same object for equal arguments as long as it is kept, also when threads ask at once. The function has no keyword
    arguments. The decorated function has the `cache_clear` of `functools.cache`.
    """

    def decorate(function: Function) -> Function:
        table: dict[Hashable, _Entry] = {}
        cache = Cache(f"{function.__module__}.{function.__qualname__}", table, budget)
        budget.tables.append(table)
        CACHES.append(cache)
        get, used = table.get, budget.by_age.move_to_end
        sizes = _Sizes(without)

        @functools.wraps(function)
        def cached(*key: Any) -> Any:
            entry = get(key)
            if entry is None:
                result = function(*key)
                return budget.add(table, key, result, _ENTRY_BYTES + sizes.of(result))
            try:  # noqa: SIM105 - suppress() takes several times as long as all else here
                used(entry)
            except KeyError:  # another thread has dropped it since
                pass
            return entry.result

        cached.cache_clear = cache.clear  # type: ignore[attr-defined]
        return cached  # type: ignore[return-value]

    return decorate


class _Sizes:
    """Sizes of the results of one cache. Walking through every result would cost as much as making it, so but for the
    first ones only some are walked through, and the others count as the mean of these. Results that differ much in size
    tell it themselves, by a method `held_bytes`."""

    def __init__(self, without: tuple[type, ...]) -> None:
        self._without = without
        self._asked = self._walked = self._total = 0

    def of(self, result: Any) -> int:
        told = getattr(type(result), "held_bytes", None)
        if told is not None:
            return int(told(result))
        self._asked += 1
        if self._asked <= _ALL_OF or self._asked % _ONE_OF == 0:
            nbytes = size_of(result, self._without)
            self._walked += 1
            self._total += nbytes
            return nbytes
        return self._total // self._walked


_ALL_OF, _ONE_OF = 4, 48
"""Results of a cache that are walked through: as many first ones, then one of so many."""


def size_of(value: Any, without: tuple[type, ...] = ()) -> int:
    """Bytes that a value and all within it hold, each object once, without types that are `without` or shared widely.

    Arrays count with their data, views of arrays with their part of it. An object may tell its own bytes by a method
    `held_bytes`, which leaves out what it shares.
    """
    total = 0
    seen: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        kind = type(each)
        if (
            kind in _SMALL
            or isinstance(each, Enum)
            or id(each) in seen
            or (isinstance(each, without) and each is not value)
        ):
            continue
        seen.add(id(each))
        if kind is str or kind is bytes:
            total += len(each) if len(each) > _NAME else 0
            continue
        if kind.__module__ == "numpy":  # asked by name: a job's fields are checked before numpy is imported
            total += 128 + int(getattr(each, "nbytes", 0))
            continue
        total += sys.getsizeof(each, 64)
        told = getattr(kind, "held_bytes", None)
        if told is not None:
            total += told(each)
            continue
        if isinstance(each, dict):
            left.extend(each.keys())
            left.extend(each.values())
        elif isinstance(each, (tuple, list, set, frozenset)):
            left.extend(each)
        slots = getattr(kind, "__slots__", ())
        if slots:
            left.extend([getattr(each, name, None) for name in slots])
        fields = getattr(each, "__dict__", None)
        if fields:
            left.extend(fields.values())
    return total
