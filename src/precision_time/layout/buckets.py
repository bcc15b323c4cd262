"""The buckets in which PyTorch's DistributedDataParallel reduces gradients.

Gradients go into buckets in the order they arrive (the reducer rebuilds its buckets after the first iteration): the
first bucket closes at 1 MiB, the others at 25 MiB, each after the parameter that reaches the limit
(torch/nn/parallel/distributed.py and csrc/distributed/c10d/reducer.cpp, 2.13). Every gradient is divided into its
bucket and copied back after the reduction (`gradient_as_bucket_view=False`, the default).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT
from precision_time.capture.layers import Unit
from precision_time.layout.program import Bucket, Buckets, Chunk

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient: when it is complete (see `Bucket`), its elements, and its bytes in its own dtype."""

    use: int
    position: int
    elements: int
    nbytes: int


@bounded(budget=STRUCTURES)
def stage_buckets(units: tuple[Unit, ...], chunks: tuple[Chunk, ...], wire_dtype: str | None) -> Buckets:
    """DDP's buckets of a rank that holds `chunks`, in the order they are reduced.

    `wire_dtype`: the dtype that a compression hook sends instead of the gradient's own.
    """
    return Buckets(tuple(fill_buckets(_gradients(units, chunks), wire_dtype)))


def fill_buckets(gradients: Iterable[Gradient], wire_dtype: str | None = None) -> Iterator[Bucket]:
    """Buckets of gradients given in the order they arrive."""
    limit = FIRST_BUCKET_BYTES
    elements = size = 0
    last: Gradient | None = None
    for last in gradients:
        elements += last.elements
        size += last.nbytes
        if size >= limit:
            yield _bucket(last, elements, size, wire_dtype)
            elements, size, limit = 0, 0, BUCKET_BYTES
    if last is not None and elements:
        yield _bucket(last, elements, size, wire_dtype)


def _bucket(last: Gradient, elements: int, size: int, wire_dtype: str | None) -> Bucket:
    nbytes = size if wire_dtype is None else elements * BYTES_PER_ELEMENT[wire_dtype]
    return Bucket(nbytes, elements, last.use, last.position)


def _gradients(units: tuple[Unit, ...], chunks: tuple[Chunk, ...]) -> Iterator[Gradient]:
    """Gradients in the order of the backward pass: from the last use of a unit to the first."""
    use = 0
    for chunk in reversed(chunks):
        for index, repeat, _ in reversed(chunk.units):
            within = _of_unit(units[index])
            for _ in range(repeat):
                for position, elements, nbytes in within:
                    yield Gradient(use, position, elements, nbytes)
                use += 1


@bounded(budget=STRUCTURES)
def _of_unit(unit: Unit) -> tuple[tuple[int, int, int], ...]:
    """Position in the unit's backward pass, elements and bytes of each gradient, as they arrive."""
    trained = sorted((p for p in unit.parameters if p.trainable and p.ready >= 0), key=lambda p: p.ready)
    return tuple(
        (max(bisect_right(unit.backward, p.ready) - 1, 0), p.numel, p.numel * BYTES_PER_ELEMENT[p.grad_dtype])
        for p in trained
    )
