"""The data files of the package: the digests are current, and an absent or changed file is an error, never a guess."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from precision_time import shipped
from precision_time.errors import DataError
from precision_time.journal import held


@pytest.fixture(autouse=True)
def own_digests() -> Iterator[None]:
    """Those of another folder go with the test that read them."""
    yield
    shipped._digests.cache_clear()


def test_the_digests_are_current_and_complete() -> None:
    fix = "run python -m precision_time.shipped"
    assert dict(shipped._digests()) == shipped.current_digests(), fix
    assert len(shipped._digests()) > 130
    assert set(shipped.shipped_names("hardware/data")) == {
        f"hardware/data/{name}"
        for name in ("fabrics.yaml", "gpus.csv", "grid.yaml", "nodes.yaml", "prices.yaml", "storages.yaml")
    }


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped.ROOT, tmp_path / "precision_time"))


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package.parent)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("timing/data/kernel_priors.json", "predict resnet50"),
        ("zoo/data/resnet50.zip", "predict resnet50"),
        ("zoo/data/template-llama.zip", "predict llama3-8b --model-config layers=2"),
        ("hardware/data/prices.yaml", "gpus --prices"),
    ],
)
def test_what_is_missing_or_changed_is_an_error(name: str, command: str, package: Path) -> None:
    path = package / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    check_damage(package, path, name, command, bytes(content))


def test_damaged_digests_are_an_error(package: Path) -> None:
    check_damage(package, package / "digests.json", "digests.json", "gpus", b"[")


def check_damage(package: Path, path: Path, name: str, command: str, content: bytes) -> None:
    for damage in (lambda: path.write_bytes(content), path.unlink):
        damage()
        done = run(package, "precision_time.cli.main", *command.split())
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"precision-time: error: file {name} of the installation is ")
        assert done.stderr.count("\n") == 1
        assert "reinstall precision-time" in done.stderr


def test_an_edit_in_a_clone_is_accepted_by_one_command(package: Path) -> None:
    with (package / "hardware/data/prices.yaml").open("a") as file:
        file.write("# reviewed\n")
    assert run(package, "precision_time.cli.main", "gpus", "--prices").returncode == 2
    assert run(package, "precision_time.shipped").stdout == "hardware/data/prices.yaml\n"
    assert run(package, "precision_time.cli.main", "gpus", "--prices").returncode == 0


def test_written_files_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    shipped._digests.cache_clear()
    (tmp_path / "digests.json").write_text("{}")
    assert not shipped.is_shipped("a.json")
    shipped.write_shipped(tmp_path / "a.json", "{}")
    shipped.write_shipped(tmp_path.parent / "outside.json", "{}")
    assert shipped.shipped_file("a.json").read_text() == "{}"
    assert shipped.current_digests() == dict(shipped._digests())
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match=r"file a\.json of the installation is damaged or was edited"):
        shipped.shipped_file("a.json")
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").mkdir()
    with pytest.raises(DataError, match=r"file a\.json of the installation cannot be read"):
        shipped.shipped_file("a.json")


def contents(name: str, own: pytest.MonkeyPatch, folder: Path) -> str:
    """What a process that starts now reads."""
    with own.context() as fresh:
        fresh.setattr(shipped, "ROOT", folder)
        shipped._digests.cache_clear()
        return shipped.shipped_file(name).read_text()


class Killed(BaseException):
    """In place of a signal that ends the process."""


@pytest.mark.parametrize("at", range(1, 10))
def test_a_writer_killed_between_any_two_files_leaves_a_package_that_reads(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is renamed last, each file is the whole old or the whole new one; the next writer tidies up."""
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    renamed, replace = [], os.replace
    (tmp_path / "digests.json").write_text("{}")
    for name in ("a.json", "b.json"):
        shipped.write_shipped(tmp_path / name, "old")

    def rename(source: str, target: Path) -> None:
        if len(renamed) == at:
            raise Killed
        replace(source, target)
        renamed.append(target)

    killed = False
    with monkeypatch.context() as faulty:
        faulty.setattr(os, "replace", rename)
        faulty.setattr(os, "unlink", lambda path: None)  # a process that is killed removes nothing
        try:
            for name in ("a.json", "b.json", "c.json"):
                shipped.write_shipped(tmp_path / name, "new")
        except Killed:
            killed = True
    assert killed == (at < 8)  # three renames for each file, two for one that is new
    for name in ("a.json", "b.json"):
        assert contents(name, monkeypatch, tmp_path) in ("old", "new")
    assert not shipped.is_shipped("c.json") or contents("c.json", monkeypatch, tmp_path) == "new"
    shipped.write_shipped(tmp_path / "d.json", "new")
    digests = dict(shipped._digests())
    assert digests == {name: of for name, of in shipped.current_digests().items() if name in digests}
    assert {path.name for path in tmp_path.iterdir()} - {"a.json", "b.json", "c.json"} == {"d.json", "digests.json"}


