"""The time left of a run and the session that frameworks share, by a clock that the test sets."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import HOST, TWO, device_document
from precision_time import Job, predict
from precision_time.errors import CatalogError, JobError, PrecisionTimeError
from precision_time.estimate.interval import Interval
from precision_time.integrations.live import LiveRun, Pauses
from precision_time.integrations.outcome import Outcome
from precision_time.integrations.preview import Preview, device_fields, preview_text
from precision_time.integrations.probe import DeviceProbe
from precision_time.integrations.session import Session, Settings


def live(periods: list[float], **fields: Any) -> LiveRun:
    run = LiveRun(**{"warmup": 0, **fields})
    for period in periods:
        run.add(period, 0.0)
    return run


# --- the time left


def test_before_any_step_the_prediction_is_the_time_left() -> None:
    run = live([], steps=100, predicted=Interval(0.08, 0.1, 0.125))
    left = run.left()
    assert left is not None
    assert (left.p10, left.p50, left.p90) == pytest.approx((8.0, 10.0, 12.5))
    assert run.ratio is run.pace_s is None


def test_measured_steps_replace_an_unsure_prediction() -> None:
    run = live([0.3] * 40, steps=100, predicted=Interval(0.05, 0.1, 0.2))
    assert run.ratio == pytest.approx(3.0)
    left = run.left()
    assert left is not None
    # prior: log spread ln(2) / 1.2816 = 0.541; measured: 0.02; weight of the measurement 0.99863
    assert left.p50 == pytest.approx(60 * 0.1 * 3 ** (0.541**2 / (0.541**2 + 0.02**2)), rel=1e-3)
    assert left.p90 / left.p50 == pytest.approx(2.718281828 ** (1.2816 * 0.02), rel=1e-3)


def test_one_long_step_does_not_count_and_regular_pauses_do() -> None:
    assert live([0.1] * 30 + [60.0] + [0.1] * 33).pace_s == pytest.approx(0.1)
    # every fourth step waits for the loader: the mean is 0.175, the median of the steps 0.1
    assert live([0.1, 0.1, 0.1, 0.4] * 64).pace_s == pytest.approx(0.175)


def test_a_run_that_becomes_slower_is_followed() -> None:
    assert live([0.1] * 500 + [0.2] * 256).pace_s == pytest.approx(0.2)


def test_warm_up_steps_are_not_counted() -> None:
    run = live([5.0, 5.0, 5.0, 0.1, 0.1, 0.1], warmup=3)
    assert (run.done, run.measured, run.pace_s) == (6, 3, pytest.approx(0.1))
    assert live([5.0, 5.0, 5.0, 0.1, 0.1], warmup=3).pace_s is None


def test_evaluations_and_checkpoints_are_predicted_then_measured() -> None:
    run = live([0.1] * 50, steps=100, predicted=Interval(0.1, 0.1, 0.1))
    run.evaluations = Pauses(every_steps=20, predicted_s=7.0)  # after 20, 40 | 60, 80, 100
    run.checkpoints = Pauses(every_steps=50)  # after 50 | 100
    left = run.left()
    assert left is not None
    assert left.p50 == pytest.approx(50 * 0.1 + 3 * 7.0)
    assert run.checkpoints.unknown
    run.evaluations.measured_s += [1.0, 3.0]
    run.checkpoints.measured_s.append(4.0)
    left = run.left()
    assert left is not None
    assert left.p50 == pytest.approx(50 * 0.1 + 3 * 2.0 + 4.0)
    assert not run.checkpoints.unknown


def test_a_prediction_for_another_device_is_not_mixed_with_measured_steps() -> None:
    run = live([0.3] * 40, steps=100, predicted=Interval(0.001, 0.001, 0.001), here=False)
    left = run.left()
    assert left is not None
    assert left.p50 == pytest.approx(60 * 0.3)
    assert run.ratio is None
    assert not run.parted()
    assert live([], steps=10, predicted=Interval(1, 1, 1), here=False).left() is None


def test_without_a_length_no_time_is_left() -> None:
    assert live([0.1] * 9).left() is None


@given(
    periods=st.lists(st.floats(1e-6, 1e4), max_size=40),
    predicted=st.none() | st.tuples(st.floats(1e-6, 1e4), st.floats(0.0, 2.0)),
    steps=st.integers(0, 1000),
)
def test_the_time_left_is_ordered_and_between_prediction_and_measurement(
    periods: list[float], predicted: tuple[float, float] | None, steps: int
) -> None:
    interval = None if predicted is None else Interval.around(*predicted)
    run = live(periods, steps=steps, predicted=interval)
    step, left = run.step(), run.left()
    if step is None or left is None:
        assert predicted is None
        assert len(periods) < 3
        return
    known = [value for value in (run.pace_s, interval and interval.p50) if value is not None]
    assert min(known) * 0.999999 <= step.p50 <= max(known) * 1.000001
    assert 0 < step.p10 <= step.p50 <= step.p90
    assert 0 <= left.p10 <= left.p50 <= left.p90


# --- the session


class Clock:
    """Seconds that the test adds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Told:
    """A session at a fake clock, and what it printed."""

    def __init__(self, path: Path | None = None, **settings: Any) -> None:
        self.clock = Clock()
        self.texts: list[str] = []
        self.session = Session(Settings({}, path or False, self.texts.append, clock=self.clock, **settings), "torch")

    def steps(self, count: int, wait_s: float, step_s: float) -> None:
        for _ in range(count):
            self.clock.now += wait_s
            self.session.step_begins()
            self.clock.now += step_s
            self.session.step_ends()

    def pause(self, what: str, seconds: float) -> None:
        self.clock.now += seconds
        self.session.paused(what, seconds)


