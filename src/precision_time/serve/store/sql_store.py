"""`SqlStore`: the `Store` on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from precision_time.checks import show
from precision_time.errors import JobError, StoreError, UnknownPredictionError
from precision_time.serve.records import Outcome, Prediction, Recorded
from precision_time.serve.store.dialect import READ, SNAPSHOT, WRITE, Dialect
from precision_time.serve.store.rows import (
    OUTCOME_COLUMNS,
    PREDICTION_COLUMNS,
    checked_outcome,
    outcome_of,
    outcome_row,
    prediction_of,
    prediction_row,
)
from precision_time.serve.store.transactions import Session, Transactions, Writer

T = TypeVar("T")
MOST_LISTED = 1000
_PAGE = 200
"""Rows that are read at a time: no transaction stays open while a caller works on them."""
_P, _O = ", ".join(f"p.{name}" for name in PREDICTION_COLUMNS), ", ".join(f"o.{name}" for name in OUTCOME_COLUMNS)
_OF_PREDICTIONS = f"SELECT {_P} FROM predictions p"
_INSERT_PREDICTION = (
    f"INSERT INTO predictions ({', '.join(PREDICTION_COLUMNS)}) VALUES ({', '.join('?' * len(PREDICTION_COLUMNS))}) "
    "ON CONFLICT DO NOTHING"
)
_INSERT_OUTCOME = (
    f"INSERT INTO outcomes (number, {', '.join(OUTCOME_COLUMNS)}) VALUES (?, {', '.join('?' * len(OUTCOME_COLUMNS))})"
)
_RECORDED = (
    f"SELECT o.number, {_P}, {_O} FROM outcomes o JOIN predictions p ON p.id = o.prediction "
    f"WHERE o.number > ? ORDER BY o.number LIMIT {_PAGE}"
)

_OUTCOMES_OF_CLUSTERS = (
    "SELECT p.cluster, COUNT(*) FROM outcomes o JOIN predictions p ON p.id = o.prediction GROUP BY p.cluster"
)


@dataclass(frozen=True, slots=True)
class Added:
    """How many records were new, and the ids of predictions whose key another one has, with the id of that one."""

    predictions: int = 0
    outcomes: int = 0
    renamed: Mapping[str, str] = field(default_factory=dict)


class SqlStore:
    """Predictions and outcomes in one database; see `records.Store` for what each method promises.

    May be used by several threads, and the same database by several stores of several processes. In a process that is
    forked it opens connections of its own; SQLite must not be in use by another thread at that moment.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.name = dialect.name
        self._transactions = Transactions(dialect)
        self._writer = Writer(self._transactions)

    def add_prediction(self, prediction: Prediction) -> Prediction:
        row = prediction_row(prediction)
        return self._writer.run(lambda session: _add_prediction(session, prediction, row))

    def add_outcome(self, outcome: Outcome) -> bool:
        checked = checked_outcome(outcome)
        row = outcome_row(checked)
        return self._writer.run(lambda session: _add_outcome(session, checked, row))

    def prediction(self, id: str) -> Prediction | None:
        if not _storable(id):
            return None
        found = self._read(f"{_OF_PREDICTIONS} WHERE p.id = ?", (id,))
        return prediction_of(found[0]) if found else None

    def outcomes(self, prediction: str) -> tuple[Outcome, ...]:
        if not _storable(prediction):
            return ()
        found = self._read(f"SELECT {_O} FROM outcomes o WHERE o.prediction = ? ORDER BY o.number", (prediction,))
        return tuple(map(outcome_of, found))

    def predictions(
        self, cluster: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[Prediction, ...]:
        if not 1 <= limit <= MOST_LISTED:
            raise JobError(
                f"limit {show(limit)} must be a whole number from 1 to {MOST_LISTED:,}; ask for several pages"
            )
        given = [(part, value) for part, value in (("cluster = ?", cluster), ("id < ?", before)) if value is not None]
        if not all(_storable(value) for _, value in given):
            return ()
        where = " AND ".join(f"p.{part}" for part, _ in given)
        statement = f"{_OF_PREDICTIONS}{' WHERE ' * bool(where)}{where} ORDER BY p.id DESC LIMIT ?"
        return tuple(map(prediction_of, self._read(statement, (*(value for _, value in given), limit))))

    def recorded(self, after: int = 0) -> Iterator[Recorded]:
        while rows := self._read(_RECORDED, (after,)):
            for number, *row in rows:
                split = len(PREDICTION_COLUMNS)
                yield Recorded(number, prediction_of(row[:split]), outcome_of(row[split:]))
                after = number

    def clusters(self) -> Mapping[str, tuple[int, int]]:
        def work(session: Session) -> dict[str, tuple[int, int]]:
            outcomes: dict[str, int] = dict(session.rows(_OUTCOMES_OF_CLUSTERS))
            found = session.rows("SELECT cluster, COUNT(*) FROM predictions GROUP BY cluster")
            return {cluster: (count, outcomes.get(cluster, 0)) for cluster, count in sorted(found)}

        return self.in_snapshot(work)

    def check(self) -> None:
        self._read("SELECT COALESCE(MAX(number), 0) FROM outcomes")

    def in_snapshot(self, work: Callable[[Session], T]) -> T:
        """What `work` returns, which sees the database as it is at one moment. Writers go on meanwhile."""
        return self._transactions.run(SNAPSHOT, work)

    def add_together(self, records: Sequence[Prediction | Outcome]) -> Added:
        """Keep records in one transaction, all of them or none; those that are there already are left out.

        Raises as `add_prediction` and `add_outcome` do.
        """
        checked = [checked_outcome(each) if isinstance(each, Outcome) else each for each in records]
        rows = [outcome_row(each) if isinstance(each, Outcome) else prediction_row(each) for each in checked]

        def work(session: Session) -> Added:
            predictions = outcomes = 0
            renamed: dict[str, str] = {}
            for record, row in zip(checked, rows, strict=True):
                if isinstance(record, Outcome):
                    outcomes += _add_outcome(session, record, row)
                    continue
                kept = _add_prediction(session, record, row)
                predictions += kept is record
                if kept.id != record.id:
                    renamed[record.id] = kept.id
            return Added(predictions, outcomes, renamed)

        return self._transactions.run(WRITE, work)

    def close(self) -> None:
        self._transactions.close()

    def _read(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._transactions.run(READ, lambda session: session.rows(statement, values))


def _add_prediction(session: Session, prediction: Prediction, row: tuple[Any, ...]) -> Prediction:
    if session.change(_INSERT_PREDICTION, row):
        return prediction
    statement = f"{_OF_PREDICTIONS} WHERE p.id = ? OR p.key = ? ORDER BY CASE WHEN p.key = ? THEN 0 ELSE 1 END LIMIT 1"
    return prediction_of(session.rows(statement, (prediction.id, prediction.key, prediction.key))[0])


def _add_outcome(session: Session, outcome: Outcome, row: tuple[Any, ...]) -> bool:
    """Numbers are given one transaction after the other, and a transaction that fails takes its numbers back, so a
    reader who has seen a number has seen, or can see, all lower ones."""
    if not session.rows("SELECT 1 FROM predictions WHERE id = ?", (outcome.prediction,)):
        raise UnknownPredictionError(
            f"there is no prediction {show(outcome.prediction)}; give the id that predict gave"
        )
    session.number_outcomes()
    known = "SELECT 1 FROM outcomes WHERE prediction = ? AND key = ?"
    if session.rows(known, (outcome.prediction, outcome.key)):
        return False
    ((number,),) = session.rows("SELECT COALESCE(MAX(number), 0) + 1 FROM outcomes")
    if session.change(_INSERT_OUTCOME, (number, *row)) != 1:
        raise StoreError(f"outcome number {number} is there already; check the database")
    return True


def _storable(text: str) -> bool:
    """Whether a text could be in a table at all."""
    return text.isprintable() and len(text) <= 1000
