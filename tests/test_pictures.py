"""The data set of real JPEG files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from precision_time.errors import IngestError
from precision_time.ingest.storage import pictures
from precision_time.ingest.storage.pictures import Recipe, make, picture

Image = pytest.importorskip("PIL.Image")


def test_pictures_are_jpeg_files_that_the_index_names(tmp_path: Path) -> None:
    index = make(tmp_path, 12, Recipe(size=48))
    assert json.loads((tmp_path / "index.json").read_text()) == index
    assert [label for _, _, label in index["files"]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    for name, size, _ in index["files"]:
        assert (tmp_path / name).stat().st_size == size
        opened = Image.open(io.BytesIO((tmp_path / name).read_bytes()))
        opened.load()
        assert (opened.format, opened.size, opened.mode) == ("JPEG", (48, 48), "RGB")


def test_a_picture_depends_on_seed_and_number_alone() -> None:
    small = Recipe(size=32)
    assert picture(small, 3) == picture(small, 3)
    assert len({picture(small, 3), picture(small, 13), picture(Recipe(size=32, seed=1), 3)}) == 3


def test_files_get_the_wanted_size() -> None:
    recipe = Recipe(size=160).of_bytes(18 * 1024)
    sizes = [len(picture(recipe, index)) for index in range(10)]
    assert all(abs(size / (18 * 1024) - 1) < 0.05 for size in sizes), sizes
    with pytest.raises(IngestError, match=r"900 KiB cannot be had at 160 x 160 .* give [\d.]+ to [\d.]+ KiB"):
        Recipe(size=160).of_bytes(900 * 1024)


def test_interrupted_work_is_continued(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, 8, Recipe(size=32), interrupt)
    assert not (tmp_path / "index.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.jpg")}
    assert len(kept) == 4
    assert len(make(tmp_path, 8, Recipe(size=32))["files"]) == 8
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in kept} == kept


def test_recipes_are_not_mixed_and_wrong_ones_are_said(tmp_path: Path) -> None:
    make(tmp_path, 2, Recipe(size=32))
    with pytest.raises(IngestError, match="holds pictures of another recipe"):
        make(tmp_path, 2, Recipe(size=40))
    with pytest.raises(IngestError, match="count of pictures is 0; give at least 1"):
        make(tmp_path / "none", 0)
    with pytest.raises(IngestError, match="quality of the pictures is 99; give a value from 1 to 95"):
        Recipe(quality=99)
    (tmp_path / "file").write_text("")
    with pytest.raises(IngestError, match="cannot be filled with pictures"):
        make(tmp_path / "file", 2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main([str(tmp_path), "--count", "5", "--size", "32"]) == 0
    assert capsys.readouterr().out.startswith("5 pictures, ")
    assert pictures.main([str(tmp_path), "--count", "5", "--size", "64"]) == 2
    assert "choose another folder" in capsys.readouterr().err
