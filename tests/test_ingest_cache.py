"""Steady hit shares against a plain simulation, and against the model of several jobs run with one."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from precision_time.errors import IngestError
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns
from precision_time.ingest.pipeline.cache import lru_hits, no_eviction_hits

SAMPLES, EPOCHS = 2000, 8


def simulated(share: float, policy: str) -> float:
    rng = np.random.default_rng(1)
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for epoch in range(EPOCHS):
        for sample in rng.permutation(SAMPLES).tolist():
            if sample in held:
                hits += epoch > 1
                held.move_to_end(sample)
            elif len(held) < share * SAMPLES:
                held[sample] = None
            elif policy == "lru":
                held.popitem(last=False)
                held[sample] = None
    return hits / (SAMPLES * (EPOCHS - 2))


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85, 0.97])
def test_hits_as_simulated(share: float) -> None:
    assert lru_hits(share) == pytest.approx(simulated(share, "lru"), abs=0.012)
    assert no_eviction_hits(share) == pytest.approx(simulated(share, "no-eviction"), abs=1e-9)


def test_ends() -> None:
    assert lru_hits(0) == 0
    assert lru_hits(1) == lru_hits(1.7) == no_eviction_hits(3) == 1
    assert lru_hits(0.3) < no_eviction_hits(0.3)
    with pytest.raises(IngestError, match="from 0 on"):
        lru_hits(-0.1)
    with pytest.raises(IngestError):
        no_eviction_hits(float("nan"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_one_job_of_the_fluid_model_comes_to_them(share: float) -> None:
    # Without overlap the time is a straight line in the share of misses, so an epoch tells its mean.
    job = JobRates("job", SAMPLES, 12, 0.001, 0.003, overlap=0.0)

    def later(policy: str, same_order: bool = False) -> float:
        ends = [
            run(
                [JobRates("job", SAMPLES, epochs, 0.001, 0.003, overlap=0.0)],
                Slowdowns.uniform(1, same_order=same_order),
                SharedCache(share * SAMPLES, policy),
                [[0.0]],
                step=1 / 64,
            ).makespan_s[0]
            for epochs in (6, 7)
        ]
        return 1.0 - ((ends[1] - ends[0]) / SAMPLES - job.hot_s) / (job.storage_s - job.hot_s)

    assert later("lru") == pytest.approx(lru_hits(share), abs=0.006)
    assert later("no-eviction") == pytest.approx(no_eviction_hits(share), abs=1e-6)
    assert later("lru", same_order=True) == pytest.approx(0, abs=1e-6)
