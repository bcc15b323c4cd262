"""Pictures read over real HTTP and from folders, through the cache, by real DataLoader workers; refusals."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from benchmarks.rigs.local_server import LocalServer  # noqa: E402
from precision_time.errors import IngestError  # noqa: E402
from precision_time.ingest.storage.file_cache import FileCache  # noqa: E402
from precision_time.ingest.storage.object_reader import TRIES, FsspecReader, open_reader  # noqa: E402
from precision_time.ingest.storage.pictures import Recipe, make  # noqa: E402
from precision_time.ingest.storage.reading import Pictures, decode, read_index  # noqa: E402

needs_nginx = pytest.mark.skipif(
    not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")),
    reason="nginx is not installed",
)
EXAMPLE = Path(__file__).parent.parent / "examples" / "stagger" / "train.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pictures")
    make(made, 40, Recipe(size=64))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    with LocalServer(folder) as running:
        yield running


@pytest.fixture
def train() -> Any:
    spec = importlib.util.spec_from_file_location("stagger_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.train


def test_a_picture_is_cropped_and_scaled(folder: Path) -> None:
    pictures = Pictures(str(folder))
    tensor, label = pictures[7]
    assert (tensor.shape, tensor.dtype, label) == ((3, 56, 56), torch.float32, 7)
    assert 0.0 <= float(tensor.min()) < 0.3 < 0.7 < float(tensor.max()) <= 1.0
    again = {decode(pictures.read(7)).numpy().tobytes() for _ in range(10)}
    assert len(again) > 1  # chance crops and flips it: 9 x 9 places x 2, so two of them alike are no rarity


@needs_nginx
def test_http_file_and_fsspec_give_the_same_bytes(folder: Path, server: LocalServer) -> None:
    names = read_index(server.url).names
    assert len(names) == 40
    for root in (server.url, server.url + "/", str(folder), f"file://{folder}", f"local://{folder}"):
        reader = open_reader(root)
        assert [reader.read(name) for name in names[:3]] == [(folder / name).read_bytes() for name in names[:3]]
        reader.close()
    assert isinstance(open_reader(f"local://{folder}"), FsspecReader)


@needs_nginx
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_reads_its_part_once_and_the_next_hits_the_cache(
    server: LocalServer, tmp_path: Path, train: Any, workers: int
) -> None:
    steps: list[int] = []
    before = server.requests()
    options = {"root": server.url, "cache": str(tmp_path), "first": 5, "samples": 20, "batch_size": 8, "seed": 3}
    train(steps.append, **options, epochs=2, workers=workers)
    assert steps == [0, 8, 8, 4, 8, 8, 4]
    assert server.requests() - before == 1 + 20  # the index and each picture
    assert len(FileCache(tmp_path)) == 20
    assert f"{5:06d}.jpg" in FileCache(tmp_path)
    assert f"{25:06d}.jpg" not in FileCache(tmp_path)


@needs_nginx
def test_a_cache_too_small_for_all_still_misses(server: LocalServer, folder: Path, tmp_path: Path, train: Any) -> None:
    total = sum(size for _, size, _ in json.loads((folder / "index.json").read_text())["files"])
    before = server.requests()
    half = total / 2 / 2**20
    train(lambda _: None, root=server.url, cache=str(tmp_path), cache_mib=half, cache_policy="no-eviction", epochs=3)
    read = server.requests() - before - 1
    # 40 in the first epoch, then about half of them in each: what is full keeps what it has.
    assert 40 + 2 * 19 <= read <= 40 + 2 * 22
    assert FileCache(tmp_path, int(half * 2**20), "no-eviction").held() <= total / 2


@needs_nginx
def test_a_busy_server_is_asked_again_and_then_given_up(folder: Path) -> None:
    # Two in a second and no queue: the second request is refused, and comes through when half a second has passed.
    with LocalServer(folder, requests_per_s=2, waiting=0) as server:
        reader = open_reader(server.url)
        assert reader.read("000000.jpg") == reader.read("000000.jpg")
        assert server.requests() > 2
    with LocalServer(folder, requests_per_s=1, waiting=0) as server:
        import precision_time.ingest.storage.object_reader as module

        reader = open_reader(server.url)
        reader.read("000000.jpg")
        pause, module.FIRST_PAUSE_S = module.FIRST_PAUSE_S, 0.001
        try:
            with pytest.raises(IngestError, match=rf"with 503 .*, {TRIES} times; it is overloaded: use fewer workers"):
                reader.read("000000.jpg")
        finally:
            module.FIRST_PAUSE_S = pause


@needs_nginx
def test_refusals_say_what_to_do(server: LocalServer, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=r"refuses 'none.jpg' of .* with 404 Not Found; check the address"):
        open_reader(server.url).read("none.jpg")
    with pytest.raises(IngestError, match="404 Not Found; check the address, which must be that of the folder with"):
        Pictures(server.url + "/wrong")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(IngestError, match=r"does not answer: .*refused; start it, or check scheme, host and port"):
        Pictures(f"http://127.0.0.1:{port}")
    with pytest.raises(IngestError, match="names no host; write http://HOST:PORT/PATH"):
        Pictures("http://")


def test_bad_folders_and_parts_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=r"cannot be read: No such file or directory; check the path"):
        Pictures(str(tmp_path / "none"))
    (tmp_path / "index.json").write_text('{"files": []}')
    with pytest.raises(IngestError, match=r"is empty: its index.json names no file; make pictures with"):
        Pictures(str(tmp_path))
    (tmp_path / "index.json").write_text('{"pictures": []}')
    with pytest.raises(IngestError, match=r"is no index of pictures .*; make one with"):
        Pictures(str(tmp_path))
    with pytest.raises(IngestError, match="samples 30 to 49 are not all in the data set, which has 40"):
        Pictures(str(folder), first=30, samples=20)
    with pytest.raises(IngestError, match="a file of the data set is no picture; make"):
        decode(b"no picture")
    (tmp_path / "index.json").write_text('{"files": [["a.jpg", 10, 0]]}')
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(IngestError, match=r"file 'a.jpg' of the data set is no picture; make"):
        Pictures(str(tmp_path))[0]
    with pytest.raises(IngestError, match="cannot be opened by fsspec"):
        open_reader("nowhere://bucket")


@needs_nginx
def test_a_refusal_in_a_worker_reaches_the_loop(server: LocalServer, tmp_path: Path, train: Any) -> None:
    content = {"files": [["gone.jpg", 1, 0]]}
    (tmp_path / "index.json").write_text(json.dumps(content))
    with pytest.raises(IngestError, match=r"'gone\.jpg'"):
        train(lambda _: None, root=str(tmp_path), workers=1)
