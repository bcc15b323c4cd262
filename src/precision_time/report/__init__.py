"""Reporting: error statistics, tables, figures and pages, written once for every command and benchmark.

takes     numbers, text and matplotlib axes
gives     `ErrorStatistics`; tables as text, Markdown, HTML or CSV; SVG and PNG figures; one-file HTML pages
knows not jobs, estimates or measurements: callers choose the columns and the words

| module | what |
|---|---|
| `errors` | statistics of predicted / measured - 1, and the percent format |
| `table`  | `Table`: columns and rows to aligned text, Markdown, HTML, CSV |
| `figure` | style, palette and export of matplotlib figures; scatter, ratio and bar panels |
| `page`   | a self-contained HTML page, and text inside the markers of a Markdown file |
| `write`  | a file is written whole or not at all |
"""
