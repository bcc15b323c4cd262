"""Rates out of windows, and the fluid model's parameters out of rates: what was put in is found again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Contention
from precision_time.ingest.model.rates import JobRates, Slowdowns
from precision_time.ingest.stagger.calibration_windows import hot_epochs
from precision_time.ingest.stagger.inversion import FAIR, PairRates, SoloRates, invert
from precision_time.ingest.stagger.processes import Trace
from precision_time.ingest.stagger.trace_rates import Rate, combined, concurrent_rates, read_solo, slope, typical


def trace(seconds: list[float], batch: int = 4, ended_s: float | None = None, launched_s: float = 0.0) -> Trace:
    return Trace("a", np.array(seconds), batch * np.arange(1.0, len(seconds) + 1), ended_s, launched_s)


def test_a_steady_job_by_hand() -> None:
    # two epochs of five batches of four: the first batch after 3 s, one more every 2 s; then one every 0.4 s after a
    # pause of 1 s, and 0.5 s to end
    first = [3.0, 5.0, 7.0, 9.0, 11.0]
    second = [12.4, 12.8, 13.2, 13.6, 14.0]
    found = read_solo(trace(first + second, ended_s=14.5), samples=20)
    assert found.first.seconds == pytest.approx(0.5)
    assert [hot.seconds for hot in found.hots] == pytest.approx([0.1])
    assert found.fill_s == pytest.approx(11.0 - 20 * 0.5)
    assert found.epoch_s == pytest.approx(1.0)
    assert found.end_s == pytest.approx(0.5)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("rounds", [3, 8])
def test_bursts_of_several_workers_do_not_move_a_slope(workers: int, rounds: int) -> None:
    """Each worker brings a batch, all at about one time, and one batch a second on average."""
    batches = max(4, workers * rounds)
    seconds = [workers * (k // workers + 1) + 0.02 * (k % workers) for k in range(batches)]
    assert slope(trace(seconds)).seconds == pytest.approx(0.25, rel=1e-9)
    # A window that ends within a burst, as one does that is cut where another job ends, does not count its rest.
    if workers > 1 and rounds > 3:
        assert slope(trace(seconds), end_s=seconds[-workers] + 0.01).seconds == pytest.approx(0.25, rel=1e-9)


def test_two_workers_with_half_a_batch_at_the_end_by_hand() -> None:
    # 240 samples in batches of 32 at 200 a second: the slope over all eight lines is 4.6 ms, 8 % too little
    seconds = np.array([0.32, 0.32, 0.64, 0.64, 0.96, 0.96, 1.2, 1.2])
    samples = np.array([32.0, 64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 240.0])
    found = read_solo(Trace("a", seconds, samples, None, 0.0), 240)
    assert found.first.seconds == pytest.approx(0.005)
    assert found.fill_s == pytest.approx(0.0, abs=1e-9)


def test_lines_at_odd_times_are_not_taken_for_bursts() -> None:
    chance = np.random.default_rng(1)
    seconds = np.cumsum(chance.uniform(0.7, 1.3, 40))
    assert slope(trace(list(seconds))).seconds == pytest.approx(0.25, rel=0.03)


def test_windows_that_say_nothing_say_so() -> None:
    with pytest.raises(IngestError, match=r"reported progress only 3 times .* raise calibration.samples"):
        slope(trace([1.0, 2.0, 3.0]))
    with pytest.raises(IngestError, match=r"asked for whole epochs of 40 samples and reported 20, not"):
        read_solo(trace([1.0, 2.0, 3.0, 4.0, 5.0]), samples=40)


def test_repeats_shrink_the_error() -> None:
    rates = [Rate(1.0, 0.3), Rate(1.1, 0.3), Rate(0.9, 0.3)]
    assert combined(rates).seconds == pytest.approx(1.0)
    assert combined(rates).error == pytest.approx(0.1 / 3**0.5)
    assert combined(rates[:1]).error == 0.3
    disturbed = [Rate(1.0, 0.1), Rate(1.02, 0.1), Rate(4.0, 0.1)]
    assert typical(disturbed).seconds == 1.02
    assert typical(disturbed).error > 0.9, "but that one was disturbed is not hidden"
    assert typical(disturbed[:2]).seconds == pytest.approx(1.01)


def test_a_job_with_many_hot_epochs_is_watched_longer_when_hot() -> None:
    # a cold epoch of 1.0 s and a hot one of 0.2 s, of five batches each
    cold = trace([0.0, *np.arange(0.25, 1.01, 0.25), *np.arange(1.04, 1.21, 0.04)])
    assert hot_epochs(cold, samples=20, hot_samples=20, window_s=8.0) == 3  # half of the cold one: 0.5 s
    assert hot_epochs(cold, samples=20, hot_samples=800, window_s=8.0) == 10  # a quarter of forty epochs
    assert hot_epochs(cold, samples=20, hot_samples=800, window_s=0.7) == 4
    assert hot_epochs(cold, samples=20, hot_samples=10**6, window_s=8.0) == 30


def test_together_counts_only_the_time_in_which_both_are_at_work() -> None:
    # a: alone until b starts at 10 s and after b has ended at 20 s one batch a second, beside b one every 2 s
    a = trace([*np.arange(1.0, 11.0), *np.arange(12.0, 21.0, 2.0), *np.arange(21.0, 30.0)])
    b = trace(list(np.arange(1.0, 11.0)), launched_s=9.0)
    found = concurrent_rates([a, b], "a window")
    assert found[0].seconds == pytest.approx(0.5)
    assert found[1].seconds == pytest.approx(0.25)


seconds = st.floats(0.002, 0.05)
stretch = st.floats(1.0, 4.0)


def seen_of(jobs: list[JobRates], effects: Slowdowns) -> tuple[list[SoloRates], dict[tuple[int, int], PairRates]]:
    """Windows without noise, by the model's own equations."""
    alone_seen = [SoloRates(j.name, *(Rate(j.time_s(m), 1e-9) for m in (1.0, 0.0, 0.5))) for j in jobs]
    running = np.ones((2, 1), dtype=bool)
    times = [Contention(jobs, effects, 1e-12).solve(np.full((2, 1), m), running)[0][:, 0] for m in (1.0, 0.0)]
    cold, hot = ((Rate(float(t[0]), 1e-9), Rate(float(t[1]), 1e-9)) for t in times)
    return alone_seen, {(0, 1): PairRates(cold, hot)}


