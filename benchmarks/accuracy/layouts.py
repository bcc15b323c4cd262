"""Errors of large-model steps in any layout, by group of rows and by how the rows were held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.accuracy import layout_order
from benchmarks.accuracy.layout_order import order
from precision_time.estimate.interval import Z90
from precision_time.fit.folds import TRUSTED
from precision_time.fit.layouts import FACTORS, HELD_OUT_BY_MODEL, Judgement
from precision_time.fit.spreads import by_kind
from precision_time.measurements.row import Row
from precision_time.report.errors import ErrorStatistics, labels, percent
from precision_time.report.table import Table

GROUPS: tuple[tuple[str, float | None, Callable[[Row], bool]], ...] = (
    ("MPT, FSDP, A100, 8-512 GPUs", 0.08, lambda r: r.framework == "llm-foundry" and r.gpu.startswith("a100")),
    ("MPT, FSDP, H100, 8-512 GPUs", None, lambda r: r.framework == "llm-foundry" and r.gpu.startswith("h100")),
    ("GPT, tp x pp x dp, A100, 8-512 GPUs", 0.10, lambda r: r.framework == "megatron-deepspeed" and r.gpus >= 8),
    ("GPT, tp x pp x dp, A100, 2 and 4 GPUs", None, lambda r: r.framework == "megatron-deepspeed" and r.gpus < 8),
    ("Megatron tables", 0.12, lambda r: r.framework == "megatron"),
    ("InternEvo, ZeRO-1 and tp, A100 on RoCE, 8-64 GPUs", None, lambda r: r.framework == "internevo"),
    ("torchtitan, FSDP and tp, H100 and MI300X, 8-128 GPUs", None, lambda r: r.framework == "torchtitan"),
    ("fp8", 0.15, lambda r: r.precision.startswith("fp8")),
    ("mixtures of experts", None, lambda r: bool(r.job and r.job.model_config.get("experts"))),
)
"""Rows that are judged together: title, goal for the mean error held out by model, which rows."""
_TRUSTED, _ALL = ", ".join(TRUSTED), "all"
_FIELDS = ("n", "mape", "median_ape", "p90_ape", "coverage_p10_p90")


def errors_of(judged: Judgement) -> dict[str, Any]:
    """Errors by group of rows and by run, as benchmarks/results/large-models.json holds them.

    A group is listed again with its rows of trust C where it has any. Intervals are judged in every run by spreads from
    the errors of other models.
    """
    groups: list[dict[str, Any]] = []
    rows, spreads = [case.row for case in judged.cases], judged.spreads
    everything: tuple[tuple[str, float | None, Callable[[Row], bool]], ...] = ((_ALL, None, lambda row: True), *GROUPS)
    for title, goal, belongs in everything:
        inside = np.array([belongs(row) for row in rows])
        for trust, chosen in ((_TRUSTED, inside & judged.trusted), (_ALL, inside)):
            if not chosen.any() or (trust == _ALL and chosen.sum() == groups[-1]["n"]):
                continue
            runs = {}
            for name, logs in judged.runs.items():
                errors = (logs - judged.measured)[chosen]
                covered = np.abs(errors) <= Z90 * spreads[chosen]
                statistics = ErrorStatistics.of(np.expm1(errors), covered.tolist()).to_dict()
                runs[name] = {key: value if value is None else round(value, 4) for key, value in statistics.items()}
            groups.append({"title": title, "trust": trust, "n": int(chosen.sum()), "goal": goal, "runs": runs})
    return {"judged": len(rows), "groups": groups, "new": _new(judged), "order": order(judged)}


_NEW = ("model", "GPU", "architecture", "framework", "scale")
"""What is new about a job, as `FOLDS` names it. A new model adds no spread."""


def _new(judged: Judgement) -> list[dict[str, Any]]:
    """Errors and coverage by what is new and by kind of step: at the shipped spreads, and at those of other folds."""
    found = []
    for name in _NEW:
        for kind, statistics, outside in by_kind(judged.spread(name), judged.errors(name), new=name != "model"):
            rounded = {k: v if v is None else round(v, 4) for k, v in statistics.to_dict().items()}
            found.append({"new": name, "kind": kind or _ALL, "errors": rounded, "elsewhere": round(outside, 4)})
    return found


_TEXT = """\
# Errors of large-model steps

