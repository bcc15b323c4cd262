"""Former place of the room `precision_time.evaluation`; the names of its Python interface still work."""

from precision_time.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
