"""Processes that predict: each request has its time and memory, and a process that fails is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from precision_time.serve.http import pool as pools
from precision_time.serve.http.limits import MEMORY_BYTES
from precision_time.serve.http.pool import Pool
from precision_time.serve.http.problems import ProblemError


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    monkeypatch.setattr(pools, "PREDICT_S", 0.5)
    monkeypatch.setattr(pools, "SEARCH_S", 1.0)
    monkeypatch.setattr(pools, "WAIT_FACTOR", 200.0)  # however busy this machine is


def within(count: int, work: Callable[[Pool], Awaitable[None]]) -> None:
    async def run() -> None:
        pool = Pool(count, "hostile_worker")
        try:
            await pool.start()
            await work(pool)
        finally:
            await pool.close()

    asyncio.run(run())


async def refused(pool: Pool, **asked: Any) -> ProblemError:
    with pytest.raises(ProblemError) as found:
        await pool.ask("predict", asked)
    return found.value


async def replaced(pool: Pool, count: int) -> None:
    """Wait for the process that takes the place of a failed one."""
    until = time.monotonic() + 60
    while len(pool.pids) < count and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert len(pool.pids) == count


def test_whatever_a_process_does_the_next_answer_comes() -> None:
    async def work(pool: Pool) -> None:
        first = await pool.ask("predict", {"do": "print"})
        assert first["do"] == "print", "what is printed does not get into an answer"
        for asked, status, text in (
            ({"do": "spin"}, 422, "more than 0.5 s of processor time"),
            ({"do": "take", "bytes": MEMORY_BYTES + (64 << 20)}, 422, f"more than {MEMORY_BYTES >> 20} MB"),
            ({"do": "die"}, 503, "has ended"),
            ({"do": "fail"}, 500, "RuntimeError"),
        ):
            before = pool.pids
            found = await refused(pool, **asked)
            assert (found.status, text in str(found)) == (status, True), (asked, str(found))
            await replaced(pool, 1)
            assert pool.pids != before, asked
        assert (await pool.ask("predict", {"do": "take", "bytes": MEMORY_BYTES // 2}))["held"] == MEMORY_BYTES // 2
        assert pool.replaced == 4

    within(1, work)


def test_a_process_that_waits_for_the_machine_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(pool: Pool) -> None:
        assert (await pool.ask("predict", {"do": "sleep", "seconds": 1.0}))["do"] == "sleep", "no processor time"
        monkeypatch.setattr(pools, "WAIT_FACTOR", 2.0)
        assert (await refused(pool, do="sleep", seconds=60)).status == 503

    within(1, work)


def test_searches_leave_a_process_to_predictions() -> None:
    async def work(pool: Pool) -> None:
        searches = [asyncio.ensure_future(pool.ask("plan", {"do": "sleep", "seconds": 0.8})) for _ in range(2)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await pool.ask("predict", {})
        assert not any(search.done() for search in searches), time.monotonic() - began
        await asyncio.gather(*searches)

    within(2, work)


def test_more_requests_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "WAITING", 4)

    async def work(pool: Pool) -> None:
        asked = [pool.ask("predict", {"do": "sleep", "seconds": 0.05}) for _ in range(10)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        late = [each for each in found if isinstance(each, ProblemError)]
        assert [each.status for each in late] == [503] * 6
        assert all(each.retry_s for each in late)
        assert pool.waiting == 0

    within(1, work)


def test_a_client_that_leaves_holds_no_process() -> None:
    async def work(pool: Pool) -> None:
        left = asyncio.ensure_future(pool.ask("predict", {"do": "sleep", "seconds": 0.3}))
        await asyncio.sleep(0.05)
        left.cancel()
        assert (await pool.ask("predict", {}))["do"] is None
        assert pool.waiting == 0

    within(1, work)
