"""Saved trees, evaluated without LightGBM."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest

from precision_time.errors import DataError
from precision_time.predictors.ensemble import Ensemble

BY_HAND = """tree
feature_names=a b

Tree=0
num_leaves=3
split_feature=1 0
threshold=2 5
decision_type=2 2
left_child=1 -2
right_child=-1 -3
leaf_value=10 1 3

Tree=1
num_leaves=1
leaf_value=0.5

end of trees
"""


def test_two_trees_by_hand() -> None:
    """b <= 2 leads to the split on a, else to leaf 0; the second tree is a constant."""
    ensemble = Ensemble.read(BY_HAND)
    assert ensemble.features == ("a", "b")
    columns = np.array([[5.0, 2.0], [6.0, 2.0], [0.0, 3.0]])
    assert ensemble.predict(columns).tolist() == [1.5, 3.5, 10.5]


@pytest.mark.parametrize("leaves", [2, 6, 31])
def test_as_lightgbm_predicts(leaves: int) -> None:
    rng = np.random.default_rng(leaves)
    columns = rng.normal(size=(400, 7))
    columns[:, 3] = np.round(columns[:, 3])  # ties with thresholds
    target = columns[:, 0] * np.sin(columns[:, 1]) + columns[:, 3]
    grown = lightgbm.train(
        {"num_leaves": leaves, "verbosity": -1, "objective": "huber", "num_threads": 1},
        lightgbm.Dataset(columns, label=target, params={"verbosity": -1}),
        40,
    )
    other = rng.normal(size=(100, 7))
    other[:, 3] = np.round(other[:, 3])
    ensemble = Ensemble.read(grown.model_to_string())
    np.testing.assert_allclose(ensemble.predict(other), grown.predict(other), rtol=1e-12, atol=1e-12)
    assert ensemble.predict(other[:0]).shape == (0,)


@pytest.mark.parametrize("text", ["", "no model", BY_HAND.replace("leaf_value=10 1 3", "leaf_value=10 x 3")])
def test_damaged_text(text: str) -> None:
    with pytest.raises(DataError, match="no LightGBM model"):
        Ensemble.read(text)


def test_categories_are_refused() -> None:
    with pytest.raises(DataError, match="categories"):
        Ensemble.read(BY_HAND.replace("decision_type=2 2", "decision_type=3 2"))
