"""`record=` of the callbacks: the outcome is in the store at the end, and what prevents it never stops training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fakes import HOST, TWO, US, device_document, kernel_row, product  # noqa: E402
from precision_time.cli.main import main  # noqa: E402
from precision_time.errors import JobError  # noqa: E402
from precision_time.integrations.torch import TrainingRun, preview  # noqa: E402
from precision_time.serve.store import open_store  # noqa: E402

ROWS = [*TWO, *(kernel_row("aten.mm", w, 10 * US) for w in (product(8, 64, 64), product(512, 64, 64)))]
BATCH = torch.zeros(8, 16), torch.zeros(8, dtype=torch.long)


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(device_document(ROWS, host=HOST)))
    return str(path)


def train(steps: int = 12, **arguments: Any) -> TrainingRun:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with preview(model, optimizer, BATCH, loss=F.cross_entropy, steps=12, **{"report": str, **arguments}) as run:
        for x, y in run.watch([BATCH] * steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return run


def test_a_loop_is_in_the_store_at_its_end(tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    database = tmp_path / "store.db"
    run = train(device=device, record=(database, "pool-b"), report=texts.append, output=tmp_path / "o.json")
    store = open_store(database)
    (made,) = store.predictions("pool-b")
    (kept,) = store.outcomes(made.id)
    assert run.estimate is not None
    assert made.predicted == (run.estimate.step.p10, run.estimate.step.p50, run.estimate.step.p90)
    assert made.facets["family"] == "module:sequential"
    assert (len(kept.steps_s), kept.finished, kept.peak_bytes) == (9, True, None)
    assert kept.step_s == sorted(kept.steps_s)[4]
    assert kept.machine["device_type"] == "cpu"
    assert texts[-1] == f"precision-time: recorded as prediction {made.id}"
    capsys.readouterr()
    assert main(["record", str(tmp_path / "o.json"), "--database", str(database)]) == 0, "its file is known already"
    assert capsys.readouterr().out == "0 recorded, 1 known already\n"
    store.close()


def test_no_file_is_needed_and_a_loop_that_is_left_is_recorded(tmp_path: Path, device: str) -> None:
    train(steps=5, device=device, record=tmp_path / "store.db")
    store = open_store(tmp_path / "store.db")
    ((found),) = store.recorded()
    assert found.outcome.finished is False
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["device.json"]
    store.close()


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("no/such/folder/store.db", "there is no folder"), ("mysql://host", "unknown kind"),
        ("http://127.0.0.1:9", "does not answer"), (("store.db", "a b"), "cluster 'a b'"),
    ],
)  # fmt: skip
def test_what_prevents_it_is_a_note(
    record: Any,
    text: str,
    tmp_path: Path,
    device: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("precision_time.client._WAIT_S", ())
    caplog.set_level(logging.WARNING)
    run = train(device=device, record=record, output="o.json")
    assert run.session.live.done == 12
    content = json.loads(Path("o.json").read_text())
    assert content["finished"] is True
    assert content["notes"][-1].startswith("not recorded: ")
    assert text in content["notes"][-1]
    assert [text in each.getMessage() for each in caplog.records].count(True) == 1


def test_a_run_on_another_device_is_not_recorded(tmp_path: Path) -> None:
    run = train(gpu="h100", record=tmp_path / "store.db")
    assert run.session.notes[-1].startswith("not recorded: the prediction is for 'h100', and another device")
    assert not (tmp_path / "store.db").exists()
    run = train(record=tmp_path / "store.db")  # a CPU without a device file
    assert "nothing was predicted for this run" in run.session.notes[-1]


def test_a_wrong_place_is_refused_before_training(device: str) -> None:
    with pytest.raises(JobError, match="record has 1 entries; give a store or server, and the name of a cluster"):
        train(device=device, record=("store.db",))
