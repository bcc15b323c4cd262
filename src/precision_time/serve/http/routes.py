"""All routes of the server as one table. The application, the OpenAPI document and the log read it.

A route with a `role` needs a token of that role where the server has tokens: read, predict or record; admin has all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from precision_time.serve.http import fields as f
from precision_time.serve.http.fields import Field
from precision_time.serve.http.limits import BODY_BYTES, GRAPH_BYTES, IMPORT_BYTES

ROLES = ("read", "predict", "record", "admin")
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    answer   name of the method of `service.Service` that answers
    role     whose token is needed; "": none
    fields   of the body of a POST, of the query of a GET
    reply    name of the schema of the reply
    statuses that it may have besides 200, with the reason; those of all routes of its kind are added by `openapi`
    largest  bytes of a body
    example  of a body
    """

    method: str
    path: str
    answer: str
    role: str
    meaning: str
    fields: Mapping[str, Field] = field(default_factory=lambda: _NONE)
    reply: str = "Anything"
    statuses: Mapping[int, str] = field(default_factory=dict)
    largest: int = BODY_BYTES
    example: Mapping[str, Any] = field(default_factory=lambda: _NONE)


_RESNET = {
    "model": "resnet50", "gpu": "a100-80gb-sxm", "gpus": 8, "batch_size": 256, "precision": "amp-fp16",
    "run": {"epochs": 90, "dataset": "imagenet"},
}  # fmt: skip
_CONFIG = (
    "parallelism:\n  tensor_parallel_degree: 2\ntraining:\n  local_batch_size: 1\n  seq_len: 8192\n  steps: 1000\n"
)
_PREDICTION = {"cluster": f.CLUSTER, "key": f.KEY, "keep": f.KEEP, "graph": f.GRAPH}
_TAKEN = {409: "the key belongs to another job", 413: "the body is too large"}
_LARGE = {413: "the body is too large"}
_UNKNOWN = {404: "there is no such prediction"}

ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/predict", "predict", "predict", "time, memory and cost of a job",
        {"job": f.JOB, **_PREDICTION, "quantile": f.QUANTILE}, "Predicted", _TAKEN, GRAPH_BYTES,
        {"job": _RESNET, "cluster": "a100-pool", "key": "run-1", "keep": True, "quantile": 0.95},
    ),
    Route(
        "POST", "/v1/compare", "compare", "predict", "a job across precisions, GPUs, counts, layouts and batch sizes",
        {"job": f.JOB, **f.COMPARE, "cluster": f.CLUSTER, "quantile": f.QUANTILE}, "Comparison", _LARGE,
        example={"job": _RESNET, "precisions": ["fp32", "amp-fp16"], "gpus": ["a100-80gb-sxm"], "counts": [1, 8]},
    ),
    Route(
        "POST", "/v1/plan", "plan", "predict", "what to launch for a deadline or a budget",
        {"job": f.JOB, **f.PLAN, "cluster": f.CLUSTER, "quantile": f.QUANTILE}, "Plan", _LARGE,
        example={"job": _RESNET, "goal": {"deadline_hours": 48}, "space": {"gpus": [8, 16], "gpu": ["a100", "h100"]}},
    ),
    Route(
        "POST", "/v1/walltime", "walltime", "predict", "the time limit to ask a scheduler for",
        {"job": f.JOB, **f.WALLTIME, **_PREDICTION}, "TimeLimit", _TAKEN, GRAPH_BYTES,
        {"job": _RESNET, "confidence": 0.95, "format": "slurm"},
    ),
    Route(
        "POST", "/v1/import", "import_file", "predict", "the job in the text of another program's file",
        f.IMPORT, "Imported", _LARGE, IMPORT_BYTES,
        {"text": _CONFIG, "name": "config.yaml", "job": {"model": "llama3.1-8b", "gpus": 8}},
    ),
    Route(
        "POST", "/v1/predictions/{id}/outcomes", "record", "record", "how a predicted job went",
        f.OUTCOME, "Recorded", {201: "the outcome is kept", **_UNKNOWN, **_LARGE}, 256 << 10,
        {"key": "slurm-4711", "step_s": 0.112, "run_s": 50400.0, "peak_bytes": 41_000_000_000, "finished": True,
         "machine": {"host": "node17", "gpus": 8}},
    ),
    Route(
        "GET", "/v1/predictions", "predictions", "read", "predictions, the latest first",
        {"cluster": f.CLUSTER, **f.PAGE}, "Predictions",
    ),
    Route("GET", "/v1/predictions/{id}", "prediction", "read", "a prediction with its outcomes",
          reply="Kept", statuses=_UNKNOWN),
    Route("GET", "/v1/accuracy", "accuracy", "read", "error and coverage after each outcome of a cluster",
          {"cluster": f.CLUSTER}),
    Route("GET", "/v1/anomalies", "anomalies", "read", "outcomes of a cluster that are far off, with a reason",
          {"cluster": f.CLUSTER}),
    Route("GET", "/v1/clusters", "clusters", "read", "the clusters with their counts"),
    Route("GET", "/v1/board", "board", "read", "accuracy of the shipped parameters, held out"),
    Route("GET", "/v1/models", "models", "read", "the named models", reply="Models"),
    Route("GET", "/v1/gpus", "gpus", "read", "the GPUs of the catalog", reply="Gpus"),
    Route("GET", "/healthz", "health", "", "whether the server answers", reply="Health"),
    Route("GET", "/metrics", "metrics_text", "read", "counts and times for Prometheus", reply="Text"),
    Route("GET", "/openapi.json", "openapi", "", "this document"),
)  # fmt: skip
