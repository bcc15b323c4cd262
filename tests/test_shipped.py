"""The data files of the package: the digests are current, and an absent or changed file is an error, never a guess."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precision_time import shipped
from precision_time.errors import DataError


def test_the_digests_are_current_and_complete() -> None:
    fix = "run python -m precision_time.shipped"
    assert dict(shipped._digests()) == shipped.current_digests(), fix
    assert len(shipped._digests()) > 130
    assert set(shipped.shipped_names("hardware/data")) == {
        f"hardware/data/{name}" for name in ("fabrics.yaml", "gpus.csv", "nodes.yaml", "prices.yaml", "storages.yaml")
    }


@pytest.fixture
def package(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(shipped.ROOT, tmp_path / "precision_time", ignore=ignored))


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
    try:
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
    finally:
        shipped._digests.cache_clear()


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
