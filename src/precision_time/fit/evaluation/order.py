"""Former place of `precision_time.evaluation.order`. To be removed when nothing imports it."""

from precision_time.evaluation.order import Order

__all__ = ["Order"]
