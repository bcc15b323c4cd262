"""The web page: static files that a browser loads as they are, without a build step.

static/    HTML, CSS and JavaScript modules, and uPlot with its licence; `static_folder` names it
words      writes static/words.js: fields of the form, names and labels, from the tables that the program checks by
"""

from __future__ import annotations

from pathlib import Path

static_folder = Path(__file__).parent / "static"
