"""Fits the published anchors: what a measured job says about similar jobs.

Reads the tables of whole steps (`TABLES`), writes `anchors/data/published.json`: their rows with what this version
predicts for them, and the standard deviations of the errors that similar jobs share (`fit.anchor_choice`). Prints what
anchors are worth, every row judged by a covariance fitted without its family.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.anchors.anchor import Anchor
from precision_time.anchors.base import COLUMNS, row_of_anchor
from precision_time.anchors.covariance import OTHER_EFFECTS, Covariance
from precision_time.anchors.posterior import Anchors
from precision_time.estimate.interval import Z90
from precision_time.estimate.spread import added_spread, base_spread
from precision_time.fit import kernel_factors
from precision_time.fit.anchor_choice import FAMILY, KNOWN, LEFT_OUT, NEW, ONE_ROW, SEEN, Choice, Evidence
from precision_time.fit.anchor_environment import BESIDE_OTHERS, environment_size, source_of
from precision_time.fit.cases import cases
from precision_time.fit.folds import HeldOut, judge
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.provenance import parameters_digest, provenance, sha256
from precision_time.fit.steps import NOVEL
from precision_time.fit.traced import read
from precision_time.measurements.repository import STEPS
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.report.errors import percent
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import shipped
from precision_time.timing.scaled import Factors

OUTPUT = Path(__file__).parent.parent / "anchors" / "data" / "published.json"
TABLES = (STEPS, Path("published") / "measurements_more.csv")
"""Tables whose data-parallel rows are the published anchors, below the data folder."""
FIELDS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row.model,
    FAMILY: NOVEL["family"],
    "gpu": NOVEL["gpu"],
    "precision": NOVEL["precision"],
}
"""What the factors on kernels may not have seen of a row."""
CONFIGURATION = OTHER_EFFECTS["length"]
LEAST_ROWS = 8
"""Families with fewer judged rows are not named as the worst."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published row: as it is predicted now, and as evidence for what jobs share."""

    held_out: HeldOut
    evidence: Evidence


def published_rows(tables: Path, progress: Callable[[str], None] = lambda text: None) -> list[Published]:
    """All rows of `TABLES` below `tables` as predicted by the shipped factors and by factors that lack what they share
    with a row (`FIELDS`)."""
    rows = [row for name in TABLES for row in read_table(tables / name).rows]
    traced = cases(rows, lambda done: progress(f"tracing {done}/{len(rows)}"))
    held_out = judge(traced, shipped(), "none")
    kernels = Steps(read(tables))
    changes = _changes(kernels, progress)
    found = []
    for each in held_out:
        usual = math.hypot(base_spread(each.kind), each.widening)
        residual = -each.log_error
        residuals, spreads = {SEEN: residual}, {SEEN: usual}
        for field in FIELDS:
            residuals[field] = residual - changes.get(each.row.id, {}).get(field, 0.0)
            spreads[field] = math.hypot(usual, added_spread(field, each.kind))
        found.append(Published(each, Evidence(each.anchor, residuals, spreads)))
    return found


