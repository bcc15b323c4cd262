"""LLaMA-3.1-8B on 8 H100s in every (dp, tp, pp) and several precisions, by the additive model and by the simulator.

No measured rows of this job are public, so nothing here is judged. Batch and sequence are ours: eight sequences of
2,048 tokens a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.boosting_claims import PUBLISHED_RANGE
from benchmarks.papers.every_layout import LayoutForecast, every_layout
from benchmarks.papers.study import Claim, Table
from benchmarks.papers.wording import nearest_to
from precision_time.anchoring import Anchoring
from precision_time.hardware.catalog import gpu
from precision_time.job.job import Job
from precision_time.prediction import predict

MODEL, GPU, WORLD, SEQUENCES, TOKENS = "llama3.1-8b", "h100-sxm", 8, 8, 2048
PRECISIONS = ("amp-fp16", "fp16", "fp32", "tf32")
"""The paper's three (its "mixed" is amp-fp16), and TF32, which "FP32" may mean on an H100."""
_ALONE = Anchoring(use=False)


@dataclass(frozen=True, slots=True)
class Beside:
    """A layout by the equations and by the simulator: seconds, whether it fits, seconds with a sample a micro-batch."""

    by_equations: LayoutForecast
    simulator_s: float = 0.0
    simulator_fits: bool = False
    simulator_micro_s: float = 0.0


def collect(
    precisions: Sequence[str], progress: Callable[[str, int, int], None] = lambda part, done, of: None
) -> dict[str, list[Beside]]:
    """Every layout in every precision."""
    layouts = {}
    for done, precision in enumerate(precisions):
        progress(f"additive: {MODEL}", done, len(precisions))
        job = Job(
            MODEL, precision=precision, gpu=GPU, gpus=WORLD, batch_size=SEQUENCES // WORLD, input={"seq_len": TOKENS}
        )
        layouts[precision] = [_beside(each) for each in every_layout(job, WORLD)]
    progress(f"additive: {MODEL}", len(precisions), len(precisions))
    return layouts


def _beside(each: LayoutForecast) -> Beside:
    if each.job is None:
        return Beside(each)
    whole = predict(each.job, anchoring=_ALONE)
    micro = predict(each.job.replace(batch_size=1, grad_accum=each.job.batch_size or 1), anchoring=_ALONE)
    return Beside(each, float(whole.step.p50), bool(whole.memory.fits), float(micro.step.p50))


def tables(layouts: Mapping[str, Sequence[Beside]]) -> list[Table]:
    """Steps of all layouts and precisions, and the four terms of the first precision."""
    names = list(layouts)
    rows = []
    for index, first in enumerate(layouts[names[0]]):
        cells = []
        for name in names:
            each = layouts[name][index]
            by = each.by_equations
            cells += [
                f"{_seconds(by)}",
                f"{each.simulator_s:.3f}{'' if each.simulator_fits else ' *'}" if by.job else "-",
            ]
        rows.append((first.by_equations.label, *cells))
    heads = [f"{name}, {way} (s)" for name in names for way in ("additive", "simulator")]
    steps = Table(
        f"{MODEL} on {WORLD} x {GPU}, {SEQUENCES} sequences of {TOKENS} tokens a step as one micro-batch: "
        "predicted seconds, "
        "the simulator as it ships. No measured rows of it are public. * does not fit in memory by the main "
        "simulator's count; the additive model does not know.",
        ("layout", *heads),
        tuple(rows),
    )
    terms = Table(
        f"The four terms in {names[0]} (s). Last column: the simulator where a pipeline gets one sequence a "
        "micro-batch, as one would "
        "run it; the published equation has no micro-batches.",
        ("layout", "T_comp", "V_dp/B", "V_tp/B", "T_comp (pp - 1)", "T", "simulator", "simulator, micro-batches"),
        tuple(_terms(each) for each in layouts[names[0]]),
    )
    return [steps, terms]


def _seconds(by: LayoutForecast) -> str:
    return f"{by.added.terms.seconds:.3f}" if by.added else f"not possible: {by.why}"


def _terms(each: Beside) -> tuple[str, ...]:
    by = each.by_equations
    if by.added is None:
        return (by.label, f"not possible: {by.why}", *[""] * 6)
    terms = by.added.terms
    numbers = (
        terms.compute_s,
        terms.data_s,
        terms.tensor_s,
        terms.pipeline_s,
        terms.seconds,
        each.simulator_s,
        each.simulator_micro_s,
    )
    return (by.label, *(f"{number:.3f}" for number in numbers))


def ratio_claim(layouts: Mapping[str, Sequence[Beside]]) -> Claim:
    """How far precision moves the time of one layout, by the equations."""
    ratios: dict[str, list[float]] = {}
    for slow in ("fp32", "tf32"):
        for fast in ("amp-fp16", "fp16"):
            for a, b in (
                zip(layouts.get(slow, ()), layouts.get(fast, ()), strict=True) if {slow, fast} <= set(layouts) else ()
            ):
                if a.by_equations.added and b.by_equations.added:
                    ratio = a.by_equations.added.terms.seconds / b.by_equations.added.terms.seconds
                    ratios.setdefault(slow, []).append(ratio)
    text = "; ".join(
        f"{slow} takes {min(r):.1f} to {max(r):.1f} times as long as half precision" for slow, r in ratios.items()
    )
    return Claim(
        f"The precision setting moves training time ({MODEL}, all layouts, predicted)",
        f"by about {PUBLISHED_RANGE}x over its minimum (abstract)",
        text or "only one precision predicted",
        None,
        "No measured rows of this job are public." + _peaks(ratios),
    )


def _peaks(ratios: Mapping[str, Sequence[float]]) -> str:
    """How the peaks of the GPU compare, and which slow precision comes nearest to the published range."""
    if not ratios:
        return ""
    peaks = gpu(GPU).peaks
    found = ", ".join(f"{peaks['fp16'] / peaks[slow]:.1f} times that of {slow}" for slow in ratios)
    near = nearest_to(PUBLISHED_RANGE, {slow: statistics.median(values) for slow, values in ratios.items()})
    return (
        f" The peak of half precision on {GPU} is {found}. The layouts' median in {near} comes nearest to "
        f"{PUBLISHED_RANGE}x."
    )


def data(layouts: Mapping[str, Sequence[Beside]]) -> list[dict[str, Any]]:
    """For the JSON."""
    rows = []
    for precision, every in layouts.items():
        for each in every:
            by = each.by_equations
            row: dict[str, Any] = {"precision": precision, "dp": by.dp, "tp": by.tp, "pp": by.pp}
            if by.added is None:
                rows.append({**row, "not_possible": by.why})
                continue
            terms = by.added.terms
            rows.append(
                {
                    **row,
                    "compute_s": terms.compute_s,
                    "data_s": terms.data_s,
                    "tensor_s": terms.tensor_s,
                    "pipeline_s": terms.pipeline_s,
                    "seconds": terms.seconds,
                    "simulator_s": each.simulator_s,
                    "simulator_fits": each.simulator_fits,
                    "simulator_micro_batches_s": each.simulator_micro_s,
                }
            )
    return rows
