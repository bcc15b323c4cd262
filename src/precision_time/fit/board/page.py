"""The board as text: docs/accuracy.md and the README's small table. Every figure, every yes and no is computed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_time.estimate.text import interval_text
from precision_time.evaluation.rows import JudgedRow as Judged
from precision_time.evaluation.rows import statistics
from precision_time.fit.board.facts import COMMAND
from precision_time.fit.board.residuals import why
from precision_time.fit.board.runs import ANCHORED, ASSUMED, AWARE, ONE_ROW, PLAIN, TWINS, Board, twin
from precision_time.fit.evaluation.figures import BAND
from precision_time.fit.evaluation.order import Order
from precision_time.fit.evaluation.text import percent
from precision_time.fit.folds import FOLDS
from precision_time.report.errors import ErrorStatistics
from precision_time.units import human_seconds

GOAL_PUBLISHED, GOAL_PRECISION, GOAL_COVERAGE = 0.098, 0.12, (0.75, 0.85)
GOAL_P90, GOAL_SIGNED, GOAL_ORDER = 0.25, 0.04, 0.95
GOAL_ANCHORED, GOAL_AKIN, GOAL_NEW = 0.05, 0.07, 0.13
"""`GOAL_PUBLISHED` is what the published precision-aware predictor reports, `GOAL_ANCHORED` is with measured rows."""
AKIN = {
    "bert": "transformer-xl", "transformer-xl": "bert", "resnet": "ssd", "ssd": "resnet", "jasper": "waveglow",
    "waveglow": "jasper",
}  # fmt: skip
"""Families and another whose building blocks they share (transformers, ResNet-50, one-dimensional convolutions), so
that the fit has seen something like them; all others are new to it."""
CLEARLY_WORSE = 1.5
"""How many times the error a blind twin must have to be clearly worse: chosen."""
WORST = 10
GROUPINGS = {
    "precision": "precision",
    "gpu": "GPU",
    "family": "model family",
    "framework": "framework",
    "gpus": "number of GPUs",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A goal of the project and whether the board reaches it."""

    goal: str
    reached: str
    met: bool


def targets(board: Board) -> list[Target]:
    aware = board.trusted(AWARE)
    overall, by_precision = aware.overall, aware.by("precision")
    worst = max(by_precision, key=lambda name: by_precision[name].mape or 0.0)
    covered = overall.coverage_p10_p90 or 0.0
    anchored, by_one = board.trusted(ANCHORED).overall, board.trusted(ONE_ROW).overall
    akin, new = (
        statistics([j for j in aware.judged if (j.row.family in AKIN) == known]).mape for known in (True, False)
    )
    in_order = aware.order.pairs_right or 0.0
    times = {p: _times(board.trusted(twin(p)).overall, overall) for p in TWINS}
    return [
        Target(f"MAPE at most {percent(GOAL_PUBLISHED)}, as the published precision-aware predictor",
               percent(overall.mape), (overall.mape or 0.0) <= GOAL_PUBLISHED),
        Target(f"MAPE at most {percent(GOAL_PRECISION, 0)} in every precision",
               f"{percent(by_precision[worst].mape)} in the worst, {worst}",
               (by_precision[worst].mape or 0.0) <= GOAL_PRECISION),
        Target(f"MAPE at most {percent(GOAL_AKIN, 0)} in families that share building blocks with another, and at most "
               f"{percent(GOAL_NEW, 0)} in the others",
               f"{percent(akin)} and {percent(new)}", (akin or 0.0) <= GOAL_AKIN and (new or 0.0) <= GOAL_NEW),
        Target(f"P90 of the errors at most {percent(GOAL_P90, 0)}", percent(overall.p90_ape),
               (overall.p90_ape or 0.0) <= GOAL_P90),
        Target(f"signed mean within {percent(GOAL_SIGNED, 0)}", percent(overall.signed_mean, sign="+"),
               abs(overall.signed_mean or 0.0) <= GOAL_SIGNED),
        Target(f"at least {percent(GOAL_ORDER, 0)} of the pairs of precisions in order", percent(in_order, 0),
               in_order >= GOAL_ORDER),
        Target(f"P10-P90 holds {GOAL_COVERAGE[0]:.0%} to {GOAL_COVERAGE[1]:.0%} of the rows",
               f"{covered:.0%}; by precision {_range({n: a.coverage_p10_p90 for n, a in by_precision.items()})}",
               GOAL_COVERAGE[0] <= covered <= GOAL_COVERAGE[1]),
        Target(f"blind twin clearly worse (here: {CLEARLY_WORSE:g} times the MAPE or more, whatever it assumes)",
               ", ".join(f"{t:.1f} times as {p}" for p, t in times.items()), min(times.values()) >= CLEARLY_WORSE),
        Target(f"with the nearest measured row of the same model and GPU: MAPE at most {percent(GOAL_ANCHORED, 0)}",
               f"{percent(by_one.mape)} of {by_one.n} rows", (by_one.mape or 0.0) <= GOAL_ANCHORED),
        Target(f"with all other jobs of the family as anchors: MAPE at most {percent(GOAL_ANCHORED, 0)}",
               percent(anchored.mape), (anchored.mape or 0.0) <= GOAL_ANCHORED),
    ]  # fmt: skip


