"""Time limits in sbatch scripts and in manifests of Kubernetes: read, checked against the run, rewritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from precision_time import predict
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.job import Job
from precision_time.job.importers import read_import
from precision_time.job.importers.manifest import read_manifest
from precision_time.plan.time_limits import check_manifest, check_slurm, rewrite_manifest, rewrite_slurm, slurm_seconds
from precision_time.plan.walltime import time_limit

SCRIPT = """#!/bin/bash
#SBATCH --job-name=gpt  # of the team
#SBATCH --nodes=2 --gpus-per-node=8
{time}
module load cuda
srun torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --num-layers 4 --hidden-size 512 \\
    --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 50257 --micro-batch-size 4 \\
    --global-batch-size 128 --bf16 --train-iters 5000  # not --time=1
"""
CONTAINER = {
    "name": "trainer",
    "command": ["torchrun", "--nproc-per-node", "8", "train.py"],
    "args": ["--per_device_train_batch_size", "8", "--bf16", "--max_steps", "1000"],
    "resources": {"limits": {"nvidia.com/gpu": 8}},
}
POD = {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "containers": [CONTAINER]}}


def manifest(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "train"}, "spec": spec}


MANIFESTS = {
    "Job": manifest("Job", parallelism=4, activeDeadlineSeconds=600, template=POD),
    "JobSet": manifest(
        "JobSet",
        replicatedJobs=[
            {
                "name": "workers",
                "replicas": 2,
                "template": {"spec": {"parallelism": 2, "activeDeadlineSeconds": 600, "template": POD}},
            }
        ],
    ),
    "PyTorchJob": manifest(
        "PyTorchJob",
        runPolicy={"activeDeadlineSeconds": 600},
        pytorchReplicaSpecs={
            "Master": {"replicas": 1, "template": POD},
            "Worker": {"replicas": 3, "template": POD},
        },
    ),
    "TrainJob": manifest(
        "TrainJob",
        activeDeadlineSeconds=600,
        trainer={
            "numNodes": 4,
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
            "command": CONTAINER["command"],
            "args": CONTAINER["args"],
        },
    ),
}


# --- Slurm


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:15", 1815), ("01:30:15", 5415), ("2-03", 183_600), ("2-03:30", 185_400), ("1-00:00:01", 86_401),
     ("UNLIMITED", None), ("0", None), (None, None)],
)  # fmt: skip
def test_times_of_slurm(text: str | None, seconds: int | None) -> None:
    assert slurm_seconds(text) == seconds


def test_other_times_are_refused() -> None:
    for text in ("1h", "", "1:2:3:4", "a-b"):
        with pytest.raises(DataError, match="no time of Slurm"):
            slurm_seconds(text)


@pytest.mark.parametrize("time", ["#SBATCH --time=00:01:00", "#SBATCH -t 1  ", "#SBATCH -t1", "#SBATCH --time 1:00"])
def test_a_limit_that_is_too_short_is_replaced_in_place(tmp_path: Path, time: str) -> None:
    path = tmp_path / "a.sbatch"
    path.write_text(SCRIPT.format(time=time), encoding="utf-8")
    job = Job.from_dict(read_import(path).job_fields({"gpu": "h100-80gb-sxm"}))
    checked = check_slurm(path, predict(job))
    assert checked.asked_s == 60
    assert not checked.long_enough
    assert "TOO SHORT" in str(checked)
    rewrite_slurm(path, checked.needed)
    again = check_slurm(path, predict(job))
    assert again.asked_s == checked.needed.seconds
    assert again.long_enough
    before, after = SCRIPT.format(time=time).splitlines(), path.read_text(encoding="utf-8").splitlines()
    assert [line for line in after if line not in before] == [after[3]]  # all else stands


def test_a_limit_is_added_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.sbatch"
    path.write_text(SCRIPT.format(time="#SBATCH --exclusive"), encoding="utf-8")
    estimate = predict(Job.from_dict(read_import(path).job_fields({"gpu": "h100-80gb-sxm"})))
    checked = check_slurm(path, estimate)
    assert checked.asked_s is None
    assert checked.long_enough
    rewrite_slurm(path, checked.needed)
    assert check_slurm(path, estimate).asked_s == checked.needed.seconds
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(SCRIPT.splitlines()) + 1


# --- Kubernetes


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_is_a_job(kind: str, tmp_path: Path) -> None:
    """4 pods of 8 GPUs, and the Trainer's arguments in their command."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(MANIFESTS[kind]), encoding="utf-8")
    job = Job.from_dict(read_import(path).job_fields({"model": "bert-large"}))
    assert (job.gpus, job.nodes, job.batch_size, job.precision, job.run.steps) == (32, 4, 8, "amp-bf16", 1000)
    checked = check_manifest(path, predict(job))
    assert checked.asked_s == 600
    assert checked.chance is not None
    assert f"activeDeadlineSeconds: {checked.needed.seconds}" in checked.lines
    rewrite_manifest(path, checked.needed)
    assert check_manifest(path, predict(job)).asked_s == checked.needed.seconds
    assert json.loads(path.read_text(encoding="utf-8"))["kind"] == kind