def _changes(kernels: Steps, progress: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By row: for each of `FIELDS`, log(predicted without the rows that share it / predicted with all rows).

    Rows whose steps say nothing about kernels, such as those that wait for the host, have none.
    """
    usual = kernels.seconds(kernels.full)
    changes: dict[str, dict[str, float]] = {}
    for field, fold in FIELDS.items():
        seconds = kernel_factors.cross_validate(
            kernels,
            fold,
            lambda text, field=field: progress(f"without its {field}: {text}"),  # type: ignore[misc]
        ).seconds
        for row, now, before in zip(kernels.rows, seconds.tolist(), usual.tolist(), strict=True):
            if not math.isnan(now):
                changes.setdefault(row.id, {})[field] = math.log(now / before)
    return changes


def evidence_of(judged: Sequence[HeldOut], spreads: Sequence[float]) -> list[Evidence]:
    """Rows that factors fitted without their family predict; `spreads`: without anchors."""
    return [
        Evidence(each.anchor, {FAMILY: each.anchor.residual}, {FAMILY: spread})
        for each, spread in zip(judged, spreads, strict=True)
    ]


def covariance_of(choice: Choice, without: str | None = None) -> Covariance:
    """The covariance fitted to the rows of `choice` without one family."""
    found = choice.covariance(without)
    rows = (each for kind, each in choice.rows.items() if kind[0] != without)
    return replace(found, environment=environment_size(rows, found.effects))


def covariances_without(evidence: Sequence[Evidence]) -> dict[str, Covariance]:
    """For every model family the covariance fitted to the other families."""
    choice = Choice(evidence)
    return {name: covariance_of(choice, name) for name in sorted({row.family for row in evidence})}


@dataclass(frozen=True, slots=True)
class CorrectedRow:
    """A row that measured rows correct: its log(predicted / measured) before and after, with spreads."""

    held_out: HeldOut
    factors: Factors
    before: float
    after: float
    usual: float
    spread: float


def correct(
    row: HeldOut, evidence: Evidence, anchors: Anchors, regime: str = NEW, field: str = "key", alone: bool = False
) -> CorrectedRow:
    """A row once anchors have corrected it, those left out that share `field` with it (`alone`: none is)."""
    _, residual, usual = evidence.errors(regime, field)

    def step_s(factors: Factors) -> float:
        return sum(row.scaled(factors).values())

    correction = anchors.correction(row.descriptor, step_s, () if alone else (field,))
    moved = math.log(step_s(correction.factors) / step_s(Factors()))
    return CorrectedRow(row, correction.factors, -residual, moved - residual, usual, correction.narrowed(usual))


def _as_anchors(rows: Sequence[Published], regime: str) -> list[Anchor]:
    """The rows as anchors, by the predictions of this regime."""
    found = []
    for row in rows:
        residual = row.evidence.errors(regime, "key")[0]
        if not math.isnan(residual):
            anchor = row.evidence.anchor
            found.append(replace(anchor, predicted_s=anchor.measured_s * math.exp(-residual)))
    return found


def judge_all(
    rows: Sequence[Published], covariances: Mapping[str, Covariance]
) -> Iterator[tuple[str, str, list[CorrectedRow]]]:
    """The rows of trust A and B in every regime and situation, corrected by a covariance without their family."""
    trusted = [row for row in rows if row.evidence.trusted]
    for regime in (KNOWN, NEW):
        bases = {
            family: Anchors(_as_anchors([r for r in rows if r.evidence.family == family], regime), covariance)
            for family, covariance in covariances.items()
        }
        for name, field in LEFT_OUT.items():
            yield (
                regime,
                name,
                [
                    correct(row.held_out, row.evidence, bases[row.evidence.family], regime, field)
                    for row in trusted
                    if not math.isnan(row.evidence.errors(regime, field)[1]) and _others(row, rows, field)
                ],
            )
        singles = {
            row.held_out.row.id: Anchors([replace(anchors[0], own=True)], covariances[row.evidence.family])
            for row in trusted
            if (anchors := _as_anchors([row], regime))
        }
        for name, (equal, other) in ONE_ROW.items():
            yield (
                regime,
                name,
                [
                    correct(row.held_out, row.evidence, singles[by.held_out.row.id], regime, "key", alone=True)
                    for row in trusted
                    if not math.isnan(row.evidence.errors(regime, "key")[1])
                    for by in trusted
                    if by.held_out.row.id in singles and differs(row.evidence, by.evidence, equal, other)
                ],
            )
        yield regime, BESIDE_OTHERS, list(_by_one_of_the_source(trusted, covariances, regime))


def _by_one_of_the_source(
    rows: Sequence[Published], covariances: Mapping[str, Covariance], regime: str
) -> Iterator[CorrectedRow]:
    """Rows corrected by one of their source, as the user's own, beside all rows of other sources."""
    judged = [row for row in rows if not math.isnan(row.evidence.errors(regime, "key")[1])]
    for by in rows:
        own, source = _as_anchors([by], regime), source_of(by.evidence.anchor)
        of_kind = [row for row in rows if row.evidence.kind == by.evidence.kind]
        elsewhere = _as_anchors([row for row in of_kind if source_of(row.evidence.anchor) != source], regime)
        if own and elsewhere:
            anchors = Anchors([*elsewhere, replace(own[0], own=True)], covariances[by.evidence.family])
            for row in judged:
                if source_of(row.evidence.anchor) == source and differs(
                    row.evidence, by.evidence, CONFIGURATION, "key"
                ):
                    yield correct(row.held_out, row.evidence, anchors, regime, "key", alone=True)


def differs(row: Evidence, by: Evidence, equal: Sequence[str], other: str) -> bool:
    """Whether two rows of a kind agree in the fields of `equal` and not in `other`."""
    one, two = row.anchor.job, by.anchor.job
    if row.kind != by.kind:
        return False
    return getattr(one, other) != getattr(two, other) and all(getattr(one, n) == getattr(two, n) for n in equal)


def _others(row: Published, rows: Sequence[Published], field: str) -> bool:
    """Whether some row of the kind differs in `field`."""
    return any(differs(row.evidence, by.evidence, (), field) for by in rows if by.evidence.trusted)


def summary(name: str, rows: Sequence[CorrectedRow]) -> list[str]:
    """A line of the tables of worth: rows, mean errors without and with anchors, worst family, coverage of both."""
    ids = {row.held_out.row.id: i for i, row in enumerate(rows)}
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.held_out.row.id] = counts.get(row.held_out.row.id, 0) + 1
    weights = np.array([1.0 / counts[row.held_out.row.id] for row in rows])
    errors = np.abs(np.expm1([[row.before, row.after] for row in rows]))
    inside = np.array([[abs(row.before) <= Z90 * row.usual, abs(row.after) <= Z90 * row.spread] for row in rows])
    families = np.array([row.held_out.descriptor.family for row in rows])
    means, covered = (np.average(each, axis=0, weights=weights) for each in (errors, inside))
    worst = ("-", -math.inf)
    for family in dict.fromkeys(families.tolist()):
        of = families == family
        if weights[of].sum() >= LEAST_ROWS - 1e-9:
            before, after = np.average(errors[of], axis=0, weights=weights[of])
            worst = max(worst, (f"{family} {100 * (after - before):+.1f}", float(after - before)), key=lambda w: w[1])
    return [
        name,
        str(len(ids)),
        percent(means[0]),
        percent(means[1]),
        worst[0],
        percent(covered[0], 0),
        percent(covered[1], 0),
    ]


