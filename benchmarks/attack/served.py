"""Inputs of `serve`, `store`, `record` and `capture`."""

# ruff: noqa: E501

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from benchmarks.attack import samples
from benchmarks.attack.input import Input, as_argument, as_json
from benchmarks.attack.mutate import bad_value, mutated, mutated_text
from precision_time.errors import PrecisionTimeError

if TYPE_CHECKING:
    from precision_time.serve.http.pool import Lesson

_OUTCOME = {"key": "a", "step_s": 0.5, "run_s": 100.0, "peak_bytes": 10**9, "finished": True, "machine": {"host": "n"}}
_SACCT = """JobIDRaw|JobName|State|ElapsedRaw|Elapsed|ExitCode|Start|NodeList|Comment
4711|train|COMPLETED|50400|14:00:00|0:0|2026-01-02T03:04:05|node[1-2]|precision-time:ID
4712|train|RUNNING|60|00:01:00|0:0|2026-01-02T03:04:05|node3|precision-time:ID
"""
_OUTCOMES = (
    "prediction,key,step_s,run_s,peak_bytes,finished,host\nID,one,0.5,100,1000000000,yes,node1\nID,two,0.6,,,,\n"
)
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "authorization": ("Bearer x", "Bearer pt_a_b", "Basic eA==", "", "Bearer " + "a" * 9000),
    "content-type": ("text/plain", "application/json; charset=latin-1", "", "a/b;c", "application/xml"),
    "content-encoding": ("gzip", "br", "x"),
    "content-length": ("0", "-1", "99999999999", "x"),
    "host": ("evil.example", "", "[::1", "a b"),
    "if-none-match": ("*", "x"),
    "accept": ("text/html", ""),
}  # fmt: skip


# --- requests to a server


def requests(source: random.Random, folder: Path) -> Input:
    """A request to the application in this process: any route, its example or a valid body damaged."""
    from precision_time.serve.http.routes import ROUTES

    route = source.choice(ROUTES)
    identifier = source.choice((known(), known(), str(bad_value(source))[:300]))
    path = route.path.replace("{id}", quote(identifier.encode("utf-8", "replace"), safe="") or "x")
    if source.random() < 0.05:
        path = "/" + "".join(c for c in mutated_text(source, path) if c.isprintable() and c not in "#?").lstrip("/")
    method = route.method if source.random() < 0.95 else source.choice(("PUT", "DELETE", "HEAD", "POST", "GET"))
    headers = {"content-type": "application/json"} if route.method == "POST" else {}
    if source.random() < 0.15:
        name = source.choice(tuple(_HEADERS))
        headers[name] = source.choice(_HEADERS[name])
    given: dict[str, Any] = {"headers": headers}
    if route.method == "POST":
        given["content"] = _body(source, dict(route.example) or dict(_OUTCOME))
    elif route.fields and source.random() < 0.7:
        given["params"] = {source.choice((*route.fields, "x")): as_argument(bad_value(source))[:2000]}
    return Input(
        "serve", call=lambda: _asked(method, path, given), description=f"{method} {path} {given}"[:3000] + " ;"
    )


def _body(source: random.Random, example: dict[str, Any]) -> bytes:
    """The example damaged as a value or as text."""
    try:
        text = json.dumps(mutated(source, example, True))
    except ValueError:  # an integer of more digits than Python writes
        text = "{}"
    if source.random() < 0.25:
        text = mutated_text(source, json.dumps(example))
    if source.random() < 0.02:
        text = source.choice(("[" * 100_000, '{"job":' * 5000, "[" + "0," * 600_000 + "0]", "", "null", "9" * 10_000))
    content = text.encode("utf-8", "replace")
    return content if source.random() < 0.97 else content.replace(b"a", b"\xff")


def _asked(method: str, path: str, given: Mapping[str, Any]) -> object:
    """The value of an answer. Raises PrecisionTimeError with the sentence of a refusal, AssertionError for a defect."""
    reply = client().request(method, path, **given)
    kind = reply.headers.get("content-type", "")
    if reply.status_code >= 500:
        raise AssertionError(f"status {reply.status_code}: {reply.text[:200]}")
    if method == "HEAD" and reply.text:
        raise AssertionError(f"HEAD has a body: {reply.text[:200]}")
    if reply.status_code < 400:
        if method == "HEAD":
            return {}
        read = json.loads(reply.text, parse_constant=no_constant) if kind == "application/json" else {}
        return {} if path == "/openapi.json" else read  # whose p10 and p50 are schemas
    if method == "HEAD":
        raise PrecisionTimeError("refused")
    problem = reply.json()
    if kind != "application/problem+json" or problem["status"] != reply.status_code:
        raise AssertionError(f"status {reply.status_code} with {kind}: {reply.text[:200]}")
    raise PrecisionTimeError(problem["detail"])


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


