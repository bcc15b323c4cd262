"""The preparation probe, and a real loader-bound training run beside its prediction from the probes alone."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from benchmarks.rigs import loader as rig  # noqa: E402
from benchmarks.rigs.local_server import LocalServer  # noqa: E402
from precision_time.cli.main import main  # noqa: E402
from precision_time.errors import IngestError  # noqa: E402
from precision_time.hardware.storage import storage  # noqa: E402
from precision_time.ingest.storage.pictures import Recipe, make  # noqa: E402
from precision_time.ingest.storage.preparation_probe import PreparationProbe, probe_preparation  # noqa: E402
from precision_time.ingest.storage.reading import Pictures, decode  # noqa: E402
from precision_time.ingest.storage.storage_probe import probe_storage  # noqa: E402

needs_nginx = pytest.mark.skipif(
    not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")),
    reason="nginx is not installed",
)
SAMPLES = 192


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pictures")
    make(made, SAMPLES, Recipe(size=96))
    return made


@pytest.fixture(scope="module")
def prepared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparationProbe:
    return probe_preparation(str(folder), 16, tmp_path_factory.mktemp("cache"), budget_s=1.5)


def test_the_probe_gives_every_time(prepared: PreparationProbe) -> None:
    differences = ("batch_s", "handoff_s", "receive_s", "start_s", "keep_s", "inline_end_s", "worker_end_s")
    assert all(0 < getattr(prepared, name) < math.inf for name in ("inline_s", "worker_s", "hit_s", "read_core_s"))
    assert all(0 <= getattr(prepared, name) < math.inf for name in differences)  # 0 where noise exceeds them
    assert "decode_ms" in str(prepared)


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_a_worker_costs_what_decoding_costs_and_more(folder: Path, prepared: PreparationProbe) -> None:
    pictures = Pictures(str(folder))
    content = [pictures.read(number) for number in range(64)]
    begun = time.perf_counter()
    for one in content:
        decode(one)
    alone_s = (time.perf_counter() - begun) / len(content)
    # Decoding is most of it; batching and handing over come on top.
    assert alone_s / 2 < prepared.inline_s < 5 * alone_s
    assert alone_s / 2 < prepared.worker_s < 15 * alone_s
    assert prepared.batch_s < 16 * prepared.worker_s
    assert prepared.read_core_s < 0.1
    assert prepared.inline_end_s < 16 * prepared.inline_s
    assert prepared.worker_end_s < 16 * prepared.worker_s
    assert prepared.receive_s < 0.1
    assert prepared.start_s < 2


@needs_nginx
@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_cold_epoch_is_predicted_from_the_probes(
    folder: Path, tmp_path: Path, prepared: PreparationProbe, workers: int
) -> None:
    with LocalServer(folder, requests_per_s=100) as server:
        probe = probe_storage(server.url, 4.0, readers=(1, 2))
        setting = rig.Setting("test", workers, 100, None)
        # The quickest of three: other work on the machine makes a run slower, never faster than its server.
        runs = []
        for turn in range(3):
            runs.append(rig.measure(setting, server, tmp_path / f"cache{turn}", SAMPLES, 2))
            assert [epoch.missed for epoch in runs[-1]] == [1.0, 0.0]
            if runs[-1][0].seconds < 1.1 * SAMPLES / 100:
                break
    cold, hot = min(runs, key=lambda epochs: epochs[0].seconds)
    train_s = rig.step_s(setting.width, setting.steps, 0.3) + (prepared.receive_s if workers else 0.0)
    loader = rig.loader_of(setting, probe.storage, prepared, SAMPLES, probe.mean_bytes)
    predicted_cold, predicted_hot = rig.predict(loader, prepared, train_s, SAMPLES)
    # 192 files at 100 a second, whatever else the machine does; a wrong rate, or one read too many, shows.
    assert predicted_cold == pytest.approx(cold.seconds, rel=0.25)
    # A tenth of a second or two, as noisy as the machine: within a factor.
    assert hot.seconds / 4 < predicted_hot < 3 * hot.seconds
    half = replace(probe.storage, requests_per_s=50.0)
    slower, _ = rig.predict(
        rig.loader_of(setting, half, prepared, SAMPLES, probe.mean_bytes), prepared, train_s, SAMPLES
    )
    assert slower > 1.5 * cold.seconds


@pytest.mark.slow
def test_calibrate_says_the_words_of_the_data_section(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    assert main(["calibrate", "--storage", str(folder), "--output", str(path), "--budget", "5s"]) == 0
    said = capsys.readouterr().out
    assert f"data: {{storage: {path}, bytes_per_sample: " in said
    assert "decode_ms: " in said
    assert "keep_ms: " in said


@pytest.mark.slow
def test_a_storage_is_kept_whose_files_are_no_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.json").write_text('{"files": [["a.jpg", 10, 0]]}')
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    path = tmp_path / "mine.yaml"
    assert main(["calibrate", "--storage", str(tmp_path), "--output", str(path), "--budget", "5s"]) == 0
    said = capsys.readouterr().out
    assert "decoding was not measured: file 'a.jpg' of the data set is no picture" in said
    assert said.endswith(f"a job reads it with data: {{storage: {path}}}\n")
    assert storage(str(path)).measured


def test_bad_words_are_said(folder: Path) -> None:
    with pytest.raises(IngestError, match="batch_size of the preparation probe is 0"):
        probe_preparation(str(folder), 0)