def pytorchjob(master: Any = POD, worker: Any = POD, **spec: Any) -> dict[str, Any]:
    replicas = {"Master": {"replicas": 1, "template": master}, "Worker": {"replicas": 3, "template": worker}}
    return manifest("PyTorchJob", pytorchReplicaSpecs=replicas, **spec)


def pod(gpus: int | None) -> dict[str, Any]:
    resources = {} if gpus is None else {"limits": {"nvidia.com/gpu": gpus}}
    return {"spec": {"containers": [{**CONTAINER, "resources": resources}]}}


def test_processes_of_a_pod_are_its_gpus() -> None:
    """Of a PyTorchJob `nprocPerNode`, also where it stood before, of a TrainJob `numProcPerNode`; words are not."""
    for given, gpus in (
        ({}, 8), ({"nprocPerNode": "4"}, 4), ({"nprocPerNode": "auto"}, 8), ({"elasticPolicy": {"nProcPerNode": 2}}, 2),
    ):  # fmt: skip
        found = read_manifest(pytorchjob(**given))
        assert (found.pods, found.gpus) == (4, gpus), given
        assert any(name.startswith("8 GPUs of a pod") for name in found.notes) == (gpus != 8)
    trainer = {"numNodes": 2, "numProcPerNode": 4}
    assert read_manifest(manifest("TrainJob", trainer=trainer)).gpus == 4
    assert read_manifest(pytorchjob(pod(None), pod(None), nprocPerNode=2)).gpus == 2


def test_pods_without_a_gpu_beside_others_do_not_train() -> None:
    found = read_manifest(pytorchjob(master=pod(None)))
    assert (found.pods, found.gpus) == (3, 8)
    jobs = [
        {"name": name, "replicas": replicas, "template": {"spec": {"template": template}}}
        for name, replicas, template in (("launcher", 1, pod(None)), ("workers", 2, pod(4)))
    ]
    found = read_manifest(manifest("JobSet", replicatedJobs=jobs))
    assert (found.pods, found.gpus) == (2, 4)
    with pytest.raises(JobError, match="8 and 4 GPUs"):
        read_manifest(pytorchjob(worker=pod(4)))


def test_every_part_of_a_manifest_is_accounted_for() -> None:
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}, "novel": 1, "runPolicy": {"suspend": True}}
    notes = read_manifest(pytorchjob(**spec)).notes
    assert "1 to 3 workers" in notes["elasticPolicy"]
    assert notes["spec.novel"].startswith("not understood")
    assert "--queue-s" in notes["suspend"]
    notes = read_manifest(manifest("TrainJob", runtimeRef={"name": "torch-distributed"}, trainer={})).notes
    assert "runtime 'torch-distributed' decides it; taken as 1" in notes["trainer.numNodes"]
    notes = read_manifest(manifest("Job", parallelism=2, completions=8, template=POD)).notes
    assert "8 pods in all, 2 at a time" in notes["completions"]


def test_kueues_label_counts_the_run_alone(tmp_path: Path) -> None:
    content = {**MANIFESTS["Job"], "metadata": {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "300"}}}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    job = Job("bert-large", gpu="h100-80gb-sxm", gpus=32, precision="amp-bf16", run={"steps": 1000, "queue_s": 5000})
    checked = check_manifest(path, predict(job))
    assert (checked.asked_s, checked.needed.format) == (300, "kueue")
    assert checked.needed.seconds < 5000
    assert check_manifest_of_plain(tmp_path, job) > 5000


def check_manifest_of_plain(folder: Path, job: Job) -> int:
    path = folder / "plain.json"
    path.write_text(json.dumps(MANIFESTS["Job"]), encoding="utf-8")
    return check_manifest(path, predict(job)).needed.seconds


