"""Commands that ask a server, which answers with anything, slowly, or with nothing."""

# ruff: noqa: E501

from __future__ import annotations

import json
import random
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.attack.input import Input, as_json
from benchmarks.attack.mutate import mutated
from benchmarks.attack.served import client, known, no_constant
from precision_time.errors import PrecisionTimeError


def remote(source: random.Random, folder: Path) -> Input:
    """A command that asks a server, which answers with anything, slowly, or not at all."""
    command, path = source.choice((("predict", "predict"), ("compare", "compare"), ("plan", "plan"),
                                   ("walltime", "walltime"), ("record", "record")))  # fmt: skip
    arguments = [command, "resnet50", "--gpus=8", "--precision=amp-fp16"]
    if command in ("plan", "walltime"):
        arguments.append("--steps=1000")
    if command == "record":
        arguments = ["record", known(), "--step-s=0.5"]
    answer = _answer_bytes(source, path)
    pause_s = source.choice((0.01, 0.1)) if source.random() < 0.01 else 0.0
    flags = tuple(arguments) + as_json(source)

    def call() -> object:
        with _nonsense(answer, pause_s) as url, patch("precision_time.client._WAIT_S", (0.0,)):
            return _command((*flags, f"--server={url}"))

    return Input("server that answers nonsense", call=call, description=f"{flags} answered {answer[:2500]!r} ;")


@cache
def _valid(path: str) -> dict[str, Any]:
    """A valid answer."""
    from precision_time.serve.http.routes import ROUTES

    if path == "record":
        return {"new": True, "prediction": known(), "key": "a"}
    example = next(dict(route.example) for route in ROUTES if route.path == f"/v1/{path}")
    found: dict[str, Any] = client().post(f"/v1/{path}", json=example).json()
    return found


_STATUSES = (200, 200, 200, 200, 201, 204, 301, 302, 304, 400, 401, 404, 409, 413, 418, 422, 429, 500, 502, 999)


def _answer_bytes(source: random.Random, path: str) -> bytes:
    kind = source.random()
    if kind < 0.05:
        return source.choice(
            (b"", b"HTTP", b"\x16\x03\x01\x02", b"HTTP/1.1 200 OK\r\n", b"220 mail ready\r\n", b"\n" * 99)
        )
    value: Any = mutated(source, _valid(path), True)
    if source.random() < 0.2:
        problem = {
            "title": "x",
            "status": 400,
            "detail": "no",
            "error": source.choice(("JobError", "__name__", "show")),
        }
        value = mutated(source, problem, True)
    try:
        body = json.dumps(value).encode()
    except ValueError:
        body = b"{}"
    if source.random() < 0.3:
        body = source.choice(
            (b"", b"null", b"[]", b"{}", b"<html>", b"\xff\xfe", b"[" * 50_000, b'{"estimate": NaN}', b"9" * 9000,
             b'{"detail": "\\u001b[31mred\\u0000"}', json.dumps({"detail": "x " * 9000}).encode(), body[: len(body) // 2])
        )  # fmt: skip
    status = source.choice(_STATUSES) if source.random() < 0.6 else 200
    length = str(len(body) + (source.choice((0, 0, 0, 0, 7, -1)) if body else 0))
    extra = source.choice(("", "", "", "location: /v1/predict\r\n", "content-encoding: gzip\r\n", "retry-after: \xb2\r\n",
                           "content-type: application/json; charset=x\r\n", "x: \x00\r\n", "set-cookie: a=b\r\n"))  # fmt: skip
    return f"HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n{extra}\r\n".encode("latin-1") + body


@contextmanager
def _nonsense(answer: bytes, pause_s: float) -> Iterator[str]:
    """The address of a server that answers every request with these bytes; with a pause after each piece, if any."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            self.request.recv(1 << 20)
            pieces = [answer] if not pause_s else [answer[at : at + 500] for at in range(0, len(answer), 500)]
            for piece in pieces:
                self.request.sendall(piece)
                time.sleep(pause_s)

        def finish(self) -> None:
            self.request.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

        def handle_error(self, request: Any, _client_address: Any) -> None:
            """A client that went away."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _command(arguments: tuple[str, ...]) -> object:
    from precision_time.cli.main import main

    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(list(arguments))
    if code == 2:
        lines = [line for line in errors.getvalue().split("\n") if line.startswith("precision-time: error: ")]
        if len(lines) != 1 or output.getvalue():
            raise AssertionError(f"not one sentence: {errors.getvalue()[:300]}")
        raise PrecisionTimeError(lines[0].removeprefix("precision-time: error: "))
    if code:
        raise AssertionError(f"exit code {code}: {errors.getvalue()[:300]}")
    text = output.getvalue()
    if "--json" in arguments:
        return json.loads(text, parse_constant=no_constant)
    if any(not (c.isprintable() or c in "\n\t") for c in text):
        raise AssertionError("control characters on standard output")
    return {}
