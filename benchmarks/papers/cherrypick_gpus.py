"""CherryPick over GPU type x count x precision x batch: published steps and a simulated grid in dollars; real runs.

The settings were chosen on the analytics jobs alone and are not touched here. Prices are the list prices of whole
instances of one provider, so one GPU of a type that is only rented by the eight costs as much as eight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.papers.cherrypick_searches import (
    HEADER,
    LADDER,
    SEEDS,
    Gaps,
    Gathered,
    all_ways,
    joined,
    per_cent,
    rows_of,
    seeds_of,
)
from benchmarks.papers.study import Claim, Context
from benchmarks.papers.training_tables import FEWEST_WAYS, measured_configurations, published_configurations
from benchmarks.papers.wording import unless
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.predictors.cherrypick import IMPROVED
from precision_time.predictors.training_grid import CLOUD, ENERGY, predicted_configurations

SETTINGS = (LADDER[0], LADDER[-1])
GOAL = 0.05
SHARES = (None, 0.25, 0.5)
"""Deadlines on published steps, by the share of the configurations that keep them; None: no deadline."""
SIMULATED = {
    "resnet50 on ImageNet": Job("resnet50", run=Run(epochs=1, dataset="imagenet")),
    "bert-large on 100,000 sequences": Job("bert-large", run=Run(samples=100_000)),
}


def published(context: Context, report: Gathered) -> None:
    """Measured steps that were published, in dollars."""
    tables = published_configurations(context.published)
    if not tables:
        report.text.append(f"No published rows give {FEWEST_WAYS} configurations of one model, so none were searched.")
        return
    if context.quick:
        tables = dict(list(tables.items())[:2])
    lines: list[tuple[str, ...]] = []
    models: list[tuple[str, ...]] = []
    done, steps = 0, len(SETTINGS) * len(SHARES) * len(tables)
    sizes = [len(table) for table in tables.values()]
    for label, _, setting in SETTINGS:
        name = label.partition(":")[0]
        free: dict[str, Gaps] = {}
        for share in SHARES:
            by_way: dict[str, list[Gaps]] = {}
            for model, table in tables.items():
                context.progress("CherryPick: published GPUs", done, steps)
                done += 1
                times = [table.known()(i) for i in range(len(table))]
                limit = None if share is None else float(np.quantile(times, share))
                ways = all_ways(table, setting, seeds_of(context), limit, context.seed * SEEDS)
                for way, judged in ways.items():
                    by_way.setdefault(way, []).append(judged)
                if share is None:
                    free[model] = ways["CherryPick"]
            limit_text = "no deadline" if share is None else f"a deadline that {share:.0%} keep"
            ways = {way: joined(parts) for way, parts in by_way.items()}
            lines += [(name, *line) for line in rows_of(f"{len(tables)} models, {limit_text}", sum(sizes), ways)]
            _claim(
                report,
                f"CherryPick {name}, published GPU configurations in dollars, {limit_text}",
                by_way["CherryPick"],
            )
        models += [(name, *rows_of(model, len(tables[model]), {"CherryPick": j})[0]) for model, j in free.items()]
    context.progress("CherryPick: published GPUs", steps, steps)
    report.text.append(
        f"Published steps give {min(sizes)} to {max(sizes)} measured configurations (GPU type x count x precision x "
        f"batch) of each of {len(tables)} models. Cost is their measured time for a million samples at the on-demand "
        f"list price of whole {CLOUD} instances with these GPUs ({_days()}): an A100 is only "
        "rented by the eight, so one of them costs as much as all. Most steps were measured on NVIDIA's own boxes, "
        "which run the same GPUs a little faster or slower than a cloud does. Exhaustive search costs 100 % and has "
        "no gap. The settings come from the analytics jobs and were not changed for these."
    )
    report.table("published", "Published GPU configurations, in dollars", ("setting", *HEADER), lines)
    report.table(
        "published_models",
        "The same by model, without a deadline",
        ("setting", *HEADER),
        models,
    )


def _days() -> str:
    """When the prices were asked."""
    known = [p for p in default_catalog().prices.values() if p.provider == CLOUD]
    days = sorted(p.as_of for p in known if p.trust == "looked up")
    return f"prices of {days[0]} to {days[-1]}, which change"


def _claim(report: Gathered, what: str, parts: Sequence[Gaps]) -> None:
    judged = joined(parts)
    medians = [float(np.median(part.gap)) for part in parts]
    median, within = float(np.median(judged.gap)), sum(m <= GOAL for m in medians)
    report.claims.append(
        Claim(
            f"{what}: median gap to the best cost",
            "within 5 %",
            f"{100 * median:.1f} % (P90 {per_cent(judged.gap, 0.9)} %; {within} of {len(parts)} tables within "
            f"5 %; search cost {100 * judged.cost.mean():.1f} % of exhaustive)",
            median <= GOAL,
            unless(
                within == len(parts), f"{len(parts) - within} tables beyond 5 %, after {judged.runs.mean():.1f} runs"
            ),
        )
    )


def simulated(context: Context, report: Gathered) -> None:
    """The full grid, with times that are predicted, in dollars and in joules."""
    sentences = []
    done, steps = 0, 2 * len(SIMULATED)
    for price, settings, what in ((CLOUD, SETTINGS, "dollars"), (ENERGY, SETTINGS[-1:], "energy")):
        lines: list[tuple[str, ...]] = []
        improved = []
        for at, (name, job) in enumerate(SIMULATED.items()):
            context.progress("CherryPick: simulated GPUs", done, steps)
            done += 1
            if context.quick and at:
                continue
            table = (
                predicted_configurations(job, gpus=("v100-16gb-sxm", "t4"), counts=(1, 4), price=price)
                if context.quick
                else predicted_configurations(job, price=price)
            )
            times = [table.known()(i) for i in range(len(table))]
            for share in (0.1, 0.4):
                limit = float(np.quantile(times, share))
                for label, _, setting in settings:
                    ways = all_ways(table, setting, seeds_of(context), limit, context.seed * SEEDS)
                    rows = rows_of(f"{name}, {limit:.3g} s", len(table), ways)
                    lines += [(label.partition(":")[0], *row) for row in rows]
                    if setting is IMPROVED:
                        improved.append(ways["CherryPick"])
        gaps = joined(improved)
        sentences.append(
            f"in {what} within {per_cent(gaps.gap, 0.5)} % in the median and {per_cent(gaps.gap, 0.9)} % in the "
            f"ninth decile, for {100 * gaps.cost.mean():.1f} % of the cost of exhaustive search"
        )
        if price == CLOUD:
            _claim(report, "CherryPick improved, simulated GPU grid in dollars, two deadlines", improved)
        report.table(
            "simulated" if price == CLOUD else "simulated_energy",
            f"A simulated world of GPUs, with a deadline, cost in {what}",
            ("setting", *HEADER),
            lines,
        )
    context.progress("CherryPick: simulated GPUs", steps, steps)
    report.text.append(
        "The full grid of GPU type x count x precision x batch is a simulated world: its times are what this package "
        "predicts, because no published table holds such a grid. Deadlines are kept by a tenth and by four tenths of "
        f"the configurations. The improved setting finds the best {sentences[0]}; {sentences[1]} (rated power). This "
        "shows how the search fares on such a landscape, not how fast a GPU is."
    )


def real(context: Context, report: Gathered) -> None:
    """Workers x batch x precision on the machine at hand."""
    tables = measured_configurations(context.runs)
    if not tables:
        report.text.append(
            "There are no real runs with enough ways to train one network; `precision-time runs` makes them."
        )
        return
    if context.quick:
        tables = dict(list(tables.items())[:2])
    lines: list[tuple[str, ...]] = []
    made: list[float] = []
    for label, _, setting in SETTINGS:
        by_way: dict[str, list[Gaps]] = {}
        for at, table in enumerate(tables.values()):
            context.progress("CherryPick: real runs", at, len(tables))
            for way, judged in all_ways(table, setting, min(5, seeds_of(context)), first=context.seed * SEEDS).items():
                by_way.setdefault(way, []).append(judged)
        size = max(len(t) for t in tables.values())
        ways = {way: joined(parts) for way, parts in by_way.items()}
        made.append(float(ways["CherryPick"].runs.mean()))
        lines += [(label.partition(":")[0], *line) for line in rows_of(f"{len(tables)} networks", size, ways)]
    context.progress("CherryPick: real runs", len(tables), len(tables))
    report.text.append(
        f"The real runs give {size} ways (workers x batch x precision) to train each of {len(tables)} networks on one "
        f"data set, of which the searches measure {min(made):.1f} to {max(made):.1f}, so there is little to save; it "
        "is here because its times are measured. Price: workers. Some differences between ways are within their noise."
    )
    report.table("real", "Real runs: workers x batch x precision", ("setting", *HEADER), lines)