def test_a_reader_that_began_before_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    (tmp_path / "digests.json").write_text("{}")
    shipped.write_shipped(tmp_path / "a.json", "old")
    assert contents("a.json", monkeypatch, tmp_path) == "old"
    known = dict(shipped._digests())
    shipped.write_shipped(tmp_path / "a.json", "new")
    given = iter([known])
    monkeypatch.setattr(shipped, "_digests", Stale(given))
    assert shipped.shipped_file("a.json").read_text() == "new"


class Stale:
    """The digests as read before another process wrote, until they are read again."""

    def __init__(self, old: Iterator[Mapping[str, tuple[str, ...]]]) -> None:
        self.old, self.read = old, shipped._digests

    def __call__(self) -> Mapping[str, tuple[str, ...]]:
        return next(self.old, None) or self.read()

    def cache_clear(self) -> None:
        self.read.cache_clear()


WRITER = """
import itertools, pathlib, sys
from precision_time import shipped
shipped.ROOT = pathlib.Path(sys.argv[1])
print("began", flush=True)
for number in itertools.count():
    for name in ("a.json", "b.json"):
        shipped.write_shipped(shipped.ROOT / name, f"[{number}" + " " * 100000 + "]")
"""


def test_writers_killed_at_random_moments_leave_a_package_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("PRECISION_TIME_SEED") or time.time_ns() % 10**6)
    print(f"PRECISION_TIME_SEED={seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    (tmp_path / "digests.json").write_text("{}")
    for name in ("a.json", "b.json"):
        shipped.write_shipped(tmp_path / name, "[]")
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == b"began\n"
        time.sleep(chance.uniform(0.0, 0.08))
        writer.kill()
        assert writer.wait(10) == -signal.SIGKILL
        for name in ("a.json", "b.json"):
            assert contents(name, monkeypatch, tmp_path).endswith("]")


@pytest.mark.parametrize(
    "command",
    [
        f"precision_time.fit collectives --tables {Path(__file__).parents[1] / 'data'}",
        "precision_time.zoo.ship gpt2",
        "precision_time.shipped",
    ],
)
def test_one_process_at_a_time_writes(command: str, package: Path) -> None:
    if "fit" in command:
        pytest.importorskip("pandas")
    elif "zoo" in command:
        pytest.importorskip("torch")
    with held(package / shipped.LOCK):
        done = run(package, *command.split())
    assert done.returncode == 2
    assert "the installation's folder of parameters is in use by another process; wait for its end" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_reader_checks() -> None:
    """No data file of the package is opened that was not checked just before."""
    script = """
import sys
from pathlib import Path
from precision_time import shipped
checked, opened = set(), set()
given = shipped._digest
def audit(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, Path)):
        path = Path(arguments[0])
        if path.suffix in shipped.SUFFIXES and path.is_relative_to(shipped.ROOT) and path.name != shipped.MANIFEST:
            opened.add(path.relative_to(shipped.ROOT).as_posix())
original = shipped.shipped_file
def recording(name):
    checked.add(name)
    return original(name)
shipped.shipped_file = recording
sys.addaudithook(audit)
from precision_time import predict_time
predict_time("resnet50", gpus=16, epochs=1, price="any", data={"storage": "nfs-10gbe"}, precision="amp-bf16")
predict_time("llama3-8b", gpus=16, layout="tp=2", precision="bf16", model_config={"layers": 3}, gpu="h100-80gb-sxm")
predict_time("gpt2", gpus=8, layout="fsdp", precision="fp16")
from precision_time.fit.kernel_tables import read_gpus
from precision_time.fit.provenance import parameters_digest
from precision_time.hardware import default_catalog
read_gpus(), parameters_digest(), default_catalog().prices
print(len(opened), sorted(opened - checked))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, unchecked = done.stdout.strip().split(" ", 1)
    assert int(count) >= 16
    assert unchecked == "[]"
