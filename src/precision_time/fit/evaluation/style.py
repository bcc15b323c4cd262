"""How our HTML pages look: light and dark, wide tables that scroll, nothing from the network."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #d8d8d8; --soft: #666; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --line: #3a3d44; --soft: #a0a0a0; --mark: #4a4220; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 74em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2.2em; }
p.soft, caption, .soft { color: var(--soft); font-size: .92em; }
p.note { border-left: 4px solid #d55e00; padding-left: .8em; }
.wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; fill: var(--ink); }
svg a:hover { stroke: var(--ink); stroke-width: 2; }
table { border-collapse: collapse; margin-bottom: 1.2em; font-variant-numeric: tabular-nums; font-size: .92em; }
th, td { padding: .2em .7em; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; } td.name { overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: var(--paper); }
table.sort th { cursor: pointer; } table.sort th::after { content: " \\2195"; color: var(--soft); font-size: .8em; }
tr.group td { font-weight: 600; padding-top: .8em; } tr:target td { background: var(--mark); }
td.id { white-space: normal; overflow-wrap: anywhere; min-width: 16em; max-width: 30em; }
td.terms { white-space: normal; min-width: 20em; text-align: left; }
.bar { display: flex; height: .8em; width: 12em; } .bar i { display: block; height: 100%; }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
input { font: inherit; padding: .2em .5em; margin-bottom: .5em; width: 20em; max-width: 100%; }
"""