def page(board: Board, image: str) -> str:
    """docs/accuracy.md."""
    facts, aware = board.facts, board.trusted(AWARE)
    total = sum(facts.rows.values())
    trusts = ", ".join(f"{count} of trust {trust or 'unknown'}" for trust, count in facts.rows.items())
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    overall, twins = aware.overall, board.trusted(board.best_twin).overall
    parts = [
        "# Accuracy: predicted against measured",
        f"How far predicted step times lie from {total} published ones. Each row is predicted by factors that were "
        "fitted without any row of its model family; a twin that is blind to precision is judged on the same rows.",
        f"Written on {facts.date} by `{COMMAND}`, never by hand. Versions: {versions}. Table: `{facts.table}` "
        f"(sha256 `{facts.sha256}`), {total} rows: {trusts}. Timing parameters: `{facts.parameters}`.",
        f"![Predicted over measured step time of {overall.n} held-out rows, and of the blind twin]({image})",
        f"Every dot is a row of trust A or B, held out; the grey band is within {BAND:.0%}. **{overall.n} rows are off "
        f"by {percent(overall.mape)} on average, half of them by less than {percent(overall.median_ape)}. Ignoring "
        f"precision makes that {percent(twins.mape)}, {_times(twins, overall):.1f} times as much.**",
        "## Targets",
        _targets_table(board),
        "## Three ways to hold rows out",
        _folds_table(board),
        *_FOLDS_TEXT,
        "## What anchors are worth",
        _anchor_table(board),
        *_ANCHOR_TEXT,
        "## What ignoring precision costs",
        _blind_table(board),
        f"{_BLIND_TEXT} Below, the twins stand beside every group; times: the MAPE of {board.best_twin}, the better of "
        "the two, over that of precision-time.",
    ]
    for grouping, title in GROUPINGS.items():
        parts += [f"## By {title}", _grouping(board, grouping, title)]
    parts += ["## Worst rows", *_worst(aware.worst(WORST))]
    parts += ["## Rows of trust C", *_rest(board)]
    parts += ["## Rows without a prediction", *_unexpressed(board)]
    parts += ["## What the table has seen all the same", _SEEN]
    return "\n\n".join(map(_fill, parts)) + "\n"


def _fill(part: str) -> str:
    """Prose in lines; headings, tables, lists and pictures as they are."""
    if part.startswith(("#", "|", "- ", "!")):
        return part
    return textwrap.fill(part, 120, break_on_hyphens=False, break_long_words=False)


_SEEN = (
    "No fold fits a factor on the rows it judges, but choices around the fit were made with published rows in view: "
    "[fit.md](fit.md#what-the-held-out-table-has-seen-all-the-same) lists them. Only rows that nobody here has seen "
    "can settle how much they flatter."
)


def readme_table(board: Board, link: str) -> str:
    """Overall and by precision, with the blind twin."""
    aware, blind = board.trusted(AWARE), board.trusted(board.best_twin)
    anchored = board.trusted(ANCHORED)
    heads = ["measured in", "rows", "mean error", "median", "P90", "in P10-P90", "blind twin", "with anchors"]
    rows = []
    for name, one in {"all": aware.overall, **aware.by("precision")}.items():
        other, near = (r.overall if name == "all" else r.by("precision")[name] for r in (blind, anchored))
        sizes = [percent(v) for v in (one.mape, one.median_ape, one.p90_ape)]
        rows.append([name, f"{one.n}", *sizes, percent(one.coverage_p10_p90, 0), percent(other.mape),
                     percent(near.mape)])  # fmt: skip
    order = aware.order
    pairs = round((order.pairs_right or 0.0) * order.n_pairs)
    said = (
        "Published training steps of trust A and B, each predicted without any row of its model family. "
        f"{pairs} of {order.n_pairs} pairs of precisions come out in the measured order. The blind twin takes every "
        f"job as {board.best_twin.removeprefix('blind as ')} and is refitted so. With "
        "anchors, as `predict` answers for published models, the other rows of its family correct each row, those of "
        "the same job left out. By GPU, family and framework, the "
        f"worst rows and why: [{link}]({link})."
    )
    return f"{_table(heads, rows)}\n\n{_fill(said)}"


