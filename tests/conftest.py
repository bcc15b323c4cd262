"""Settings for all tests: property tests draw the same examples every time and have no deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
