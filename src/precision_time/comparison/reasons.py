"""Why a lower precision is or is not faster: sentences read off the breakdowns of two estimates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_time.comparison.comparison import Comparison, Row
    from precision_time.estimate.estimate import Estimate

_WIDTH = {"fp64": 0, "fp32": 1, "tf32": 2, "fp16": 3, "bf16": 3, "fp8": 4}
"""Rank by `precision_spec.math`: a row is explained against a row of lower rank."""
_PARTNERS = ("torch-fp32", "fp32", "tf32", "fp64")
"""Precisions that a row is explained against, best first."""
SLOWER, HARDLY = 0.98, 1.15
"""Speed-ups below which a row is called slower, or hardly faster: chosen."""
RESOLUTION = 0.10
"""Predictions are off by about 10 % on average (benchmarks/results/accuracy.md), so closer speed-ups are
not told apart."""
MOST_REASONS = {"slower": 4, "hardly": 4, "faster": 2}
"""Most reasons that a sentence gives."""
MOST_SENTENCES, MOST_UNFIT, MOST_NAMES = 12, 3, 3
"""Most rows that are explained one by one, that are said one by one not to fit, and that a sentence names."""
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def explain(comparison: Comparison) -> list[str]:
    """A sentence for rows with a partner in a wider precision, for rows that do not fit or have no estimate, and what
    precisions mean that are taken for others."""
    rows = comparison.rows
    names = _names(rows)
    keys = [_other_fields(row) for row in rows]
    wider: dict[object, list[Row]] = {}
    for key, row in zip(keys, rows, strict=True):
        if row.estimate is not None and row.job.precision in _PARTNERS:
            wider.setdefault(key, []).append(row)
            wider.setdefault((key, row.batch_size), []).append(row)
    sentences = []
    told = 0
    for name, key, row in zip(names, keys, rows, strict=True):
        base = partner(row, wider.get((key, row.batch_size), ())) or partner(row, wider.get(key, ()))
        if base is not None and row.estimate is not None and base.estimate is not None:
            told += 1
            if told <= MOST_SENTENCES:
                sentences.append(f"{name}: {_verdict(row, row.estimate, base, base.estimate)}")
    if told > MOST_SENTENCES:
        sentences.append(
            f"{told - MOST_SENTENCES} more rows are faster or slower for such reasons (--best: fewer rows)."
        )
    return [*sentences, *_too_large(names, rows), *_without_estimate(names, rows), *_precisions(rows)]


def _precisions(rows: Sequence[Row]) -> list[str]:
    """What estimates note of their precision; such notes begin with its name (`estimate.assumptions`)."""
    notes = (
        f"{note}."
        for row in rows
        if row.estimate is not None
        for note in row.estimate.assumptions
        if note.startswith((f"{row.job.precision}:", f"{row.job.precision},"))
    )
    return list(dict.fromkeys(notes))


def _too_large(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Sentences about rows that do not fit in memory; one for all where there are many."""
    unfit = [
        (estimate.memory.peak_bytes - estimate.memory.capacity_bytes, name, estimate.memory)
        for name, row in zip(names, rows, strict=True)
        if (estimate := row.estimate) is not None and not estimate.memory.fits
    ]
    if len(unfit) > MOST_UNFIT:
        over, name, _ = min(unfit, key=lambda each: each[0])
        return [f"{len(unfit)} rows do not fit in memory; the nearest, {name}, by {over / 2**30:.1f} GiB."]
    return [
        f"{name}: does not fit in memory: it needs {memory.peak_bytes / 2**30:.1f} GiB, "
        f"{over / 2**30:.1f} GiB more than the {memory.capacity_bytes / 2**30:.1f} GiB there are."
        for over, name, memory in unfit
    ]


