"""Slurm's and Kubernetes' descriptions of nodes, and jobs that run on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precision_time.cli.main import main
from precision_time.errors import CatalogError, DataError
from precision_time.hardware.aliases import GKE_GPUS
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.cluster_nodes import NodeResources, from_kubernetes, from_slurm, job_fields

SLURM = """NodeName=gpu-01 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.01
   Gres=gpu:a100-80gb-sxm:8(S:0-1)
   RealMemory=1031000 AllocMem=0 Sockets=2 Boards=1
   State=IDLE ThreadsPerCore=1

NodeName=gpu-02 Arch=x86_64 CoresPerSocket=32
   CPUTot=64 Gres=gpu:a100-80gb-sxm:8(S:0-1) RealMemory=1031000
   State=IDLE+DRAIN

NodeName=cpu-01 Arch=x86_64
   CPUTot=128 Gres=(null) RealMemory=257000 State=MIXED
"""

KUBERNETES = {
    "kind": "Node",
    "metadata": {
        "name": "worker-3",
        "labels": {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.memory": "16160"},
    },
    "spec": {},
    "status": {
        "capacity": {"cpu": "40", "memory": "527988868Ki", "nvidia.com/gpu": "8"},
        "allocatable": {"cpu": "39800m", "memory": "515Gi", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"architecture": "amd64"},
    },
}


def test_slurm_nodes() -> None:
    one, two, three = from_slurm(SLURM)
    assert (one.name, one.cores, one.memory_bytes) == ("gpu-01", 64, 1031000 * 2**20)
    assert (one.gpu, one.gpus, one.ready) == ("a100-80gb-sxm", 8, True)
    assert not two.ready
    assert (three.gpu, three.gpus, three.cores, three.ready) == (None, 0, 128, True)
    assert job_fields([one, two]) == {"gpu": "a100-80gb-sxm", "gpus": 8, "nodes": 1}
    assert job_fields([one, two, three]) == job_fields([one]), "nodes without a GPU are left out"
    with pytest.raises(DataError, match="scontrol show node"):
        from_slurm("hello")
    with pytest.raises(DataError, match="node x: CPUTot or RealMemory"):
        from_slurm("NodeName=x CPUTot=lots RealMemory=1")


def test_kubernetes_nodes() -> None:
    (one,) = from_kubernetes(json.dumps(KUBERNETES))
    assert (one.name, one.cores, one.memory_bytes) == ("worker-3", 39, 515 * 2**30)
    assert (one.gpu, one.gpus, one.gpu_memory_bytes) == ("Tesla-V100-SXM2-16GB", 8, 16160 * 2**20)
    assert one.catalog_gpu() == "v100-16gb-sxm"
    listed = {"kind": "NodeList", "items": [KUBERNETES, {**KUBERNETES, "spec": {"unschedulable": True}}]}
    assert [node.ready for node in from_kubernetes(json.dumps(listed))] == [True, False]
    for broken in ("{", "[]", json.dumps({"kind": "Node", "metadata": {"name": "x"}, "status": {}})):
        with pytest.raises(DataError, match="kubectl get node"):
            from_kubernetes(broken)


@pytest.mark.parametrize(
    ("scheduler_name", "memory", "name"),
    [
        ("NVIDIA-A100-SXM4-80GB", None, "a100-80gb-sxm"),
        ("NVIDIA A100-PCIE-40GB", None, "a100-40gb-pcie"),
        ("Tesla T4", None, "t4"),
        ("NVIDIA L40S", None, "l40s"),
        ("nvidia-tesla-t4", None, "t4"),  # Google's labels
        ("nvidia-l4", None, "l4"),
        ("nvidia-tesla-a100", None, "a100-40gb-sxm"),
        ("nvidia-h100-mega-80gb", None, "h100-80gb-sxm"),
    ],
)
def test_gpus_by_their_products_names(scheduler_name: str, memory: int | None, name: str) -> None:
    assert NodeResources("n", 1, 1, gpu=scheduler_name, gpus=1, gpu_memory_bytes=memory).catalog_gpu() == name


def test_a_gpu_that_may_be_several_or_none_is_an_error() -> None:
    for scheduler_name in ("a100", "something"):
        with pytest.raises(CatalogError, match="give the job's gpu yourself"):
            NodeResources("n", 1, 1, gpu=scheduler_name, gpus=1).catalog_gpu()
    with pytest.raises(CatalogError, match="has no GPU"):
        NodeResources("n", 1, 1).catalog_gpu()
    unequal = [NodeResources("a", 1, 1, gpu="t4", gpus=1), NodeResources("b", 1, 1, gpu="t4", gpus=2)]
    with pytest.raises(CatalogError, match="the nodes differ"):
        job_fields(unequal)
    with pytest.raises(CatalogError, match="none of 1 nodes is ready"):
        job_fields([NodeResources("a", 1, 1, gpu="t4", gpus=1, ready=False)])


def test_a_job_on_the_nodes_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm, kubernetes = tmp_path / "nodes.txt", tmp_path / "node.json"
    slurm.write_text(SLURM.split("\n\n", maxsplit=1)[0] + "\n")
    kubernetes.write_text(json.dumps(KUBERNETES))

    def job(*arguments: str) -> dict[str, object]:
        assert main(["predict", "resnet50", "--json", *arguments]) == 0
        content = json.loads(capsys.readouterr().out)["job"]
        return {name: content.get(name) for name in ("gpu", "gpus", "nodes")}

    assert job("--cluster", str(slurm)) == {"gpu": "a100-80gb-sxm", "gpus": 8, "nodes": 1}
    assert job("--cluster", str(kubernetes)) == {"gpu": "v100-16gb-sxm", "gpus": 8, "nodes": 1}
    assert job("--cluster", str(slurm), "--gpus", "4") == {"gpu": "a100-80gb-sxm", "gpus": 4, "nodes": None}
    assert main(["compare", "resnet50", "--cluster", str(slurm), "--precision", "tf32,amp-fp16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["job"]["gpus"] for row in rows] == [8, 8]
    assert main(["predict", "resnet50", "--cluster", str(tmp_path / "no.txt")]) == 2
    assert "cluster file" in capsys.readouterr().err


def test_google_names_gpus_of_the_catalog() -> None:
    known = default_catalog().gpus
    for label, name in GKE_GPUS.items():
        assert NodeResources("n", 1, 1, gpu=label).catalog_gpu() == name
        assert name in known
