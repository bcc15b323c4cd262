"""Manifests of Kubernetes: Job, JobSet, and Kubeflow's PyTorchJob and TrainJob.

Gives GPUs and nodes (pods), the command that the pods run, which is read as a launch command, the time limit, and the
kind of GPU that the node selector names. Only the text is read; no cluster is asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import COUNT
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.reader import NO_EFFECT, not_understood

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels of nodes that name the kind of GPU."""
KUEUE_LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says about a training job.

    pods, gpus   pods that train, and the processes of each with a GPU of their own; None where nothing says how many
    command      what they run, as shell text
    limit_s      the time limit; `limit_field` says where it stands
    product      kind of GPU by the node selector, "" where none is named
    taken        parts of the spec that pods, GPUs and command are read from
    notes        setting -> what it may change, of those that are not taken
    """

    kind: str
    pods: int
    gpus: int | None
    command: str
    limit_s: int | None
    limit_field: str
    product: str
    taken: tuple[str, ...]
    notes: Mapping[str, str]

    def imported(self) -> Imported:
        """GPUs and nodes as fields of a job."""
        fields: dict[str, Any] = {}
        if self.gpus is not None:
            fields["gpus"] = self.gpus * self.pods
            if self.pods > 1:
                fields["nodes"] = self.pods
        reasons = dict.fromkeys(("apiVersion", "kind", "metadata"), NO_EFFECT) | dict(self.notes)
        if self.product:
            reasons[f"nodeSelector {self.product}"] = "names a kind of GPU; `kubernetes` reads it, else give --gpu"
        if self.limit_s is not None:
            reasons[self.limit_field] = f"the limit of {self.limit_s} s {NO_EFFECT}; `kubernetes` checks it"
        undecided = {} if self.gpus is not None else {"gpus": f"no container of the {self.kind} asks for a GPU"}
        return Imported(f"{self.kind} of Kubernetes", fields, not_taken=reasons, taken=self.taken, undecided=undecided)


def is_manifest(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("kind"), str) and "apiVersion" in content and "spec" in content


@dataclass(frozen=True, slots=True)
class _Pods:
    """Equal pods: how many, their spec, the container that trains, and its GPUs."""

    count: int
    spec: Mapping[str, Any]
    container: Mapping[str, Any]
    gpus: int | None

    @classmethod
    def of(cls, count: int, template: Mapping[str, Any]) -> _Pods:
        spec = _mapping(template, "spec")
        containers = _list(spec, "containers")
        asking = [each for each in containers if _gpus(each, "resources") is not None]
        container = next(iter((*asking, *containers)), {})
        return cls(count, spec, container, _gpus(container, "resources"))


def read_manifest(content: Mapping[str, Any]) -> Manifest:
    """The manifest in a mapping. Raises `JobError` for another kind, and for fields of the wrong type."""
    kind = str(content["kind"])
    if kind not in KINDS:
        raise JobError(f"kind {show(kind)} is no manifest of a training job that is read; give {', '.join(KINDS)}")
    spec = _mapping(content, "spec")
    notes: dict[str, str] = {}
    groups = _GROUPS[kind](spec, notes)
    # Pods without a GPU beside others with some (a launcher, a coordinator) do not train.
    groups = [each for each in groups if each.gpus is not None] or groups
    kinds = dict.fromkeys(each.gpus for each in groups)
    pods, first = max(sum(each.count for each in groups), 1), groups[0] if groups else _Pods(1, {}, {}, None)
    gpus, processes = first.gpus, _processes(kind, spec)
    if len(kinds) > 1:
        raise JobError(
            f"pods of the {kind} ask for {' and '.join(map(str, kinds))} GPUs, and nodes of a job have equal shares; "
            "give the job without the manifest"
        )
    if _whole(processes):
        count = int(COUNT("processes of a pod", processes))
        if gpus is not None and gpus != count:
            notes[f"{gpus} GPUs of a pod"] = f"{count} processes of a pod are taken, each with one GPU"
        gpus = count
    command = _command(first.container)
    limit_s, field = _limit(kind, spec, content)
    selector = _mapping(first.spec, "nodeSelector")
    product = next((str(selector[label]) for label in PRODUCTS if label in selector), "")
    taken = tuple(f"spec.{name}" for name in spec if name in _TAKEN)
    _account(kind, spec, notes)
    return Manifest(kind, pods, gpus, command, limit_s, field, product, taken, notes)


def _trainjob(spec: Mapping[str, Any], notes: dict[str, str]) -> list[_Pods]:
    trainer = _mapping(spec, "trainer")
    runtime = _mapping(spec, "runtimeRef").get("name")
    if trainer.get("numNodes") is None:
        notes["trainer.numNodes"] = f"is not given, so runtime {show(runtime)} decides it; taken as 1"
    if not _command(trainer):
        notes["trainer.command"] = f"is not given, so runtime {show(runtime)} decides it"
    return [_Pods(_number(trainer, "numNodes"), {}, trainer, _gpus(trainer, "resourcesPerNode"))]


def _job(spec: Mapping[str, Any], notes: dict[str, str]) -> list[_Pods]:
    pods, completions = _number(spec, "parallelism"), spec.get("completions")
    if completions is not None and int(COUNT("completions", completions)) > pods:
        notes["completions"] = f"{completions} pods in all, {pods} at a time: the run is taken as that of {pods} pods"
    return [_Pods.of(pods, _mapping(spec, "template"))]


def _jobset(spec: Mapping[str, Any], notes: dict[str, str]) -> list[_Pods]:
    groups = []
    for each in _list(spec, "replicatedJobs"):
        job = _mapping(_mapping(each, "template"), "spec")
        pods = _Pods.of(_number(each, "replicas") * _number(job, "parallelism"), _mapping(job, "template"))
        groups.append(pods)
    return groups


def _pytorchjob(spec: Mapping[str, Any], notes: dict[str, str]) -> list[_Pods]:
    """Master and Worker: a pod each; all take part in training (Kubeflow's training-operator, v1)."""
    replicas, elastic = _mapping(spec, "pytorchReplicaSpecs"), _mapping(spec, "elasticPolicy")
    groups = [_Pods.of(_number(one, "replicas"), _mapping(one, "template")) for one in map(_in(replicas), replicas)]
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if elastic and least != most:
        notes["elasticPolicy"] = f"the run may have {least} to {most} workers; those of replicas are taken"
    return groups


def _in(content: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    return lambda name: _mapping(content, name)


_GROUPS: dict[str, Callable[[Mapping[str, Any], dict[str, str]], list[_Pods]]] = {
    "Job": _job, "JobSet": _jobset, "PyTorchJob": _pytorchjob, "TrainJob": _trainjob,
}  # fmt: skip
KINDS = tuple(_GROUPS)


def _processes(kind: str, spec: Mapping[str, Any]) -> Any:
    """Processes that the operator starts in a pod: a number, or a word such as auto; None where nothing says."""
    if kind == "TrainJob":
        return _mapping(spec, "trainer").get("numProcPerNode")
    older = _mapping(spec, "elasticPolicy").get("nProcPerNode")
    return spec.get("nprocPerNode", older) if kind == "PyTorchJob" else None


_TAKEN = frozenset(
    """
    template parallelism completions replicatedJobs pytorchReplicaSpecs trainer nprocPerNode elasticPolicy
    activeDeadlineSeconds
    """.split()
)
_STATED = frozenset(
    """
    backoffLimit backoffLimitPerIndex completionMode manualSelector maxFailedIndexes podFailurePolicy
    podReplacementPolicy selector successPolicy ttlSecondsAfterFinished managedBy runPolicy failurePolicy
    startupPolicy dependsOn network coordinator initializer labels annotations runtimeRef
    """.split()
)
"""Parts of a manifest's `spec` that do not change the time of a step."""


def _account(kind: str, spec: Mapping[str, Any], notes: dict[str, str]) -> None:
    """Say of every part of the spec that is not taken what it changes."""
    for name in map(str, spec):
        if name == "suspend" or name in _TAKEN or name in notes:
            continue
        notes[f"spec.{name}"] = NO_EFFECT if name in _STATED else not_understood(name)
    suspended = spec.get("suspend", _mapping(spec, "runPolicy").get("suspend") if kind == "PyTorchJob" else None)
    if suspended:
        notes["suspend"] = "the job starts once it is resumed: give the wait as --queue-s"


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
