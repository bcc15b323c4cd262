"""The page benchmarks/results/accuracy.md and the accuracy table of README.md. Every figure in them is computed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from benchmarks.accuracy.facts import COMMAND
from benchmarks.accuracy.residuals import why
from benchmarks.accuracy.step_targets import targets, times_the_error
from benchmarks.accuracy.steps import ANCHORED, ASSUMED, AWARE, PLAIN, TWINS, Board, twin
from precision_time.estimate.text import interval_text
from precision_time.evaluation.order import Order
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.folds import FOLDS
from precision_time.report.errors import ALL_FIELDS, ErrorStatistics, labels, percent
from precision_time.report.figure import BAND
from precision_time.report.table import Table
from precision_time.units import human_seconds

WORST = 10
GROUPINGS = {
    "precision": "precision",
    "gpu": "GPU",
    "family": "model family",
    "framework": "framework",
    "gpus": "number of GPUs",
}
_FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")


def page(board: Board, image: str) -> str:
    """benchmarks/results/accuracy.md; `image` is the figure's path from there."""
    facts, aware = board.facts, board.trusted(AWARE)
    total = sum(facts.rows.values())
    trusts = ", ".join(f"{count} of trust {trust or 'unknown'}" for trust, count in facts.rows.items())
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    overall, twins = aware.overall, board.trusted(board.best_twin).overall
    parts = [
        "# Accuracy: predicted against measured training steps",
        f"Errors of predicted step times on {total} published ones. Each row is predicted by factors fitted without "
        "any row of its model family. A twin that is blind to precision is judged on the same rows.",
        f"Written on {facts.date} by `{COMMAND}`; do not edit. Versions: {versions}. Table: `{facts.table}` "
        f"(sha256 `{facts.sha256}`), {total} rows: {trusts}. Timing parameters: `{facts.parameters}`.",
        f"![Predicted over measured step time of {overall.n} held-out rows, and of the blind twin]({image})",
        f"Every dot is a held-out row of trust A or B; the grey band is within {BAND:.0%}. **The mean error of "
        f"{overall.n} rows is {percent(overall.mape)}, the median {percent(overall.median_ape)}. Blind to precision, "
        f"the mean error is {percent(twins.mape)}, {times_the_error(twins, overall):.1f} times as much.**",
        "## Targets",
        _targets_table(board),
        "## Three ways to hold rows out",
        _folds_table(board),
        *_FOLDS_TEXT,
        "## What anchors are worth",
        _anchor_table(board),
        _ANCHOR_TEXT,
        "## What ignoring precision costs",
        _blind_table(board),
        f"{_BLIND_TEXT} The tables below show the twins beside every group; times: the MAPE of {board.best_twin}, the "
        "better of the two, over that of precision-time.",
    ]
    for grouping, title in GROUPINGS.items():
        parts += [f"## By {title}", _group_table(board, grouping, title)]
    parts += ["## Worst rows", *_worst(aware.worst(WORST))]
    parts += ["## Rows of trust C", *_trust_c(board)]
    parts += ["## Rows without a prediction", *_unexpressed(board)]
    parts += ["## Choices made with these rows in view", _CHOICES_TEXT]
    return "\n\n".join(map(filled_text, parts)) + "\n"


def filled_text(part: str) -> str:
    """Prose broken into lines of at most 120 characters; headings, tables, lists and images as they are."""
    if part.startswith(("#", "|", "- ", "!")):
        return part
    return textwrap.fill(part, 120, break_on_hyphens=False, break_long_words=False)


def readme_table(board: Board, link: str) -> str:
    """Errors of all rows and by precision, beside the blind twin, for README.md."""
    aware, blind, anchored = (board.trusted(run) for run in (AWARE, board.best_twin, ANCHORED))
    columns = ["measured in", "rows", "mean error", "median", "P90", "in P10-P90", "blind twin", "with anchors"]
    rows = []
    for name, errors in {"all": aware.overall, **aware.by("precision")}.items():
        other, corrected = (r.overall if name == "all" else r.by("precision")[name] for r in (blind, anchored))
        cells = errors.cells(("n", "mape", "median_ape", "p90_ape", "coverage_p10_p90"))
        rows.append([name, *cells, percent(other.mape), percent(corrected.mape)])
    order = aware.order
    pairs = round((order.pairs_right or 0.0) * order.n_pairs)
    text = (
        "Published training steps of trust A and B, each predicted by factors fitted without its model family. "
        f"{pairs} of {order.n_pairs} pairs of precisions come out in the measured order. The blind twin assumes "
        f"{board.best_twin.removeprefix('blind as ')} for every job and is refitted so. With anchors, as `predict` "
        "answers for published models, the other rows of its family correct each row, except those of the same job. "
        f"By GPU, family and framework, and the worst rows: [{link}]({link})."
    )
    return f"{Table(columns, rows).markdown()}\n\n{filled_text(text)}"


