"""Former place of `precision_time.evaluation.rows`. To be removed when nothing imports it."""

from precision_time.evaluation.rows import JudgedRow as Judged

__all__ = ["Judged"]