Written by `make board`; do not edit. The shipped factors ({date}) are fitted to {rows} rows of trust A and B of
{table} in `data/published/`; {judged} rows are judged.
[benchmarks/accuracy](../accuracy/README.md#large-models) explains what misses and which choices were made with these
rows in view.

## Mean error (signed mean) of the step, by how the rows were held out

{runs}

## Held out by model

{summary}

## In P10-P90 by what is new and by kind of step

Steps in fp8, of ranks that share the layers of a replica (`divided`), and others (`whole`) have spreads of their own.
The last two columns are the rows inside with the shipped spreads, which make them at least 80 % of most kinds by
construction, and with spreads from rows of other folds alone. A model, GPU or framework counts as the root of its rows.
Launch-bound steps are all of one cluster and framework: without its rows none tells how slow its host is. By scale, the
rows of more than 64 GPUs are judged, by factors of rows on fewer.

{new}

## Order of layouts

Rows of one job on equal GPUs and samples a step, in several layouts, micro-batches or recomputations (a ladder), of one
document and of trust A and B. Pairs whose measured steps are more than 5 % apart count (goal: 92 % in the right order).
Regret: how much longer the layout with the least predicted step takes than the fastest measured one (goal: 4 % on
average).

{order}

## Fitted factors

The prior of each factor is log-normal around its usual value.

{factors}
"""


def page(parameters: Mapping[str, Any], errors: Mapping[str, Any]) -> str:
    """The page from `timing/data/layout_scales.json` and what `errors_of` gives."""
    provenance = parameters["provenance"]
    return _TEXT.format(
        date=provenance["date"],
        rows=provenance["rows"],
        table=", ".join(f"`{name}`" for name in (provenance["table"], *provenance["other_tables"])),
        judged=errors["judged"],
        runs=_runs_table(errors["groups"]),
        summary=summary(errors, with_trust_c=True),
        new=_new_table(errors["new"]),
        order=layout_order.table(errors["order"]),
        factors=_factors_table(parameters["costs"]),
    )


def _runs_table(groups: list[Mapping[str, Any]]) -> str:
    rows = []
    for group in groups:
        runs = group["runs"].values()
        cells = [f"{percent(run['mape'])} ({percent(run['signed_mean'], sign='+')})" for run in runs]
        goal = "" if group["goal"] is None else percent(group["goal"], 0)
        rows.append([group["title"], group["trust"], f"{group['n']}", *cells, goal])
    return Table(["rows", "trust", "n", *groups[0]["runs"], "goal"], rows, left=2).markdown()


def summary(errors: Mapping[str, Any], with_trust_c: bool = False) -> str:
    """Errors of each group held out by model: of trust A and B, or with the rows of trust C too."""
    rows = []
    for group in errors["groups"]:
        if not with_trust_c and (group["trust"] == _ALL or group["title"] == _ALL):
            continue
        statistics = ErrorStatistics(**group["runs"][HELD_OUT_BY_MODEL])
        name = [group["title"], group["trust"]] if with_trust_c else [group["title"]]
        rows.append([*name, *statistics.cells(_FIELDS)])
    names = ["measured", "trust"] if with_trust_c else ["measured"]
    return Table([*names, *labels(_FIELDS)], rows, left=len(names)).markdown()


def _new_table(found: list[Mapping[str, Any]]) -> str:
    fields = ("n", "mape", "median_ape", "coverage_p10_p90")
    rows = [
        [each["new"], each["kind"], *ErrorStatistics(**each["errors"]).cells(fields), percent(each["elsewhere"], 0)]
        for each in found
    ]
    return Table(["new is the", "kind", *labels(fields), "from other folds"], rows, left=2).markdown()


def _factors_table(costs: Mapping[str, Any]) -> str:
    values: dict[str, float] = {}
    for name, value in costs.items():
        if isinstance(value, Mapping):
            values |= {f"{name}.{key}": float(v) for key, v in value.items()}
        else:
            values[name] = float(value)
    rows = [[factor.name, factor.why, f"{values[factor.name]:.2f}", f"{factor.usual:g}"] for factor in FACTORS]
    return Table(["factor", "why", "fitted", "usual"], rows, left=2).markdown()