_CHOICES_TEXT = (
    "No fold fits a factor on the rows it judges, but some choices around the fit were made with published rows in "
    "view; [benchmarks/accuracy](../accuracy/README.md) lists them. Only rows outside these tables can show by how "
    "much they flatter."
)


def _targets_table(board: Board) -> str:
    rows = [[t.goal, t.reached, "yes" if t.met else "**no**"] for t in targets(board)]
    return Table(["goal, on rows of trust A and B held out by model family", "reached", "met"], rows, left=3).markdown()


def _order_cells(order: Order) -> list[str]:
    tau = "-" if order.kendall_tau is None else f"{order.kendall_tau:.2f}"
    return [f"{order.n_pairs}", percent(order.pairs_right, 0), tau]


def _folds_table(board: Board) -> str:
    rows = []
    for run in (*FOLDS, PLAIN):
        judged = board.trusted(run)
        name = run if run == PLAIN else f"**held out by {run}**" if run == AWARE else f"held out by {run}"
        rows.append([name, *judged.overall.cells(), *_order_cells(judged.order)])
    return Table(["", *labels(ALL_FIELDS), "pairs", "in order", "tau"], rows).markdown()


_FOLDS_TEXT = (
    "error = predicted / measured - 1. MAPE, median, P90, max: of its absolute value; signed: its mean, above 0 where "
    "predictions are too slow; ratio: geometric mean of predicted / measured. P10-P90 is meant to hold 80%; its width "
    "comes from the errors of the other folds, whose factors were fitted to this fold too. Pairs: two precisions of "
    "one job; in order: predicted in the measured order; tau: Kendall's "
    "([evaluate.md](../../docs/evaluate.md#what-the-numbers-mean)).",
    "Each fold refits every factor without the rows it judges, including those of trust C. GPU: by architecture and "
    "board, so cards that differ only in memory size form one fold, and an architecture without any other row gets a "
    "wider interval. Precision: amp-fp16 and fp16-master run the same kernels, and one stays when the other is held "
    "out. Without factors: kernel models alone; only the width of the interval is fitted.",
)


def _blind_table(board: Board) -> str:
    aware = board.trusted(AWARE)
    names = {AWARE: "**precision-time**", **{twin(name): f"{twin(name)}, refitted" for name in TWINS}}
    names[ASSUMED] = f"{ASSUMED}, factors as shipped"
    rows = []
    for run, name in names.items():
        judged = board.trusted(run)
        cells = [name, *judged.overall.cells(_FIELDS), *_order_cells(judged.order)[1:]]
        if run == AWARE:
            rows.append([*cells, "", ""])
            continue
        nearer = [abs(a.error) < abs(b.error) for a, b in zip(aware.judged, judged.judged, strict=True)]
        times = f"{times_the_error(judged.overall, aware.overall):.1f}"
        rows.append([*cells, times, percent(sum(nearer) / len(nearer), 0)])
    columns = ["", *labels(_FIELDS), "in order", "tau", "times the MAPE", "precision-time nearer"]
    return Table(columns, rows).markdown()


def _anchor_table(board: Board) -> str:
    """Errors by family and precision, without and with anchors."""
    runs = {"none": board.trusted(AWARE), "anchored": board.trusted(ANCHORED)}
    fields = ("mape", "median_ape", "p90_ape", "coverage_p10_p90")
    columns = ["", "rows", *(f"{label}, {name}" for label in labels(fields) for name in runs)]
    rows = []
    for grouping in ("", "family", "precision"):
        groups = {n: r.by(grouping) if grouping else {"**all**": r.overall} for n, r in runs.items()}
        for name, errors in groups["none"].items():
            both = (errors, groups["anchored"][name])
            rows.append([name, f"{errors.n}", *(cell for field in fields for e in both for cell in e.cells((field,)))])
    return Table(columns, rows).markdown()


