"""Reproduction of the published predictors: `make reproduce`, or `python -m benchmarks.papers` in the repository.

One module for each paper trains the predictors of `precision_time.predictors` on the tables in `data/`, judges them on
rows that they were not fitted to, and returns a `study.Section`. `reproduce.py` runs the studies, `report.py` writes
them as HTML, JSON and Markdown.
"""
