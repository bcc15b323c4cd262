"""Comparison: one job beside others as a table, a picture and sentences that explain each speed-up.

takes     jobs
gives     a `Comparison`: rows with estimates or reasons for their absence, speed-ups, explanations
knows not how a step is predicted: every row goes through `predict`
"""

from precision_time.comparison.comparison import SORTS, Comparison, Row, compare, cross, crossed

__all__ = ["SORTS", "Comparison", "Row", "compare", "cross", "crossed"]
