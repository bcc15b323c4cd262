"""The storage probe against storages whose limits are known: nginx with stated ones; the command; refusals."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from benchmarks.rigs.local_server import LocalServer
from precision_time.cli.main import main
from precision_time.errors import IngestError
from precision_time.hardware.storage import read_storage
from precision_time.ingest.storage.index import files_of
from precision_time.ingest.storage.object_reader import HttpReader
from precision_time.ingest.storage.probe_reader import PIECE, ColdFiles, Order, carry_out
from precision_time.ingest.storage.storage_probe import Rate, _storage, probe_storage

needs_nginx = pytest.mark.skipif(
    not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")),
    reason="nginx is not installed",
)
BYTES = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for number in range(40):
        (made / f"{number}.bin").write_bytes(os.urandom(BYTES))
    files = [[f"{number}.bin", BYTES, 0] for number in range(40)]
    (made / "index.json").write_text(json.dumps({"files": files}))
    return made


@needs_nginx
@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_the_stated_limits_are_found(folder: Path) -> None:
    with LocalServer(folder, requests_per_s=150, stream_requests_per_s=60) as server:
        found = probe_storage(server.url, 6.0, readers=(1, 2, 4))
    assert found.rates[0].reads_per_s == pytest.approx(60, rel=0.2)
    assert found.rates[1].reads_per_s == pytest.approx(120, rel=0.2)
    assert found.storage.requests_per_s == pytest.approx(150, rel=0.2)
    assert found.storage.bytes_per_s == pytest.approx(150 * BYTES, rel=0.2)
    # One reader is its own limit: a read takes it a sixtieth of a second, whatever the part of the latency in it.
    one_s = found.storage.latency_s + BYTES / found.storage.stream_bytes_per_s
    assert one_s == pytest.approx(1 / 60, rel=0.2)
    assert found.storage.reader_efficiency > 0.75  # two groups of readers wait in one queue: nothing is lost
    assert found.limited_by_requests
    assert found.storage.measured
    assert not found.storage.page_cache
    assert "limited by requests" in str(found)


def test_one_reader_that_waits_for_its_turn_has_no_such_latency() -> None:
    _, index = files_of(str(Path(__file__).parent / "test_storage_probe.py"))
    waits, alone = Rate(1, 100.0, 100.0 * BYTES), Rate(1, 50.0, 50.0 * BYTES)
    many = Rate(4, 100.0, 100.0 * BYTES)
    # One reader gets all that there is: 1 ms a read, of which 0.4 ms are the latency, and 100 reads a second.
    found = _storage("x", False, index, 0.001, 0.0004, [waits, many], many, 1.0)
    assert (found.latency_s, found.requests_per_s) == (0.0004, 100.0)
    assert found.stream_bytes_per_s == pytest.approx(BYTES / 0.0006, rel=1e-3)
    # Two readers would get twice as much: each read takes 20 ms.
    found = _storage("x", False, index, 0.001, 0.0004, [alone, many], many, 1.3)
    assert found.latency_s + BYTES / found.stream_bytes_per_s == pytest.approx(0.02, rel=1e-3)
    assert found.reader_efficiency == 1.0


def test_cold_files_leave_the_page_cache(folder: Path) -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system does not say what is in its page cache")
    path = folder / "0.bin"
    content = path.read_bytes()
    reader = ColdFiles(str(folder))
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        try:
            assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            pytest.skip("this file system does not say what is in the page cache")
        assert reader.read("0.bin") == content
        if reader.cached:
            pytest.skip("this file system keeps its pages (memory)")
        with pytest.raises(BlockingIOError):
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(3 * PIECE)
    root, index = files_of(str(tmp_path / "large"))
    files = list(zip(index.names, index.bytes, strict=True))
    done = carry_out(ColdFiles(root), Order(files, 0.0, 0.0))
    assert (len(done.seconds), done.bytes) == (1, PIECE)
    done = carry_out(ColdFiles(root), Order(files, 0.0, 0.0, small=True))
    assert done.bytes == 4096


@pytest.mark.slow
def test_the_command_writes_a_storage_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    assert main(["calibrate", "--storage", str(folder), "--output", str(path), "--budget", "5s", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = read_storage(path)
    assert found.measured
    assert said["storage"]["requests_per_s"] == found.requests_per_s
    assert said["files"] == 40
    assert found.bytes_per_s == pytest.approx(max(row["bytes_per_s"] for row in said["rates"]), rel=1e-3)
    assert said["page_cache"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "storage 'none' does not exist; give a folder with files"),
        (["."], "storage '.' is empty: it has no file with content"),
        (
            ["http://127.0.0.1:{port}"],
            "refused; start it, or check scheme, host and port",
        ),
        ([""], "flag --storage is empty; give a folder"),
        (["http://127.0.0.1:99999/x"], "is no address: port out of range 0-65535; write http://HOST:PORT/PATH"),
        (["http://127.0.0.1:web/x"], "is no address: port could not be cast"),
        (["http://[::1/x"], "is no address: invalid IPv6 URL; write http://HOST:PORT/PATH"),
        ([".", "--output", "mine.txt"], "storage file 'mine.txt' must end in .yaml or .json"),
        ([".", "--output", "no/mine.yaml"], "there is no folder 'no'; make it first"),
        ([".", "--ranks", "2"], "flag --ranks has no meaning with --storage"),
        ([".", "resnet50"], "model 'resnet50' has no meaning with --storage"),
        ([".", "--budget", "2h"], "flag --budget is '2h'"),
    ],
)
def test_refusals_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert main(["calibrate", "--storage", *(word.format(port=port) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_empty_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "large.bin").touch()
    with pytest.raises(IngestError, match=r"storage .*large.bin' is an empty file; give one of"):
        files_of(str(tmp_path / "large.bin"))


@needs_nginx
def test_a_file_that_is_gone_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.json").write_text('{"files": [["gone", 5, 0]]}')
    with LocalServer(tmp_path) as server:
        with pytest.raises(IngestError, match=r"refuses 'gone' of .* with 404"):
            probe_storage(server.url, 4.0, readers=(1,))
        (tmp_path / "gone").write_bytes(b"12")
        (tmp_path / "index.json").write_text('{"files": [["gone", 10000000, 0]]}')
        with pytest.raises(IngestError, match=r"fewer bytes than in its index.json; make the data set anew"):
            HttpReader(server.url).read("gone", 9000, 1)
        (tmp_path / "index.json").write_text('{"files": [["gone", 0, 0]]}')
        with pytest.raises(IngestError, match=r"says that 'gone' has 0 bytes; leave empty files out"):
            probe_storage(server.url, 4.0, readers=(1,))
    (tmp_path / "gone").unlink()
    (tmp_path / "index.json").write_text('{"files": [["gone", 5, 0]]}')
    assert capfd.readouterr().err == ""  # the readers that were not asked first have nothing to add
    with pytest.raises(IngestError, match=r"file 'gone' of storage .* cannot be read: No such file"):
        probe_storage(str(tmp_path), 4.0, readers=(1,))
