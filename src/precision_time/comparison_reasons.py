"""Why is a lower precision not faster here? Sentences read off two breakdowns, nothing beyond them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_time.comparison import Comparison, EstimateLike, Row

_WIDTH = {"fp64": 0, "fp32": 1, "tf32": 2, "fp16": 3, "bf16": 3, "fp8": 4}
"""Rank by math key: a row is explained against one of a lower rank."""

_PARTNERS = ("fp32", "tf32", "fp64")
"""What a row is explained against, best first."""

SLOWER, HARDLY = 0.98, 1.15
"""Below: slower, hardly faster. The order of precisions holds to some 10 % (shared/design/FACTS.md)."""
RESOLUTION = 0.10

MOST_REASONS = {"slower": 4, "hardly": 4, "faster": 2}

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def explain(comparison: Comparison) -> list[str]:
    """One sentence or two per row that has a wider-precision partner; then rows that do not fit or failed."""
    rows = comparison.rows
    names = _names(rows)
    keys = [_others(row) for row in rows]
    wider: dict[object, list[Row]] = {}
    for key, row in zip(keys, rows, strict=True):
        if row.estimate is not None and row.job.precision in _PARTNERS:
            wider.setdefault(key, []).append(row)
            wider.setdefault((key, row.batch_size), []).append(row)
    said = []
    for name, key, row in zip(names, keys, rows, strict=True):
        base = partner(row, wider.get((key, row.batch_size), ())) or partner(row, wider.get(key, ()))
        if base is not None and row.estimate is not None and base.estimate is not None:
            said.append(f"{name}: {_verdict(row, row.estimate, base, base.estimate)}")
    for name, row in zip(names, rows, strict=True):
        if row.estimate is not None and not row.estimate.memory.fits:
            memory = row.estimate.memory
            over = memory.peak_bytes - memory.capacity_bytes
            said.append(
                f"{name}: does not fit in memory: it needs {memory.peak_bytes / 2**30:.1f} GiB, "
                f"{over / 2**30:.1f} GiB more than the {memory.capacity_bytes / 2**30:.1f} GiB there are."
            )
        if row.error is not None:
            said.append(f"{name}: no estimate: {row.error.rstrip('.')}.")
    return said


def partner(row: Row, candidates: Sequence[Row]) -> Row | None:
    """Of rows that differ only in precision (and batch), the best one in fp32, tf32 or fp64 that is wider."""
    width = _WIDTH[row.job.precision_spec.math]
    narrower = (other for other in candidates if _WIDTH[other.job.precision_spec.math] < width)
    return min(narrower, key=lambda other: _PARTNERS.index(other.job.precision), default=None)


def _others(row: Row) -> str:
    """Everything of the job but precision and batch, as text."""
    words = row.job.to_dict()
    return json.dumps({k: v for k, v in words.items() if k not in ("precision", "batch_size")}, sort_keys=True)


def _names(rows: Sequence[Row]) -> list[str]:
    """Which row each is, by the words in which the rows differ."""
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


def _verdict(row: Row, estimate: EstimateLike, base: Row, base_estimate: EstimateLike) -> str:
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
    found = sorted(_reasons(row, estimate, base, base_estimate, ratio), reverse=True)
    reasons = [reason for _, reason in found[: MOST_REASONS[kind]]]
    if not reasons:
        return text + ("." if kind == "faster" else "; no single term of the breakdown explains it.")
    link = "; what holds it back: " if kind == "faster" else ", because "
    return text + link + "; ".join(reasons) + "."


def _reasons(
    row: Row, estimate: EstimateLike, base: Row, base_estimate: EstimateLike, ratio: float
) -> Iterator[tuple[float, str]]:
    """(share of the step, sentence) of every term that is large enough to matter."""
    step = estimate.step.p50 or 1.0
    spec, base_spec = row.job.precision_spec, base.job.precision_spec
    share = {term: seconds / step for term, seconds in estimate.breakdown.items()}

    def term(name: str, least: float) -> float:
        value = share.get(name, 0.0)
        return value if value >= least else 0.0

    if part := term("host_gaps", 0.10):
        yield (
            part,
            (
                f"the GPU waits for the host during {part:.0%} of the step, and launching takes as long in "
                f"any precision (a larger batch, cuda_graphs or compile helps)"
            ),
        )
    if part := term("communication_exposed", 0.05):
        yield part, f"exposed communication is {part:.0%} of the step" + _communication(row, base)
    if part := term("loader_stall", 0.05):
        loading = getattr(estimate, "loading", None)
        limit = f"loader-bound by {loading.binding}" if loading is not None else "loader-bound"
        yield part, f"the GPU waits for data during {part:.0%} of the step ({limit}), which no precision changes"
    if part := term("straggler_wait", 0.05):
        yield part, f"waiting for the slowest GPU is {part:.0%} of the step"
    if part := term("casts", 0.03):
        yield (
            part,
            f"casts to and from {spec.compute_dtype} cost {part:.0%} of the step; {base_spec.name} has none",
        )
    if part := term("optimizer", 0.10):
        same = spec.state_dtype == base_spec.state_dtype
        yield (
            part,
            f"the optimizer takes {part:.0%} of the step"
            + (f" and works on {spec.state_dtype} weights and moments in both" if same else ""),
        )
    if part := term("loss_scaling", 0.02):
        yield part, f"unscaling and checking the gradients costs {part:.0%} of the step"
    kernels = sum(share.get(name, 0.0) for name in ("forward", "backward"))
    bound = estimate.bound_shares
    if (part := bound.get("memory", 0.0)) >= 0.4:
        yield (
            part * kernels,
            (f"{part:.0%} of the kernel time is bound by memory traffic, which only narrower tensors cut"),
        )
    if (part := bound.get("launch", 0.0)) >= 0.1:
        yield part * kernels, f"{part:.0%} of the kernel time goes to kernels too small to fill the GPU"
    if (part := bound.get("compute", 0.0)) >= 0.5 and ratio < HARDLY and spec.math != base_spec.math:
        yield (
            part * kernels,
            (
                f"{part:.0%} of the kernel time is bound by arithmetic, and {row.job.gpu} is hardly "
                f"faster at these operators in {spec.math} than in {base_spec.math}"
            ),
        )
    yield from _slower_passes(row, estimate, base, base_estimate)


def _communication(row: Row, base: Row) -> str:
    mine, other = (r.job.communication_dtype or r.job.precision_spec.gradient_dtype for r in (row, base))
    if _BYTES[mine] < _BYTES[other]:
        return f", although gradients travel in {mine}"
    if row.job.precision_spec.autocast and row.job.communication_dtype is None:
        return f": under autocast the gradients stay {mine}, so their bytes do not halve"
    return f": gradients travel in {mine} in both" if mine == other else f": gradients travel in {mine}"


def _slower_passes(
    row: Row, estimate: EstimateLike, base: Row, base_estimate: EstimateLike
) -> Iterator[tuple[float, str]]:
    """Forward or backward kernels that take longer per sample than in the wider precision."""
    mine = estimate.samples_per_s * estimate.step.p50
    other = base_estimate.samples_per_s * base_estimate.step.p50
    for name in ("forward", "backward"):
        now = estimate.breakdown.get(name, 0.0) / mine
        before = base_estimate.breakdown.get(name, 0.0) / other
        if before > 0 and now > 1.05 * before:
            lost = (now - before) * estimate.samples_per_s
            yield lost, f"its {name} kernels take {now / before:.2f}x as long as in {base.job.precision}"
