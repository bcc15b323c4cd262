"""Levels of a graph, which order the sweeps of the encoder, and the shortest paths between its nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precision_time.predictors.predictddl.network import Ints

LONGEST = 50
"""Edges of the longest shortest path that still makes a virtual edge (GHN-2)."""
_FAR = np.iinfo(np.int16).max


def levels(nodes: int, edges: Ints) -> Ints:
    """Edges on the longest path to every node, for edges in topological order (producers before consumers).

    Nodes of one level do not reach each other, so a sweep visits them together.
    """
    level = np.zeros(nodes, dtype=np.int64)
    for source, target in edges.T[np.argsort(edges[1], kind="stable")].tolist():
        if level[target] <= level[source]:
            level[target] = level[source] + 1
    return level


def levels_from_the_end(nodes: int, edges: Ints) -> Ints:
    """Edges on the longest path from every node: the order of the backward sweep."""
    turned = nodes - 1 - edges[::-1]
    return levels(nodes, turned)[::-1].copy()


def path_lengths(nodes: int, edges: Ints, longest: int = LONGEST) -> npt.NDArray[np.int16]:
    """Edges on the shortest path from a node (column) to another (row), 0 where there is none or it is longer.

    Edges are in topological order, so that a node's row follows from those of its producers. An entry of 1 is an edge,
    one of 2 to `longest` is a virtual edge.
    """
    lengths = np.full((nodes, nodes), _FAR, dtype=np.int16)
    np.fill_diagonal(lengths, 0)
    for source, target in edges.T[np.argsort(edges[1], kind="stable")].tolist():
        row = lengths[target]
        np.minimum(row, lengths[source] + (lengths[source] < _FAR), out=row)
    lengths[lengths > longest] = 0
    return lengths
