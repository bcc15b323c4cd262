"""Evaluation: predictions against a table of measured jobs.

takes     a table of measured jobs (docs/evaluate.md), filters, perhaps one precision to assume for all jobs
gives     an `Evaluation`: errors, coverage, order of precisions, the worst rows, and the rows without a prediction
knows not how a step is predicted: every row goes through `predict`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_time.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    """Import the two names when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from precision_time.evaluation import evaluation

    return getattr(evaluation, name)
