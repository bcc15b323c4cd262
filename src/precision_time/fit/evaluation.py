"""Former place of `precision_time.evaluation`; the two names still import from here."""

from precision_time.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
