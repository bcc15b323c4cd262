"""Predictions move only on purpose."""

from __future__ import annotations

import json

from golden.grid import FILE, moved, predictions


def test_predictions_are_those_on_file() -> None:
    changed = moved(json.loads(FILE.read_text(encoding="utf-8")), predictions())
    text = "\n".join(changed)
    assert not changed, f"predictions moved; run tests/golden/grid.py --update, say why in CHANGELOG.md:\n{text}"


def test_a_move_is_seen() -> None:
    assert moved({"a": 1.0, "b": 1.0}, {"a": 1.01, "c": 1.0}) == ["a: 1 s -> 1.01 s (+1.0%)", "b: gone", "c: new"]
