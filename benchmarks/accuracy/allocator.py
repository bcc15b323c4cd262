"""How much more than its live tensors PyTorch's caching allocator needs: traced steps played through its rules.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings: sizes are rounded up to 512 bytes;
up to 1 MiB come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones from segments of their own,
rounded up to 2 MiB; the smallest free block that is large enough is taken and split where what is left is worth it;
neighbours that are free are joined; where the device has no room, free segments are given back and it tries again.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import Category, OpGraph
from precision_time.estimate.memory import memory_parameters
from precision_time.job.job import Job
from precision_time.report.table import Table

ROUND, SMALL, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
LARGE_SEGMENT, LEAST_OWN, ROUND_OWN = 20 << 20, 10 << 20, 2 << 20
STEPS = 3
"""Steps played; states of the optimizer are allocated after the first."""
JOBS = (
    Job("resnet50", batch_size=64, precision="amp-fp16"),
    Job("resnet50", batch_size=128, precision="amp-fp16", memory_format="nhwc"),
    Job("efficientnet-b0", batch_size=64, precision="amp-fp16"),
    Job("unet3d", batch_size=2, precision="amp-fp16"),
    Job("bert-large", batch_size=8, precision="amp-bf16", input={"seq_len": 512}),
    Job("bert-base", batch_size=32, precision="fp32", input={"seq_len": 128}),
    Job("transformer-xl-base", batch_size=16, precision="amp-fp16"),
    Job("gpt2", batch_size=8, precision="amp-bf16"),
    Job("gpt2", batch_size=4, precision="bf16"),
    Job("gpt2-medium", batch_size=4, precision="bf16"),
    Job("gpt2-large", batch_size=4, precision="amp-bf16"),
    Job("t5-base", batch_size=16, precision="amp-bf16"),
)
"""Jobs on one GPU whose steps ship with the program."""


class NoRoomError(Exception):
    """The device has no room for a segment, even after free ones were given back."""


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment; its neighbours in it."""

    size: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


class CachingAllocator:
    """Bytes that tensors hold (`allocated`) and that the device has given (`reserved`), of at most `capacity`."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.allocated, self.reserved = capacity, 0, 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._count = 0

    def allocate(self, nbytes: int) -> Block:
        """A block for so many bytes. Raises `NoRoomError`."""
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        small = size <= SMALL
        free = self._free[small]
        place = bisect.bisect_left(free, size, key=lambda entry: entry[0])
        block = free.pop(place)[2] if place < len(free) else self._segment(size, small)
        rest = block.size - size
        if rest >= ROUND if small else rest > SMALL:
            left = Block(rest, small, True, block, block.after)
            if block.after is not None:
                block.after.before = left
            block.after, block.size = left, size
            self._keep(left)
        block.free = False
        self.allocated += block.size
        return block

    def release(self, block: Block) -> None:
        """Free a block and join it with free neighbours."""
        self.allocated -= block.size
        block.free = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                free = self._free[block.small]
                free.pop(next(i for i, entry in enumerate(free) if entry[2] is neighbour))
                block.size += neighbour.size
                if neighbour is block.before:
                    block.before = neighbour.before
                    if block.before is not None:
                        block.before.after = block
                else:
                    block.after = neighbour.after
                    if block.after is not None:
                        block.after.before = block
        self._keep(block)

    def _keep(self, block: Block) -> None:
        self._count += 1
        bisect.insort(self._free[block.small], (block.size, self._count, block))

    def _segment(self, size: int, small: bool) -> Block:
        own = -(-size // ROUND_OWN) * ROUND_OWN
        nbytes = SMALL_SEGMENT if small else LARGE_SEGMENT if size < LEAST_OWN else own
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            for kind, free in self._free.items():
                self.reserved -= sum(block.size for *_, block in free if block.whole)
                self._free[kind] = [entry for entry in free if not entry[2].whole]
            if self.reserved + nbytes > self.capacity:
                raise NoRoomError
        self.reserved += nbytes
        return Block(nbytes, small)


def play(graph: OpGraph, states: int, allocator: CachingAllocator) -> tuple[int, int]:
    """Most bytes allocated, and bytes reserved, over `STEPS` steps: weights lie there, gradients live to the end of
    a step, `states` tensors of each weight's size come after the first. Raises `NoRoomError`."""
    births, deaths = defaultdict(list), defaultdict(list)
    last = len(graph.calls) - 1
    for number, storage in enumerate(graph.storages):
        if storage.born >= 0 and storage.nbytes:
            births[storage.born].append((number, storage.nbytes))
            if storage.category is not Category.GRADIENTS:
                deaths[min(storage.dies, last)].append(number)
        elif storage.nbytes:
            allocator.allocate(storage.nbytes)
    most, alive = 0, {}
    for step in range(STEPS):
        for call in range(last + 1):
            for number, nbytes in births[call]:
                alive[number] = allocator.allocate(nbytes)
            most = max(most, allocator.allocated)
            for number in deaths[call]:
                allocator.release(alive.pop(number))
        if step == 0:
            for parameter, storage in zip(graph.parameters, graph.storages, strict=False):
                for _ in range(states if parameter.trainable else 0):
                    allocator.allocate(storage.nbytes)
        for number in list(alive):
            allocator.release(alive.pop(number))
    return most, allocator.reserved