def test_a_shell_script_in_a_container() -> None:
    container = {**CONTAINER, "command": ["bash", "-lc", "torchrun train.py --bf16 --max_steps 7"], "args": []}
    content = manifest("Job", template={"spec": {"containers": [{"name": "sidecar"}, container]}})
    found = read_manifest(content)
    assert (found.pods, found.gpus, found.command) == (1, 8, "torchrun train.py --bf16 --max_steps 7")
    assert found.limit_s is None


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(command: str, name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        assert main([command, str(path), "bert-large", "--steps", "10"]) == 2
        out = capsys.readouterr()
        assert out.out == ""
        return out.err

    assert "no #SBATCH line" in printed("slurm", "a.sh", "torchrun train.py --bf16")
    assert "Deployment" in printed("kubernetes", "a.json", manifest("Deployment"))
    assert "give a mapping" in printed("kubernetes", "b.json", {**MANIFESTS["Job"], "spec": 3})
    assert "containers" in printed("kubernetes", "c.json", manifest("Job", template={"spec": {"containers": 3}}))
    assert "gpus" in printed("kubernetes", "d.json", manifest("Job", template={"spec": {"containers": []}}))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(MANIFESTS["PyTorchJob"]), encoding="utf-8")
    assert main(["kubernetes", str(path), "bert-large", "--confidence", "0.9", "--rewrite"]) == 0
    out = capsys.readouterr().out
    assert "32 x h100-80gb-sxm" in out
    assert "runPolicy" in out
    assert main(["kubernetes", str(path), "bert-large", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["long_enough"] is (content["chance"] >= 0.95)


def test_a_gpu_that_is_given_replaces_that_of_the_selector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(MANIFESTS["Job"]).replace("NVIDIA-H100-80GB-HBM3", "some-card"))
    asked = ["kubernetes", str(path), "gpt2"]
    assert main(asked) == 2
    assert "'some-card' of node selector is none of the catalog's" in capsys.readouterr().err
    assert main([*asked, "--gpu", "a100"]) == 0
    assert "32 x a100 " in capsys.readouterr().out


def test_the_samples_of_a_step_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` and the commands on time limits, as `compare`, `layouts` and `plan`."""
    job = "gpt2 --gpus 4 --batch-size 8 --precision amp-bf16 --steps 100 --json --global-batch-size"
    assert main(["predict", *job.split(), "64"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["grad_accum"] == 2
    assert main(["walltime", *job.split(), "256"]) == 0
    longer = json.loads(capsys.readouterr().out)["seconds"]
    assert main(["walltime", *job.split(), "32"]) == 0
    assert longer > json.loads(capsys.readouterr().out)["seconds"]
    for wrong, says in (("6", "cannot be shared evenly by 4"), ("64 --grad-accum 2", "finds grad_accum")):
        assert main(["predict", *job.split(), *wrong.split()]) == 2
        assert says in capsys.readouterr().err


def _without_deadline(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_deadline(each) for name, each in content.items() if name != "activeDeadlineSeconds"}
    return [_without_deadline(each) for each in content] if isinstance(content, list) else content


@pytest.mark.parametrize("end", [".yaml", ".json", "-flow.yaml"])
@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_limit_is_written_where_there_is_none(kind: str, end: str, tmp_path: Path) -> None:
    content = _without_deadline(MANIFESTS[kind])
    if kind == "PyTorchJob" and end == ".yaml":
        del content["spec"]["runPolicy"]
    text = (
        json.dumps(content, indent=1) if end == ".json" else yaml.safe_dump(content, default_flow_style="flow" in end)
    )
    path = tmp_path / f"manifest{end}"
    path.write_text(f"# comment\n{text}" if end == ".yaml" else text)
    needed = time_limit(predict(Job("gpt2", run={"steps": 100})), 0.9, "trainjob")
    rewrite_manifest(path, needed)
    written = yaml.safe_load(path.read_text())
    assert read_manifest(written).limit_s == needed.seconds
    kept = _without_deadline(written)
    if kind == "PyTorchJob":
        assert kept["spec"].pop("runPolicy", {}) == content["spec"].pop("runPolicy", {}) == {}
    assert kept == content
    assert path.read_text().startswith("# comment") == (end == ".yaml")
    once = path.read_text()
    rewrite_manifest(path, needed)
    assert path.read_text() == once
