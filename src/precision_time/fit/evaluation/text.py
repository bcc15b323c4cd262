"""Former place of `percent`; use `precision_time.report.errors`. To be removed when nothing imports it."""

from precision_time.report.errors import percent

__all__ = ["percent"]