@settings(max_examples=150)
@given(
    st.tuples(seconds, seconds), st.tuples(seconds, seconds), st.tuples(stretch, stretch), st.tuples(stretch, stretch),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
def test_the_inversion_finds_what_the_model_was_given(
    hot: tuple[float, float],
    storage: tuple[float, float],
    hots: tuple[float, float],
    stretches: tuple[float, float],
    overlap: tuple[float, float],
) -> None:
    effects = Slowdowns(((1.0, hots[0]), (hots[1], 1.0)), ((1.0, stretches[0]), (stretches[1], 1.0)))
    jobs = [
        JobRates(name, 100, 1, hot_s=h, storage_s=s, overlap=o)
        for name, h, s, o in zip("ab", hot, storage, overlap, strict=True)
    ]
    seen, pairs = seen_of(jobs, effects)
    found = invert(seen, pairs)
    # processor: always told, for both are busy all the time when hot
    assert found.hot[0][1] == pytest.approx(hots[0], rel=1e-3)
    assert found.hot[1][0] == pytest.approx(hots[1], rel=1e-3)
    for i, job in enumerate(jobs):
        if job.storage_s > 1.05 * job.hot_s:  # waits for the storage
            assert found.storage_s[i] == pytest.approx(job.storage_s, rel=1e-6)
            if job.storage_s > 1.2 * job.hot_s:
                assert found.overlap[i] == pytest.approx(job.overlap, abs=0.01)
    if not found.notes:
        # Where both slow each other's work and reads, two sets of stretches may give one and the same window; either
        # gives what was seen. The next test has them alone, and there they are told exactly.
        again = [dataclasses.replace(j, storage_s=s) for j, s in zip(jobs, found.storage_s, strict=True)]
        told = seen_of(again, Slowdowns(found.hot, found.storage))[1][0, 1]
        for one, other in zip(told.cold, pairs[0, 1].cold, strict=True):
            assert one.seconds == pytest.approx(other.seconds, rel=0.05)
    # whatever was assumed where windows tell nothing, jobs alone run as they were seen to
    for i, (job, one) in enumerate(zip(jobs, seen, strict=True)):
        as_found = dataclasses.replace(job, storage_s=found.storage_s[i], overlap=found.overlap[i])
        assert as_found.time_s(1.0) == pytest.approx(one.cold.seconds, rel=0.05)


@settings(max_examples=60)
@given(st.tuples(seconds, seconds), st.tuples(stretch, stretch))
def test_two_jobs_that_wait_for_the_storage_tell_both_stretches(
    storage: tuple[float, float], stretches: tuple[float, float]
) -> None:
    effects = Slowdowns(((1.0, 1.0), (1.0, 1.0)), ((1.0, stretches[0]), (stretches[1], 1.0)))
    jobs = [JobRates(name, 100, 1, hot_s=0.001, storage_s=s) for name, s in zip("ab", storage, strict=True)]
    found = invert(*seen_of(jobs, effects))
    assert found.storage[0][1] == pytest.approx(stretches[0], rel=1e-3)
    assert found.storage[1][0] == pytest.approx(stretches[1], rel=1e-3)


def test_a_job_that_does_not_wait_borrows_the_storage_by_bytes() -> None:
    seen = [
        SoloRates("reader", Rate(0.010, 1e-5), Rate(0.002, 1e-5), Rate(0.006, 1e-5), bytes_per_sample=1000),
        SoloRates("thinker", Rate(0.030, 1e-5), Rate(0.030, 1e-5), Rate(0.030, 1e-5), bytes_per_sample=500),
    ]
    pair = PairRates((Rate(0.0125, 1e-5), Rate(0.030, 1e-5)), (Rate(0.002, 1e-5), Rate(0.030, 1e-5)))
    found = invert(seen, {(0, 1): pair})
    assert found.storage_s == pytest.approx((0.010, 0.005))
    assert found.overlap[0] == pytest.approx(0.0)  # the mean of cold and hot
    assert any("by bytes" in note for note in found.notes)
    # The thinker reads for u of the time, so the reader is slowed by 1 - u (1 - 1/S) = 0.010 / 0.0125. What it does to
    # the thinker in return is not seen, and taken to be the same S; with it u = 0.005 S / 0.030, so u (1 - 1/S) is
    # (S - 1) / 6 = 0.2 and S = 2.2.
    assert found.storage[0][1] == pytest.approx(2.2, rel=1e-3)
    assert found.storage[1][0] == found.storage[0][1]


def test_nobody_waits_for_the_storage() -> None:
    same = Rate(0.01, 1e-5)
    found = invert(
        [SoloRates("a", same, same, same), SoloRates("b", same, same, same)],
        {(0, 1): PairRates((same, same), (same, same))},
    )
    assert found.storage == ((1.0, FAIR), (FAIR, 1.0))
    assert max(found.storage_s) <= 0.005, "together they are as fast, so two readers still keep up"
    assert len(found.notes) >= 2


def test_a_job_that_counts_other_samples_than_it_was_given() -> None:
    """Two epochs of 40 in batches of 4, each told as 2 or 16: a wrong batch_size."""
    for each in (2, 16):
        told = np.arange(0, 21) * float(each)
        trace = Trace("a", np.arange(0, 21) * 0.1, told, 2.0, 0.0)
        with pytest.raises(IngestError, match=f"reported {20 * each}, not 80; check .* batch_size"):
            read_solo(trace, 40, 2)
    read_solo(Trace("a", np.arange(0, 21) * 0.1, np.arange(0, 21) * 4.0, 2.0, 0.0), 40, 2)
