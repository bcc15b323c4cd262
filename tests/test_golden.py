"""Predictions move only on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.grid import FILE, moved, on_file, predictions, summary


def test_predictions_are_those_on_file() -> None:
    changed = moved(json.loads(FILE.read_text(encoding="utf-8")), predictions())
    text = "\n".join(changed)
    assert not changed, f"predictions moved; run tests/golden/grid.py --update, say why in CHANGELOG.md:\n{text}"


def test_a_move_is_seen() -> None:
    assert moved({"a": 1.0, "b": 1.0}, {"a": 1.01, "c": 1.0}) == ["a: 1 s -> 1.01 s (+1.0%)", "b: gone", "c: new"]


def test_the_summary_says_where() -> None:
    old = {"a fp32 1 x g": 1.0, "a tf32 1 x g": 2.0, "b fp32 1 x g": 1.0, "b tf32 1 x g": 1.0, "gone fp32 1 x g": 1.0}
    new = {"a fp32 1 x g": 1.1, "a tf32 1 x g": 1.6, "b fp32 1 x g": 0.98, "b tf32 1 x g": 1.0005}
    assert summary(old, new).splitlines() == [
        "3 of 4 jobs moved (median -2.0%, largest -20.0%)",
        "by model: a 2 (median -5.0%, largest -20.0%); b 1 (median -2.0%, largest -2.0%)",
        "by precision: tf32 1 (median -20.0%, largest -20.0%); fp32 2 (median +4.0%, largest +10.0%)",
    ]
    assert summary(old, old) == "0 of 5 jobs moved"


def test_old_predictions_come_from_a_file_or_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "old.json"
    other.write_text('{"a": 1.0}', encoding="utf-8")
    assert on_file(str(other)) == {"a": 1.0}
    monkeypatch.setattr("golden.grid.FILE", tmp_path / "predictions.json")
    assert on_file() == {}
    with pytest.raises(SystemExit, match="--against nowhere: neither a file nor a revision"):
        on_file("nowhere")