def _without_estimate(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A sentence for every reason why there is no estimate, with the rows that it holds for."""
    grouped: dict[str, list[str]] = {}
    for name, row in zip(names, rows, strict=True):
        if row.error is not None:
            grouped.setdefault(row.error.rstrip("."), []).append(name)
    sentences = []
    for error, held in grouped.items():
        more = f"; and {len(held) - MOST_NAMES} more" if len(held) > MOST_NAMES else ""
        sentences.append(f"{'; '.join(held[:MOST_NAMES])}{more}: no estimate: {error}.")
    return sentences


def partner(row: Row, candidates: Sequence[Row]) -> Row | None:
    """Of rows that differ only in precision (and batch), the wider one, of several the first of `_PARTNERS`."""
    width = _WIDTH[row.job.precision_spec.math]
    narrower = (other for other in candidates if _WIDTH[other.job.precision_spec.math] < width)
    return min(narrower, key=lambda other: _PARTNERS.index(other.job.precision), default=None)


def _other_fields(row: Row) -> str:
    """All fields of the job but precision and batch, as text."""
    fields = row.job.to_dict()
    return json.dumps({k: v for k, v in fields.items() if k not in ("precision", "batch_size")}, sort_keys=True)


def _names(rows: Sequence[Row]) -> list[str]:
    """A name for each row from the fields in which the rows differ."""
    models, clusters, batches = (
        len({pick(row) for row in rows}) > 1
        for pick in (lambda r: r.job.model, lambda r: (r.job.gpu, r.job.gpus), lambda r: r.batch_size)
    )
    return [
        " ".join(
            ([row.job.model] if models else [])
            + [row.job.precision]
            + ([f"on {row.job.gpus} x {row.job.gpu}"] if clusters else [])
            + ([f"batch {row.batch_size}"] if batches and row.batch_size is not None else [])
        )
        for row in rows
    ]


def _verdict(row: Row, estimate: Estimate, base: Row, base_estimate: Estimate) -> str:
    ratio = estimate.samples_per_s / base_estimate.samples_per_s
    name = base.job.precision
    if base.batch_size != row.batch_size:
        name += f" at batch {base.batch_size}"
    if ratio < SLOWER:
        kind, text = "slower", f"slower than {name}, {ratio:.2f}x its samples per second"
    elif ratio < HARDLY:
        kind, text = "hardly", f"hardly faster than {name}, {ratio:.2f}x its samples per second"
    else:
        kind, text = "faster", f"{ratio:.2f}x as fast as {name}"
    if abs(ratio - 1) < RESOLUTION:
        text += " (closer than a prediction can tell apart)"
    by_share = sorted(_reasons(row, estimate, base, base_estimate, ratio), reverse=True)
    reasons = [reason for _, reason in by_share[: MOST_REASONS[kind]]]
    if not reasons:
        return text + ("." if kind == "faster" else "; no single term of the breakdown explains it.")
    link = "; what holds it back: " if kind == "faster" else ", because "
    return text + link + "; ".join(reasons) + "."


def _reasons(
    row: Row, estimate: Estimate, base: Row, base_estimate: Estimate, ratio: float
) -> Iterator[tuple[float, str]]:
    """(share of the step, sentence) of every term that is large enough to matter."""
    step = estimate.step.p50 or 1.0
    for term, least in _LEAST_SHARE.items():
        share = estimate.breakdown.get(term, 0.0) / step
        if share >= least:
            yield share, _term_reason(term, share, row, estimate, base)
    yield from _kernel_reasons(row, estimate, base, ratio)
    yield from _slower_passes(row, estimate, base, base_estimate)


_LEAST_SHARE = {
    "host_gaps": 0.10,
    "communication_exposed": 0.05,
    "loader_stall": 0.05,
    "straggler_wait": 0.05,
    "casts": 0.03,
    "optimizer": 0.10,
    "loss_scaling": 0.02,
}
"""Share of the step from which a term is named as a reason: chosen, so that sentences name what a user can change."""


def _term_reason(term: str, share: float, row: Row, estimate: Estimate, base: Row) -> str:
    """The sentence for a term of `_LEAST_SHARE` that takes this share of the step."""
    spec, base_spec = row.job.precision_spec, base.job.precision_spec
    if term == "host_gaps":
        return (
            f"the GPU waits for the host during {share:.0%} of the step, and launching takes as long in any precision "
            "(a larger batch, cuda_graphs or compile helps)"
        )
    if term == "communication_exposed":
        return f"exposed communication is {share:.0%} of the step" + _communication(row, base)
    if term == "loader_stall":
        loading = getattr(estimate, "loading", None)
        limit = f"loader-bound by {loading.binding}" if loading is not None else "loader-bound"
        return f"the GPU waits for data during {share:.0%} of the step ({limit}), which no precision changes"
    if term == "straggler_wait":
        return f"waiting for the slowest GPU is {share:.0%} of the step"
    if term == "casts":
        return f"casts to and from {spec.compute_dtype} cost {share:.0%} of the step; {base_spec.name} has none"
    if term == "optimizer":
        same = spec.state_dtype == base_spec.state_dtype
        return f"the optimizer takes {share:.0%} of the step" + (
            f" and works on {spec.state_dtype} weights and moments in both" if same else ""
        )
    return f"unscaling and checking the gradients costs {share:.0%} of the step"


def _kernel_reasons(row: Row, estimate: Estimate, base: Row, ratio: float) -> Iterator[tuple[float, str]]:
    """What limits the kernels of forward and backward: memory traffic, launch size or arithmetic."""
    kernels = sum(estimate.breakdown.get(name, 0.0) for name in ("forward", "backward")) / (estimate.step.p50 or 1.0)
    math, base_math = row.job.precision_spec.math, _math(base)
    if (part := estimate.bound_shares.get("memory", 0.0)) >= 0.4:
        sentence = f"{part:.0%} of the kernel time is bound by memory traffic, which only narrower tensors cut"
        yield part * kernels, sentence
    if (part := estimate.bound_shares.get("launch", 0.0)) >= 0.1:
        yield part * kernels, f"{part:.0%} of the kernel time goes to kernels too small to fill the GPU"
    if (part := estimate.bound_shares.get("compute", 0.0)) >= 0.5 and ratio < HARDLY and math != base_math:
        sentence = (
            f"{part:.0%} of the kernel time is bound by arithmetic, and {row.job.gpu} is hardly faster at these "
            f"operators in {math} than in {base_math}"
        )
        yield part * kernels, sentence


def _math(row: Row) -> str:
    spec = row.job.precision_spec
    return spec.name if spec.tf32_convolutions else spec.math


def _communication(row: Row, base: Row) -> str:
    mine, other = (r.job.communication_dtype or r.job.precision_spec.gradient_dtype for r in (row, base))
    if _BYTES[mine] < _BYTES[other]:
        return f", although gradients travel in {mine}"
    if row.job.precision_spec.autocast and row.job.communication_dtype is None:
        return f": under autocast the gradients stay {mine}, so their bytes do not halve"
    return f": gradients travel in {mine} in both" if mine == other else f": gradients travel in {mine}"


def _slower_passes(row: Row, estimate: Estimate, base: Row, base_estimate: Estimate) -> Iterator[tuple[float, str]]:
    """Forward or backward kernels that take longer per sample than in the wider precision."""
    mine = estimate.samples_per_s * estimate.step.p50
    other = base_estimate.samples_per_s * base_estimate.step.p50
    for name in ("forward", "backward"):
        now = estimate.breakdown.get(name, 0.0) / mine
        before = base_estimate.breakdown.get(name, 0.0) / other
        if before > 0 and now > 1.05 * before:
            lost = (now - before) * estimate.samples_per_s
            yield lost, f"its {name} kernels take {now / before:.2f}x as long as in {base.job.precision}"
