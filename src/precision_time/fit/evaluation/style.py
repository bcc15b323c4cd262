"""Former place of the style of pages; use `precision_time.report.page`. To be removed when nothing imports it."""

from precision_time.report.page import STYLE

__all__ = ["STYLE"]
