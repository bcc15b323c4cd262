"""The PredictDDL predictor: trained for each dataset type, it predicts networks without training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from precision_time.bounded_cache import bounded
from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob
from precision_time.predictors.predictddl import storage
from precision_time.predictors.predictddl.encoder import Encoder, embed, load_encoder, random_encoder
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.task_checker import check
from precision_time.predictors.predictddl.traced import data_parallel
from precision_time.predictors.predictddl.trainer import (
    Design,
    Row,
    Table,
    Trained,
    described,
    in_known_frameworks,
    train,
)


@cache
def encoder_of(name: str) -> Encoder:
    """The shipped encoder (`pretrained`) or an untrained one (`random`)."""
    if name not in ("pretrained", "random"):
        raise PredictorError(f"encoder {name!r} is unknown; use pretrained or random")
    return load_encoder() if name == "pretrained" else random_encoder()


@cache
def embedder_of(name: str) -> Callable[[Network], Floats]:
    """The function that gives a network's vector by that encoder. A vector is kept for each `Network` object."""
    return partial(_vector, name)


@bounded()
def _vector(name: str, network: Network) -> Floats:
    return embed(encoder_of(name), network)


class PredictDDL:
    """See the package. `design` sets columns, encoder and regressors."""

    name = "predictddl"

    def __init__(self, design: Design | None = None) -> None:
        self.design = design or Design()
        self._trained: dict[str, Trained] = {}
        self.left_out: dict[str, str] = {}
        """Dataset types of the last fit with too few networks, and the message."""

    @property
    def trained(self) -> Mapping[str, Trained]:
        """Dataset type -> what was trained for it."""
        return self._trained

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Train every dataset type anew. Types with too few networks are left out; an error where none remains."""
        self._trained = {}
        self.left_out = {}
        self.learn(measured)
        if not self._trained:
            raise PredictorError(next(iter(self.left_out.values()), "predictddl was given no measured jobs; give some"))

    def learn(self, measured: Sequence[MeasuredJob]) -> None:
        """Train the dataset types in these rows; types trained before and not in them are kept."""
        self.learn_described(described(data_parallel(measured)))

    def learn_described(self, rows: Sequence[Row]) -> None:
        """The same for rows with facts."""
        by_type: dict[str, list[Row]] = {}
        for row in rows:
            by_type.setdefault(row.facts.dataset, []).append(row)
        for dataset, mine in sorted(by_type.items()):
            try:
                table = Table.of(in_known_frameworks(mine), embedder_of(self.design.encoder))
                self._trained[dataset] = train(table, dataset, self.design)
            except PredictorError as error:
                self.left_out[dataset] = str(error)

    def predict(self, job: Job) -> Forecast:
        """Seconds of a job. Raises the `PredictorError` of `task_checker.check` for a job that it cannot predict."""
        facts, trained = check(job, self._trained)
        return trained.forecast(facts, embedder_of(self.design.encoder)(facts.network))

    def save(self, folder: Path) -> None:
        storage.save(folder, self.design, self._trained)

    @classmethod
    def load(cls, folder: Path) -> PredictDDL:
        design, trained = storage.load(folder)
        made = cls(design)
        made._trained = trained
        return made

    def held_out(self) -> Mapping[str, float]:
        """Mean |log error| of the regressor that was kept, with the network left out, by dataset type."""
        return {
            f"network ({name})": dict(each.errors)[each.fitted.setting.label] for name, each in self._trained.items()
        }

    def cost(self) -> Cost:
        kinds = self._trained.values()
        return Cost(sum(k.rows for k in kinds), sum(k.measured_s for k in kinds), sum(k.fit_s for k in kinds))