class InlinePool:
    """Answers the questions of the application in this process; `asked` holds them."""

    count, waiting, replaced = 1, 0, 0
    pids = (os.getpid(),)

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def ask(self, ask: str, asked: Mapping[str, Any], lesson: Lesson | None = None) -> dict[str, Any]:
        from precision_time.serve.http.problems import ProblemError, parts_from
        from precision_time.serve.http.worker import answered

        self.asked.append((ask, asked))
        named = {"cluster": lesson.cluster} if lesson else {}
        if lesson:
            taught = {"ask": "teach", **named, "state": lesson.state(), "forget": []}
            assert answered(json.dumps(taught).encode()) == {"answer": {}}
        reply = answered(json.dumps({"ask": ask, **asked, **named}).encode())
        if "problem" in reply:
            problem = reply["problem"]
            raise ProblemError(problem["status"], problem["detail"], **parts_from(problem))
        found: dict[str, Any] = reply["answer"]
        return found


@cache
def client() -> Any:
    """A client of the application, made once in a process, with the store of `_store`."""
    from starlette.testclient import TestClient

    from precision_time.serve.http.app import build_app
    from precision_time.serve.http.logs import Log
    from precision_time.serve.http.service import Service
    from precision_time.serve.http.tokens import Tokens
    from precision_time.serve.store import open_store

    path = _temporary() / "served.db"
    shutil.copy(_store(), path)
    service = Service(InlinePool(), open_store(path))  # type: ignore[arg-type]
    app = build_app(service, Tokens(None), Log(StringIO()), frozenset({"testserver"}))
    made = TestClient(app, raise_server_exceptions=False)
    made.__enter__()
    Finalize(None, made.__exit__, (None, None, None), exitpriority=1)
    return made


# --- stores


@cache
def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
    return folder


@cache
def _store() -> Path:
    """A store with two measured jobs."""
    folder = _temporary()
    table = folder / "table.csv"
    table.write_text(samples.TABLE, encoding="utf-8")
    _quiet("record", str(table), f"--database={folder / 'store.db'}")
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return folder / "store.db"


@cache
def _backup() -> Path:
    _quiet("store", "backup", str(_temporary() / "backup.db"), f"--database={_store()}")
    return _temporary() / "backup.db"


@cache
def known() -> str:
    """The id of a prediction of the store."""
    with closing(sqlite3.connect(_store())) as connection:
        return str(connection.execute("select id from predictions").fetchone()[0])


def _quiet(*arguments: str) -> None:
    from precision_time.cli.main import main

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        if main(list(arguments)):
            raise RuntimeError(f"the store for the attack cannot be made: {errors.getvalue()}")


def _damaged_bytes(source: random.Random, content: bytes) -> bytes:
    """A file cut short, with bytes changed, doubled, or of another kind."""
    kind = source.randrange(6)
    if kind == 0:
        return content[: source.randrange(len(content) + 1)]
    if kind == 1:
        return source.choice((b"", b"x", b"SQLite format 3\x00", b"\x00" * 4096, b"{}", os.urandom(64)))
    changed = bytearray(content)
    for _ in range(source.choice((1, 3, 50, 2000))):
        start = source.choice((0, 0, 100, source.randrange(len(changed))))
        changed[min(start + source.randrange(100), len(changed) - 1)] = source.randrange(256)
    return bytes(changed)


_FOREIGN = (
    "create table t (a)", "create table predictions (id text)", "create table meta (name, value)",
    "create view predictions as select 1 as id", "pragma user_version = 99", "pragma application_id = 7",
)  # fmt: skip
_CHANGES = (
    "pragma user_version = 99", "drop table outcomes", "alter table predictions rename to other",
    "create trigger x before insert on outcomes begin select raise(abort, 'no'); end", "pragma journal_mode = delete",
    "create table more (a)", "pragma writable_schema = 1",
)  # fmt: skip


