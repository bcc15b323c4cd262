"""The figures of `predictddl_gpus` as Markdown, for benchmarks/results/predictddl.md and docs/predictddl.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.wording import order
from precision_time.report.table import Table

DOCS = Path(__file__).parents[2] / "docs" / "predictddl.md"
TARGET = 0.12
"""Mean error on timm rows of networks held out that the project set itself beforehand."""
WANTED = 0.8
"""Share of rows that P10 to P90 should hold."""
CLOSE = 0.03
"""Distance from that share within which it counts as held."""
PARTS = {"timm": "timm", "other": "other rows"}


def page(results: Mapping[str, Any]) -> str:
    """The whole file of results."""
    return f"# PredictDDL on published GPU steps\n\n{block(results)}"


def block(results: Mapping[str, Any]) -> str:
    """Rows, tables and verdicts; every word that judges follows from a number beside it."""
    shipped = next(iter(results["variants"]["network"]))
    rows = {name: each["rows"] for name, each in results["variants"]["network"][shipped].items() if name != "chosen"}
    texts = [
        f"{results['rows']:,} rows ({rows['timm']:,.0f} of timm, {rows['other']:,.0f} others, of these "
        f"{rows['several GPUs']:,.0f} on several GPUs) of {results['networks']} networks in {results['families']} "
        f"families on {results['gpus']} GPU types; {results['folds']} folds, {results['seeds']} seeds of them: mean "
        "over seeds (lowest to highest).",
        *(_errors(by, variants) for by, variants in results["variants"].items()),
        _target(results["variants"]["network"][shipped]["timm"]["mean"]["mean"]),
        _gains(results["gain"]),
        *(_interval(by, variants[shipped]["all"]) for by, variants in results["variants"].items()),
        _flagged(results["variants"]["family"][shipped]),
        _encoder(results["encoder"]),
        f"{results['date']}, `{results['command']}`.",
    ]
    return "\n\n".join(texts) + "\n"


def _errors(by: str, variants: Mapping[str, Any]) -> str:
    headings = (
        f"held out by {by}", "timm: mean", "median", "P90", "signed", "NHWC: mean", "other: mean", "median",
        "several GPUs: mean", "in P10-P90",
    )  # fmt: skip
    rows = []
    for name, each in variants.items():
        timm, other, several = each["timm"], each["other"], each["several GPUs"]
        cells = [_range(timm["mean"]), _percent(timm["median"]["mean"]), _percent(timm["p90"]["mean"])]
        cells += [f"{100 * timm['signed']['mean']:+.1f} %", _percent(each["timm in NHWC"]["mean"]["mean"])]
        cells += [_range(other["mean"]), _percent(other["median"]["mean"]), _range(several["mean"])]
        rows.append((name, *cells, _percent(each["all"]["coverage"]["mean"], 0)))
    return Table(headings, rows).markdown()


def _target(error: float) -> str:
    return (
        f"Target: mean error on timm rows of at most {_percent(TARGET)} by network; found {_percent(error)}, "
        f"{'met' if error <= TARGET else 'missed'}."
    )


def _gains(gains: Mapping[str, Any]) -> str:
    """The table of what the graph vector brings, and a sentence that counts its verdicts."""
    rows, verdicts = [], []
    for by, variants in gains.items():
        for over, parts in variants.items():
            for part, figures in parts.items():
                for figure, each in figures.items():
                    word = verdict(each["low"], each["high"])
                    verdicts.append(word)
                    low, high = (f"{100 * each[end]:+.1f}" for end in ("low", "high"))
                    cells = (f"{100 * each['mean']:+.1f}", f"{low} to {high}", word)
                    rows.append((by, over, PARTS[part], figure, *cells))
    headings = ("held out by", "against", "rows of", "error", "falls by, points", "interval", "graph vector")
    counts = ", ".join(f"{verdicts.count(word)} times it {word}" for word in (HELPS, EQUAL, HARMS))
    table = Table(headings, rows, left=4).markdown()
    return (
        f"What the graph vector brings (interval: twice the standard error over seeds): {counts}. {_untrained(gains)}"
        f"\n\n{table}"
    )


def _untrained(gains: Mapping[str, Any]) -> str:
    """How much of what the vector brings on timm rows an encoder that was not trained brings too."""
    parts = []
    for by, variants in gains.items():
        if len(variants) == 2:
            over, trained = (100 * each["timm"]["mean"]["mean"] for each in variants.values())
            parts.append(f"{over - trained:.1f} of {over:.1f} points by {by}")
    return f"On timm rows an encoder that was not trained brings {', '.join(parts)} (mean)."


HELPS, EQUAL, HARMS = "helps", "makes no difference", "harms"


def verdict(low: float, high: float) -> str:
    """What an interval of the gain says of the graph vector."""
    return HELPS if low > 0 else HARMS if high < 0 else EQUAL


def _interval(by: str, rows: Mapping[str, Any]) -> str:
    share = rows["coverage"]["mean"]
    word = "as intended" if abs(share - WANTED) <= CLOSE else "too narrow" if share < WANTED else "too wide"
    return f"Held out by {by}, P10 to P90 holds {_percent(share, 0)} of the rows: {word}."


def _flagged(parts: Mapping[str, Any]) -> str:
    """The error of the networks that a forecast calls out of distribution beside that of all rows."""
    if "flagged" not in parts:
        return "No network of a family held out is flagged as unlike those trained on."
    flagged, everything = parts["flagged"], parts["all"]
    errors = flagged["mean"]["mean"], everything["mean"]["mean"]
    word = order(*errors, "less than", "as much as", "more than")
    return (
        f"Held out by family, {flagged['rows']:,.0f} of {everything['rows']:,.0f} rows are of a network flagged as "
        f"unlike those trained on; they err by {_percent(errors[0])}, {word} all rows ({_percent(errors[1])})."
    )


def _encoder(encoder: Mapping[str, Any]) -> str:
    scores = encoder["held_out_r2"]
    return (
        f"The encoder was trained on {encoder['networks']:,} random networks in {encoder['steps']:,} steps; held-out "
        f"R2 of log FLOPs {scores['flops']}, of log parameters {scores['parameters']}, of log bytes {scores['bytes']}, "
        f"of shares by type {scores['shares']} (median), of rooflines {scores['rooflines']} (median)."
    )


def _range(value: Mapping[str, float]) -> str:
    return f"{_percent(value['mean'])} ({100 * value['low']:.1f}-{100 * value['high']:.1f})"


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"
