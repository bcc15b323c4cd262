"""Runs all predictors on the rows of a table and computes their errors on common rows."""

from __future__ import annotations

import datetime
import re
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.other_tools.calculon import CALCULON
from benchmarks.other_tools.simumax import SIMUMAX
from benchmarks.other_tools.tool import ExpressionError, Tool, last_line, model_config
from precision_time import Job, predict
from precision_time.anchoring import Anchoring
from precision_time.cli.progress import Progress
from precision_time.errors import PrecisionTimeError
from precision_time.evaluation.fitted_rows import seen_by
from precision_time.fit.layouts import costs_of, usual
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.row import Row
from precision_time.report.errors import ErrorStatistics
from precision_time.timing.constants import shipped

TOOLS = (CALCULON, SIMUMAX)
MFU = 0.4
"""Model FLOP utilisation of the textbook formula, the same for every job."""
OURS, UNFITTED, TEXTBOOK = "precision-time", "precision-time, unfitted", "textbook"


@dataclass
class Outcome:
    """Result of a tool: how it was run, seconds by row, and the reasons of rows without."""

    tool: Tool
    status: str
    expressible: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)


def prepare(tool: Tool, checkout: Path | None, folder: Path) -> tuple[Path | None, str]:
    """A Python interpreter with what the checkout requires, or None; and the status for the report."""
    if checkout is None:
        return None, f"was not run: give --{tool.name.lower()} DIR, a checkout of {tool.home}"
    if not (checkout / tool.proof).exists():
        return None, f"could not be run: {checkout} is no checkout of {tool.home} (it has no {tool.proof})"
    home = folder / "environment"
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    requirements = checkout / "requirements.txt"
    if requirements.exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", str(requirements)]
        last_line(pip, folder, limit_s=600)
    commit = last_line(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], Path.cwd())
    version = f"commit {commit}" if re.fullmatch(r"[0-9a-f]{7,40}", commit) else "of no known commit"
    return python, f"run from a checkout, {version}"


def ask(tool: Tool, rows: Sequence[Row], checkout: Path | None) -> Outcome:
    """The tool's seconds for every row that it can express."""
    outcome = Outcome(tool, "")
    cases = []
    for row in rows:
        try:
            cases.append((row.id, tool.express(row)))
        except ExpressionError as error:
            outcome.reasons[f"cannot be expressed: {error}"] += 1
    outcome.expressible = [name for name, _ in cases]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        python, outcome.status = prepare(tool, checkout, folder)
        if python is None or checkout is None:
            return outcome
        try:
            answers = tool.run(checkout, python, folder, cases)
        except (OSError, ValueError, KeyError) as error:
            outcome.status += f"; could not be run: {error}"
            return outcome
    for name, answer in answers.items():
        if isinstance(answer, float):
            outcome.seconds[name] = answer
        else:
            outcome.reasons[f"no answer: {answer[:120]}"] += 1
    return outcome


def textbook_seconds(job: Job, parameters: int) -> float | None:
    """6 N D / (MFU x peak x GPUs); None for a mixture of experts, which uses only a part of its weights per token."""
    if model_config(job).get("experts") or "seq_len" not in job.input or job.batch_size is None:
        return None
    tokens = job.batch_size * job.grad_accum * job.layout_spec.dp * int(job.input["seq_len"])  # type: ignore[arg-type]
    peak = default_catalog().gpus[job.gpu].peak(job.precision_spec.math)
    return 6.0 * parameters * tokens / (MFU * peak * job.gpus)


def predicted_seconds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Predictor -> row -> seconds: `predict` as it ships, `predict` with the layout factors it had before any row was
    fitted, and the textbook formula."""
    seconds: dict[str, dict[str, float]] = {OURS: {}, UNFITTED: {}, TEXTBOOK: {}}
    blank = replace(shipped(), layouts=costs_of(usual()))
    with Progress("rows") as progress:
        for done, row in enumerate(rows):
            progress(done, len(rows))
            if row.job is None:
                continue
            anchoring = Anchoring(True, ("key",), row.kernels_of)  # as in `evaluate`: no job corrects itself
            try:
                estimate = predict(row.job, anchoring=anchoring)
            except PrecisionTimeError:
                continue
            seconds[OURS][row.id] = estimate.step.p50
            seconds[UNFITTED][row.id] = predict(row.job, constants=blank, anchoring=anchoring).step.p50
            textbook_s = textbook_seconds(row.job, estimate.parameters)
            if textbook_s is not None:
                seconds[TEXTBOOK][row.id] = textbook_s
    return seconds


def source_of(row: Row) -> str:
    """The published table that a row is from."""
    if row.framework == "megatron-deepspeed":
        return "vTrain, one node" if row.gpus <= 8 else "vTrain, many nodes"
    return {"megatron": "Megatron-LM", "llm-foundry": "llm-foundry (FSDP)", "megatron-bridge": "Megatron-Bridge"}.get(
        row.framework, row.framework or "other"
    )


def errors_by_source(
    rows: Sequence[Row], seconds: Mapping[str, Mapping[str, float]], predictors: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Source -> predictor -> error statistics, on the rows for which all `predictors` have an answer."""
    common = [row for row in rows if all(row.id in seconds[name] for name in predictors)]
    groups: dict[str, list[Row]] = {}
    for row in common:
        groups.setdefault(source_of(row), []).append(row)
    if len(groups) > 1:
        groups["all of these"] = common
    return {
        source: {
            name: ErrorStatistics.of([seconds[name][r.id] / r.measured_s - 1.0 for r in members]).to_dict()
            for name in predictors
        }
        for source, members in groups.items()
    }


def compare_all(rows: Sequence[Row], checkouts: Mapping[str, Path | None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the report, and predictor -> row -> seconds."""
    seconds: dict[str, dict[str, float]] = predicted_seconds(rows)
    outcomes = [ask(tool, rows, checkouts.get(tool.name)) for tool in TOOLS]
    comparisons = {}
    for outcome in outcomes:
        name = outcome.tool.name
        seconds[name] = outcome.seconds
        if outcome.seconds:
            predictors: tuple[str, ...] = (name, OURS, UNFITTED, TEXTBOOK)
            comparisons[f"On the rows {name} answered"] = errors_by_source(rows, seconds, predictors)
            continue
        expressible = set(outcome.expressible)
        comparisons[f"On the rows {name} could express; it was not run"] = errors_by_source(
            [row for row in rows if row.id in expressible], seconds, (OURS, UNFITTED, TEXTBOOK)
        )
    comparisons["On all rows of dense models"] = errors_by_source(rows, seconds, (OURS, UNFITTED, TEXTBOOK))
    result = {
        "date": datetime.date.today().isoformat(),
        "python": sys.version.split()[0],
        "rows": len(rows),
        "predicted": len(seconds[OURS]),
        "seen": sum(bool(seen_by(row.digest)) for row in rows if row.id in seconds[OURS]),
        "mfu": MFU,
        "tools": [
            {
                "name": outcome.tool.name,
                "home": outcome.tool.home,
                "status": outcome.status,
                "expressible": len(outcome.expressible),
                "answered": len(outcome.seconds),
                "reasons": dict(outcome.reasons.most_common(12)),
            }
            for outcome in outcomes
        ],
        "comparisons": comparisons,
    }
    return result, seconds
