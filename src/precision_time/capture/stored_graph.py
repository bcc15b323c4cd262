"""The stored steps that ship with the package, at the sizes and in the precision of a job."""

from __future__ import annotations

from collections.abc import Mapping

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture import symbolic
from precision_time.capture.fp8 import fits, to_fp8, weight_operands
from precision_time.capture.graph import OpGraph
from precision_time.capture.half_softmax import merge_half_softmax
from precision_time.capture.regimes import dtype_renames, merges_softmax, regime_of
from precision_time.capture.stored_apart import member_at
from precision_time.capture.stored_step import StoredStep
from precision_time.job.precision import Precision
from precision_time.shipped import shipped_file


def stored_graph(
    file: str,
    attention: str,
    precision: Precision,
    sizes: Mapping[str, int],
    as_traced: bool = False,
    channels_last: bool = False,
) -> OpGraph:
    """The graph of a stored step at `sizes` (values of its symbols), on a GPU in `precision`.

    `file`: its path in the package. `as_traced`: without what `regimes.transform` changes. `channels_last`: of images
    stored so, where that step is another one. Raises `DataError` for a damaged file, `JobError` for sizes at which the
    model cannot be trained.
    """
    variant = regime_of(precision) if attention == "flash" else f"{regime_of(precision)}.math"
    renames = tuple(dtype_renames(precision).items())
    member = member_at(file, variant, sizes, channels_last)
    merged = merges_softmax(precision) and not as_traced
    step = _step(file, member, renames, merged) if renames or merged else _traced(file, member)
    if precision.fp8_scaling and not as_traced:
        kinds = step.form.at(step.polynomials.at(sizes))
        step = _in_fp8(step, precision.fp8_scaling, tuple(map(fits, kinds, _weight_operands(step))))
    return step.at(sizes)


@bounded(budget=STRUCTURES)
def _step(file: str, variant: str, renames: tuple[tuple[str, str], ...], merged: bool) -> StoredStep:
    step = _traced(file, variant)
    step = step.renamed(dict(renames)) if renames else step
    return step.changed(merge_half_softmax) if merged else step


@bounded(budget=STRUCTURES)
def _traced(file: str, variant: str) -> StoredStep:
    """In the dtypes it was traced in; what it holds beside dtypes serves all precisions of its regime."""
    return StoredStep.of(symbolic.load(shipped_file(file), variant), {})


@bounded(budget=STRUCTURES)
def _weight_operands(step: StoredStep) -> list[tuple[int, ...]]:
    return weight_operands(step.unsized())


@bounded(budget=STRUCTURES)
def _in_fp8(step: StoredStep, scaling: str, fitting: tuple[bool, ...]) -> StoredStep:
    """The step with those of its operators in fp8 whose dimensions fit, which is all that depends on sizes."""
    chosen = {kind for kind, fit in zip(step.form.unsized(), fitting, strict=True) if fit}
    return step.changed(lambda graph: to_fp8(graph, scaling, chosen.__contains__))
