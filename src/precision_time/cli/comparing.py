"""The command `compare`, from its jobs on."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.progress import Progress
from precision_time.cli.streams import note
from precision_time.cli.workers import workers_of
from precision_time.errors import CatalogError, nearest

if TYPE_CHECKING:
    from precision_time.comparison import Comparison
    from precision_time.job import Job


def compared(options: Namespace, jobs: Sequence[Job]) -> Comparison:
    """The rows that the flags ask for, in their order; writes the picture where one is asked for."""
    from precision_time.comparison import compare

    check_order(options)
    jobs, prepare = _batches(options, _priced(jobs))
    with workers_of(options) as workers, Progress("jobs") as progress:
        comparison = compare(jobs, progress=progress, prepare=prepare, workers=workers)
    return arranged(options, comparison)


def check_order(options: Namespace) -> None:
    """Raise `UsageError` for flags of the order of rows that are wrong."""
    from precision_time.comparison import SORTS

    _best(options.best)
    if options.sort is not None and options.sort not in SORTS:
        raise UsageError(f"flag --sort is {show(options.sort)}; nearest: {nearest(options.sort, SORTS)}")


def arranged(options: Namespace, comparison: Comparison) -> Comparison:
    """The comparison with the order, quantile and picture that the flags ask for."""
    count, sort = _best(options.best), options.sort
    if comparison.baseline is None:
        raise UsageError(comparison.rows[0].error or "nothing to compare")
    if options.quantile is not None:
        comparison = comparison.with_quantile(options.quantile)
    if sort is not None or count is not None:
        comparison = comparison.best(count, sort or "throughput")
    if options.plot:
        comparison.plot(options.plot)
        note(f"picture written to {options.plot}")
    return comparison


def _priced(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, without a price where `any` is asked for and no cloud of the catalog has the GPU, which a note says."""
    from precision_time.hardware.prices import ANY
    from precision_time.placement import catalog_of

    unknown: dict[str, None] = {}
    found = []
    for job in jobs:
        if (job.run.price or "").strip().lower() == ANY:
            try:
                catalog = catalog_of(job)
                gpu = catalog.gpu(job.gpu).name
            except CatalogError:  # the row says what is wrong
                found.append(job)
                continue
            if all(price.gpu != gpu for price in catalog.prices.values()):
                unknown[gpu] = None
                job = job.replace(price=None)
        found.append(job)
    if unknown:
        note(f"note: no price is known of {', '.join(unknown)}: no cost; --price-per-gpu-hour gives one to all rows")
    return found


def _batches(options: Namespace, jobs: Sequence[Job]) -> tuple[Sequence[Job], Callable[[Job], Job] | None]:
    """The jobs at the global batch that is asked for, and what finds the largest batch of each."""
    from precision_time.field_types import BATCH
    from precision_time.global_batch import at_global_batch

    given = options.global_batch_size
    batch = BATCH("global_batch_size", given) if given is not None else None
    if options.largest_batch:
        from precision_time.largest_batch import at_largest_batch

        return jobs, partial(at_largest_batch, global_batch=batch)
    return (jobs if batch is None else [at_global_batch(job, batch) for job in jobs]), None


def _best(text: str | None) -> int | None:
    if text is None:
        return None
    count = small_number(text)
    if not count:
        raise UsageError(f"flag --best is {show(text)}; give a whole number above 0")
    return count
