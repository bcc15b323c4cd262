"""Workers that learn from a store: what each has read decides what it answers, whichever reads when."""

from __future__ import annotations

from pathlib import Path

from precision_time import Job
from precision_time.prediction import predict
from precision_time.serve.learning import Facets, Learning
from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store import new_id, open_store

JOBS = [Job("bert-large", gpus=gpus, precision="amp-bf16", batch_size=16, run={"steps": 1000}) for gpus in (1, 2, 4, 8)]


def test_workers_catch_up_from_a_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.sqlite")
    first, second = Learning(), Learning()
    for number, job in enumerate(JOBS):
        base = predict(job)
        step = base.step
        kept = store.add_prediction(
            Prediction(
                new_id(), 1.0, "hall", job.to_dict(), base.to_dict(), Facets.of(base).to_dict(),
                (step.p10, step.p50, step.p90), {"precision-time": "1"},
            )
        )  # fmt: skip
        store.add_outcome(Outcome(f"k{number}", kept.id, 2.0, step_s=1.3 * step.p50, machine={"host": "node3"}))
        assert first.catch_up(store) == 1
    assert second.catch_up(store) == len(JOBS)
    assert first.to_dict() == second.to_dict()
    again = Learning.from_dict(second.to_dict())
    assert again.catch_up(store) == 0
    new = Job("gpt2", gpus=8, precision="amp-bf16", batch_size=8)
    base = predict(new)
    corrected = predict(new, learned=again.cluster("hall"))
    assert base.step.p50 < corrected.step.p50 < 1.3 * base.step.p50, "another model of the cluster"
    assert corrected.learned is not None
    assert corrected.learned.sharing == {"gpu": 4, "framework": 4, "precision": 4}
    known = predict(JOBS[0], learned=again.cluster("hall"))
    assert known.step.p50 / predict(JOBS[0]).step.p50 > 1.25, "the job itself"
    assert known.step.p90 / known.step.p10 < base.step.p90 / base.step.p10
    store.close()
