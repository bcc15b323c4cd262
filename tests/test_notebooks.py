"""The notebooks of examples/notebooks run, and print what is stored in them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def words(text: str) -> list[str]:
    """The text without its numbers, and without widths of columns."""
    return _NUMBER.sub("#", re.sub(r"[-\s]+", " ", text)).split()


def numbers(text: str) -> list[float]:
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]


def test_there_is_one_for_researchers_and_one_for_platform_teams() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["platform-team", "researcher"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {}
    ran = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        source = "".join(line for line in cell["source"] if not line.startswith("%"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(path), "exec"), namespace)
        stored = "".join("".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream")
        assert not any(out["output_type"] == "error" for out in cell["outputs"])
        assert words(printed.getvalue()) == words(stored)
        assert numbers(printed.getvalue()) == pytest.approx(numbers(stored), rel=0.03, abs=0.06)
        ran += 1
    assert ran >= 4
    assert any("image/png" in out.get("data", {}) for cell in cells for out in cell.get("outputs", [])) == (
        path.stem == "researcher"
    )
