"""Manifests that the program writes, against the published OpenAPI models of Kubernetes, JobSet and Kubeflow Trainer.

The models are those of `kubeflow-trainer-api`, generated from the OpenAPI of these projects. A manifest that they read
and write again unchanged has no unknown field and no value of another type. Those of the older PyTorchJob are in
`kubeflow-training`, generated from the OpenAPI of the training operator.
"""

from __future__ import annotations

import copy
import json
import types
from pathlib import Path
from typing import Any

import pytest

from precision_time import predict
from precision_time.job import Job
from precision_time.plan.time_limits import check_manifest, rewrite_manifest
from precision_time.plan.walltime import time_limit
from precision_time.reading.yaml_text import parse_yaml

models = pytest.importorskip("kubeflow_trainer_api.models")

CONTAINER = {
    "name": "node",
    "image": "registry.example/train:1",
    "command": ["torchrun", "--nproc-per-node", "8", "train.py"],
    "args": ["--per_device_train_batch_size", "8", "--bf16", "--max_steps", "1000"],
    "resources": {"limits": {"nvidia.com/gpu": "8"}},
}
POD = {
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "restartPolicy": "Never",
        "containers": [CONTAINER],
    }
}
JOB_SPEC = {"parallelism": 4, "completions": 4, "activeDeadlineSeconds": 600, "template": POD}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Job": ("batch/v1", "IoK8sApiBatchV1Job", JOB_SPEC),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2", "JobsetV1alpha2JobSet",
        {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": JOB_SPEC}}]},
    ),
    "TrainJob": (
        "trainer.kubeflow.org/v1alpha1", "TrainerV1alpha1TrainJob",
        {
            "runtimeRef": {"name": "torch-distributed"},
            "activeDeadlineSeconds": 600,
            "trainer": {
                "numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}},
                "command": CONTAINER["command"], "args": CONTAINER["args"],
            },
        },
    ),
}  # fmt: skip
JOB = Job("bert-large", gpu="h100-80gb-sxm", gpus=32, precision="amp-bf16", run={"steps": 1000})


def manifest(kind: str) -> dict[str, Any]:
    version, _, spec = KINDS[kind]
    return copy.deepcopy({"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec})


def checked(model: str, content: dict[str, Any]) -> None:
    """Raises where a field is unknown to the model or has another type."""
    read = getattr(models, model).from_dict(content)
    assert json.loads(json.dumps(read.to_dict())) == content


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewritten_manifest_is_one_of_its_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    content = manifest(kind)
    checked(KINDS[kind][1], content)
    path.write_text(json.dumps(content), encoding="utf-8")
    needed = check_manifest(path, predict(JOB)).needed
    rewrite_manifest(path, needed)
    again = json.loads(path.read_text(encoding="utf-8"))
    assert again != content
    checked(KINDS[kind][1], again)


def test_the_lines_to_add_make_a_valid_manifest(tmp_path: Path) -> None:
    """What is printed for a manifest without a limit, and what `walltime` prints for Kueue and a Job."""
    path = tmp_path / "job.json"
    for kind in KINDS:
        content = json.loads(json.dumps(manifest(kind)).replace('"activeDeadlineSeconds": 600, ', ""))
        assert "activeDeadlineSeconds" not in json.dumps(content)
        path.write_text(json.dumps(content), encoding="utf-8")
        lines = parse_yaml(check_manifest(path, predict(JOB)).lines, "lines")
        found = merged(content, lines)
        assert "activeDeadlineSeconds" in json.dumps(found)
        checked(KINDS[kind][1], found)
    for form, kind in (("kueue", "Job"), ("job", "Job"), ("trainjob", "TrainJob")):
        lines = parse_yaml(time_limit(predict(JOB), 0.9, form).text, "lines")
        checked(KINDS[kind][1], merged(manifest(kind), lines))


def merged(content: Any, lines: Any) -> Any:
    """The manifest with the lines added; lists item by item."""
    if isinstance(content, dict) and isinstance(lines, dict):
        return {**content, **{key: merged(content.get(key), value) for key, value in lines.items()}}
    if isinstance(content, list) and isinstance(lines, list):
        return [merged(one, other) for one, other in zip(content, lines, strict=True)]
    return lines


@pytest.mark.parametrize(
    "wrong",
    [{"activeDeadlineSeconds": "600"}, {"activeDeadLineSeconds": 600}, {"template": {"spec": {"containers": "none"}}}],
    ids=str,
)
def test_the_check_sees_wrong_types_and_names(wrong: dict[str, Any]) -> None:
    content = manifest("Job")
    content["spec"] |= wrong
    with pytest.raises((AssertionError, TypeError, ValueError, AttributeError)):
        checked("IoK8sApiBatchV1Job", content)


def test_a_label_has_to_be_text() -> None:
    content = manifest("Job")
    content["metadata"]["labels"] = {"kueue.x-k8s.io/max-exec-time-seconds": 600}
    with pytest.raises(ValueError, match="labels"):
        checked("IoK8sApiBatchV1Job", content)


PYTORCHJOB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"},
    "spec": {
        "nprocPerNode": "8",
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "maxRestarts": 10},
        "runPolicy": {"activeDeadlineSeconds": 600, "cleanPodPolicy": "None", "backoffLimit": 3},
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": POD},
            "Worker": {"replicas": 3, "restartPolicy": "OnFailure", "template": POD},
        },
    },
}  # fmt: skip


def read_again(content: dict[str, Any]) -> Any:
    """A PyTorchJob as the training operator's models read and write it: without unknown fields, of their types."""
    client = pytest.importorskip("kubeflow.training").ApiClient()
    answer = types.SimpleNamespace(data=json.dumps(content))
    return client.sanitize_for_serialization(client.deserialize(answer, "KubeflowOrgV1PyTorchJob"))


def test_a_rewritten_pytorchjob_is_one_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    assert read_again(PYTORCHJOB) == PYTORCHJOB
    path.write_text(json.dumps(PYTORCHJOB), encoding="utf-8")
    rewrite_manifest(path, check_manifest(path, predict(JOB)).needed)
    again = json.loads(path.read_text(encoding="utf-8"))
    assert again != PYTORCHJOB
    assert read_again(again) == again


def test_the_lines_for_a_pytorchjob_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    content = copy.deepcopy(PYTORCHJOB)
    del content["spec"]["runPolicy"]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = merged(content, parse_yaml(check_manifest(path, predict(JOB)).lines, "lines"))
    assert found["spec"]["runPolicy"]
    assert read_again(found) == found


@pytest.mark.parametrize("wrong", [{"activeDeadlineSeconds": "600"}, {"activeDeadLineSeconds": 600}], ids=str)
def test_the_models_of_a_pytorchjob_see_wrong_types_and_names(wrong: dict[str, Any]) -> None:
    content = copy.deepcopy(PYTORCHJOB)
    content["spec"]["runPolicy"] = wrong
    assert read_again(content) != content


def test_pod_templates_of_a_pytorchjob_are_those_of_kubernetes() -> None:
    for replicas in PYTORCHJOB["spec"]["pytorchReplicaSpecs"].values():
        checked("IoK8sApiCoreV1PodTemplateSpec", replicas["template"])
