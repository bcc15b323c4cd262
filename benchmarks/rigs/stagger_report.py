"""The report of benchmarks/rigs/stagger.py: a table, the errors, and a picture of curves with measured points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAPE_GOAL, REGRET_GOAL = 0.08, 0.03
INK, COLOURS = "#30343b", ("#2563a8", "#c2541c")


def errors(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """predicted / median measured - 1 of every point."""
    return [row["predicted_s"] / statistics.median(row["measured_s"]) - 1.0 for row in rows]


def grid_rows(pair: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in pair["rows"] if ":" in row["name"]]


def row_named(pair: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(row for row in pair["rows"] if row["name"] == name)


def apparent_regret(pair: Mapping[str, Any]) -> float:
    """Measured makespan at the chosen offset over the least measured anywhere, minus 1.

    The least of many noisy figures is too low, so this is too high.
    """
    least = min(statistics.median(row["measured_s"]) for row in pair["rows"])
    return float(statistics.median(row_named(pair, "best")["measured_s"]) / least - 1.0)


def regret(pair: Mapping[str, Any]) -> tuple[float, float]:
    """The same without that bias, from runs of both made for this, in turns; and its standard error."""
    paired = pair.get("paired_runs")
    if not paired:
        return apparent_regret(pair), math.nan
    ratios: list[float] = [chosen / rival for chosen, rival in zip(paired["chosen_s"], paired["rival_s"], strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    return statistics.fmean(ratios) - 1.0, error


def constant_errors(pair: Mapping[str, Any]) -> list[float]:
    """The same errors of a naive baseline: the makespan measured together, taken as constant over the offset.

    The start together is left out, because it is what the baseline knows.
    """
    together = statistics.median(row_named(pair, "01:0")["measured_s"])
    rows = [row for row in grid_rows(pair) if row["name"] != "01:0"]
    return [together / statistics.median(row["measured_s"]) - 1.0 for row in rows]


def gain_over(pair: Mapping[str, Any], name: str) -> float:
    """Share of the makespan of another start (01:0: together, serial) that the chosen start saves, as measured."""
    of = {row: statistics.median(row_named(pair, row)["measured_s"]) for row in ("best", name)}
    return float(1.0 - of["best"] / of[name])


def baselines(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The model beside a constant, and the chosen start beside the two that need no model; verdicts by the numbers."""
    lines = [
        "## Naive baselines",
        "",
        "Constant: the makespan measured together is taken for every offset; the start together is left out of both",
        "errors. Saved: share of the measured makespan of starting together, and of one after the other, that the",
        "chosen start saves.",
        "",
        "| pair | model: mean error | largest | constant: mean error | largest | nearer | saved over together "
        "| saved over one after the other |",
        "|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    ours_all: list[float] = []
    naive_all: list[float] = []
    for pair in pairs:
        ours = [
            abs(error)
            for row, error in zip(grid_rows(pair), errors(grid_rows(pair)), strict=True)
            if row["name"] != "01:0"
        ]
        naive = [abs(error) for error in constant_errors(pair)]
        ours_all, naive_all = ours_all + ours, naive_all + naive
        lines.append(
            f"| {pair['pair']} | {_mean_and_largest(ours)} | {_mean_and_largest(naive)} | {_nearer(ours, naive)} | "
            f"{gain_over(pair, '01:0'):+.1%} | {gain_over(pair, 'serial'):+.1%} |"
        )
    lines.append(
        f"| all | {_mean_and_largest(ours_all)} | {_mean_and_largest(naive_all)} | {_nearer(ours_all, naive_all)} | "
        f"{statistics.fmean(gain_over(pair, '01:0') for pair in pairs):+.1%} | "
        f"{statistics.fmean(gain_over(pair, 'serial') for pair in pairs):+.1%} |"
    )
    return lines


def _mean_and_largest(sizes: Sequence[float]) -> str:
    return f"{statistics.fmean(sizes):.1%} | {max(sizes):.1%}"


def _nearer(ours: Sequence[float], naive: Sequence[float]) -> str:
    return "model" if statistics.fmean(ours) < statistics.fmean(naive) else "constant"


def noise(pair: Mapping[str, Any]) -> float:
    """How much repeats of one point differ: median of (largest - smallest) / median."""
    rows = [row["measured_s"] for row in pair["rows"]]
    return float(statistics.median((max(row) - min(row)) / statistics.median(row) for row in rows))


def text(content: Mapping[str, Any]) -> str:
    pairs = content["pairs"]
    every = [error for pair in pairs for error in errors(grid_rows(pair))]
    size = [abs(error) for error in every]
    runs = sum(len(row["measured_s"]) for pair in pairs for row in pair["rows"])
    runs += sum(2 * len(pair["paired_runs"]["chosen_s"]) for pair in pairs if pair.get("paired_runs"))
    lines = [
        "# Staggered jobs: predicted against really run",
        "",
        f"{len(every)} points of {len(pairs)} pairs, {runs} runs: mean error of makespans {statistics.fmean(size):.1%} "
        f"(goal {MAPE_GOAL:.0%}), largest {max(size):.1%}, signed {statistics.fmean(every):+.1%}.",
        f"Real DataLoader training on {content['samples']:,} JPEG files of {content['bytes_per_sample'] / 1e3:.0f} kB, "
        f"read over HTTP from nginx limited to {content['requests_per_s']} requests a second, through a file cache.",
        "Predictions come from the calibration windows alone. Measured is the median of the repeats.",
        "",
        "| pair | points | mean error | largest | signed | repeats differ | chosen: first, offset | predicted | "
        "measured | regret | start together | after an epoch | one after the other | calibration |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_pair_line(pair) for pair in pairs]
    lines += [
        "",
        f"Regret (goal {REGRET_GOAL:.0%}): measured makespan at the chosen start over that of the start that was least",
        f"in the grid, {_turns(pairs)} new runs of each in turns, with its standard error; in brackets, over",
        "the least of the grid itself, which is too low because it is the least of so many noisy ones.",
        f"A curve pair of 100 points with its bands, choice and alternatives took "
        f"{max(pair['model_s'] for pair in pairs):.2f} s at most; the curve alone is in benchmarks/results/ingest.md.",
        "",
        "![Makespan over the offset: predicted curves, measured points](stagger.svg)",
        "",
        *baselines(pairs),
        "",
        "## Every point",
        "",
        *_points(pairs),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    lines += ["", f"{content['date']}, {content['machine']}; {versions}: `python -m benchmarks.rigs.stagger`."]
    return "\n".join(lines) + "\n"


def _pair_line(pair: Mapping[str, Any]) -> str:
    drawn = errors(grid_rows(pair))
    best = row_named(pair, "best")
    offsets = best["offsets_s"]
    chosen = "both at once" if not any(offsets) else f"{'ab'[offsets.index(0.0)]}, {max(offsets):.1f} s"
    waits = [statistics.median(row_named(pair, name)["measured_s"]) for name in ("01:1", "10:1") if _has(pair, name)]
    at_once = statistics.median(row_named(pair, "01:0")["measured_s"])
    cells = [
        pair["pair"],
        str(len(drawn)),
        f"{statistics.fmean(map(abs, drawn)):.1%}",
        f"{max(map(abs, drawn)):.1%}",
        f"{statistics.fmean(drawn):+.1%}",
        f"{noise(pair):.1%}",
        chosen,
        f"{best['predicted_s']:.1f} s",
        f"{statistics.median(best['measured_s']):.1f} s",
        f"{regret(pair)[0]:+.1%} ± {regret(pair)[1]:.1%} ({apparent_regret(pair):.1%})",
        f"{at_once:.1f} s",
        f"{min(waits):.1f} s" if waits else "-",
        f"{statistics.median(row_named(pair, 'serial')['measured_s']):.1f} s",
        f"{pair['staggering']['calibration']['cost_s']:.0f} s, "
        f"{pair['staggering']['calibration_share_of_makespan']:.0%} of a makespan",
    ]
    return f"| {' | '.join(cells)} |"


def _points(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| pair | first | offset, cold epochs | offset | predicted | measured | error | runs |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for pair in pairs:
        for row, error in zip(pair["rows"], errors(pair["rows"]), strict=True):
            order, _, share = row["name"].partition(":")
            cells = [
                pair["pair"],
                "ab"[int(order[0])] if share else row["name"],
                share or "-",
                f"{max(row['offsets_s']):.2f} s",
                f"{row['predicted_s']:.2f} s",
                f"{statistics.median(row['measured_s']):.2f} s",
                f"{error:+.1%}",
                ", ".join(f"{s:.2f}" for s in row["measured_s"]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _turns(pairs: Sequence[Mapping[str, Any]]) -> str:
    counts = sorted({len(pair["paired_runs"]["chosen_s"]) for pair in pairs if pair.get("paired_runs")})
    return " to ".join(str(count) for count in (counts if len(counts) < 2 else (counts[0], counts[-1]))) or "no"


def _has(pair: Mapping[str, Any], name: str) -> bool:
    return any(row["name"] == name for row in pair["rows"])


def picture(content: Mapping[str, Any], path: Path) -> None:
    """One panel a pair: both orders' curves with their bands, every measured run as a dot, the choice as a line."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "precision-time", "font.size": 9, "text.color": INK})
    from matplotlib import pyplot

    pairs = content["pairs"]
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns, 3.1 * rows), squeeze=False, layout="constrained"
    )
    for number, axis in enumerate(axes.flat):
        if number >= len(pairs):
            axis.set_axis_off()
            continue
        pair = pairs[number]
        for at, curve in enumerate(pair["staggering"]["curves"]):
            colour = COLOURS[at]
            axis.fill_between(curve["offsets_s"], curve["low_s"], curve["high_s"], color=colour, alpha=0.15, lw=0)
            axis.plot(curve["offsets_s"], curve["makespan_s"], color=colour, lw=1.4, label=f"{curve['first']} first")
            order = ("01", "10")[at]
            for row in grid_rows(pair):
                if row["name"].startswith(order) or (at and row["name"] == "01:0"):
                    x = [max(row["offsets_s"])] * len(row["measured_s"])
                    axis.plot(x, row["measured_s"], "o", ms=3, color=colour, alpha=0.8)
        best = max(row_named(pair, "best")["offsets_s"])
        axis.axvline(best, color=INK, lw=0.8, ls=":")
        axis.set_title(pair["pair"], fontsize=9)
        axis.set_xlabel("offset of the second job, s")
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    for axis in axes[:, 0]:
        axis.set_ylabel("makespan, s")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
