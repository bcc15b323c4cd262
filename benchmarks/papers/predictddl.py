"""The study of PredictDDL: on networks it never saw run, what each of its parts is worth, and against Ernest."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.papers import predictddl_figures as figures
from benchmarks.papers.judging import FIELDS, HEADER
from benchmarks.papers.predictddl_ernest import (
    PER_JOB,
    PER_NETWORK,
    Protocol,
    own_runs,
    runs_made,
    same_runs,
    with_ernest_runs,
)
from benchmarks.papers.predictddl_held_out import (
    FEW,
    PUBLISHED_ROW,
    VARIANTS,
    Held,
    accuracy,
    accuracy_by,
    family_of_row,
    held_out,
    mean_error,
    network_of_row,
)
from benchmarks.papers.predictddl_readings import (
    TARGET_RATIO,
    amortised_table,
    readings_claims,
    readings_table,
    readings_text,
)
from benchmarks.papers.predictddl_speed import Speed, speed_claims, speed_table, timed
from benchmarks.papers.study import Claim, Context, Section, Table, Verdict
from benchmarks.papers.wording import order
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.law import LEAST_NETWORKS
from precision_time.predictors.predictddl.trainer import Row, described
from precision_time.report.errors import percent

FOLDS = 5
ERNEST_BUDGET = 10.0
_PARTS = {"without the law of work": "the law of work", "law of work, no graph vector": "the graph vector"}
"""Designs of `VARIANTS` that lack one part of the full one, and that part."""
_QUICK = ("predictddl", PUBLISHED_ROW)


def study(context: Context) -> Section:
    """PredictDDL on the real runs, and what the published rows allow."""
    text = [_on_published(context)]
    networks = {row.job.model for row in context.runs}
    if len(networks) < 2 * LEAST_NETWORKS:
        text.append(f"The real runs have {len(networks)} networks, too few to leave some out.")
        return Section("predictddl", "PredictDDL", tuple(text))
    rows = described(context.runs)
    folds = 2 if context.quick else FOLDS
    designs: dict[str, list[Held]] = {}
    wanted = {name: design for name, design in VARIANTS.items() if not context.quick or name in _QUICK}
    for number, (name, design) in enumerate(wanted.items()):
        design = dataclasses.replace(design, seed=context.seed, settings=FEW[:3] if context.quick else design.settings)
        designs[name] = held_out(rows, design, folds, network_of_row, context.seed)
        context.progress("PredictDDL: designs on unseen networks", number + 1, len(wanted))
    held = designs["predictddl"]
    families = [] if context.quick else _on_unseen_families(context, rows)
    bill = float(np.mean([sum(r.measured.cost_s for r in rows) * (folds - 1) / folds]))
    protocols = [
        same_runs(held, folds, context.seed),
        same_runs(held, folds, context.seed, relative=True),
        own_runs("per network", held, PER_NETWORK, bill, ERNEST_BUDGET),
        own_runs("per job", held, PER_JOB, bill, ERNEST_BUDGET),
    ]
    both = [with_ernest_runs(protocols[at], held, by, ERNEST_BUDGET) for at, by in ((2, PER_NETWORK), (3, PER_JOB))]
    ernest_runs: dict[str, list[MeasuredJob]] = {}
    for run in runs_made(held, PER_NETWORK, ERNEST_BUDGET):
        ernest_runs.setdefault(f"{run.job.model} on {run.dataset}", []).append(run)
    speed = timed(
        rows, ernest_runs, context.quick, lambda done, of: context.progress("PredictDDL: first answers", done, of)
    )
    tables = [
        _accuracy_table(held, families),
        _design_table(designs),
        _network_table(protocols),
        readings_table(protocols, both),
        amortised_table(protocols),
        speed_table(speed),
    ]
    return Section(
        "predictddl",
        "PredictDDL",
        (*_text(held, designs, protocols, both), *text),
        _claims(protocols, both, speed, designs),
        tuple(tables),
        (
            figures.scatter(held),
            figures.networks([protocols[0], *protocols[2:]]),
            figures.confidence(held),
            figures.ablations(designs),
        ),
        verdicts=tuple(
            _verdict(name, designs[way], protocols, speed)
            for name, way in (("predictddl", "predictddl"), ("predictddl as published", PUBLISHED_ROW))
            if way in designs
        ),
        data=_data(designs, held, families, [*protocols, *both], speed),
    )


def _on_unseen_families(context: Context, rows: Sequence[Row]) -> list[Held]:
    few = dataclasses.replace(VARIANTS["predictddl"], settings=FEW[:2], seed=context.seed)
    return held_out(
        rows,
        few,
        len(rows),
        family_of_row,
        context.seed,
        lambda done, of: context.progress("PredictDDL: unseen families", done, of),
    )


def _on_published(context: Context) -> str:
    models: dict[str, set[str]] = {}
    for row in context.published:
        models.setdefault(row.dataset, set()).add(row.job.model)
    enough = sorted(name for name, names in models.items() if len(names) > LEAST_NETWORKS)
    if not models:
        return "There are no published rows at hand."
    most = max(models, key=lambda name: len(models[name]))
    return (
        f"The published rows have {len(models)} dataset types, {most} with the most networks ({len(models[most])}). "
        f"One predictor is trained for each type and needs {LEAST_NETWORKS} networks beside the one held out, so "
        + (f"only {', '.join(enough)} could be judged there." if enough else "none of them can be judged there.")
    )


def _cells(name: str, held: Sequence[Held]) -> tuple[str, ...]:
    return (name, *accuracy(held).cells(FIELDS))


def _accuracy_table(held: Sequence[Held], families: Sequence[Held]) -> Table:
    rows = [_cells("all", held)]
    keys: dict[str, Callable[[Held], str]] = {
        "": lambda h: h.row.measured.precision,
        "data ": lambda h: h.row.measured.dataset,
        "workers ": lambda h: str(h.row.facts.ranks),
    }
    for prefix, key in keys.items():
        rows += [(f"{prefix}{name}", *statistics.cells(FIELDS)) for name, statistics in accuracy_by(held, key).items()]
    if strange := [h for h in held if h.strange]:
        rows.append(_cells("flagged as out of distribution", strange))
    if families:
        rows.append(_cells("all, whole families unseen", families))
    return Table("PredictDDL on unseen networks (last row: unseen families)", ("rows of", *HEADER), tuple(rows))


def _design_table(designs: Mapping[str, Sequence[Held]]) -> Table:
    rows = [(*_cells(name, held), _chosen(held)) for name, held in designs.items()]
    header = ("design", *HEADER, "regressor mostly chosen")
    return Table("Designs and ablations on the same unseen networks", header, tuple(rows))


def _network_table(protocols: Sequence[Protocol]) -> Table:
    by = [protocol.by_network() for protocol in protocols]
    rows = []
    for name, (ernest, predictddl) in sorted(by[0].items(), key=lambda pair: pair[1][1]):
        others = [percent(each[name][0]) if name in each else "" for each in by]
        rows.append((name, percent(predictddl), *others, f"{ernest / predictddl:.2f}"))
    header = ("network", "PredictDDL", *(f"Ernest, {p.name}" for p in protocols), "ratio, same runs")
    return Table("Mean error of every unseen network", header, tuple(rows))


def _text(
    held: Sequence[Held], designs: Mapping[str, Sequence[Held]], protocols: Sequence[Protocol], both: Sequence[Protocol]
) -> tuple[str, ...]:
    worst = sorted(
        accuracy_by(held, lambda h: h.row.measured.job.model).items(), key=lambda pair: -(pair[1].mape or 0.0)
    )[:4]
    spread = [h.row.measured.log_spread for h in held if h.row.measured.log_spread is not None]
    noise = f" Repeats of a row differ by {100 * float(np.median(spread)):.0f} % themselves." if spread else ""
    full, published = mean_error(designs["predictddl"]), mean_error(designs[PUBLISHED_ROW])
    return (
        "One predictor for each dataset type is trained on some networks and asked about others. The encoder was "
        "pre-trained on random graphs and the zoo's, never on a time. The regressor is chosen inside the training "
        "networks; folds keep every network whole.",
        f"On unseen networks the mean error is {percent(full)}, the median {percent(accuracy(held).median_ape)}; the "
        f"design as published, with precision among its columns, is at {percent(published)}. The law of work beneath "
        "the regressor is ours, not PredictDDL's; its recurrent term, median intercept and penalty were chosen with "
        f"errors on these rows in view. Above it {_chosen(held)} is mostly chosen."
        + "".join(_without(name, part, designs) for name, part in _PARTS.items())
        + noise,
        "Worst are " + ", ".join(f"{name} ({percent(a.signed_mean, 0, '+')})" for name, a in worst) + ".",
        _on_confidence(held),
        readings_text(protocols, both),
    )


def _without(name: str, part: str, designs: Mapping[str, Sequence[Held]]) -> str:
    """What the error is without a part of the design, and whether the part lowers it."""
    if name not in designs:
        return ""
    full, poorer = mean_error(designs["predictddl"]), mean_error(designs[name])
    does = order(full, poorer, "lowers it", "neither lowers nor raises it", "raises it")
    return f" Without {part} the error is {percent(poorer)}: the part {does}."


def _on_confidence(held: Sequence[Held]) -> str:
    """Whether the flag and the confidence say anything about errors."""
    sizes = np.array([abs(h.error) for h in held])
    strange = np.array([h.strange for h in held])
    order = [np.argsort(np.argsort(values)) for values in ([h.confidence for h in held], sizes)]
    rank = float(np.corrcoef(order[0], order[1])[0, 1])
    flagged = (
        f"Rows of flagged networks are off by {percent(float(sizes[strange].mean()))}, the others by "
        f"{percent(float(sizes[~strange].mean()))}."
        if strange.any()
        else "No network was flagged."
    )
    conclusion = (
        "so a low confidence does tell of larger errors"
        if rank < -0.2
        else "so here it tells next to nothing of errors"
    )
    return f"{flagged} Confidence and size of error have a rank correlation of {rank:+.2f}, {conclusion}."


def _claims(
    protocols: Sequence[Protocol], both: Sequence[Protocol], speed: Speed, designs: Mapping[str, Sequence[Held]]
) -> tuple[Claim, ...]:
    same = protocols[0]
    ratios = list(same.ratios().values())
    first, *others = readings_claims(protocols, both)
    return (
        first,
        Claim(
            "the same for the design as published (its target log(seconds), with precision columns)",
            f"at least {TARGET_RATIO:g}",
            f"{same.ernest_mape / mean_error(designs[PUBLISHED_ROW]):.2f} ({percent(same.ernest_mape)} / "
            f"{percent(mean_error(designs[PUBLISHED_ROW]))})",
            same.ernest_mape / mean_error(designs[PUBLISHED_ROW]) >= TARGET_RATIO,
        ),
        *others,
        Claim(
            "Ernest's mean error over PredictDDL's, network by network, same runs",
            "up to 9.8",
            f"mean {np.mean(ratios):.2f}, largest {max(ratios):.1f}",
            None,
        ),
        *speed_claims(speed),
    )


def _chosen(held: Sequence[Held]) -> str:
    return Counter(h.setting for h in held).most_common(1)[0][0]


def _data(
    designs: Mapping[str, Sequence[Held]],
    held: Sequence[Held],
    families: Sequence[Held],
    protocols: Sequence[Protocol],
    speed: Speed,
) -> dict[str, Any]:
    return {
        "designs": {name: accuracy(a).to_dict() for name, a in designs.items()},
        **{
            f"by_{name}": {
                group: a.to_dict()
                for group, a in accuracy_by(held, lambda h, name=name: getattr(h.row.measured, name)).items()  # type: ignore[misc]
            }
            for name in ("precision", "dataset", "family")
        },
        "unseen_families": accuracy(families).to_dict() if families else None,
        "protocols": {p.name: p.to_dict() for p in protocols},
        "speed": speed.to_dict(),
        "rows": [
            {
                "id": h.row.measured.id,
                "measured_s": h.row.measured.seconds,
                "predicted_s": h.seconds,
                "confidence": h.confidence,
                "strange": h.strange,
            }
            for h in held
        ],
    }


def _verdict(name: str, held: Sequence[Held], protocols: Sequence[Protocol], speed: Speed) -> Verdict:
    precisions = sorted({each.row.measured.precision for each in held})
    errors = {
        part: accuracy([each for each in held if part in ("all", each.row.measured.precision)])
        for part in ("all", *precisions)
    }
    return Verdict(name, "real runs", "network", errors, protocols[0].predictddl_s, speed.call.median)
