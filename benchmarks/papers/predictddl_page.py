"""The figures of `predictddl_gpus` as Markdown, for benchmarks/results/predictddl.md and docs/predictddl.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TARGET = 0.12
"""Mean error on timm rows of networks held out that the project set itself beforehand."""


def page(results: Mapping[str, Any]) -> str:
    """The whole file of results."""
    return (
        f"# PredictDDL on published GPU steps\n\nMade by `{results['command']}`, {results['date']}.\n\n{block(results)}"
    )


def block(results: Mapping[str, Any]) -> str:
    """Rows, tables and verdicts; every word that judges follows from a number beside it."""
    lines = [
        f"{results['rows']} rows of {results['networks']} networks in {results['families']} families; "
        f"{results['folds']} folds, {results['seeds']} seeds of them: mean over seeds (lowest to highest).",
        "",
    ]
    for by, variants in results["variants"].items():
        lines += [
            f"| held out by {by} | timm rows: mean error | median | 90th percentile | other rows: mean | median | "
            "rows inside P10-P90 |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, each) for name, each in variants.items()),
            "",
        ]
    shipped = results["variants"]["network"][next(iter(results["variants"]["network"]))]
    error = shipped["timm"]["mean"]["mean"]
    lines.append(
        f"Target: mean error on timm rows of at most {_percent(TARGET)} by network; found {_percent(error)}, "
        f"{'met' if error <= TARGET else 'missed'}."
    )
    for by, gains in results["gain"].items():
        for over, each in gains.items():
            lines.append(
                f'By {by}, the graph vector **{each["verdict"]}** against "{over}": the mean error on timm rows falls '
                f"by {100 * each['mean']:.1f} points ({100 * each['low']:.1f} to {100 * each['high']:.1f}: twice the "
                "standard error over seeds)."
            )
    scores = results["encoder"]["held_out_r2"]
    lines.append(
        f"The encoder was trained on {results['encoder']['networks']} random networks in {results['encoder']['steps']} "
        f"steps; held-out R2 of log FLOPs {scores['flops']}, of log parameters {scores['parameters']}, of log bytes "
        f"{scores['bytes']}, of shares by type {scores['shares']} (median)."
    )
    return "\n".join(lines) + "\n"


def _row(name: str, each: Mapping[str, Any]) -> str:
    cells = [each["timm"][figure] for figure in ("mean", "median", "p90")]
    cells += [each["other"][figure] for figure in ("mean", "median")]
    return f"| {name} | {' | '.join(map(_range, cells))} | {_percent(each['all']['coverage']['mean'], 0)} |"


def _range(value: Mapping[str, float]) -> str:
    return f"{_percent(value['mean'])} ({100 * value['low']:.1f}-{100 * value['high']:.1f})"


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"
