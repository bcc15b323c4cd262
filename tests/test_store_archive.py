"""Backups of the store: whole, of one moment, readable by either database, and refused where they are damaged."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest

from postgresql_server import Server
from precision_time.cli.main import main
from precision_time.errors import DataError
from precision_time.serve.records import Prediction
from precision_time.serve.store import SqlStore, archive, back_up, check_backup, open_store, restore
from precision_time.serve.store.archive import Counts
from store_cases import outcome, prediction
from test_full_disk import largest_file


def filled(store: SqlStore, count: int = 7) -> list[Prediction]:
    made = [
        store.add_prediction(
            prediction(key=f"k{i}", cluster=f"c{i % 2}", job={"é": i, "control": "\x00\x1b\u2028\ud800"})
        )
        for i in range(count)
    ]
    for index, each in enumerate(made[::-1]):
        store.add_outcome(outcome(each, key="a", steps_s=(0.1, 0.2), peak_bytes=index, finished=index % 2 == 0))
        store.add_outcome(outcome(each, key="b", machine={"host": "x"}))
    return made


def content(store: SqlStore) -> tuple[object, object]:
    return list(store.recorded()), store.predictions(limit=1000)


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
@pytest.mark.parametrize("of", ["sqlite", "postgresql"])
def test_a_round_trip_between_databases(of: str, to: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def target(kind: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"{len(list(tmp_path.iterdir()))}.db")
        server: Server = request.getfixturevalue("postgresql")
        return server.new_database()

    source, second = open_store(target(of)), open_store(target(to))
    filled(source)
    file = tmp_path / "backup.gz"
    assert back_up(source, file) == check_backup(file) == Counts(7, 14)
    assert restore(second, file) == Counts(7, 14)
    assert content(second) == content(source), "with numbers, ids and times"
    assert restore(second, file) == Counts(0, 0), "a second time adds nothing"
    assert content(second) == content(source)
    again = tmp_path / "again.gz"
    back_up(second, again)
    lines = [gzip.decompress(path.read_bytes()).splitlines()[1:-1] for path in (file, again)]
    assert lines[0] == lines[1]
    source.close()
    second.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_of_the_first_format_is_read_for_ever(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = str(tmp_path / "s.db") if kind == "sqlite" else request.getfixturevalue("postgresql").new_database()
    store = open_store(target)
    assert restore(store, Path(__file__).parent / "golden" / "store_backup_1.gz") == Counts(2, 2)
    first, second = store.recorded()
    assert (first.number, first.prediction.id[-1], first.prediction.cluster) == (1, "2", "pool-a")
    kept = first.outcome
    assert (kept.key, kept.steps_s, kept.run_s, kept.peak_bytes) == ("slurm-1", (0.1, 0.30000000000000004), 60.0, 2**40)
    assert (kept.finished, kept.machine, kept.recorded_at) == (True, {"host": "node17"}, 1_700_000_100.5)
    assert (second.number, second.prediction.key, second.prediction.job["note"]) == (2, "first", "ü \x01")
    assert (second.outcome.step_s, second.outcome.finished, second.prediction.predicted) == (
        None,
        None,
        (0.4, 0.5, 0.6),
    )
    store.close()


def test_an_empty_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    assert back_up(store, tmp_path / "b.gz") == restore(store, tmp_path / "b.gz") == Counts(0, 0)
    store.close()


def test_a_restore_into_a_store_that_is_in_use(tmp_path: Path) -> None:
    """What is there stays; outcomes of the backup follow; a key that is taken there keeps its prediction."""
    first, second = open_store(tmp_path / "1.db"), open_store(tmp_path / "2.db")
    made = filled(first, 3)
    taken = second.add_prediction(prediction(key="k1"))
    second.add_outcome(outcome(taken, key="own"))
    back_up(first, tmp_path / "b.gz")
    assert restore(second, tmp_path / "b.gz") == Counts(2, 6)
    assert [each.number for each in second.recorded()] == list(range(1, 8))
    assert second.prediction(made[1].id) is None
    assert [each.key for each in second.outcomes(taken.id)] == ["own", "a", "b"]
    first.close()
    second.close()


def test_a_stopped_restore_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = open_store(tmp_path / "1.db"), open_store(tmp_path / "2.db")
    filled(first)
    back_up(first, tmp_path / "b.gz")
    monkeypatch.setattr(archive, "_TOGETHER", 3)
    with monkeypatch.context() as patch:
        calls = iter([*[second.add_together] * 3, None])
        patch.setattr(second, "add_together", lambda records: next(calls)(records))  # type: ignore[misc]
        with pytest.raises(TypeError):
            restore(second, tmp_path / "b.gz")
    assert 0 < len(second.predictions()) + len(list(second.recorded())) < 21
    restore(second, tmp_path / "b.gz")
    assert content(second) == content(first)
    first.close()
    second.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_is_of_one_moment_while_writers_work(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PAGE", 5)
    target = str(tmp_path / "s.db") if kind == "sqlite" else request.getfixturevalue("postgresql").new_database()
    store, writer = open_store(target), open_store(target)
    filled(store, 20)
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            one = writer.add_prediction(prediction())
            writer.add_outcome(outcome(one))
            wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for index in range(5):
            wrote.clear()
            assert wrote.wait(60)
            counts = back_up(store, tmp_path / f"{index}.gz")
            assert counts.predictions - 20 - (counts.outcomes - 40) in (0, 1), "the writer was in between or not"
            copy = open_store(tmp_path / f"{index}.db")
            assert restore(copy, tmp_path / f"{index}.gz") == counts
            copy.close()
    finally:
        stop.set()
        thread.join(60)
    store.close()
    writer.close()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "store.db")
    filled(store)
    back_up(store, tmp_path / "b.gz")
    store.close()
    return tmp_path / "b.gz"


def refused(path: Path, text: str) -> None:
    empty = open_store(path.parent / "empty.db")
    with pytest.raises(DataError, match=text):
        restore(empty, path)
    assert empty.clusters() == {}, "nothing was written"
    empty.close()


def test_a_backup_that_is_cut_short(backup: Path) -> None:
    whole = backup.read_bytes()
    for length in (0, 1, 20, len(whole) // 2, len(whole) - 9):
        backup.write_bytes(whole[:length])
        refused(backup, "is no whole gzip file|is damaged")


def test_lines_that_were_changed_or_left_out(backup: Path) -> None:
    lines = gzip.decompress(backup.read_bytes()).splitlines(keepends=True)
    end = json.loads(lines[-1])["end"]
    cases = {
        "changed": [lines[0], lines[1].replace(b"resnet", b"resnot"), *lines[2:]],
        "left out": [*lines[:3], *lines[4:]],
        "without its end": lines[:-1],
        "longer": [*lines, lines[-2]],
        "with other counts": [*lines[:-1], json.dumps({"end": {**end, "outcomes": 13}}).encode() + b"\n"],
        "no JSON": [*lines[:2], b"{\n", *lines[2:]],
    }
    assert b"resnet" in lines[1]
    for changed in cases.values():
        backup.write_bytes(gzip.compress(b"".join(changed)))
        refused(backup, r"is damaged \(.*\); take another backup")


@pytest.mark.parametrize(
    ("line", "text"),
    [({"kind": archive.KIND, "format": 9}, "has format 9, and this"), ({"kind": "x"}, "is no backup"), ([], "")],
)  # fmt: skip
def test_other_files(line: object, text: str, backup: Path) -> None:
    backup.write_bytes(gzip.compress(json.dumps(line).encode() + b"\n"))
    refused(backup, text or "is damaged")
    backup.write_text("model,gpu\n")
    refused(backup, "is no whole gzip file")


def test_a_full_disk_leaves_the_earlier_backup(backup: Path) -> None:
    before = backup.read_bytes()
    store = open_store(backup.parent / "store.db")
    with largest_file(300), pytest.raises(DataError, match="cannot be written"):
        back_up(store, backup)
    assert backup.read_bytes() == before
    assert back_up(store, backup) == Counts(7, 14)
    store.close()


def test_commands(backup: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(backup.parent)
    assert main(["store", "check", "b.gz"]) == 0
    assert capsys.readouterr().out == "b.gz is whole: 7 predictions, 14 outcomes\n"
    assert main(["store", "restore", "b.gz", "--database", "new.db"]) == 0
    assert capsys.readouterr().out == "b.gz restored into store 'new.db'; new: 7 predictions, 14 outcomes\n"
    assert main(["store", "backup", "second.gz", "--database", "new.db", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"backup": "second.gz", "predictions": 7, "outcomes": 14}
    assert main(["store", "--database", "new.db"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "c0: 4 predictions, 8 outcomes", "c1: 3 predictions, 6 outcomes"
    ]  # fmt: skip
    for wrong, text in (("backup", "use backup FILE"), ("remove b.gz", "'remove b.gz' is unknown")):
        assert main(["store", *wrong.split()]) == 2
        assert text in capsys.readouterr().err
    assert main(["store", "restore", "nowhere.gz", "--database", "new.db"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_backup_that_cannot_be_written_makes_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "backup", str(tmp_path / "missing" / "b.gz"), "--database", str(tmp_path / "new.db")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_backup_makes_no_database(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup.write_bytes(backup.read_bytes()[:-20])
    assert main(["store", "restore", str(backup), "--database", str(backup.parent / "new.db")]) == 2
    assert "no whole gzip file" in capsys.readouterr().err
    assert not (backup.parent / "new.db").exists()
