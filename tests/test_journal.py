"""The journal that interrupted measurements continue from."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from precision_time.errors import DataError
from precision_time.journal import Journal, read

HEADER = {"machine": "a", "torch": "1"}


def test_a_journal_continues_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, HEADER).add("one", {"points": []})
    again = Journal(path, HEADER)
    assert "one" in again
    again.add("two", {"refused": "no"})
    assert list(read(path)[1]) == ["one", "two"]


def test_the_line_under_way_is_lost_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, HEADER).add("one", {"points": []})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"label": "two", "poi')
    again = Journal(path, HEADER)
    assert list(again.records) == ["one"]
    again.add("three", {})
    assert list(read(path)[1]) == ["one", "three"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"header": {"format": 1, "machine": "b", "torch": "1"}}\n', "was begun with machine 'b', but this is 'a'"),
        ("hello\n", "is no journal"),
        ('{"label": "one"}\n', "is no journal"),
        ('{"header"', "it has no header"),
        ('{"header": 3}\n', "it has no header"),
        ('{"header": {"format": 1}}\n[1]\n', "line 2 holds no mapping"),
        ('{"header": {"format": 1}}\n{"n": 1}\n', "line 2 has no label"),
        ('{"header": {"format": 1}}\n{"label": ["a"]}\n', "line 2 has no label"),
        ('{"header": {"format": 1}}\n{"label": "a", "n": NaN}\n', "line 2 has NaN"),
        ('{"header": {"format": 1}}\n{"label": "a", "n": 2, "crc32": "aac7df1e"}\n', "line 2 was changed"),
    ],
)
def test_a_journal_of_something_else_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=why):
        Journal(path, HEADER)
    assert path.read_text(encoding="utf-8") == text


def test_the_last_record_of_a_label_counts_and_fresh_ignores_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEADER)
    journal.add("one", {"n": 1})
    journal.add("one", {"n": 2})
    assert Journal(path, HEADER).get("one") == {"n": 2}
    fresh = Journal(path, HEADER, fresh=True)
    assert (len(fresh), fresh.get("one")) == (0, None)
    fresh.add("two", {})
    assert list(Journal(path, HEADER).records) == ["one", "two"]


def test_a_record_is_on_the_disk_when_it_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(path.stat().st_size))
    journal = Journal(path, HEADER)
    journal.add("one", {"n": 1})
    assert synced[-1] == path.stat().st_size > synced[0] > 0
    with pytest.raises(TypeError):
        journal.add("two", {"n": {1, 2}})
    with pytest.raises(DataError, match="not finite"):
        journal.add("two", {"n": math.nan})
    last = json.loads(path.read_text().splitlines()[-1])
    assert last == {"label": "one", "n": 1, "crc32": last["crc32"]}, "no half of a record is written"
    assert "two" not in journal


def test_a_journal_without_a_header_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(
        '{"key": "a", "at": "2026-11-21T10:00:00", "n": 1}\n{"key": "b", "n": 2}\n{"key": "c"', encoding="utf-8"
    )
    Journal(path).add("d", {"n": 3})
    assert {label: record["n"] for label, record in Journal(path).records.items()} == {"a": 1, "b": 2, "d": 3}


def test_a_journal_in_memory_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    assert Journal().add("one", {"n": 1}) == {"n": 1}
    with pytest.raises(DataError, match=r"journal .* cannot be read: it is a folder"):
        Journal(tmp_path)
