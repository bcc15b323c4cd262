"""Which measured jobs are of the same network: what a fold keeps whole.

One network has several names (`resnet50`, `torchvision:resnet50`, `timm:resnet50`, `timm:tv_resnet50`), so rows are of
the same network where their models have the same name without its library, or where their graphs are equal in types,
edges and number of parameters. A model of any size and configuration is one network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from precision_time.bounded_cache import bounded
from precision_time.predictors.predictddl.network import Network

if TYPE_CHECKING:
    from precision_time.predictors.predictddl.trainer import Row

_LIBRARIES = ("timm:", "torchvision:")


def network_groups(rows: Sequence[Row]) -> list[str]:
    """The network of each row, by the first of its models' names in the alphabet."""
    return joined([(row.measured.job.model, _structure(row.facts.network)) for row in rows])


def joined(pairs: Iterable[tuple[str, object]]) -> list[str]:
    """A name for each (name, mark): the same for all that names and marks connect, the first in the alphabet."""
    marks: dict[object, str] = {}
    leader: dict[str, str] = {}

    def lead(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    names = []
    for model, mark in pairs:
        name = plain_name(model)
        leader.setdefault(name, name)
        names.append(name)
        one, two = lead(name), lead(marks.setdefault(mark, name))
        leader[max(one, two)] = min(one, two)
    return [lead(name) for name in names]


def plain_name(model: str) -> str:
    """A model's name without its library and the date of its weights, in small letters with hyphens."""
    name = model.lower()
    for library in _LIBRARIES:
        if name.startswith(library):
            name = name.removeprefix(library).partition(".")[0]
    return name.replace("_", "-")


@bounded()
def _structure(network: Network) -> tuple[int, int]:
    """Equal for equal graphs."""
    return network.parameters, hash((network.types.tobytes(), network.edges.tobytes()))