_ANCHOR_TEXT = (
    "Anchors are measured jobs of the same family that correct a prediction ([anchors.md](../../docs/anchors.md)); "
    "`predict` uses the published ones unless told `--anchors none`. Here the other rows correct every row, except "
    "those of exactly the same job on any machine; factors are still those fitted without the family. All other tables "
    "of this page are without anchors."
)


_BLIND_TEXT = (
    "The blind twin is the same pipeline with one difference: it assumes one precision for every job. Refitted, its "
    "factors are fitted to all rows under that assumption and judged by the same folds. With factors as shipped, it is "
    "what `evaluate --blind` does, and those factors have seen the rows. A twin still sees batch size, memory layout "
    "and optimizer, which published lines of mixed precision change too; from these comes what it gets in order."
)


def _group_table(board: Board, grouping: str, title: str) -> str:
    aware = board.trusted(AWARE).by(grouping)
    twins = [board.trusted(twin(name)).by(grouping) for name in TWINS]
    assumed, best = board.trusted(ASSUMED).by(grouping), board.trusted(board.best_twin).by(grouping)
    columns = [title, *labels(_FIELDS), *(twin(name) for name in TWINS), ASSUMED, "times"]
    rows = [
        [
            name,
            *errors.cells(_FIELDS),
            *(percent(blind[name].mape) for blind in (*twins, assumed)),
            f"{times_the_error(best[name], errors):.1f}",
        ]
        for name, errors in aware.items()
    ]
    return Table(columns, rows).markdown()


def _worst(judged: Sequence[JudgedRow]) -> Iterable[str]:
    rows = []
    reasons: dict[str, list[int]] = {}
    for number, j in enumerate(judged, 1):
        row = j.row
        reasons.setdefault(why(j), []).append(number)
        place = f"{row.precision}, {row.gpus} x {row.gpu}, trust {row.trust}"
        terms = ", ".join(f"{name.replace('_', ' ')} {human_seconds(s)}" for name, s in j.top_terms(3).items())
        times = [human_seconds(row.measured_s), interval_text(j.step), percent(j.error, sign="+")]
        rows.append([f"{number}", row.id, place, *times, terms])
    columns = ["", "row", "where", "measured", "predicted (P10-P90)", "error", "largest terms of the prediction"]
    yield Table(columns, rows, left=len(columns)).markdown()
    yield "Known reasons ([benchmarks/accuracy](../accuracy/README.md#what-the-residuals-show)):"
    yield "\n".join(f"- {', '.join(map(str, numbers))}: {reason}" for reason, numbers in reasons.items())


def _trust_c(board: Board) -> Iterable[str]:
    yield (
        "Kernels of other frameworks, compilers, uncertain configurations or host-bound runs. They have no goal, count "
        "little in the fit and in none of the figures above, and those of TensorFlow and Paddle set the spread of "
        "their own kind. Held out by model family too."
    )
    groups: dict[str, ErrorStatistics] = board.rest(AWARE).by("framework")
    rows = [[name, *errors.cells(_FIELDS)] for name, errors in groups.items()]
    yield Table(["framework", *labels(_FIELDS)], rows).markdown()


def _unexpressed(board: Board) -> Iterable[str]:
    for table in board.unexpressed:
        if not table.unpredicted:
            yield f"`{table.table}`: none, every row is judged."
            continue
        count = len(table.unpredicted)
        yield f"`{table.table}`: {count} row{'' if count == 1 else 's'} cannot be expressed as a job yet."
        rows = [[_without_fix(reason), f"{len(same)}"] for reason, same in table.unpredicted_by_reason()]
        yield Table(["reason", "rows"], rows).markdown()


def _without_fix(reason: str) -> str:
    """The reason without the advice after the semicolon, which is for the user of one job."""
    text, fix, tail = reason.partition("; ")
    return f"{text} (numbers vary)" if fix and tail.endswith("(numbers vary)") else text
