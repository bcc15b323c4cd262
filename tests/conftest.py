"""Settings for all tests: property tests draw the same examples every time and have no deadline."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: small kernels on busy cores

import pytest
from hypothesis import settings

from postgresql_server import Server, running

# A shell starts what it runs in the background, or under nohup, with these ignored, and children inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# Libraries and tests are a million objects, none of them garbage; visiting them took an eighth of the suite's time.
gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "idle_machine" in getattr(item, "fixturenames", ()):
            item.add_marker("idle")


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for tests that only use it; skips them where there is none."""
    with running(fsync=False) as server:
        yield server


@pytest.fixture
def idle_machine() -> None:
    """For slow tests of real rates and times: skips them while other programs use more than a quarter of the cores."""
    stat = Path("/proc/stat")
    if stat.exists():
        before = _processor_times(stat)
        time.sleep(1.0)
        total, idle = (new - old for new, old in zip(_processor_times(stat), before, strict=True))
        if idle < 0.75 * total:
            pytest.skip(f"the machine is busy ({idle / total:.0%} idle), so real rates mean nothing")


def _processor_times(stat: Path) -> tuple[int, int]:
    """Total time and idle time (with waiting for disks) of all cores since the start; see proc(5)."""
    fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[3] + fields[4]
