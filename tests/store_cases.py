"""Records for tests of the store."""

from __future__ import annotations

from typing import Any

from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store import new_id


def prediction(**change: Any) -> Prediction:
    fields: dict[str, Any] = {
        "id": new_id(), "made_at": 1_700_000_000.25, "cluster": "default", "job": {"model": "resnet50"},
        "estimate": {"step": {"p10": 0.4, "p50": 0.5, "p90": 0.6}},
        "facets": {"gpu": "a100-80gb-sxm", "framework": "pytorch", "precision": "fp32", "family": "resnet", "job": "j"},
        "predicted": (0.4, 0.5, 0.6), "versions": {"precision-time": "0.1.0"}, "key": None,
    }  # fmt: skip
    return Prediction(**{**fields, **change})


def outcome(of: Prediction, **change: Any) -> Outcome:
    fields = {"key": "run", "prediction": of.id, "recorded_at": 1_700_000_100.5, "step_s": 0.5}
    return Outcome(**{**fields, **change})
