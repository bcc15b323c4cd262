"""Storages: the catalog, files of a user's own, and what is wrong with them; nodes' cores and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import CatalogError, DataError
from precision_time.hardware import default_catalog
from precision_time.hardware.storage import Storage, read_storage, storage, storages, write_storage
from precision_time.job.data import FORMATS
from precision_time.job.dataset_files import DATASET_FILES
from precision_time.job.datasets import DATASETS


def test_the_catalog_has_the_usual_kinds_with_sources() -> None:
    assert {"nvme-gen3", "nvme-gen4", "sata-ssd", "disk", "nfs-10gbe", "ebs-gp3", "object-store", "parallel-fs"} == set(
        storages()
    )
    for found in storages().values():
        assert found.source
        assert not found.measured
        assert found.stream_bytes_per_s <= found.bytes_per_s
    assert storage("NVMe gen4") is storages()["nvme-gen4"]
    assert storage("s3") is storage("object_store")
    assert storage("nfs").shared
    assert not storage("disk").shared
    assert not storage("s3").page_cache


def test_faster_kinds_are_faster() -> None:
    order = ["ebs-gp3", "disk", "sata-ssd", "nvme-gen3", "nvme-gen4"]
    assert sorted(order, key=lambda name: storage(name).bytes_per_s) == order


positive = st.floats(0.01, 1000)
found = st.builds(
    Storage, st.just("mine"), bytes_per_s=st.floats(1e6, 1e12), stream_bytes_per_s=st.floats(1e5, 1e11),
    latency_s=st.just(0.0) | st.floats(1e-8, 10), requests_per_s=st.none() | st.floats(1, 1e8),
    reader_efficiency=st.floats(0.01, 1), shared=st.booleans(),
    page_cache=st.booleans(), source=st.just("measured on a day"),
)  # fmt: skip


@given(found)
def test_round_trip(mine: Storage) -> None:
    again = Storage.from_dict("mine", mine.to_dict())
    assert again.measured
    assert again.log_spread < storage("nfs").log_spread
    for name in ("bytes_per_s", "stream_bytes_per_s", "latency_s", "requests_per_s", "reader_efficiency"):
        assert (getattr(again, name) or 0.0) == pytest.approx(getattr(mine, name) or 0.0, rel=1e-12)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine{suffix}"
    write_storage(path, storages()["disk"])
    assert read_storage(path) == storage(str(path)) == storages()["disk"]
    write_storage(path, storages()["nfs-10gbe"])
    assert storage(str(path)).name == "nfs-10gbe"  # read again when it has changed
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for text, why in (
        ("bandwidth_gb_per_s: 1\nstream_mb_per_s: 100\n", "latency_ms is missing"),
        ("bandwith_gb_per_s: 1\n", "unknown key 'bandwith_gb_per_s'; nearest: bandwidth_gb_per_s"),
        (
            "bandwidth_gb_per_s: 0\nstream_mb_per_s: 1\nlatency_ms: 0\n",
            "must be a number of GB/s from 1e-6 to 1,000,000, not 0",
        ),
        ("bandwidth_gb_per_s: 1\nstream_mb_per_s: 1\nlatency_ms: 0\nshared: maybe\n", "shared must be true or false"),
        (
            "bandwidth_gb_per_s: 1\nstream_mb_per_s: 1\nlatency_ms: 0\nreader_efficiency: 2\n",
            "must be a number from 0.001 to 1, not 2",
        ),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CatalogError, match=why):
            read_storage(path)
    with pytest.raises(DataError, match="cannot be read"):
        storage(str(tmp_path / "gone.yaml"))
    with pytest.raises(DataError, match=r"must end in .yaml or .json"):
        write_storage(tmp_path / "s.txt", storages()["disk"])
    with pytest.raises(
        CatalogError, match=r"storage '/data/train' is .*; measure it with .*calibrate --storage /data/tr"
    ):
        storage("/data/train")
    with pytest.raises(CatalogError, match=r"unknown storage 'nvme-gen5'; nearest: .*nvme-gen4"):
        storage("nvme-gen5")


def test_files_of_data_sets() -> None:
    assert set(DATASET_FILES) <= set(DATASETS)
    for files in DATASET_FILES.values():
        assert files.format in FORMATS
        assert files.source
        assert files.bytes_per_unit > 0
    imagenet = DATASET_FILES["imagenet"].bytes_per_unit * DATASETS["imagenet"].size
    assert 130 < imagenet / 2**30 < 142
    assert DATASET_FILES["cifar10"].bytes_per_unit == 1 + 32 * 32 * 3
    assert DATASET_FILES["librispeech"].bytes_per_unit * 281_241 == pytest.approx(59.3e9, rel=0.01)


def test_nodes_know_their_host() -> None:
    node = default_catalog().node("dgx-a100")
    assert (node.cores, node.host_memory_bytes) == (128, 2**40)
    assert default_catalog().node("pcie4-server").cores is None
    with pytest.raises(CatalogError, match="host_memory_gib"):
        default_catalog().with_document({"nodes": {"n": {"gpus_per_node": 1, "intra": "pcie4", "host_memory_gib": 0}}})
