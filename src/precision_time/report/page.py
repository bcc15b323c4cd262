"""One-file HTML pages that need nothing from the network, and the generated part of a Markdown file."""

from __future__ import annotations

import html
from collections.abc import Iterable

from precision_time.errors import DataError

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #d8d8d8; --soft: #666; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --line: #3a3d44; --soft: #a0a0a0; --mark: #4a4220; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 74em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2.2em; }
p.soft, figcaption, .soft { color: var(--soft); font-size: .92em; }
p.note { border-left: 4px solid #d55e00; padding-left: .8em; }
.wide { overflow-x: auto; } figure { margin: 1em 0; }
svg { max-width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; fill: var(--ink); }
svg a:hover { stroke: var(--ink); stroke-width: 2; }
table { border-collapse: collapse; margin-bottom: 1.2em; font-variant-numeric: tabular-nums; font-size: .92em; }
th, td { padding: .2em .7em; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
td.text, th.text { text-align: left; }
thead th { position: sticky; top: 0; background: var(--paper); }
table.sort th { cursor: pointer; } table.sort th::after { content: " \\2195"; color: var(--soft); font-size: .8em; }
tr.group td { font-weight: 600; padding-top: .8em; text-align: left; } tr:target td { background: var(--mark); }
td.prose { white-space: normal; overflow-wrap: anywhere; min-width: 16em; max-width: 40em; text-align: left; }
td.yes { color: #009e73; font-weight: 600; } td.no { color: #d55e00; font-weight: 600; }
.bar { display: flex; height: .8em; width: 12em; } .bar i { display: block; height: 100%; }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
input { font: inherit; padding: .2em .5em; margin-bottom: .5em; width: 20em; max-width: 100%; }
"""
"""Style of every page: light and dark; wide tables scroll. Classes: soft, note, sort, prose, yes, no, bar, key."""

SORT_AND_FIND = """
for (const table of document.querySelectorAll("table.sort")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const up = head.dataset.up = head.dataset.up === "1" ? "0" : "1";
    const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
    const numeric = rows.every(([k]) => k === "" || !isNaN(k));
    rows.sort(([a], [b]) => (up === "1" ? 1 : -1) * (numeric ? a - b : a.localeCompare(b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}
const box = document.querySelector("#find");
if (box) box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const row of document.querySelector("#rows").tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
"""
"""Script: a click on a heading of a table of class `sort` sorts it; the input #find filters the rows of table #rows."""


def page(title: str, body: Iterable[str], script: str = "") -> str:
    """The HTML document: `title` as its heading, then the elements of `body`, which are HTML already."""
    end = f"<script>{script}</script>\n" if script else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(body)
        + f"\n{end}</body></html>\n"
    )


def heading(text: str, level: int = 2, element_id: str = "") -> str:
    """A heading; `element_id` makes it the target of a link."""
    name = f' id="{html.escape(element_id)}"' if element_id else ""
    return f"<h{level}{name}>{html.escape(text)}</h{level}>"


def paragraph(text: str, css: str = "") -> str:
    """A paragraph of escaped text."""
    kind = f' class="{css}"' if css else ""
    return f"<p{kind}>{html.escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list of escaped texts."""
    return "<ul>\n" + "\n".join(f"<li>{html.escape(text)}</li>" for text in texts) + "\n</ul>"


def captioned(svg: str, caption: str) -> str:
    """A figure with its caption; `svg` is what `figure.svg` gives."""
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def fill_markers(markdown: str, name: str, text: str, where: str) -> str:
    """The Markdown with `text` in place of what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

    Raises `DataError`, which names the file `where`, unless each marker occurs once and in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if markdown.count(begin) != 1 or markdown.count(end) != 1 or markdown.index(begin) > markdown.index(end):
        raise DataError(f"{where} does not have one {begin} with one {end} after it; put each on a line of its own")
    return f"{markdown.partition(begin)[0]}{begin}\n{text.strip()}\n{end}{markdown.partition(end)[2]}"
