"""Gradient-boosted trees of LightGBM over named features, averaged over seeds, with monotone constraints.

One setting serves all models. It was fixed before any held-out error was computed and never tuned: for a few hundred
rows in some dozens of groups, shallow trees (6 leaves of at least 8 rows), a small learning rate, half the features
and 70 % of the rows in each tree, and Huber loss against outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.predictors.features import Feature, names, signs
from precision_time.report.write import make_folder, write_whole

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """How trees are grown; `seeds` ensembles are averaged."""

    rounds: int = 150
    leaves: int = 6
    seeds: int = 3
    rate: float = 0.05
    rows_in_leaf: int = 8
    l2: float = 5.0
    columns: float = 0.5
    rows: float = 0.7
    huber: float = 0.3

    def parameters(self, features: Sequence[Feature], seed: int) -> dict[str, Any]:
        """LightGBM's parameters."""
        return {
            "objective": "huber",
            "alpha": self.huber,
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.rows_in_leaf,
            "lambda_l2": self.l2,
            "feature_fraction": self.columns,
            "bagging_fraction": self.rows,
            "bagging_freq": 1,
            "seed": seed,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            "min_data_in_bin": 1,
            "monotone_constraints": signs(features),
            "monotone_constraints_method": "intermediate",
        }


@dataclass(frozen=True, eq=False)
class Trees:
    """A fitted model; `features` are the columns it was grown on."""

    features: tuple[Feature, ...]
    boosters: tuple[Any, ...]

    @classmethod
    def fit(
        cls, features: Sequence[Feature], columns: Array, target: Array, weight: Array, setting: Setting, seed: int = 0
    ) -> Trees:
        """Trees for `target` over `columns` (rows x features)."""
        import lightgbm

        data = {"label": target, "weight": weight, "feature_name": names(features), "free_raw_data": False}
        grown = []
        for each in range(setting.seeds):
            parameters = setting.parameters(features, 1000 * seed + each)
            rows = lightgbm.Dataset(columns, **data, params=parameters)
            # Without keep_training_booster LightGBM writes the trees as text and reads them back.
            grown.append(lightgbm.train(parameters, rows, setting.rounds, keep_training_booster=True))
        return cls(tuple(features), tuple(grown))

    def predict(self, columns: Array) -> Array:
        """Mean over the seeds, one value a row."""
        return np.asarray(np.mean([booster.predict(columns, num_threads=1) for booster in self.boosters], axis=0))

    def contributions(self, columns: Array) -> Array:
        """TreeSHAP values (rows x features): the contribution of each feature to each prediction, without the mean."""
        values = [booster.predict(columns, pred_contrib=True, num_threads=1)[:, :-1] for booster in self.boosters]
        return np.asarray(np.mean(values, axis=0))

    def gains(self) -> dict[str, float]:
        """Share of the loss reduction by the splits on each feature."""
        total = np.sum([booster.feature_importance("gain") for booster in self.boosters], axis=0)
        all_gain = float(total.sum()) or 1.0
        return {name: float(gain) / all_gain for name, gain in zip(names(self.features), total, strict=True)}

    def texts(self, name: str) -> dict[str, str]:
        """File name -> LightGBM's text, one of every seed."""
        return {f"{name}-{i}.txt": booster.model_to_string() for i, booster in enumerate(self.boosters)}

    @classmethod
    def read(cls, folder: Path, name: str, features: Sequence[Feature], count: int) -> Trees:
        """What `texts` wrote. Raises `PredictorError` where a file is missing or other features were meant."""
        import lightgbm

        boosters = []
        for i in range(count):
            path = folder / f"{name}-{i}.txt"
            if not path.is_file():
                raise PredictorError(f"{str(folder)!r} has no {path.name}, a part of the predictor; save it again")
            booster = lightgbm.Booster(model_str=path.read_text(encoding="utf-8"))
            if booster.feature_name() != names(features):
                raise PredictorError(
                    f"{path.name} was trained on other features than this version has; fit and save the predictor again"
                )
            boosters.append(booster)
        return cls(tuple(features), tuple(boosters))


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a predictor into its folder."""
    make_folder(folder, "folder", parents=True)
    for name, text in files.items():
        write_whole(folder / name, text)