@dataclass(frozen=True, slots=True)
class Row:
    """A job: most bytes of live tensors, bytes reserved without a limit, and the least memory in which it runs."""

    job: Job
    allocated: int
    reserved: int
    needed: int

    @property
    def reserved_more(self) -> float:
        """Reserved over allocated bytes, less one."""
        return self.reserved / self.allocated - 1.0

    @property
    def needed_more(self) -> float:
        """The least memory over allocated bytes, less one."""
        return self.needed / self.allocated - 1.0


def judge(job: Job, states: int = 2) -> Row:
    """A job's step, played without a limit and in ever less memory, to 0.2 %."""
    graph = capture_model(job).graph
    allocated, reserved = play(graph, states, CachingAllocator())
    low, high = allocated, reserved
    while high - low > 0.002 * allocated:
        middle = (low + high) // 2
        try:
            play(graph, states, CachingAllocator(middle))
            high = middle
        except NoRoomError:
            low = middle
    return Row(job, allocated, reserved, high)


def study(progress: Callable[[str], None], jobs: Sequence[Job] = JOBS) -> tuple[Row, ...]:
    """All jobs."""
    rows = []
    for job in jobs:
        progress(job.model)
        rows.append(judge(job))
    return tuple(rows)


def page(rows: Sequence[Row]) -> str:
    """allocator.md."""
    cells = [
        (
            row.job.model,
            row.job.precision,
            f"{row.job.batch_size}",
            f"{row.allocated / 2**30:.2f}",
            f"{row.reserved_more:.1%}",
            f"{row.needed_more:.1%}",
        )
        for row in sorted(rows, key=lambda row: row.needed_more)
    ]
    table = Table(("model", "precision", "batch", "allocated GiB", "reserved", "needed"), cells, left=2)
    needed, reserved = ([getattr(row, name) for row in rows] for name in ("needed_more", "reserved_more"))
    return f"""# Reserved and allocated memory

Written by `python -m benchmarks.accuracy allocator`. {len(rows)} traced steps on one GPU, with two states of the
optimizer, played through the rules of PyTorch's caching allocator ([code](../accuracy/allocator.py)), which stand for
the device: no GPU was used. *Allocated*: live tensors at the fullest moment (`torch.cuda.max_memory_allocated`).
*Reserved*: what the allocator has taken by then, over it, where memory does not run out (`max_memory_reserved`).
*Needed*: the least memory in which the step runs, over it: the allocator gives free segments back before it fails.

Needed is {median(needed):.1%} more than allocated in the median and {max(needed):.1%} at most; reserved without limit
{median(reserved):.1%} and {max(reserved):.1%}. Predictions take {memory_parameters().fragmentation:.0%} for this.

{table.markdown()}
"""
