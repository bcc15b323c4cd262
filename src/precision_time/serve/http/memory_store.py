"""A `Store` in memory, for tests and `serve --database memory`: nothing outlives the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from precision_time.errors import StoreError
from precision_time.serve.records import Outcome, Prediction, Recorded


class MemoryStore:
    """Predictions and outcomes in dictionaries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._predictions: dict[str, Prediction] = {}
        self._by_key: dict[str, Prediction] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._recorded: list[Recorded] = []

    def add_prediction(self, prediction: Prediction) -> Prediction:
        with self._lock:
            if prediction.key is not None:
                known = self._by_key.setdefault(prediction.key, prediction)
                if known is not prediction:
                    return known
            self._predictions[prediction.id] = prediction
            return prediction

    def add_outcome(self, outcome: Outcome) -> bool:
        with self._lock:
            prediction = self._predictions.get(outcome.prediction)
            if prediction is None:
                raise StoreError(f"prediction {outcome.prediction!r} is unknown; predict the job first")
            if outcome.key in self._outcomes:
                return False
            self._outcomes[outcome.key] = outcome
            self._recorded.append(Recorded(len(self._recorded) + 1, prediction, outcome))
            return True

    def prediction(self, id: str) -> Prediction | None:
        return self._predictions.get(id)

    def outcomes(self, prediction: str) -> tuple[Outcome, ...]:
        return tuple(each.outcome for each in self._recorded if each.prediction.id == prediction)

    def predictions(
        self, cluster: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[Prediction, ...]:
        with self._lock:
            there = [
                each for each in self._predictions.values()
                if cluster in (None, each.cluster) and (before is None or each.id < before)
            ]  # fmt: skip
        return tuple(sorted(there, key=lambda each: each.id, reverse=True)[:limit])

    def recorded(self, after: int = 0) -> Iterator[Recorded]:
        return iter(self._recorded[after:])

    def close(self) -> None:
        pass
