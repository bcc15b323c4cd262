"""Former place of figures; use `precision_time.report.figure`. To be removed when nothing imports it."""

from precision_time.report.figure import BAND, require_matplotlib
from precision_time.report.figure import new_figure as _figure
from precision_time.report.figure import precision_colour as colour
from precision_time.report.figure import svg as _svg

__all__ = ["BAND", "_figure", "_svg", "colour", "require_matplotlib"]
