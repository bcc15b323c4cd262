"""Former place of `precision_time.evaluation.evaluation`. To be removed when nothing imports it."""

from precision_time.evaluation.evaluation import Evaluation, Unpredicted

__all__ = ["Evaluation", "Unpredicted"]
