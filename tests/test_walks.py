"""The walks of new users: their page says what was run, and each ends with a right answer."""

from __future__ import annotations

import json

import pytest

from benchmarks import walks
from benchmarks.speed import RESULTS


def test_the_page_has_every_walk_and_all_were_right() -> None:
    stored = json.loads((RESULTS / "walks.json").read_text(encoding="utf-8"))
    assert [row["user"] for row in stored["walks"]] == [one.user for one in walks.WALKS]
    assert all(row["right"] for row in stored["walks"])
    assert walks.table(stored["walks"]) in walks.PAGE.read_text(encoding="utf-8")


def test_an_answer_for_another_job_is_not_right() -> None:
    one = walks.WALKS[1]
    job = dict(one.right)
    assert walks._right(one, {"job": job})
    assert not walks._right(one, {"job": {**job, "precision": "amp-bf16"}})
    rows = [{"estimate": {"job": job}}, {"estimate": None}]
    assert walks._right(one, {"rows": rows[:1]})
    assert not walks._right(one, {"rows": rows})


@pytest.mark.slow
@pytest.mark.parametrize("one", walks.WALKS, ids=lambda one: one.user)
def test_a_walk_ends_with_a_right_answer(one: walks.Walk) -> None:
    assert walks.walk(one)["right"]