def preview(factor: float = 1.0, here: bool = True, **fields: Any) -> Preview:
    """Of a real job, whose step is made 0.1 s (0.09 to 0.11) times the factor."""
    estimate = predict(Job.from_dict({"model": "resnet50", "gpu": "a100", "start_up_s": 0, **fields}))
    step = Interval(0.09 * factor, 0.1 * factor, 0.11 * factor)
    return Preview(dataclasses.replace(estimate, step=step), here, ("a note of the preview",))


def test_a_run_from_its_preview_to_its_outcome(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "new" / "outcome.json"
    told = Told(path, warmup=3)
    told.session.begin(100, "cpu", None, 40, 50)
    told.session.predict(lambda: preview(steps=100, evaluation_every_steps=40, evaluation_samples=1000))
    assert told.texts[0].startswith("precision-time: resnet50")
    assert "for 100 steps, of it evaluation" in told.texts[0]
    assert "a note of the preview" in told.texts[0]
    told.steps(3, 0.0, 2.0)
    told.steps(37, 0.01, 0.09)
    told.pause("evaluation", 6.0)
    assert caplog.records == [], "measured and predicted agree"
    assert any("step 13 of 100" in text for text in told.texts)
    left = told.session.live.left()
    assert left is not None
    assert left.p50 == pytest.approx(60 * 0.1 + 6.0, rel=0.02), "another evaluation, the checkpoints not known yet"
    told.steps(10, 0.01, 0.09)
    told.pause("checkpoint", 2.0)
    left = told.session.live.left()
    assert left is not None
    assert left.p50 == pytest.approx(50 * 0.1 + 6.0 + 2.0, rel=0.02)
    told.steps(30, 0.01, 0.09)
    told.pause("evaluation", 6.0)
    told.steps(20, 0.01, 0.09)
    told.pause("checkpoint", 2.0)
    told.session.end()
    content = json.loads(path.read_text())
    measured = content["measured"]
    assert content["finished"] is True
    assert content["ended"] == "all steps are done"
    assert content["job"]["model"] == "resnet50"
    assert content["prediction"]["step"]["p50"] == pytest.approx(0.1)
    assert content["steps"] == {"done": 100, "planned": 100}
    assert measured["run_s"] == pytest.approx(6 + 97 * 0.1 + 12 + 4)
    assert measured["step_s"] == pytest.approx(0.1)
    assert measured["steps_s"] == pytest.approx([2.0] * 3 + [0.1] * 97)
    assert measured["waits_s"] == pytest.approx([0.0] * 3 + [0.01] * 97)
    assert measured["evaluations_s"] == [6.0, 6.0]
    assert measured["checkpoints_s"] == [2.0, 2.0]
    assert measured["peak_memory"]["bytes"] > 1e7
    assert "checkpoints are not in the time left before the first of them was measured" in content["notes"]
    assert told.texts[-1] == "precision-time: 100 steps in 31.7 s; a step took 100 ms, predicted were 100 ms"


@pytest.mark.parametrize(
    ("wait_s", "step_s", "message"),
    [
        (0.15, 0.1, "steps take 250 ms, 2.50 times .* 150 ms of a step pass before it begins, in the data loader"),
        (0.01, 0.3, "only 10.00 ms of a step pass before it begins, so the loader is not why"),
        (0.0, 0.05, "steps take 50.0 ms, 0.50 times the predicted 100 ms .* nothing that was measured"),
    ],
)
def test_where_measured_and_predicted_part_one_warning_says_why(
    wait_s: float, step_s: float, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    told.session.begin(1000, "cpu", None)
    told.session.predict(preview)
    told.steps(60, wait_s, step_s)
    assert len(caplog.records) == 1
    assert pytest.approx(0.0, abs=1e-9) == told.session.live.wait_s - wait_s
    assert re.search(message, caplog.text), caplog.text


def test_the_time_left_is_told_at_most_once_in_so_many_seconds() -> None:
    told = Told(eta_every_s=10.0)
    told.session.begin(1000, "cpu", None)
    told.session.predict(preview)
    told.steps(300, 0.0, 0.1)
    assert sum("left" in text for text in told.texts) == 3
    silent = Told(eta_every_s=0.0)
    silent.session.begin(1000, "cpu", None)
    silent.steps(300, 0.0, 0.1)
    assert sum("left" in text for text in silent.texts) == 1


def test_a_pause_inside_of_a_step_is_no_part_of_it() -> None:
    told = Told()
    told.session.begin(10, "cpu", None)
    told.session.step_begins()
    told.clock.now += 0.1
    told.pause("evaluation", 5.0)
    told.session.step_ends()
    told.steps(5, 0.0, 0.1)
    assert told.session.live.pace_s == pytest.approx(0.1)


def test_what_cannot_be_predicted_is_one_sentence_and_steps_are_measured(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    def fails() -> Preview:
        raise JobError("gpu 'x' is unknown; give another")

    told.session.begin(20, "cpu", None)
    for _ in range(3):
        told.session.predict(fails)
    assert [record.getMessage() for record in caplog.records] == [
        "precision-time: not predicted: gpu 'x' is unknown; give another"
    ]
    told.steps(10, 0.0, 0.1)
    left = told.session.live.left()
    assert left is not None
    assert left.p50 == pytest.approx(1.0)


def test_a_failure_of_its_own_is_one_warning_and_never_an_error(caplog: pytest.LogCaptureFixture) -> None:
    session = Session(Settings(report=lambda text: 1 / 0), "torch")  # type: ignore[arg-type, return-value]
    session.begin(5, "cpu", None)
    session.predict(preview)
    session.step_begins()
    session.step_ends()
    session.paused("evaluation", 1.0)
    session.end()
    assert [record.getMessage() for record in caplog.records] == [
        "precision-time: ZeroDivisionError: division by zero; training goes on without its prediction"
    ]
    assert session.off


def test_an_outcome_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = Told(tmp_path)  # a folder
    told.session.begin(5, "cpu", None)
    told.steps(5, 0.0, 100.0)
    told.session.end()
    assert len(caplog.records) == 1
    assert "is a folder; name a file in it; no outcome is written" in caplog.text
    assert told.texts[-1] == "precision-time: 5 steps in 8.33 min"


def test_a_run_that_is_killed_leaves_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    told = Told(path)
    told.session.begin(100, "cpu", None)
    told.steps(10, 0.0, 50.0)
    content = json.loads(path.read_text())
    assert content["finished"] is False
    assert content["ended"] is None
    assert content["steps"]["done"] == 10
    told.session.end("KeyboardInterrupt")
    content = json.loads(path.read_text())
    assert content["ended"] == "KeyboardInterrupt"
    assert content["prediction"] is None
    told.session.end()  # once more: nothing


def test_of_a_long_run_every_nth_step_is_kept(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path / "outcome.json", "torch", DeviceProbe("cpu"))
    for _ in range(45_000):
        outcome.add_step(0.5, 0.1)
    content = outcome.content(LiveRun(), None, (), 1.0, "", 0.0)
    assert content["measured"]["one_step_in"] == 8
    assert len(content["measured"]["steps_s"]) == -(-45_000 // 8)


def test_wrong_fields_are_refused_before_training() -> None:
    with pytest.raises(PrecisionTimeError, match=r"gpuz.*nearest.*gpu"):
        Settings({"gpuz": "h100"})
    with pytest.raises(CatalogError, match=r"h1000.*h100"):
        Settings({"gpu": "h1000"})
    with pytest.raises(PrecisionTimeError, match=r"none.json"):
        Settings({"device": "none.json"})


def test_a_device_that_is_not_in_the_catalog_needs_a_name_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"training runs on cpu .* give gpu, .* or device, the file that .*calibrate"):
        device_fields({}, "cpu")
    assert device_fields({"gpu": "h100"}, "cpu") == {}
    path = tmp_path / "device.json"
    path.write_text(json.dumps(device_document(TWO, host=HOST)))
    assert device_fields({"device": str(path)}, "cpu") == {"gpu": "this-cpu"}
    document = device_document(TWO, host=HOST)
    document["gpus"]["another"] = document["gpus"]["this-cpu"]
    path.write_text(json.dumps(document))
    with pytest.raises(JobError, match=r"has 2 GPUs \(another, this-cpu\); give gpu"):
        device_fields({"device": str(path)}, "cpu")


def test_the_preview_says_step_run_memory_and_cost() -> None:
    text = preview_text(preview(steps=1000, price_per_gpu_hour=2.0))
    for word in ("step    100 ms (90-110)", "run ", "memory ", ": fits", "cost    $"):
        assert word in text
    assert "DOES NOT FIT by" in preview_text(preview(batch_size=4096))


class FakeEvent:
    """An event that the device has reached at once."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True


def test_on_cuda_the_host_and_the_clock_are_reasons(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda = SimpleNamespace(
        Event=FakeEvent, reset_peak_memory_stats=lambda: None, max_memory_reserved=lambda: 5 << 30,
        get_device_name=lambda: "NVIDIA H100", clock_rate=lambda: 1200,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    probe = DeviceProbe("cuda")
    for _ in range(100):
        probe.step_begins()
        probe.step_ends()
    assert probe.reasons(0.5) == [
        "in 100 of 100 steps the GPU had finished when the host had launched them: the host is the limit",
        "the clock of the GPU was 1,200 MHz at its lowest",
    ]
    assert probe.peak_memory() == {"bytes": 5 << 30, "of": "memory reserved by PyTorch"}
    assert probe.machine()["device"] == "NVIDIA H100"
    told = Told()
    told.session.begin(100, "cuda", None)
    told.session.predict(preview)
    told.steps(60, 0.0, 0.3)
    assert "the host is the limit" in caplog.text
