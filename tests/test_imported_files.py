"""The page that shows a file of each program with what is taken from it."""

from __future__ import annotations

import pytest

from benchmarks.attack.import_files import FILES
from benchmarks.imported_files import PAGE, page


def test_the_page_is_what_the_importers_say() -> None:
    pytest.importorskip("tomllib")
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run python -m benchmarks.imported_files"
    assert all(f": `{name}`\n" in written for name in FILES)
    assert written.count("\n- Taken: `") == len(FILES)