def _database(source: random.Random, folder: Path, name: str, valid: Path) -> str:
    """Writes a store or backup: whole, damaged, of another program, missing, a folder or read-only."""
    path, kind = folder / name, source.random()
    if kind < 0.05:
        return name
    if kind < 0.1:
        path.mkdir()
        return name
    if kind < 0.25:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(source.choice(_FOREIGN))
        return name
    content = valid.read_bytes()
    path.write_bytes(_damaged_bytes(source, content) if kind < 0.65 else content)
    if 0.65 < kind < 0.8 and valid == _store():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(source.choice(_CHANGES))
            connection.commit()
    if kind > 0.95:
        path.chmod(0o444)
    return name


def store(source: random.Random, folder: Path) -> Input:
    """Actions on stores and backups that are broken, of another program, locked, read-only or missing."""
    database = _database(source, folder, "store.db", _store())
    action = source.choice(("", "backup", "restore", "check"))
    arguments: list[str] = ["store"]
    if action:
        arguments.append(action)
        other = source.choice(("out", "store.db", "missing/out", "/dev/null", "", "../x"))
        arguments.append(_database(source, folder, "backup.db", _backup()) if action != "backup" else other)
    if source.random() < 0.1:
        arguments.append(as_argument(bad_value(source)).replace("\x00", ""))
    if action != "check":
        wrong = ("postgresql://", "postgresql://nobody@127.0.0.1:1/x", "mysql://x", "", ":memory:")
        arguments.append(f"--database={database if source.random() < 0.9 else source.choice(wrong)}")
    arguments += as_json(source)
    if source.random() < 0.003 and (folder / "store.db").is_file():
        return Input("store", call=lambda: _locked(folder / "store.db", arguments), description=f"locked {arguments} ;")
    return Input("store", tuple(arguments))


def _locked(path: Path, arguments: list[str]) -> object:
    """The command while another program holds the file: its refusal as an error, of which nothing else is checked."""
    from precision_time.cli.main import main

    with closing(sqlite3.connect(path, isolation_level=None)) as held:
        try:
            held.execute("begin exclusive")
        except sqlite3.DatabaseError:
            return {}
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
            code = main(arguments)
    if code:
        raise PrecisionTimeError(errors.getvalue().strip().removeprefix("precision-time: error: "))
    return {}


def record(source: random.Random, folder: Path) -> Input:
    """Outcomes by flags, from outcome files, tables and what Slurm prints, with wrong values and ids."""
    shutil.copy(_store(), folder / "store.db")
    kind = source.choice(("id", "file", "table", "jobs", "slurm"))
    identifier = source.choice((known(), known(), known()[:-1] + "0", as_argument(bad_value(source))[:500]))
    identifier = identifier.replace("\x00", "")
    arguments = ["record"]
    if kind == "id":
        arguments.append(identifier if source.random() < 0.9 else mutated_text(source, identifier).replace("\x00", ""))
        flags = ("step-s", "run-s", "peak-bytes", "finished", "exit-code", "machine", "key", "cluster-name")
        for name in source.sample(flags, source.choice((1, 1, 2, 3))):
            value = source.choice(("1", "yes", "a=b", "0.5", as_argument(bad_value(source))))
            arguments.append(f"--{name}={value}".replace("\x00", ""))
    elif kind == "file":
        content = {"schema": 1, "run": "r", "steps": 100, "job": {"model": "resnet50"}, "measured": dict(_OUTCOME)}
        (folder / "outcome.json").write_bytes(_body(source, {**content, **_OUTCOME}))
        arguments += ["outcome.json", *source.choice(((), (f"--prediction={identifier}",)))]
    elif kind == "slurm":
        _damaged_text(source, folder / "sacct.txt", _SACCT.replace("precision-time:ID", f"precision-time:{known()}"))
        arguments += ["--slurm=sacct.txt"]
    else:
        text = samples.TABLE if kind == "jobs" else _OUTCOMES.replace("ID", known())
        _damaged_text(source, folder / "table.csv", text)
        arguments.append("table.csv")
    if source.random() < 0.1:
        arguments.append(f"--{source.choice(('prediction', 'key', 'step-s', 'cluster-name', 'slurm'))}=x")
    return Input("record", (*arguments, "--database=store.db", *as_json(source)))


