"""The OpenAPI document: valid, complete, and true of the server, as schemathesis finds by asking it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("schemathesis")

from openapi_spec_validator import OpenAPIV31SpecValidator

from precision_time.field_table import field_table
from precision_time.serve.http.openapi import document
from precision_time.serve.http.routes import ROUTES
from serving import Served, served

CONFIG = Path(__file__).parent / "schemathesis.toml"


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document())
    return found


def test_the_document_is_valid(api: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(api).iter_errors()) == []


def test_it_has_every_route_and_field(api: dict[str, Any]) -> None:
    assert {(path, method) for path, methods in api["paths"].items() for method in methods} == {
        (route.path, route.method.lower()) for route in ROUTES
    }
    schemas = api["components"]["schemas"]
    job = schemas["JobFields"]["properties"]
    for field in field_table():
        if field.section in ("job", "run"):
            assert job[field.name].get("description", field.meaning) == field.meaning
        elif field.section == "data":
            assert schemas["Data"]["properties"][field.name]["description"] == field.meaning


def test_every_operation_says_what_it_is_and_what_it_refuses(api: dict[str, Any]) -> None:
    for route in ROUTES:
        operation = api["paths"][route.path][route.method.lower()]
        assert operation["summary"] == route.meaning
        assert ("401" in operation["responses"]) == bool(route.role)
        for status, response in operation["responses"].items():
            kinds = set(response["content"])
            assert kinds == ({"application/problem+json"} if int(status) >= 400 else kinds)


def asked(server: Served, phases: str, examples: int) -> int:
    """Requests that schemathesis makes from the document, all of whose checks hold."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{server.url}/openapi.json",
        "--checks", "all", "--max-examples", str(examples), "--phases", phases, "--suppress-health-check", "all",
        "--seed", "1", "--continue-on-failure", "--request-timeout", "120",
        "--max-response-time", "120",  # the server has a limit of its own, of processor time
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, cwd=server.log_path.parent, timeout=1800)
    assert ran.returncode == 0, ran.stdout[-6000:]
    found = re.search(r"([\d,]+) generated, ([\d,]+) passed", ran.stdout)
    assert found, ran.stdout[-2000:]
    generated, passed = (int(number.replace(",", "")) for number in found.groups())
    assert generated == passed
    assert not [line for line in server.log() if line["event"] == "failed"]
    return generated


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_hundreds_of_requests(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "1", "--quiet") as server:
        assert asked(server, "examples,fuzzing", 22) >= 200


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_10_000_requests(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", "--quiet") as server:
        assert asked(server, "examples,coverage,fuzzing,stateful", 60) >= 10_000
