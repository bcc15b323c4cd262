"""JSON Schemas of replies, for the OpenAPI document: what a client may rely on."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _object(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {}
_MAPPING: Schema = {"type": "object"}
_INTERVAL = _object("p10 p50 p90", p10=_NUMBER, p50=_NUMBER, p90=_NUMBER)


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(of: Schema) -> Schema:
    return {"anyOf": [of, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


REPLIES: dict[str, Schema] = {
    "Anything": {"type": "object"},
    "Text": _TEXT,
    "Problem": _object(
        "type title status detail", type=_TEXT, title=_TEXT, status=_WHOLE, detail=_TEXT, error=_TEXT, field=_TEXT,
        value=_ANY, nearest=_list(_TEXT), fix=_TEXT,
    ),
    "Estimate": {
        **_object(
            "job step memory breakdown", job=_MAPPING, step=_INTERVAL, epoch=_or_null(_INTERVAL),
            run=_or_null(_INTERVAL), cost_usd=_or_null(_INTERVAL), energy_j=_or_null(_INTERVAL), breakdown=_MAPPING,
            memory=_MAPPING, samples_per_s=_NUMBER, sources=_MAPPING, assumptions=_list(_TEXT),
        ),
        "description": "Estimate.to_dict(): seconds, bytes, US dollars, joules",
    },
    "Predicted": _object(
        "id estimate correction", id=_or_null(_TEXT), estimate=_ref("Estimate"), correction=_or_null(_MAPPING)
    ),
    "TimeLimit": _object(
        "id format confidence seconds median_s resumes text", id=_or_null(_TEXT), format=_TEXT, confidence=_NUMBER,
        seconds=_WHOLE, median_s=_WHOLE, queue_s=_NUMBER, resumes=_FLAG, text=_TEXT, correction=_or_null(_MAPPING),
    ),
    "Comparison": _object(
        "baseline rows explanations", baseline=_or_null(_WHOLE), explanations=_list(_TEXT),
        rows=_list(
            _object(
                "job estimate error speed_up", job=_MAPPING, estimate=_or_null(_ref("Estimate")),
                error=_or_null(_TEXT), speed_up=_or_null(_NUMBER),
            )
        ),
    ),
    "Plan": _object(
        "goal chosen front left_out basis text", text=_TEXT, goal=_MAPPING, chosen=_MAPPING, front=_list(_MAPPING),
        left_out=_list(_MAPPING), basis=_list(_TEXT),
    ),
    "Imported": _object("kind job notes", kind=_TEXT, job=_MAPPING, notes=_list(_TEXT)),
    "Recorded": _object("key new", key=_TEXT, new=_FLAG),
    "Predictions": _object(
        "predictions next", predictions=_list(_object("id made_at cluster job step outcomes", id=_TEXT, made_at=_NUMBER,
        cluster=_TEXT, job=_MAPPING, step=_INTERVAL, outcomes=_list(_MAPPING))), next=_or_null(_TEXT),
    ),
    "Kept": _object("prediction outcomes", prediction=_MAPPING, outcomes=_list(_MAPPING)),
    "Models": _object("models", models=_list(_object("name", name=_TEXT))),
    "Gpus": _object("gpus", gpus=_list(_object("name", name=_TEXT))),
    "Health": _object("status version", status=_TEXT, version=_TEXT, workers=_WHOLE),
    "Graph": {"type": "object", "description": "written by `precision-time capture`"},
}  # fmt: skip
