"""What holds for every request: where it may come from, security headers, problems for exceptions, log and counts."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from precision_time.errors import PrecisionTimeError
from precision_time.reading import to_json
from precision_time.serve.http.logs import Log
from precision_time.serve.http.metrics import Metrics
from precision_time.serve.http.problems import MEDIA_TYPE, ProblemError, problem_of

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every reply. No inline script or style runs, nothing is loaded from elsewhere, no page frames this one."""
_PATHS = "GET / is the page, GET /openapi.json lists the routes"


class Guard:
    """Around the application.

    A browser sends `Origin` with what a page of another site makes it post, and any name in `Host` once that name
    leads here (DNS rebinding). Both are refused, since a server without tokens trusts whoever reaches it.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log: Log, hosts: frozenset[str] | None) -> None:
        self._app, self._metrics, self._log, self._hosts = app, metrics, log, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        problem: ProblemError | None = None
        try:
            self._check_origin(Headers(scope=scope))
            scope["app"] = self  # the router then raises where it finds no route
            await self._app(scope, receive, sent)
        except ProblemError as error:
            problem = error
        except PrecisionTimeError as error:
            problem = problem_of(error)
        except HTTPException as error:
            problem = ProblemError(
                error.status_code, f"{error.detail}: {_method(scope)} {scope['path'][:100]!r}; {_PATHS}"
            )
            problem.headers.update(error.headers or {})
        except asyncio.CancelledError:
            problem = ProblemError(503, "the server is being stopped; ask it again when it runs", 5)
        except Exception:
            self._log.write("failed", path=scope["path"][:200], trace=traceback.format_exc())
            problem = ProblemError(500, "the server failed, which is a defect; its log says where")
        if problem is not None and status == 0:
            await _answer(problem, sent)
        self._note(scope, status, time.perf_counter() - began, problem)

    def _check_origin(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise ProblemError(
                421, f"Host {host[:100]!r} is not a name of this server; start it with --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise ProblemError(403, f"the page of {origin[:100]!r} may not use this server; open its own page")

    def _note(self, scope: Scope, status: int, seconds: float, problem: ProblemError | None) -> None:
        route = scope.get("precision_time.route", "none")
        self._metrics.count("requests", route=route, method=_method(scope), status=str(status))
        self._metrics.time(route, seconds)
        if problem is not None and status in (401, 403, 413, 421, 503):
            self._metrics.count("refused", status=str(status))
        if self._log.requests or status >= 500:
            client = scope.get("client")
            self._log.write(
                "request",
                method=_method(scope),
                path=scope["path"][:200],
                status=status,
                ms=round(seconds * 1e3, 2),
                client=client[0] if client else None,
                token=scope.get("precision_time.token"),
                **({"detail": str(problem)} if problem is not None and status >= 500 else {}),
            )


def _method(scope: Scope) -> str:
    known: Iterable[str] = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
    return scope["method"] if scope["method"] in known else "other"


def _name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host.partition("]")[0][1:].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


async def _answer(problem: ProblemError, send: Send) -> None:
    body = to_json(problem.to_dict()).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if problem.retry_s is not None:
        headers.append((b"retry-after", str(problem.retry_s).encode()))
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    for name, value in problem.headers.items():
        headers.append((name.encode(), value.encode()))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
