"""What a server has learned outlasts it, as long as the file belongs to its store and its version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from precision_time import Job
from precision_time.errors import DataError
from precision_time.prediction import predict
from precision_time.serve.http.corrections import Corrections
from precision_time.serve.http.kept_state import KeptState
from precision_time.serve.learning import Facets
from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store import new_id, open_store
from precision_time.serve.store.sql_store import SqlStore
from serving import RESNET, served

BASE = predict(Job("bert-large", gpus=8, precision="amp-bf16", batch_size=16))


def add(store: SqlStore, key: str, ratio: float = 1.3) -> None:
    step = BASE.step
    made = Prediction(
        new_id(), 1.0, "hall", BASE.job.to_dict(), BASE.to_dict(), Facets.of(BASE).to_dict(),
        (step.p10, step.p50, step.p90), {"precision-time": "1"},
    )  # fmt: skip
    store.add_prediction(made)
    store.add_outcome(Outcome(key, made.id, 2.0, step_s=ratio * step.p50, machine={"host": "node3"}))


def learned(store: SqlStore, known: Corrections | None = None) -> Corrections:
    known = known or Corrections()
    for recorded in store.recorded(known.number):
        known.learn(recorded)
    return known


def test_a_kept_state_goes_on_where_it_was(tmp_path: Path) -> None:
    store, kept = open_store(tmp_path / "store.sqlite"), KeptState(tmp_path, "store")
    assert kept.load(store).number == 0, "no file"
    for number in range(3):
        add(store, f"k{number}")
    kept.save(learned(store))
    add(store, "k3", 1.2)
    again = KeptState(tmp_path, "store").load(store)
    assert again.number == 3
    assert learned(store, again).to_dict() == learned(store).to_dict()
    assert len(again.accuracy("hall")["points"]) == 4
    store.close()


def test_it_is_written_after_so_many_outcomes(tmp_path: Path) -> None:
    store, kept = open_store(tmp_path / "store.sqlite"), KeptState(tmp_path, "store")
    kept.save(learned(store), 1)
    assert not kept.path.exists(), "nothing was learned"
    add(store, "a")
    add(store, "b")
    kept.save(learned(store), 3)
    assert not kept.path.exists()
    kept.save(learned(store), 2)
    first = kept.path.read_bytes()
    kept.path.unlink()
    kept.save(learned(store), 1)
    assert not kept.path.exists(), "nothing came since"
    assert json.loads(first)["learned"]["learning"]["number"] == 2
    store.close()
    with pytest.raises(DataError):
        KeptState(tmp_path / "absent", "store").save(Corrections.from_dict(json.loads(first)["learned"]))


def test_a_state_of_another_store_or_version_is_not_taken(tmp_path: Path) -> None:
    store, other = open_store(tmp_path / "store.sqlite"), open_store(tmp_path / "other.sqlite")
    kept = KeptState(tmp_path, "store")
    for each in (store, other):
        add(each, "a")
    kept.save(learned(store))
    assert kept.load(store).number == 1
    assert kept.load(other).number == 0, "a database that was restored or made anew"
    content = json.loads(kept.path.read_text())
    damaged = [
        "", "[]", "{}", json.dumps({**content, "made_by": ["0.0", ""]}), json.dumps({**content, "learned": {}}),
        json.dumps({**content, "learned": {**content["learned"], "learning": {"format": 99}}}),
    ]  # fmt: skip
    for text in damaged:
        kept.path.write_text(text)
        assert kept.load(store).number == 0, text
    store.close()
    other.close()


def test_files_of_two_stores_differ(tmp_path: Path) -> None:
    assert KeptState(tmp_path, "one").path != KeptState(tmp_path, "two").path


def test_a_server_begins_with_what_the_last_one_learned(tmp_path: Path) -> None:
    def files() -> list[str]:
        return [path.name for path in tmp_path.rglob("learned-*.json")]

    with served(tmp_path, "--workers", "1", "--quiet") as server:
        made = server.http.post("/v1/predict", json={"job": RESNET, "cluster": "hall"}).json()
        outcome = {"key": "a", "step_s": 1.4 * made["estimate"]["step"]["p50"]}
        assert server.http.post(f"/v1/predictions/{made['id']}/outcomes", json=outcome).status_code == 201
        corrected = server.http.post("/v1/predict", json={"job": RESNET, "cluster": "hall"}).json()
        assert not files()
        assert server.stop() == 0
    (name,) = files()
    content = next(tmp_path.rglob(name))
    state = json.loads(content.read_text())
    state["learned"]["points"]["hall"][0]["error"] = -0.125  # to see that it is read
    content.write_text(json.dumps(state))
    with served(tmp_path, "--workers", "1", "--quiet") as server:
        (point,) = server.http.get("/v1/accuracy?cluster=hall").json()["points"]
        assert point["error"] == -0.125
        again = server.http.post("/v1/predict", json={"job": RESNET, "cluster": "hall"}).json()
        assert again["estimate"] == corrected["estimate"]
        assert again["correction"]["outcomes"] == 1
