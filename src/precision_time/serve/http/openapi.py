"""The OpenAPI 3.1 document, written from the table of routes and the table of fields (`field_table`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import precision_time
from precision_time.field_table import field_table
from precision_time.field_types import FieldType, type_of
from precision_time.hardware import default_catalog
from precision_time.reading import to_json
from precision_time.serve.http.fields import NOUNS, Field
from precision_time.serve.http.replies import REPLIES
from precision_time.serve.http.routes import ROUTES, Route
from precision_time.zoo.catalog import ENTRIES

Schema = dict[str, Any]
_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_OF_ALL = {400: "the request is malformed", 403: "the role or the origin is wrong", 405: "the method is wrong"}
_OF_FIELDS = {422: "a field is wrong"}
_OF_ROLE = {401: "the token is missing or unknown"}
_OF_WORK = {503: "the server is busy, or its database does not answer"}
_OF_POST = {408: "the body does not come", 415: "the body is no JSON"}
_WHOLE_TEXT = r"^\s*[+-]?[0-9]{1,30}\s*$"
_NUMBER_TEXT = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_ANYTHING: Schema = {}


def document() -> bytes:
    """The document as JSON."""
    return to_json(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "precision-time",
                "version": precision_time.__version__,
                "summary": "How long a training job takes, what it costs and whether it fits, before it is launched.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": _paths(),
            "components": {
                "schemas": {**_nouns(), **REPLIES},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    ).encode()


def _paths() -> Schema:
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> Schema:
    operation: Schema = {
        "operationId": route.answer,
        "summary": route.meaning,
        "responses": _responses(route),
        "security": [{"token": []}, {}] if route.role else [],
    }
    parameters = [_id()] if "{id}" in route.path else []
    if route.method == "GET":
        parameters += [_parameter(name, field) for name, field in route.fields.items()]
    else:
        schema = {"$ref": f"#/components/schemas/{_body_name(route)}"}
        content = {"schema": schema, "examples": {"usual": {"value": dict(route.example)}}}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _responses(route: Route) -> Schema:
    problems = {**_OF_ALL, **(_OF_ROLE if route.role else {}), **_OF_WORK}
    if route.fields:
        problems |= _OF_FIELDS
    if route.method == "POST":
        problems |= _OF_POST
    problems |= {status: why for status, why in route.statuses.items() if status >= 400}
    kind = "text/plain" if route.reply == "Text" else "application/json"
    reply = {"content": {kind: {"schema": {"$ref": f"#/components/schemas/{route.reply}"}}}}
    good = {200: route.meaning, **{status: why for status, why in route.statuses.items() if status < 400}}
    return {
        **{str(status): {"description": why, **reply} for status, why in good.items()},
        **{
            str(status): {"description": why, "content": {"application/problem+json": {"schema": _PROBLEM}}}
            for status, why in sorted(problems.items())
        },
    }


def _id() -> Schema:
    return {
        "name": "id", "in": "path", "required": True, "description": "id of a prediction",
        "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    }  # fmt: skip


def _parameter(name: str, field: Field) -> Schema:
    return {"name": name, "in": "query", "description": field.meaning, "schema": dict(field.schema)}


def _body_name(route: Route) -> str:
    return f"{route.answer.title().replace('_', '')}Body"


def _nouns() -> Schema:
    """Schemas of bodies, and of the mappings in them."""
    found: Schema = {}
    for route in ROUTES:
        if route.method == "POST":
            found[_body_name(route)] = _body(route)
    found["JobFields"] = {**_job(), "description": "fields of the job file and of its run"}
    found["Job"] = {
        "allOf": [{"$ref": "#/components/schemas/JobFields"}],
        "description": "the job; model is required unless a graph replaces it",
    }
    for section in ("run", "data", "lora", "layout"):
        found[section.title()] = _section(section)
    for name, noun in NOUNS.items():
        properties = {
            item.name: {**schema_of(type_of(item)), "description": item.metadata["meaning"]}
            for item in dataclasses.fields(noun)
        }
        found[name] = {"type": "object", "additionalProperties": False, "properties": properties}
    return found


def _body(route: Route) -> Schema:
    properties = {}
    for name, field in route.fields.items():
        given = dict(field.schema)
        properties[name] = {"anyOf": [given, *_text_of(field.type), {"type": "null"}], "description": field.meaning}
        if field.required:
            properties[name] = {"anyOf": [given], "description": field.meaning}
    required = [name for name, field in route.fields.items() if field.required]
    return {
        "type": "object", "additionalProperties": False, "properties": properties,
        **({"required": required} if required else {}),
    }  # fmt: skip


def _job() -> Schema:
    properties = {**_properties("job"), **_properties("run")}
    for name, known in (("model", sorted(ENTRIES)), ("gpu", sorted(default_catalog().gpus))):
        properties[name]["anyOf"].insert(0, {"enum": known})
    for name in ("run", "data"):
        properties[name] = {
            "anyOf": [{"$ref": f"#/components/schemas/{name.title()}"}, {"type": "null"}]
            + ([{"type": "string"}] if name == "data" else [])
        }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _section(section: str) -> Schema:
    if section == "layout":  # aliases of other programs are known too
        return {"type": "object", "properties": _properties(section)}
    return {"type": "object", "additionalProperties": False, "properties": _properties(section)}


def _properties(section: str) -> dict[str, Schema]:
    return {
        field.name: {**schema_of(field.type), "description": field.meaning}
        for field in field_table()
        if field.section == section
    }


def schema_of(of: FieldType) -> Schema:
    """What JSON Schema says of a field: its kind and range, also as text, and null for what is not set."""
    return {"anyOf": [*_kinds(of), *_text_of(of), {"type": "null"}]}


def _kinds(of: FieldType) -> list[Schema]:
    if of.kind in ("whole", "number"):
        least = 0 if of.zero else of.least
        one: Schema = {"type": "integer" if of.kind == "whole" else "number", "minimum": least, "maximum": of.most}
        if of.kind == "whole":
            one |= {"minimum": int(least), "maximum": int(of.most)}
        several = {"type": "array", "items": one, "minItems": 1, "maxItems": of.items}
        return [*([several] if of.items else []), *([one] if of.alone else [])]
    kinds: Mapping[str, list[Schema]] = {
        "switch": [{"type": "boolean"}],
        "choice": [{"enum": list(of.choices)}, {"type": "string", "maxLength": 100}],
        "text": [{"type": "string", "minLength": 1, "maxLength": 4096}],
        "mapping": [{"type": "object"}],
        "list": [{"type": "array"}],
        "layout": [{"type": "string"}, {"$ref": "#/components/schemas/Layout"}],
        "precision": [
            {"enum": list(of.choices)},
            {"type": "string", "maxLength": 100},
            {"type": "array", "items": {"type": "object"}},
        ],
    }
    return kinds.get(of.kind, [_ANYTHING])


def _text_of(of: FieldType) -> list[Schema]:
    """The texts that are read as such a value."""
    texts: Mapping[str, list[Schema]] = {
        "whole": [{"type": "string", "pattern": _WHOLE_TEXT}],
        "number": [{"type": "string", "pattern": _NUMBER_TEXT}],
        "switch": [{"type": "string"}],
        "mapping": [{"type": "string"}],
        "list": [{"type": "string"}],
    }
    return texts.get(of.kind, [])
