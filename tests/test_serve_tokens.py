"""Tokens: roles, what the file keeps, how it is followed, and the command that makes them."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from precision_time.cli.main import main
from precision_time.errors import DataError, ServeError
from precision_time.serve.http.problems import ProblemError
from precision_time.serve.http.routes import ROUTES
from precision_time.serve.http.tokens import ROLES, Tokens, add_token, list_tokens, remove_token
from serving import RESNET, here

PATHS = {"{id}": "01a214bc-496e-708c-b896-bb29341902b6"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_each_route_takes_its_role_and_admin_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = {role: add_token(path, role, [role], "2026-11-25") for role in ROLES}
    with here(tmp_path, path) as server:
        for route in ROUTES:
            where = route.path.replace("{id}", PATHS["{id}"])
            statuses = {}
            for role, token in made.items():
                reply = server.client.request(route.method, where, headers=bearer(token), content=b"{}")
                statuses[role] = reply.status_code
            allowed = {role for role, status in statuses.items() if status not in (401, 403)}
            assert allowed == ({route.role, "admin"} if route.role else set(ROLES)), (route.path, statuses)
            without = server.client.request(route.method, where, content=b"{}")
            assert (without.status_code == 401) == bool(route.role)
            if route.role:
                assert without.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer pt_a_short", "Bearer pt_nobody_" + "A" * 43,
     "bearer pt_a_" + "A" * 43, "Bearer \u00fc", "Bearer pt_a_" + "A" * 5000],
)  # fmt: skip
def test_what_is_no_token(tmp_path: Path, header: str) -> None:
    path = tmp_path / "tokens.json"
    add_token(path, "a", ["predict"], "2026-11-25")
    with pytest.raises(ProblemError) as refused:
        Tokens(path).check(header, "predict")
    assert refused.value.status == 401
    assert "A" * 20 not in str(refused.value)


def test_the_file_keeps_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    first, second = (add_token(path, name, ["read"], "2026-11-25") for name in ("a", "b"))
    text = path.read_text()
    assert first.removeprefix("pt_a_") not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = json.loads(text)["tokens"]
    assert kept["a"]["salt"] != kept["b"]["salt"]
    assert Tokens(path).check(f"Bearer {second}", "read") == "b"
    swapped = {"tokens": {"a": kept["b"], "b": kept["a"]}}
    path.write_text(json.dumps(swapped))
    with pytest.raises(ProblemError):
        Tokens(path).check(f"Bearer {first}", "read")


def test_the_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    assert tokens.check(None, "admin") is None, "no file: everything is allowed, on this machine"
    made = add_token(path, "a", ["predict"], "2026-11-25")
    tokens.refresh()
    assert tokens.check(f"Bearer {made}", "predict") == "a"
    remove_token(path, "a")
    tokens.refresh()
    for gone in (False, True):
        with pytest.raises(ProblemError):
            tokens.check(f"Bearer {made}", "predict")
        if not gone:
            path.unlink()
            tokens.refresh()  # a server that had tokens does not open when their file goes


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tokens": {"a": {}}}', '{"tokens": {"a": {"roles": 1}}}', "{"])
def test_a_damaged_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Tokens(path)


@pytest.mark.parametrize(("name", "roles"), [("A b", ["read"]), ("", ["read"]), ("x" * 41, ["read"]), ("a", ["root"])])
def test_names_and_roles_that_are_refused(tmp_path: Path, name: str, roles: list[str]) -> None:
    with pytest.raises(ServeError):
        add_token(tmp_path / "tokens.json", name, roles, "2026-11-25")
    assert not (tmp_path / "tokens.json").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "tokens.json"

    def run(*words: str, status: int = 0) -> Any:
        assert main(["serve", "token", *words, "--tokens", str(path), "--json"]) == status
        captured = capsys.readouterr()
        return json.loads(captured.out) if status == 0 else captured.err

    made = run("add", "ci", "--role", "predict", "--role", "record")
    assert re.fullmatch(r"pt_ci_[A-Za-z0-9_-]{43}", made["token"])
    assert Tokens(path).check(f"Bearer {made['token']}", "record") == "ci"
    assert "exists already" in run("add", "ci", status=2)
    run("add", "page")
    assert [(t["name"], t["roles"]) for t in run("list")["tokens"]] == [
        ("ci", ["predict", "record"]), ("page", ["read", "predict", "record"]),
    ]  # fmt: skip
    run("remove", "ci")
    assert [token.name for token in list_tokens(path)] == ["page"]
    assert "there is no token 'ci'" in run("remove", "ci", status=2)
    for words in (["ad", "x"], ["add"], ["list", "x"], []):
        assert "is unknown; use token add NAME" in run(*words, status=2)


def test_a_server_with_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = add_token(path, "ci", ["predict"], "2026-11-25")
    with here(tmp_path, path) as server:
        reply = server.client.post("/v1/predict", json={"job": RESNET}, headers=bearer(made))
        assert reply.status_code == 200
        refused = server.client.get("/v1/predictions", headers=bearer(made))
        assert (refused.status_code, refused.json()["detail"]) == (
            403, "token ci has the roles predict, and this needs read",
        )  # fmt: skip
        assert [line["token"] for line in server.log()] == ["ci", None]
        assert made not in server.lines.getvalue()
