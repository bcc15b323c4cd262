"""An estimate in a notebook: one line, a table with bars, plain rows for pandas, and why the step takes so long."""

from __future__ import annotations

import html
import importlib
from typing import TYPE_CHECKING, Any

from precision_time.errors import MissingExtraError
from precision_time.estimate.quantile import further, label
from precision_time.estimate.text import TERM_LABELS, interval_text
from precision_time.report.table import Cell, Table
from precision_time.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate

_BAR_EM = 12
"""Width of the bar of a whole step."""
_LIMITS = {"compute": "arithmetic", "memory": "memory traffic", "launch": "small kernels"}


def line(estimate: Estimate) -> str:
    """ "<Estimate resnet50 · fp32 · ...: step 104.9 ms (96.1-114.0), run 3.40 h, fits>"."""
    run = f", run {human_seconds(estimate.run.p50)}" if estimate.run else ""
    fits = "fits" if estimate.memory.fits else "does not fit"
    return f"<Estimate {estimate.job.signature()}: step {interval_text(estimate.step)}{run}, {fits}>"


def notebook_html(estimate: Estimate) -> str:
    """The job, its times, memory and cost, and a bar for each term of the step; everything is escaped."""
    facts = [["step", interval_text(estimate.step)]]
    facts += [["epoch", interval_text(estimate.epoch)]] if estimate.epoch else []
    facts += [["run", interval_text(estimate.run)]] if estimate.run else []
    memory = estimate.memory
    verdict = "fits" if memory.fits else f"does not fit by {human_bytes(memory.missing_bytes)}"
    facts.append(["memory", f"{human_bytes(memory.peak_bytes)} of {human_bytes(memory.capacity_bytes)}: {verdict}"])
    if estimate.cost_usd:
        cost = estimate.cost_usd
        facts.append(["cost", f"${cost.p50:,.2f} (${cost.p10:,.2f}-${cost.p90:,.2f})"])
    rows: list[list[str | Cell]] = [
        [label, human_seconds(seconds), f"{share:.1%}", Cell("", markup=_bar(share))]
        for label, seconds, share in _terms(estimate)
    ]
    heads = ["", "P50 (P10-P90)"]
    if estimate.quantile is not None:
        heads.append(label(estimate.quantile))
        at = further(estimate)
        facts = [[name, text, _further(name, at[name])] for name, text in facts]
    title = f"<p><b>{html.escape(estimate.job.signature())}</b></p>"
    return title + Table(heads, facts).html() + Table(["where a step goes", "", "", ""], rows).html()


def _further(quantity: str, value: float | None) -> str:
    """A quantity of the table at the further quantile."""
    if value is None:
        return "-"
    if quantity == "cost":
        return f"${value:,.2f}"
    return human_bytes(value) if quantity == "memory" else human_seconds(value)


def _bar(share: float) -> str:
    width = max(_BAR_EM * share, 0.05)
    return f'<span style="display:inline-block;height:.8em;width:{width:.2f}em;background:#0072b2"></span>'


def _terms(estimate: Estimate) -> list[tuple[str, float, float]]:
    """Label, seconds and share of the terms of a step that take time."""
    total = estimate.step.p50
    terms = ((TERM_LABELS[term], seconds, seconds / total) for term, seconds in estimate.breakdown.items())
    return [each for each in terms if each[1] > 0]


def frame(estimate: Estimate) -> Any:
    """A `pandas.DataFrame` with a row for each quantity: P10, P50, P90 and the unit.

    Raises `MissingExtraError` where pandas is not installed.
    """
    return require_pandas("to_pandas").DataFrame(rows(estimate)).set_index("quantity")


def require_pandas(what: str) -> Any:
    """The module pandas. Raises `MissingExtraError`, which names what needs it, where it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise MissingExtraError(f"{what} needs pandas: pip install pandas") from error


def rows(estimate: Estimate) -> list[dict[str, Any]]:
    """The same as plain rows."""
    intervals = [
        ("step", estimate.step, "s"), ("epoch", estimate.epoch, "s"), ("run", estimate.run, "s"),
        ("cost", estimate.cost_usd, "USD"), ("energy", estimate.energy_j, "J"),
    ]  # fmt: skip
    found = [
        {"quantity": name, "p10": each.p10, "p50": each.p50, "p90": each.p90, "unit": unit}
        for name, each, unit in intervals
        if each is not None
    ]
    low, middle, high = estimate.memory.peak_interval
    found.append({"quantity": "memory", "p10": low, "p50": middle, "p90": high, "unit": "bytes"})
    at = further(estimate)
    if estimate.quantile is not None:
        found = [{**row, label(estimate.quantile).lower(): at[str(row["quantity"])]} for row in found]
    missing = float("nan")
    return found + [
        {"quantity": f"step: {label}", "p10": missing, "p50": seconds, "p90": missing, "unit": "s"}
        for label, seconds, _ in _terms(estimate)
    ]


def explanation(estimate: Estimate) -> str:
    """What the step spends its time on, what limits its kernels, and what the numbers rest on, one sentence each."""
    terms = sorted(_terms(estimate), key=lambda each: -each[1])
    most = ", ".join(f"{label} {share:.0%}" for label, _, share in terms[:3])
    sentences = [f"A step takes {interval_text(estimate.step)}: {most}."]
    if estimate.bound_shares:
        name, share = max(estimate.bound_shares.items(), key=lambda each: each[1])
        sentences.append(f"{share:.0%} of the kernel time is limited by {_LIMITS.get(name, name)}.")
    waiting = estimate.breakdown.get("host_gaps", 0.0) / estimate.step.p50
    if waiting > 0.2:
        sentences.append(f"The GPU waits for the host in {waiting:.0%} of the step: larger batches cost little more.")
    sources = sorted(((share, name) for name, share in estimate.sources.items() if share >= 0.005), reverse=True)
    sentences.append(f"Kernel times are {', '.join(f'{name} ({share:.0%})' for share, name in sources)}.")
    memory = estimate.memory
    largest = max(memory.by_category.items(), key=lambda each: each[1])
    verdict = "which fits" if memory.fits else f"which does not fit by {human_bytes(memory.missing_bytes)}"
    sentences.append(
        f"Memory peaks at {human_bytes(memory.peak_bytes)} of {human_bytes(memory.capacity_bytes)}, {verdict}; "
        f"most of it is {largest[0]} ({human_bytes(largest[1])})."
    )
    return " ".join(sentences)
