"""Training steps judged held out: folds that never see what they judge, a blind twin, targets, current pages.

The jobs are of shipped models and their times are invented.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import steps
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.facts import Facts
from benchmarks.accuracy.residuals import KNOWN, NOT_UNDERSTOOD, why
from benchmarks.accuracy.step_anchors import anchored
from benchmarks.accuracy.step_page import page, readme_table
from benchmarks.accuracy.step_targets import targets
from benchmarks.accuracy.steps import ANCHORED, ASSUMED, AWARE, ONE_ROW, PLAIN, TWINS, Board, twin
from precision_time import predict
from precision_time.anchoring import Anchoring
from precision_time.anchors.anchor import JobDescriptor
from precision_time.errors import DataError
from precision_time.estimate.interval import Z90, Interval
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit import folds
from precision_time.fit import traced as traced_rows
from precision_time.fit.cases import Case, cases
from precision_time.fit.folds import FOLDS, HeldOut, cross_validate
from precision_time.fit.provenance import parameters_digest
from precision_time.fit.spreads import with_intervals
from precision_time.measurements.repository import STEPS
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.timing.scaled import Factors

ROOT = Path(__file__).parent.parent
HEAD = "id,source,trust,framework,model,batch_size,gpus,gpu,precision,step_time_s"
ROWS = (
    "r-fp32,lab@1,A,pytorch,resnet50,64,1,v100-16gb-sxm,fp32,0.25",
    "r-amp,lab@1,A,pytorch,resnet50,64,1,v100-16gb-sxm,amp-fp16,0.12",
    "r-tf32,lab@1,B,pytorch,resnet50,64,8,a100-80gb-sxm,tf32,0.09",
    "b-fp32,lab@1,A,pytorch,bert-large,4,1,v100-32gb-sxm,fp32,0.35",
    "b-amp,lab@1,B,pytorch,bert-large,4,1,v100-32gb-sxm,amp-fp16,0.11",
    "b-tf,lab@1,C,tensorflow2,bert-large,8,1,a100-80gb-sxm,tf32,0.2",
)
DESCRIPTOR = JobDescriptor("f", "m", "g", "a", "fp32", "fp32", "pytorch", "nchw", 1, 1, (1.0, 0.0, 0.0), "key")
OTHER = "l-fsdp,lab@1,A,pytorch,bert-large,4,8,a100-80gb-sxm,fp32,0.3,warp"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "data" / "published"
    folder.mkdir(parents=True)
    (folder / "measurements.csv").write_text("\n".join([HEAD, *ROWS]) + "\n", encoding="utf-8")
    (folder / "measurements_llm.csv").write_text(f"{HEAD},parallelism\n{OTHER}\n", encoding="utf-8")
    return folder.parent


@pytest.fixture(scope="module")
def rows(tables: Path) -> tuple[Row, ...]:
    return read_table(tables / "published" / "measurements.csv").rows


@pytest.fixture(scope="module")
def traced(rows: tuple[Row, ...]) -> list[Case]:
    return cases(rows)


# --- folds


@pytest.mark.parametrize("name", FOLDS)
def test_no_fold_trains_on_what_it_judges(name: str, traced: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[set[str]] = []
    real = folds.fit

    def spy(training: Sequence[Case], **options: Any) -> Any:
        trained.append({case.row.id for case in training})
        return real(training, **options)

    monkeypatch.setattr(folds, "fit", spy)
    judged = cross_validate(traced, FOLDS[name])
    everything = {case.row.id for case in traced}
    assert sorted(j.row.id for j in judged) == sorted(everything)
    assert len(trained) == len({j.fold for j in judged}) >= 2
    for fold, seen in zip(sorted({j.fold for j in judged}), trained, strict=True):
        held_out = {j.row.id for j in judged if j.fold == fold}
        assert seen == everything - held_out
        assert {FOLDS[name](j.row) for j in judged if j.row.id in held_out} == {fold}


def test_measurements_of_a_fold_do_not_change_its_predictions(traced: list[Case]) -> None:
    changed = [
        replace(c, row=replace(c.row, measured_s=3 * c.row.measured_s)) if c.row.family == "bert" else c for c in traced
    ]
    before, after = ({j.row.id: j.predicted_s for j in cross_validate(c, FOLDS[AWARE])} for c in (traced, changed))
    for name, seconds in before.items():
        assert (after[name] == seconds) == name.startswith("b")  # the factors of the other family were fitted to it


def test_cards_that_differ_in_memory_alone_are_one_gpu(rows: tuple[Row, ...]) -> None:
    assert {FOLDS["GPU"](row) for row in rows} == {"volta-sxm", "ampere-sxm"}
    assert FOLDS["GPU"](replace(rows[0], gpu="rtx-3090")) == "ampere-ga10x-pcie"
    assert FOLDS["GPU"](replace(rows[0], gpu="a100-80gb-pcie")) == "ampere-pcie"


def test_least_spread_holds_the_share_of_the_rows() -> None:
    errors = [0.1, -0.2, 0.3, -0.4, 0.5]
    assert folds.least_spread(errors, [0.0] * 5) == pytest.approx(0.4 / Z90)
    assert folds.least_spread(errors, [1.0] * 5) == 0.0  # what is known is enough
    assert folds.least_spread(errors, [0.0] * 5, weights=[1, 1, 1, 1, 9]) == pytest.approx(0.5 / Z90)
    beside = folds.least_spread([0.5], [0.2])
    assert math.hypot(beside, 0.2) == pytest.approx(0.5 / Z90)


def test_one_kind_alone_cannot_be_held_out(traced: list[Case]) -> None:
    with pytest.raises(DataError, match="only bert; holding out needs two"):
        cross_validate([c for c in traced if c.row.family == "bert"], FOLDS[AWARE])


def held_out(row: Row, ratio: float, fold: str, widening: float = 0.0) -> HeldOut:
    seconds = ratio * row.measured_s

    def scaled(factors: Factors) -> dict[str, float]:
        return {"forward": seconds * factors.kernels}

    return HeldOut(row, fold, seconds, widening, "single", {"forward": seconds}, True, DESCRIPTOR, scaled)


def test_the_width_comes_from_the_other_folds(rows: tuple[Row, ...]) -> None:
    wide, narrow = [held_out(rows[0], 2.0, "a")], [held_out(rows[3], 1.1, "b", widening=0.3)]
    first, second = with_intervals([*wide, *narrow])
    assert first.step.p90 == first.step.p50
    assert not first.inside
    assert math.log(second.step.p90 / second.step.p50) == pytest.approx(math.hypot(math.log(2), 0.3 * Z90), abs=2e-3)


# --- the blind twin


def test_the_twin_takes_every_job_in_one_precision(rows: tuple[Row, ...]) -> None:
    blind = cases(rows, precision="amp-fp16")
    assert {c.job.precision for c in blind} == {c.step.precision.name for c in blind} == {"amp-fp16"}
    assert [c.row for c in blind] == list(rows)  # judged against what was measured
    assert blind[0].job == replace(blind[1].job, precision="amp-fp16")
    judged = {j.row.id: j.predicted_s for j in cross_validate(blind, FOLDS[AWARE])}
    assert judged["r-fp32"] == judged["r-amp"]
    assert judged["b-fp32"] == judged["b-amp"]


def test_judging_predicts_as_predict_does(traced: list[Case]) -> None:
    from precision_time.timing.constants import shipped

    for judged in folds.judge(traced[:2], shipped(), "none"):
        assert judged.row.job is not None
        estimate = predict(judged.row.job, anchoring=Anchoring(use=False))
        assert (judged.predicted_s, judged.breakdown) == (estimate.step.p50, dict(estimate.breakdown))


# --- the page


def settled(row: Row, ratio: float, inside: bool = True) -> JudgedRow:
    seconds = ratio * row.measured_s
    width = 10.0 if inside else 1.001
    return JudgedRow(row, Interval(seconds / width, seconds, seconds * width), {"forward": seconds}, True, False)


def a_board(rows: Sequence[Row], aware: float = 1.1, blind: float = 1.5, inside: bool = True) -> Board:
    """Every row predicted `aware` times what was measured, by the twins `blind` times; the last row is of trust C."""
    runs = {name: [settled(row, aware, inside) for row in rows] for name in (*FOLDS, PLAIN)}
    runs |= {name: [settled(row, blind) for row in rows] for name in (*map(twin, TWINS), ASSUMED)}
    runs |= {name: [settled(row, 1.02) for row in rows] for name in (ANCHORED, ONE_ROW)}
    return Board(Facts("2026-01-02", {"numpy": "2"}, "t.csv", "ab" * 32, {"A": 3, "B": 2, "C": 1}, "cd" * 8), runs, ())


def test_targets_are_computed(rows: tuple[Row, ...]) -> None:
    met = [t.met for t in targets(a_board(rows, inside=True))]
    # 10 % is more than 9.8, all in one direction, and an interval that holds all is too wide
    assert met == [False, True, False, True, False, False, True, True, True, True]
    met = [t.met for t in targets(a_board(rows, aware=1.17, blind=1.17))]
    assert met == [False, False, False, True, False, False, True, False, True, True]
    met = [t.met for t in targets(a_board(rows, aware=1.3, inside=False))]
    assert met == [False, False, False, False, False, False, True, True, True, True]
    reached = [t.reached for t in targets(a_board(rows))]
    assert reached[0] == "10.0%"
    assert reached[2] == "10.0% and -"  # both families have related ones
    assert reached[7] == "5.0 times as fp32, 5.0 times as amp-fp16"
    mixed = a_board(rows)
    mixed.runs[AWARE][:] = [settled(row, 1.1, inside=row.id != "r-amp") for row in rows]  # type: ignore[index]
    assert targets(mixed)[5].met
    assert targets(mixed)[5].reached == "80%; by precision from 50% (amp-fp16) to 100% (tf32)"


def test_one_measured_row_corrects_the_others_of_its_model(rows: tuple[Row, ...]) -> None:
    """All rows are predicted 30 % too fast: one row of a model corrects the other; a model measured once has none."""
    kinds = [replace(DESCRIPTOR, key="0"), replace(DESCRIPTOR, key="1"), replace(DESCRIPTOR, key="2", model="b"),
             replace(DESCRIPTOR, key="3", family="h", model="c")]  # fmt: skip
    judged = [
        replace(held_out(row, 1 / 1.3, kind.family, 0.1), descriptor=kind)
        for row, kind in zip(rows, kinds, strict=False)
    ]
    corrected = anchored(judged)[1]
    assert [j.row.id for j in corrected] == [rows[0].id, rows[1].id]
    for before, after in zip(judged, corrected, strict=False):
        assert before.predicted_s < after.step.p50 <= 1.001 * before.row.measured_s
        assert abs(after.error) < 0.1


def test_the_page_states_counts_and_provenance(rows: tuple[Row, ...]) -> None:
    text = page(a_board(rows), "accuracy.png")
    assert "**The mean error of 5 rows is 10.0%" in text.replace("\n", " ")
    assert "5.0 times as much" in text
    for words in ("2026-01-02", "numpy 2", "ab" * 32, "cd" * 8, "6 rows: 3 of trust A, 2 of trust B, 1 of trust C"):
        assert words in text.replace("\n", " ")
    assert "| amp-fp16 | 2 | 10.0% | 10.0% | +10.0% | 10.0% | 100% | 50.0% | 50.0% | 50.0% | 5.0 |" in text
    assert "| tensorflow2 | 1 | 10.0% |" in text
    assert "b-tf" not in text  # of trust C: apart, and no candidate for the worst
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "-", "!"))) <= 120
    small = readme_table(a_board(rows), "benchmarks/results/accuracy.md")
    assert "| all | 5 | 10.0% | 10.0% | 10.0% | 100% | 50.0% |" in small
    assert "2 of 2 pairs" in small


def test_only_known_reasons_are_shown(rows: tuple[Row, ...]) -> None:
    slow, fast = settled(replace(rows[0], family="waveglow"), 2.0), settled(replace(rows[0], family="waveglow"), 0.5)
    assert why(fast) == KNOWN[0].text
    assert why(slow) == why(settled(rows[0], 2.0)) == NOT_UNDERSTOOD
    assert "Ampere" in why(settled(replace(rows[0], gpu="rtx-3090"), 1.4))


@pytest.mark.slow
def test_the_command_writes_its_pages(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors on kernels are fitted to one table, since those of all tables take seconds for each fold."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(steps, "read", partial(traced_rows.read, names=[STEPS.name]))
    readme = tmp_path / "README.md"
    readme.write_text("<!-- accuracy:begin --><!-- accuracy:end -->", encoding="utf-8")
    given = ["steps", "--tables", str(tables), "--results", str(tmp_path)]
    kept = tmp_path / "rows.json"
    assert main([*given, "--readme", str(readme), "--json", str(kept)]) == 0
    text = (tmp_path / "accuracy.md").read_text(encoding="utf-8")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "[benchmarks/results/accuracy.md]" in readme.read_text(encoding="utf-8")
    assert "`measurements_llm.csv`: 1 row cannot be expressed as a job yet" in text
    assert "| layout 'warp' is unknown" in text
    assert parameters_digest() in text

    content = json.loads(kept.read_text(encoding="utf-8"))
    assert set(content["runs"]) == {*FOLDS, PLAIN, *map(twin, TWINS), ASSUMED}
    one = next(j for j in content["runs"][AWARE] if j["id"] == "r-amp")
    assert one["fold"] == "resnet"
    assert one["error"] == pytest.approx(one["predicted_s"] / 0.12 - 1)
    assert one["p10_s"] < one["predicted_s"] < one["p90_s"]


# --- the pages in the repository


def test_the_board_in_the_repository_is_current() -> None:
    """JudgedRow with the parameters that ship, to the table that they were fitted to; README says the same."""
    text = " ".join((ROOT / "benchmarks" / "results" / "accuracy.md").read_text(encoding="utf-8").split())
    scales = ROOT / "src" / "precision_time" / "timing" / "data" / "step_scales.json"
    provenance = json.loads(scales.read_text(encoding="utf-8"))["provenance"]
    count = len(read_table(ROOT / "data" / "published" / provenance["table"]).rows)
    stale = "benchmarks/results/accuracy.md is stale: python -m benchmarks.accuracy steps"
    assert f"Timing parameters: `{parameters_digest()}`" in text, stale
    assert f"`{provenance['table']}` (sha256 `{provenance['sha256']}`), {count} rows" in text, stale
    block = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- accuracy:begin -->")[2]
    match = re.search(r"^\| all \| (\d+) \| ([\d.]+%) \| ([\d.]+%)", block, re.MULTILINE)
    assert match is not None, stale
    n, mape, median = match.groups()
    assert f"The mean error of {n} rows is {mape}, the median {median}" in text, stale