def _damaged_text(source: random.Random, path: Path, text: str) -> None:
    if source.random() < 0.5:
        rows = [line.split(source.choice(",|")) for line in text.splitlines()]
        row = source.choice(rows)
        row[source.randrange(len(row))] = as_argument(bad_value(source))[:2000].replace("\n", " ")
        text = "\n".join(("|" if "|" in text else ",").join(row) for row in rows)
    else:
        text = mutated_text(source, text)
    path.write_bytes(text.encode("utf-8", "replace"))


# --- own models

_MODULE = """import torch
from torch import nn

def make_job(batch_size=2):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return {"model": model, "inputs": torch.empty(batch_size, 8), "targets": torch.zeros(batch_size, dtype=torch.long),
            "loss": nn.functional.cross_entropy, "optimizer": "sgd"}
"""
_WRONG_PARTS = (
    ("nn.ReLU()", "nn.Dropout(2.0)"), ("nn.ReLU()", "nn.Linear(9, 8)"), ("nn.ReLU()", "3"), ("nn.ReLU()", "None"),
    ('"model": model', '"model": 1'), ('"model": model', '"model": None'), ('"model": model', '"modle": model'),
    ("torch.empty(batch_size, 8)", "[]"), ("torch.empty(batch_size, 8)", "None"), ("batch_size, 8)", "0, 8)"),
    ("torch.empty(batch_size, 8)", "torch.empty(batch_size, 8, device='cpu')"), ("torch.long", "torch.float16"),
    ("torch.empty(batch_size, 8)", "{'x': 1}"), ("nn.functional.cross_entropy", "None"), ("batch_size=2", "other"),
    ("nn.functional.cross_entropy", "lambda a, b: a"), ("nn.functional.cross_entropy", "3"), ("8, 8", "10**9, 10**9"),
    ('"sgd"', "'nothing'"), ('"sgd"', "torch.optim.LBFGS(model.parameters())"), ('"sgd"', "5"), ("8, 8", "-1, 8"),
    ("    return", "    raise ValueError('\\x1b[31mred')\n    return"), ("    return", "    1 / 0\n    return"),
    ("    return", "    import sys; sys.exit(0)\n    return"), ("    return", "    raise KeyboardInterrupt\n    return"),
    ("    return", "    print('\\x1b[2J' + 'x' * 10000)\n    return"), ("import torch", "import missing_module"),
    ("    return", "    return make_job()\n    return"), ("    return {", "    return 3, {"), ("    return {", "    yield {"),
    ("    return", "    model.requires_grad_(False)\n    return"), ("    return", "    import os; os.chdir('/')\n    return"),
    ("    return", "    import warnings; warnings.warn('careful')\n    return"), ("def make_job", "class make_job"),
    ("    return", "    model.forward = lambda x: x if x.sum() > 0 else -x\n    return"),
    ("    return", "    torch.set_default_device('cpu')\n    return"), ("    return", "    model = model.double()\n    return"),
)  # fmt: skip


def capture(source: random.Random, folder: Path) -> Input:
    """Modules that are broken or return something else, and targets that cannot be written."""
    text = _MODULE
    for old, new in source.sample(_WRONG_PARTS, source.choice((0, 1, 1, 1, 2))):
        text = text.replace(old, new)
    if source.random() < 0.2:
        text = mutated_text(source, text)
    (folder / "own.py").write_bytes(text.encode("utf-8", "replace"))
    targets = (*["out"] * 20, "own.py", "/dev/null", "missing/out", "", ".", "own.py/x", "out\x1b", "/proc/x")
    arguments = [
        "capture",
        source.choice((*["own.py:make_job"] * 12, "own.py", "own.py:other", "own.py:", "x.py", "resnet50")),
    ]
    arguments += [f"--output={source.choice(targets)}"] if source.random() < 0.95 else []
    if source.random() < 0.3:
        name = source.choice(("precision", "batch-size", "gpu", "attention", "input", "memory-format"))
        arguments.append(f"--{name}={source.choice(('amp-bf16', '4', 'fp32,bf16', as_argument(bad_value(source))))}")
    return Input("capture", (*(each.replace("\x00", "") for each in arguments), *as_json(source)))
