"""Evaluation: predicted against measured, for every row of a table of measured jobs.

takes     a table of measured jobs (docs/evaluate.md), which rows to keep, perhaps one precision to assume for all
gives     an `Evaluation`: errors, coverage, order of precisions, the worst rows, and the rows without a prediction
knows not how a step is predicted: every row goes through `predict`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_time.fit.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    """Load the two names when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from precision_time.fit.evaluation import evaluation

    return getattr(evaluation, name)