HEADS = ("rows", "MAPE without", "MAPE with", "worst family, points", "in P10-P90 without", "with")


def worth(rows: Sequence[Published], progress: Callable[[str], None] = lambda text: None) -> dict[str, Table]:
    """By regime and number of anchors: errors of the rows of trust A and B without and with anchors."""
    progress("choosing effects without each family")
    covariances = covariances_without([row.evidence for row in rows])
    lines: dict[str, list[list[str]]] = {}
    for regime, name, corrected in judge_all(rows, covariances):
        progress(f"{name}, {regime}")
        if corrected:
            title = f"{regime}: {'all others' if name in LEFT_OUT else 'one row'}"
            lines.setdefault(title, []).append(summary(name, corrected))
    return {
        title: Table(["no anchor shares" if title.endswith("others") else "the only anchor is", *HEADS], each)
        for title, each in lines.items()
    }


def document(rows: Sequence[Published], covariance: Covariance, tables: Path) -> dict[str, Any]:
    """What `anchors/data/published.json` holds."""
    first, *others = (tables / name for name in TABLES)
    return {
        "provenance": {
            **provenance("anchors", first, len(rows)),
            "other_tables": {path.name: sha256(path) for path in others},
            "parameters": parameters_digest(),
        },
        "covariance": {
            "effects": {name: size for name, size in covariance.effects.items() if size},
            "noise": dict(covariance.noise),
            "own_spread": covariance.own_spread,
            "environment": covariance.environment,
        },
        "columns": list(COLUMNS),
        "rows": [row_of_anchor(row.evidence.anchor) for row in rows],
    }


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the anchors to the steps below `tables`, print their worth, and write them unless `judge_only`."""

    def progress(text: str) -> None:
        print(f"\r{text:60}", end="", file=sys.stderr, flush=True)

    rows = published_rows(tables, progress)
    tables_of_worth = worth(rows, progress)
    print(file=sys.stderr)
    print(*(f"{title}\n{table}" for title, table in tables_of_worth.items()), sep="\n\n")
    if not judge_only:
        covariance = covariance_of(Choice([row.evidence for row in rows]))
        write_shipped(OUTPUT, compact_json(document(rows, covariance, tables)) + "\n")
        print(f"{len(rows)} anchors -> {OUTPUT}", file=sys.stderr)
