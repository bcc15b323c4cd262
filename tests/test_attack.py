"""The attacks of `benchmarks/attack`: they find planted defects, and a fixed sample of them finds none."""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attack import judge, relations
from benchmarks.attack.corpus import entries, still_wrong
from benchmarks.attack.input import Input
from benchmarks.attack.inputs import GENERATORS, random_input
from benchmarks.attack.jobs import random_fields
from benchmarks.attack.judge import ANSWERED, DEFECT, REFUSED, judged
from benchmarks.attack.mutate import mutated, places, replaced
from benchmarks.attack.workers import Defect, piece
from precision_time import Job, predict


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    judge.import_libraries()


def test_a_valid_command_is_answered_and_a_wrong_one_refused() -> None:
    assert judged(Input("", ("predict", "resnet50", "--json"))).outcome == ANSWERED
    verdict = judged(Input("", ("predict", "resnet50", "--gpus", "-1")))
    assert (verdict.outcome, "gpus" in verdict.reason) == (REFUSED, True)


def test_a_device_may_be_called_nan_and_a_number_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    far_down = {"based_on": "a100-80gb-sxm", "notes": "x " * 2000}
    gpus = {"acme": far_down, "nan": {"based_on": "a100-80gb-sxm"}}
    (tmp_path / "device.json").write_text(json.dumps({"gpus": gpus}), encoding="utf-8")
    assert judged(Input("", ("gpus", "--device=device.json", "nan"))).outcome == ANSWERED
    assert judge._answer("step nan ms", False, {"infiniband"}).outcome == DEFECT
    assert judge._answer("step inf ms", False, {"infiniband"}).outcome == DEFECT


def _raises() -> object:
    raise TypeError("planted")


def _warns() -> object:
    warnings.warn("planted", RuntimeWarning, stacklevel=1)
    return {}


def _exits() -> object:
    sys.exit(0)


def _hangs() -> object:
    while True:
        pass


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (_raises, "TypeError"),
        (_warns, "RuntimeWarning"),
        (_exits, "SystemExit"),
        (_hangs, "longer than"),
        (lambda: {"step": {"p10": 2.0, "p50": 1.0, "p90": 3.0}}, "not ordered"),
        (lambda: {"step": float("nan")}, "not finite"),
    ],
)
def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch, call: object, word: str) -> None:
    monkeypatch.setattr(judge, "LIMIT_S", 0.2)
    verdict = judged(Input("", call=call))  # type: ignore[arg-type]
    assert verdict.outcome == DEFECT
    assert word in verdict.reason


def test_a_mutation_changes_a_copy() -> None:
    fields = {"a": 1, "b": {"c": [1, 2]}}
    assert set(places(fields)) == {("a",), ("b",), ("b", "c"), ("b", "c", 0), ("b", "c", 1)}
    assert replaced(fields, ("b", "c", 1), 9) == {"a": 1, "b": {"c": [1, 9]}}
    changed = [repr(mutated(random.Random(seed), fields)) for seed in range(20)]
    assert fields == {"a": 1, "b": {"c": [1, 2]}}
    assert len(set(changed)) > 10


def test_inputs_and_jobs_repeat_with_their_seed(tmp_path) -> None:
    for _, generator in GENERATORS:
        first, second = (generator(random.Random(5), tmp_path) for _ in range(2))
        assert (first.kind, first.arguments, first.description) == (second.kind, second.arguments, second.description)
    assert random_fields(random.Random(1)) == random_fields(random.Random(1))
    assert random_input(random.Random(1), tmp_path).kind


def test_defects_of_one_class_differ_in_numbers_only() -> None:
    one, other = (Defect("job", f"takes {n} s", "") for n in (1.5, 20))
    assert one.of_class == other.of_class != Defect("job", "gives nan", "").of_class


def test_relations_hold_for_one_job_and_see_a_broken_one() -> None:
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="bf16-master", batch_size=8, gpus=2, run={"steps": 100})
    estimate = predict(job)
    assert {relation.__name__: relation(job, estimate) for relation in relations.RELATIONS[:2]} == {
        "consistent": "",
        "same_after_json": "",
    }
    slow = predict(job.replace(batch_size=64))
    assert "batch x2" in relations.twice_the_batch(job, slow)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["defect"])
def test_no_defect_of_the_corpus_is_back(entry: dict[str, Any]) -> None:
    assert not still_wrong(entry)


@pytest.mark.parametrize("seed", range(4))
def test_a_fixed_sample_of_attacks_finds_no_defect(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make attack` runs many more, with fresh seeds and the shorter limit, on a machine without other work."""
    monkeypatch.setattr(judge, "LIMIT_S", 4 * judge.LIMIT_S)
    found = piece(("inputs", seed, 60))
    found.merge(piece(("jobs", seed, 8)))
    assert not found.defects, found.text(3)
    assert sum(counts[ANSWERED] for counts in found.outcomes.values()) >= 3
