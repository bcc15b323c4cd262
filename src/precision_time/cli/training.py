"""The command `train`, and the answer of `predict --predictor NAME`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_time.job import Job


def train(options: Namespace) -> str:
    """Train the named predictors and save them; returns a table of what training cost."""
    from precision_time.cli.progress import Progress
    from precision_time.predictors.store import train as train_all
    from precision_time.reading import to_json
    from precision_time.report.table import Table

    folder = Path(options.output or "trained")
    with Progress("predictors") as progress:
        cards = train_all(
            options.name, folder, options.tables, options.real_runs, options.rows or (), progress, options.allow_code
        )
    if options.json:
        return to_json(cards, indent=2)
    rows = [
        [name, f"{c['rows']:,}", held_out(c), _duration(c["measured_s"]), _duration(c["training_s"])]
        for name, c in cards.items()
    ]
    headings = ["predictor", "rows", "mean error held out, by", "measuring them took", "training took"]
    table = Table(headings, rows).text()
    return f"{table}\n\npredict with them: precision-time predict ... --predictor NAME --trained {folder}"


def held_out(card: Mapping[str, Any]) -> str:
    """The held-out errors of a trained predictor as text."""
    return ", ".join(f"{name} {error:.1%}" for name, error in card.get("held_out", {}).items()) or "-"


def _duration(seconds: object) -> str:
    from precision_time.units import human_seconds

    return human_seconds(float(str(seconds))) if seconds else "not known"


def with_default_batch(job: Job) -> tuple[Job, list[str]]:
    """The job with the model's own batch where it names none, and the note that says so."""
    if job.batch_size is not None:
        return job, []
    from precision_time.capture.captured_model import resolve

    batch = int(resolve(job).sizes["batch_size"])
    return job.replace(batch_size=batch), [f"batch {batch:,}, the default of {job.model}"]


def predict_by(name: str, trained: str | None, job: Job) -> tuple[str, dict[str, object]]:
    """The time of a job by a predictor other than the simulator, as text and for JSON."""
    from precision_time.predictors.interface import steps_of
    from precision_time.predictors.store import card_of, predictor_for
    from precision_time.units import human_seconds

    folder = Path(trained) if trained else None
    job, notes = with_default_batch(job)
    predictor, origin = predictor_for(name, folder, job)
    forecast = predictor.predict(job)
    card = {} if origin else card_of(name, folder)
    if card:
        notes.append(f"trained {card['trained']} on {card['rows']:,} {card['learned_from']} rows")
        notes += [f"mean error held out, by {held_out(card)}"] if card["held_out"] else []
    notes = [*forecast.notes, *notes, *origin]
    steps = steps_of(job)
    what = "step" if steps == 1 else f"run of {steps:,.0f} steps"
    lines = [
        f"{job.signature()}, by {name}",
        f"  {what}: {human_seconds(forecast.seconds)} "
        f"({human_seconds(forecast.p10_s)} - {human_seconds(forecast.p90_s)})",
    ]
    if steps != 1:
        lines.append(f"  step: {human_seconds(forecast.seconds / steps)}")
    if forecast.confidence is not None:
        lines.append(f"  similarity to the training networks: {forecast.confidence:.0%}")
    lines += [f"  {note}" for note in notes]
    content: dict[str, object] = {
        "predictor": name,
        "job": job.to_dict(),
        "steps": steps,
        "seconds": forecast.seconds,
        "p10_s": forecast.p10_s,
        "p90_s": forecast.p90_s,
        "step_s": forecast.seconds / steps,
        "confidence": forecast.confidence,
        "notes": notes,
    }
    return "\n".join(lines), content
