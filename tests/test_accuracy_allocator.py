"""PyTorch's caching allocator as its source describes it: rounding, pools, splits, joins and segments given back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.accuracy.allocator import JOBS, CachingAllocator, NoRoomError, judge, page, play
from precision_time.capture.captured_model import capture_model
from precision_time.estimate.memory import memory_parameters
from precision_time.job import Job

MIB = 1 << 20
PAGE = Path(__file__).parent.parent / "benchmarks" / "results" / "allocator.md"


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB), (512, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB, 12 * MIB), (25 * MIB, 26 * MIB, 26 * MIB),
    ],
)  # fmt: skip
def test_rounding_and_segments(nbytes: int, allocated: int, reserved: int) -> None:
    """A rest of up to 1 MiB of a large segment stays with its block: 11 MiB take the 12 that were reserved."""
    device = CachingAllocator()
    device.allocate(nbytes)
    assert (device.allocated, device.reserved) == (allocated, reserved)


def test_blocks_are_split_and_joined() -> None:
    device = CachingAllocator()
    first, second, third = (device.allocate(4 * MIB) for _ in range(3))
    assert device.reserved == 20 * MIB  # three of one segment, 8 MiB of it free
    device.release(first)
    device.release(third)
    assert device.allocate(8 * MIB).size == 8 * MIB  # the third with what was free behind it
    assert device.reserved == 20 * MIB
    device.release(second)
    device.allocate(8 * MIB)  # the first and the second
    assert device.reserved == 20 * MIB


def test_small_and_large_blocks_have_pools_of_their_own() -> None:
    device = CachingAllocator()
    device.release(device.allocate(20 * MIB))
    device.allocate(MIB)
    assert device.reserved == 22 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    device = CachingAllocator()
    large, small = device.allocate(40 * MIB), device.allocate(20 * MIB)
    device.release(large)
    device.release(small)
    device.allocate(20 * MIB)
    assert device.allocate(40 * MIB) is large


def test_free_segments_are_given_back_before_it_fails() -> None:
    device = CachingAllocator(60 * MIB)
    device.release(device.allocate(40 * MIB))
    held = device.allocate(30 * MIB)  # splits the free 40
    assert device.reserved == 40 * MIB
    device.release(held)
    device.allocate(50 * MIB)  # the 40 go back
    assert device.reserved == 50 * MIB
    with pytest.raises(NoRoomError):
        device.allocate(20 * MIB)


def test_nothing_is_lost_in_any_order() -> None:
    """Allocated is the sum of what lives, never above what is reserved, and all of it comes back."""
    draw = random.Random(7)
    device, alive = CachingAllocator(), []
    for _ in range(3000):
        if alive and draw.random() < 0.48:
            device.release(alive.pop(draw.randrange(len(alive))))
        else:
            alive.append(device.allocate(int(10 ** draw.uniform(1, 8))))
        assert device.allocated == sum(block.size for block in alive) <= device.reserved
    for block in alive:
        device.release(block)
    assert device.allocated == 0
    assert all(block.whole for free in device._free.values() for *_, block in free)


def test_a_step_needs_between_its_tensors_and_all_that_was_reserved() -> None:
    job = Job("gpt2", batch_size=1, precision="bf16", input={"seq_len": 256})
    row = judge(job)
    assert row.allocated <= row.needed <= row.reserved
    graph = capture_model(job).graph
    live = sum(s.nbytes for s in graph.storages[: len(graph.parameters)]) * 3  # weights and two states
    assert row.allocated > live
    with pytest.raises(NoRoomError):
        play(graph, 2, CachingAllocator(row.allocated - MIB))


def test_the_page_is_of_these_jobs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n| ") == len(JOBS) + 2
    assert f"Predictions take {memory_parameters().fragmentation:.0%} for this" in text
    row = judge(JOBS[-1])
    assert f"| {row.job.model} | {row.job.precision} | {row.job.batch_size} |" in page([row])
    line = next(each for each in text.splitlines() if each.startswith(f"| {row.job.model} | {row.job.precision}"))
    assert line in page([row])
