"""Every exception the package raises on purpose.

    PrecisionTimeError
    ├── JobError            a field of a job is wrong (names field, value, nearest choices, fix)
    ├── CatalogError        a GPU, node or fabric is unknown or half described
    │   └── MissingPeakError  the device has no peak for a dtype the job needs
    ├── CaptureError        the model could not be traced
    │   └── MissingExtraError  an optional package (torch, matplotlib, ...) is needed and absent
    ├── DataError           a file of the package or of the user cannot be read
    ├── MeasureError        real code could not be run or timed on this machine
    ├── PredictorError      a predictor is unknown, not trained for this, or trained on something else
    ├── PlanError           no candidate meets a goal; says what binds and the nearest goal that can be met
    ├── IngestError         a data set, storage, cache or co-located job cannot be read, measured or run
    ├── ServeError          a server cannot be started or reached, or refused a request
    │   └── StoreError        the database of predictions and outcomes cannot be reached, read or written
    │       └── UnknownPredictionError  an outcome names a prediction that is not kept there
    └── InternalError       an estimate contradicts itself: a defect of this package, with the job to report

Every message is one sentence: the value given, the valid values, and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_WORD, LONGEST_MESSAGE = 300, 1200
"""Characters of a message and of a word in it; what a user or a library gave may be longer and is then cut."""


class PrecisionTimeError(Exception):
    """Root of the tree; the command line turns it into exit code 2. Long words and messages are cut in the middle."""

    def __str__(self) -> str:
        return shortened(super().__str__())


class JobError(PrecisionTimeError):
    """A job field has an invalid value, or fields contradict each other."""


class CatalogError(PrecisionTimeError):
    """A hardware name is unknown, or a hardware description is incomplete."""


class MissingPeakError(CatalogError):
    """The device publishes no peak for a dtype that the job's operators run in."""


class CaptureError(PrecisionTimeError):
    """A model could not be traced into an operator graph."""


class MissingExtraError(CaptureError):
    """An optional dependency is needed for this question."""


class DataError(PrecisionTimeError):
    """A file cannot be read or does not follow its format."""


class MeasureError(PrecisionTimeError):
    """A measurement on this machine failed."""


class PredictorError(PrecisionTimeError):
    """A predictor is unknown, not trained, or trained for other data or another device."""


class IngestError(PrecisionTimeError):
    """A data set, storage, cache or co-located job is missing, cannot be read, or ended while it was measured."""


class ServeError(PrecisionTimeError):
    """A server cannot be started or reached, or it refused a request.

    `http_status`: where a server refused a request; None: there was no answer.
    """

    http_status: int | None = None


class StoreError(ServeError):
    """The database of predictions and outcomes cannot be reached, read or written."""


class UnknownPredictionError(StoreError):
    """An outcome names a prediction that is not kept in this database; the database itself works."""


class PlanError(PrecisionTimeError):
    """No candidate meets a goal. The message names what binds and the nearest goals that can be met."""


class Interrupted(KeyboardInterrupt):
    """A signal to stop at the command line; own code may raise KeyboardInterrupt itself."""


class InternalError(PrecisionTimeError):
    """An estimate failed its own check: a defect of this package. The message holds the whole job, to be reported."""

    __str__ = Exception.__str__


def shortened(text: str) -> str:
    """A message whose words and length do not exceed their limits."""
    if len(text) <= LONGEST_WORD:
        return text
    words = (_cut(word, LONGEST_WORD) for word in text[: 100 * LONGEST_MESSAGE].split(" "))
    return _cut(" ".join(words), LONGEST_MESSAGE)


def _cut(text: str, length: int) -> str:
    """Text of at most this many characters: its start and its end."""
    half = length // 2 - 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"


def nearest(value: object, choices: Iterable[str], count: int = 3) -> str:
    """The valid choices closest to `value`, as text for an error message."""
    known = sorted(set(choices))
    given = value[:100].lower() if isinstance(value, str) else ""
    close = difflib.get_close_matches(given, known, n=count, cutoff=0.4)
    return ", ".join(close or known[:8]) + ("" if close or len(known) <= 8 else ", ...")
