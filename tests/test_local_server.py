"""The limited server: real nginx, real readers in processes of their own."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rigs.local_server import LocalServer
from precision_time.errors import IngestError

needs_nginx = pytest.mark.skipif(
    not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")),
    reason="nginx is not installed",
)
ROOT = Path(__file__).parent.parent
CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / "file").write_bytes(os.urandom(20_000))
    return made


def read(port: int, seconds: float, start: Barrier, counts: Any) -> None:
    """One reader: the same file again and again over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    start.wait()
    begun, count, longest = time.monotonic(), 0, 0.0
    last = begun
    while last < begun + seconds:
        connection.request("GET", "/file")
        answer = connection.getresponse()
        assert (answer.status, len(answer.read())) == (200, 20_000)
        count, longest, last = count + 1, max(longest, time.monotonic() - last), time.monotonic()
    counts.put((count, last - begun, longest))


def rates(server: LocalServer, readers: int, seconds: float) -> list[tuple[float, float]]:
    """Requests per second and longest wait of each reader."""
    start, counts = CONTEXT.Barrier(readers), CONTEXT.Queue()
    port = int(server.url.rsplit(":", 1)[1])
    made = [CONTEXT.Process(target=read, args=(port, seconds, start, counts)) for _ in range(readers)]
    for reader in made:
        reader.start()
    found = [counts.get(timeout=seconds + 60) for _ in made]
    for reader in made:
        reader.join()
    return [(count / took, longest) for count, took, longest in found]


@needs_nginx
def test_readers_never_exceed_the_stated_rates(folder: Path) -> None:
    """An upper bound holds however busy the machine is; the stated rates are reached in the slow tests."""
    with LocalServer(folder, requests_per_s=150, stream_requests_per_s=60) as server:
        for readers, stated in ((1, 60), (4, 150)):
            assert 0 < sum(rate for rate, _ in rates(server, readers, 1.0)) < 1.03 * stated, readers


@needs_nginx
@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
@pytest.mark.parametrize(("readers", "seconds"), [(1, 2.0), (2, 2.0), (4, 3.0), (8, 5.0)])
def test_readers_together_get_the_stated_rate_smoothly(folder: Path, readers: int, seconds: float) -> None:
    # Other work on the machine may keep readers from asking in time, never the server from limiting them.
    for _ in range(3):
        with LocalServer(folder, requests_per_s=200) as server:
            found = rates(server, readers, seconds)
        total = sum(rate for rate, _ in found)
        assert total < 1.02 * 200
        if total > 0.97 * 200:
            break
    assert total > 0.85 * 200
    # In turn, so that each gets its share; and no answer waits much longer than all readers' turns take.
    assert all(rate == pytest.approx(200 / readers, rel=0.3) for rate, _ in found)
    assert max(longest for _, longest in found) < readers / 200 + 1.0


@needs_nginx
@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_each_connection_has_its_own_limit(folder: Path) -> None:
    with LocalServer(folder, requests_per_s=150, stream_requests_per_s=60) as server:
        for readers, stated in ((1, 60), (2, 120), (4, 150)):
            total = sum(rate for rate, _ in rates(server, readers, 2.0))
            assert 0.9 * stated < total < 1.03 * stated, readers


@needs_nginx
def test_it_counts_requests_and_is_gone_when_the_block_ends(folder: Path) -> None:
    with LocalServer(folder) as server:
        for _ in range(3):
            urllib.request.urlopen(f"{server.url}/file").close()
        assert server.requests() == 3
        assert server.requests() == 3
        home = Path(server._home.name) if server._home else Path()
        assert home.exists()
    assert not home.exists()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"{server.url}/file")


@needs_nginx
def test_it_is_gone_when_its_owner_is_killed(folder: Path) -> None:
    code = (
        "import sys, time; from benchmarks.rigs.local_server import LocalServer\n"
        "with LocalServer(sys.argv[1]) as server: print(server.url, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        urllib.request.urlopen(f"{url}/file").close()
        owner.send_signal(signal.SIGKILL)
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{url}/file").close()
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("nginx still serves")


@needs_nginx
def test_more_than_may_wait_is_refused(folder: Path) -> None:
    with LocalServer(folder, requests_per_s=1, waiting=0) as server:
        urllib.request.urlopen(f"{server.url}/file").close()
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{server.url}/file")
        refused.value.close()


@needs_nginx
def test_bad_words_are_said(folder: Path) -> None:
    with pytest.raises(IngestError, match="to serve does not exist"):
        LocalServer(folder / "none")
    with pytest.raises(IngestError, match=r"requests_per_s of the server is 0.5; give at least 1"):
        LocalServer(folder, requests_per_s=0.5)


def test_without_nginx_the_way_to_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(IngestError, match="nginx is not installed; install it"):
        LocalServer(folder)
