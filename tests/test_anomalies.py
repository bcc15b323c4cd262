"""Outcomes far from what others say, and the sentences about them."""

from __future__ import annotations

from precision_time.serve.learning import Anomaly, Learning
from test_learning import VARIANCES, facets, learned, recorded

GOOD = {"hosts": ["node3", "node4"], "driver": "550", "torch": "2.9"}


def _usual(count: int = 10) -> list:  # type: ignore[type-arg]
    return [recorded(i, facets(f"job{i}"), 1.0 + 0.01 * (i % 3), machine=GOOD) for i in range(1, count + 1)]


def _found(learning: Learning) -> Anomaly:
    assert len(learning.anomalies("hall")) == 1
    return learning.anomalies("hall")[0]


def test_usual_outcomes_are_none() -> None:
    assert learned(_usual()).anomalies() == ()


def test_a_slow_node_is_named() -> None:
    slow = recorded(11, facets("job11"), 1.6, machine={"driver": "550", "host": "node17"})
    found = _found(learned([*_usual(), slow], VARIANCES))
    assert found.slower > 0.5
    assert found.twins == 10
    assert found.prediction == "p11"
    assert found.sentence.startswith("bert-large runs ")
    assert "% slower than its 10 twin rows: host-bound or throttled on node17, where no twin ran?" in found.sentence
    assert Anomaly.from_dict(found.to_dict()) == found


def test_a_node_that_was_slow_before_comes_first() -> None:
    slow = [recorded(i, facets(f"job{i}"), 1.8, machine={**GOOD, "hosts": ["node17"]}) for i in (11, 12)]
    learning = learned([*_usual(), *slow])
    latest = learning.anomalies()[0]
    assert latest.number == 12
    assert latest.evidence[0] == "a slow node node17, where 1 of the earlier anomalies ran"


def test_a_node_whose_name_begins_alike_is_another() -> None:
    slow = [recorded(i, facets(f"job{i}"), 1.8, machine={"hosts": f"node1{'7' * (i - 11)}"}) for i in (11, 12)]
    assert "earlier anomalies" not in learned([*_usual(), *slow]).anomalies()[0].sentence


def test_evidence_of_driver_steps_memory_and_launches() -> None:
    """Its host is unknown to outcomes that wait for none, so that it takes twice the time to be one."""
    steps = tuple(1.9 + 0.7 * (i % 5 == 0) for i in range(100))
    slow = recorded(
        11, facets("job11", launch=0.3), 2.0, steps_s=steps, machine={**GOOD, "driver": "535"}, peak_bytes=79
    )
    slow.prediction.estimate["memory"] = {"capacity_bytes": 80}  # type: ignore[index]
    evidence = " | ".join(_found(learned([*_usual(), slow])).evidence)
    for phrase in ("steps vary", "memory is 99% full", "driver 535", "twins ran 550", "launching limits 30%"):
        assert phrase in evidence


def test_an_outcome_that_is_too_fast_asks_for_what_was_run() -> None:
    found = _found(learned([*_usual(), recorded(11, facets("job11"), 0.4, machine=GOOD)]))
    assert found.slower < -0.5
    assert "% faster than its 10 twin rows: fewer samples or steps than the job says?" in found.sentence


def test_without_twins_or_machine() -> None:
    found = _found(learned([*_usual(), recorded(11, facets("job11", "gpt"), 2.5)]))
    assert found.twins == 0
    assert "slower than the cluster's other jobs say: the outcome says nothing of its machine" in found.sentence
    assert found.evidence == ()
