"""Settings for all tests: property tests draw the same examples every time and have no deadline."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture
def idle_machine() -> None:
    """For slow tests whose oracle is a real rate: skipped while other programs keep the cores busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.75 * cores:
        pytest.skip(f"the machine is busy (load {os.getloadavg()[0]:.1f} on {cores} cores); rates mean nothing")
