"""Regression trees of LightGBM's text format, evaluated with numpy, so that a saved model is asked without LightGBM.

Read are trees over numbers as this project grows them (no categories, no missing values, no linear leaves): a row goes
left where its value is at most the threshold, and the prediction is the sum of the leaves it reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import DataError

Array = NDArray[np.float64]

_TREE, _END = "Tree=", "end of trees"


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees side by side: arrays of (trees, nodes), and of (trees, leaves) for `value`.

    left, right  node that follows, or -1 - leaf
    depth        splits on the longest way to a leaf
    """

    features: tuple[str, ...]
    feature: NDArray[np.intp]
    threshold: Array
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    value: Array
    depth: int

    @classmethod
    def read(cls, text: str) -> Ensemble:
        """Raises `DataError` where the text is no model, or one with categories."""
        head, *blocks = text.partition(_END)[0].split(f"\n{_TREE}")
        trees = [_fields(block) for block in blocks]
        try:
            features = tuple(_fields(head)["feature_names"].split())
            if any(int(kind) & 1 for tree in trees for kind in tree.get("decision_type", "").split()):
                raise DataError("a tree splits by categories, which are not evaluated; train on numbers")
            nodes = max((int(tree["num_leaves"]) for tree in trees), default=1) - 1
            left, right = (
                _table(trees, name, max(nodes, 1), -1).astype(np.intp) for name in ("left_child", "right_child")
            )
            return cls(
                features,
                _table(trees, "split_feature", max(nodes, 1), 0).astype(np.intp),
                _table(trees, "threshold", max(nodes, 1), 0),
                left,
                right,
                _table(trees, "leaf_value", nodes + 1, 0),
                max((_depth(*each) for each in zip(left.tolist(), right.tolist(), strict=True)), default=0),
            )
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"no LightGBM model ({type(error).__name__}: {error}); save the predictor again") from error

    def predict(self, columns: Array) -> Array:
        """One value for every row of `columns` (rows x features)."""
        trees = np.arange(len(self.value))
        tables = self.feature, self.threshold, self.left, self.right
        feature, threshold, left, right = (table.ravel() for table in tables)
        first, rows = trees * self.threshold.shape[1], np.arange(len(columns))[:, None]
        at = np.zeros((len(columns), len(trees)), dtype=np.intp)
        for _ in range(self.depth):
            node = np.maximum(at, 0) + first
            following = np.where(columns[rows, feature[node]] <= threshold[node], left[node], right[node])
            at = np.where(at < 0, at, following)
        return np.asarray(self.value[trees, -1 - at].sum(axis=1))


def _fields(block: str) -> dict[str, str]:
    return {name: value for name, equals, value in (line.partition("=") for line in block.splitlines()) if equals}


def _table(trees: Sequence[Mapping[str, str]], name: str, width: int, filler: float) -> Array:
    """The numbers of a field, one line a tree, filled up to the width. A tree of one leaf has no splits."""
    table = np.full((len(trees), width), float(filler))
    for line, tree in zip(table, trees, strict=True):
        values = tree.get(name, "").split()
        line[: len(values)] = [float(value) for value in values]
    return table


def _depth(left: Sequence[int], right: Sequence[int], node: int = 0) -> int:
    return 1 + max(_depth(left, right, child) if child >= 0 else 0 for child in (left[node], right[node]))
