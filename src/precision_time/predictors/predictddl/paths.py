"""Levels of a graph, which order the sweeps of the encoder, and virtual edges between distant nodes."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from precision_time.predictors.predictddl.network import Floats, Ints

LONGEST = 50
"""Edges of the longest shortest path that still makes a virtual edge (GHN-2)."""


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


def virtual_edges(nodes: int, edges: Ints, longest: int = LONGEST) -> tuple[Ints, Floats]:
    """Pairs of nodes, first to last, whose shortest path has 2 to `longest` edges, and those lengths."""
    graph = csr_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(nodes, nodes))
    lengths = dijkstra(graph, unweighted=True, limit=longest)
    near = np.isfinite(lengths) & (lengths > 1)
    sources, targets = np.nonzero(near)
    return np.stack([sources, targets]).astype(np.int64), lengths[near]