def _range(shares: dict[str, float | None]) -> str:
    """ "from 61% (amp-fp16) to 97% (fp32)"."""
    known = sorted((share, name) for name, share in shares.items() if share is not None)
    return " ".join(f"{word} {known[at][0]:.0%} ({known[at][1]})" for word, at in (("from", 0), ("to", -1)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns flush left, the others flush right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def _times(blind: ErrorStatistics, aware: ErrorStatistics) -> float:
    """How many times the mean error of the aware one the blind one has."""
    return (blind.mape or 0.0) / (aware.mape or 1e-9)


def _targets_table(board: Board) -> str:
    rows = [[t.goal, t.reached, "yes" if t.met else "**no**"] for t in targets(board)]
    return _table(["goal, on rows of trust A and B held out by model family", "reached", "met"], rows, left=3)


def _errors(found: ErrorStatistics, most: bool = False) -> list[str]:
    cells = [f"{found.n}", percent(found.mape), percent(found.median_ape), percent(found.signed_mean, sign="+")]
    cells.append(percent(found.p90_ape))
    if most:
        ratio = "-" if found.geo_mean_ratio is None else f"{found.geo_mean_ratio:.2f}"
        cells += [percent(found.max_ape), ratio]
    return [*cells, percent(found.coverage_p10_p90, 0)]


_ERRORS = ["rows", "MAPE", "median", "signed", "P90", "in P10-P90"]
_ALL_ERRORS = ["rows", "MAPE", "median", "signed", "P90", "max", "ratio", "in P10-P90"]


def _order(order: Order) -> list[str]:
    tau = "-" if order.kendall_tau is None else f"{order.kendall_tau:.2f}"
    return [f"{order.n_pairs}", percent(order.pairs_right, 0), tau]


def _folds_table(board: Board) -> str:
    rows = []
    for run in (*FOLDS, PLAIN):
        found = board.trusted(run)
        name = run if run == PLAIN else f"**held out by {run}**" if run == AWARE else f"held out by {run}"
        rows.append([name, *_errors(found.overall, most=True), *_order(found.order)])
    return _table(["", *_ALL_ERRORS, "pairs", "in order", "tau"], rows)


_FOLDS_TEXT = (
    "error = predicted / measured - 1. MAPE, median, P90, max: of its size; signed: its mean, above 0 where "
    "predictions are too slow; ratio: geometric mean of predicted / measured. P10-P90: 80% is meant; its width comes "
    "from the errors of the other folds, whose factors, though, were fitted to this one too. Pairs: two precisions of "
    "one job; in order: predicted in the measured order; tau: Kendall's "
    "([evaluate.md](evaluate.md#what-the-numbers-mean)).",
    "A fold refits every factor without the rows it judges, those of trust C included. GPU: by architecture and board, "
    "so cards that differ in memory alone go together, and an architecture without any other row gets a wider "
    "interval. Precision: amp-fp16 and fp16-master run the same kernels, so one stays when the other is held out. "
    "Without factors: kernel models alone, no whole step fitted but the width of the interval.",
)


def _blind_table(board: Board) -> str:
    aware = board.trusted(AWARE)
    rows = []
    for name, run in (
        ("**precision-time**", AWARE),
        *((f"{twin(p)}, refitted", twin(p)) for p in TWINS),
        (f"{ASSUMED}, factors as shipped", ASSUMED),
    ):
        found = board.trusted(run)
        nearer = [abs(a.error) < abs(b.error) for a, b in zip(aware.judged, found.judged, strict=True)]
        times = "" if run == AWARE else f"{_times(found.overall, aware.overall):.1f}"
        rows.append(
            [name, *_errors(found.overall), *_order(found.order)[1:], times,
             "" if run == AWARE else percent(sum(nearer) / len(nearer), 0)]
        )  # fmt: skip
    return _table(["", *_ERRORS, "in order", "tau", "times the MAPE", "precision-time nearer"], rows)


def _anchor_table(board: Board) -> str:
    """By family and precision, without and with anchors."""
    runs = {"none": board.trusted(AWARE), "anchored": board.trusted(ANCHORED)}
    heads = ["", "rows", *(f"{what}, {name}" for what in ("MAPE", "median", "P90", "in P10-P90") for name in runs)]
    rows = []
    for grouping in ("", "family", "precision"):
        groups = {n: r.by(grouping) if grouping else {"**all**": r.overall} for n, r in runs.items()}
        for name, found in groups["none"].items():
            both = (found, groups["anchored"][name])
            cells = [percent(getattr(a, size)) for size in ("mape", "median_ape", "p90_ape") for a in both]
            rows.append([name, f"{found.n}", *cells, *(percent(a.coverage_p10_p90, 0) for a in both)])
    return _table(heads, rows)


_ANCHOR_TEXT = (
    "Anchors are measured jobs of the same family that correct a prediction ([anchors.md](anchors.md)); `predict` uses "
    "the published ones unless told `--anchors none`. Here every row is corrected by the other rows, those of exactly "
    "the same job left out, whatever the machine is called; factors are still those fitted without the family. How "
    "much is left when the nearest rows are missing too stands in [anchors.md](anchors.md#how-far-they-reach). All "
    "other tables of this page are without anchors.",
)


_BLIND_TEXT = (
    "The blind twin is the same pipeline with one difference: it takes every job to run in one precision. Refitted, "
    "its factors are fitted to all rows in that blindness and judged by the same folds: a predictor that learned and "
    "never heard of precision. As shipped, it is what `evaluate --blind` does, with factors that have seen the rows. A "
    "twin still sees batch size, memory layout and optimizer, which published mixed lines change too; what order it "
    "finds comes from those."
)


def _grouping(board: Board, grouping: str, title: str) -> str:
    aware = board.trusted(AWARE).by(grouping)
    twins = [board.trusted(twin(p)).by(grouping) for p in TWINS]
    assumed, best = board.trusted(ASSUMED).by(grouping), board.trusted(board.best_twin).by(grouping)
    heads = [title, *_ERRORS, *(twin(p) for p in TWINS), ASSUMED, "times"]
    rows = [
        [name, *_errors(found), *(percent(t[name].mape) for t in twins), percent(assumed[name].mape),
         f"{_times(best[name], found):.1f}"]
        for name, found in aware.items()
    ]  # fmt: skip
    return _table(heads, rows)


def _worst(judged: Sequence[Judged]) -> Iterable[str]:
    rows = []
    reasons: dict[str, list[int]] = {}
    for number, j in enumerate(judged, 1):
        row = j.row
        reasons.setdefault(why(j), []).append(number)
        place = f"{row.precision}, {row.gpus} x {row.gpu}, trust {row.trust}"
        terms = ", ".join(f"{name.replace('_', ' ')} {human_seconds(s)}" for name, s in j.top_terms(3).items())
        rows.append(
            [f"{number}", row.id, place, human_seconds(row.measured_s), interval_text(j.step),
             percent(j.error, sign="+"), terms]
        )  # fmt: skip
    heads = ["", "row", "where", "measured", "predicted (P10-P90)", "error", "largest terms of the prediction"]
    yield _table(heads, rows, left=len(heads))
    yield "Why, as far as it is known ([fit.md](fit.md#what-the-residuals-say)):"
    yield "\n".join(f"- {', '.join(map(str, numbers))}: {words}" for words, numbers in reasons.items())


def _rest(board: Board) -> Iterable[str]:
    found = board.rest(AWARE)
    yield (
        "Other frameworks' kernels, compilers, loose or host-bound runs: no goal, a tenth of the weight in the fit, "
        "and in none of the figures above. Held out by model family too."
    )
    yield _table(["framework", *_ERRORS], [[name, *_errors(a)] for name, a in found.by("framework").items()])


def _unexpressed(board: Board) -> Iterable[str]:
    for table in board.unexpressed:
        if not table.unpredicted:
            yield f"`{table.table}`: none, every row is judged."
            continue
        count = len(table.unpredicted)
        yield f"`{table.table}`: {count} row{'' if count == 1 else 's'} cannot be expressed as a job yet."
        yield _table(["reason", "rows"], [[_short(r), f"{len(rows)}"] for r, rows in table.unpredicted_by_reason()])


def _short(reason: str) -> str:
    """Without the fix, which is for the user of one job."""
    what, fix, tail = reason.partition("; ")
    return f"{what} (numbers vary)" if fix and tail.endswith("(numbers vary)") else what
