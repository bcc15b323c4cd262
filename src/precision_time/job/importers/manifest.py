"""Manifests of Kubernetes: Job, JobSet, and Kubeflow's PyTorchJob and TrainJob.

Gives GPUs and nodes (pods), the command that the pods run, which is read as a launch command, the time limit, and the
kind of GPU that the node selector names. Only the text is read; no cluster is asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import COUNT
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.reader import NO_EFFECT

KINDS = ("Job", "JobSet", "PyTorchJob", "TrainJob")
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels of nodes that name the kind of GPU."""
KUEUE_LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says about a training job.

    pods, gpus   pods that train, and the GPUs of each; None where no container asks for one
    command      what they run, as shell text
    limit_s      the time limit; `limit_field` says where it stands
    product      kind of GPU by the node selector, "" where none is named
    """

    kind: str
    pods: int
    gpus: int | None
    command: str
    limit_s: int | None
    limit_field: str
    product: str

    def imported(self) -> Imported:
        """GPUs and nodes as fields of a job."""
        fields: dict[str, Any] = {}
        if self.gpus is not None:
            fields["gpus"] = self.gpus * self.pods
            if self.pods > 1:
                fields["nodes"] = self.pods
        reasons = dict.fromkeys(("apiVersion", "kind", "metadata"), NO_EFFECT)
        reasons["spec"] = f"beside pods, GPUs and the command, {NO_EFFECT}"
        if self.product:
            reasons[f"nodeSelector {self.product}"] = "names a kind of GPU; `kubernetes` reads it, else give --gpu"
        if self.limit_s is not None:
            reasons[self.limit_field] = f"the limit of {self.limit_s} s {NO_EFFECT}; `kubernetes` checks it"
        undecided = {} if self.gpus is not None else {"gpus": f"no container of the {self.kind} asks for a GPU"}
        taken = ("pods", "GPUs of a pod", *(["command"] if self.command else []))
        return Imported(f"{self.kind} of Kubernetes", fields, not_taken=reasons, taken=taken, undecided=undecided)


def is_manifest(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("kind"), str) and "apiVersion" in content and "spec" in content


def read_manifest(content: Mapping[str, Any]) -> Manifest:
    """The manifest in a mapping. Raises `JobError` for another kind, and for fields of the wrong type."""
    kind = str(content["kind"])
    if kind not in KINDS:
        raise JobError(f"kind {show(kind)} is no manifest of a training job that is read; give {', '.join(KINDS)}")
    spec = _mapping(content, "spec")
    pods, template = _pods(kind, spec)
    containers = [*_list(template, "containers")]
    container = next((each for each in containers if _gpus(each, "resources") is not None), None) or next(
        iter(containers), {}
    )
    gpus, command = _gpus(container, "resources"), _command(container)
    if kind == "TrainJob":
        trainer = _mapping(spec, "trainer")
        given = trainer.get("numProcPerNode")
        gpus = _gpus(trainer, "resourcesPerNode") or (COUNT("numProcPerNode", given) if _whole(given) else gpus)
        command = _command(trainer) or command
    limit_s, field = _limit(kind, spec, content)
    selector = _mapping(template, "nodeSelector")
    product = next((str(selector[label]) for label in PRODUCTS if label in selector), "")
    return Manifest(kind, pods, gpus, command, limit_s, field, product)


def _pods(kind: str, spec: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Number of pods that train, and the spec of one of them."""
    if kind == "TrainJob":
        return _number(_mapping(spec, "trainer"), "numNodes"), {}
    if kind == "Job":
        return _number(spec, "parallelism"), _mapping(_mapping(spec, "template"), "spec")
    if kind == "JobSet":
        count, first = 0, None
        for each in _list(spec, "replicatedJobs"):
            job = _mapping(_mapping(each, "template"), "spec")
            count += _number(each, "replicas") * _number(job, "parallelism")
            first = first or _mapping(_mapping(job, "template"), "spec")
        return max(count, 1), first or {}
    replicas = _mapping(spec, "pytorchReplicaSpecs")
    kinds = [_mapping(replicas, name) for name in replicas]
    count = sum(_number(one, "replicas") for one in kinds)
    template = _mapping(_mapping(kinds[0] if kinds else {}, "template"), "spec")
    return max(count, 1), template


def _limit(kind: str, spec: Mapping[str, Any], content: Mapping[str, Any]) -> tuple[int | None, str]:
    labels = _mapping(_mapping(content, "metadata"), "labels")
    if KUEUE_LIMIT in labels:
        return COUNT(KUEUE_LIMIT, labels[KUEUE_LIMIT]), KUEUE_LIMIT
    places: Iterator[Mapping[str, Any]] = iter((spec,))
    if kind == "PyTorchJob":
        places = iter((_mapping(spec, "runPolicy"),))
    elif kind == "JobSet":
        places = (_mapping(_mapping(each, "template"), "spec") for each in _list(spec, "replicatedJobs"))
    for place in places:
        if place.get("activeDeadlineSeconds") is not None:
            return COUNT("activeDeadlineSeconds", place["activeDeadlineSeconds"]), "activeDeadlineSeconds"
    return None, "activeDeadlineSeconds"


def _gpus(container: Mapping[str, Any], name: str) -> int | None:
    resources = _mapping(container, name)
    for part in ("limits", "requests"):
        given = _mapping(resources, part)
        for gpu in GPUS:
            if given.get(gpu) is not None:
                return int(COUNT(gpu, given[gpu]))
    return None


def _command(container: Mapping[str, Any]) -> str:
    """Command and arguments as shell text; the script itself where a shell runs one."""
    words = [str(word) for name in ("command", "args") for word in _items(container, name)]
    if len(words) >= 3 and words[0] in _SHELLS and words[1].startswith("-") and words[1].endswith("c"):
        return words[2]
    return shlex.join(words)


def _number(mapping: Mapping[str, Any], name: str) -> int:
    value = mapping.get(name)
    return 1 if value is None else int(COUNT(name, value))


def _whole(value: Any) -> bool:
    return value is not None and str(value).isdigit()


def _mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise JobError(f"{name} is {show(value)}; give a mapping")
    return value


def _items(content: Mapping[str, Any], name: str) -> list[Any]:
    value = content.get(name)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise JobError(f"{name} is {show(value)}; give a list")
    return list(value)


def _list(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    values = _items(content, name)
    if not all(isinstance(value, Mapping) for value in values):
        raise JobError(f"{name} holds {show(values)}; give a list of mappings")
    return values
