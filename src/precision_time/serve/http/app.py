"""The ASGI application: a route for every entry of the table, each behind the guard."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from precision_time.errors import JobError
from precision_time.serve.http.bodies import check_type, parsed, read_body, too_large
from precision_time.serve.http.fields import checked
from precision_time.serve.http.guard import Guard
from precision_time.serve.http.limits import BODY_BYTES
from precision_time.serve.http.logs import Log
from precision_time.serve.http.openapi import document
from precision_time.serve.http.page_files import page_files
from precision_time.serve.http.routes import ROUTES, Route
from precision_time.serve.http.service import Reply, Service
from precision_time.serve.http.tokens import Tokens

CACHED = frozenset({"predict", "compare", "plan", "walltime"})
"""Answers that are the same for the same body as long as nothing is learned."""


def build_app(service: Service, tokens: Tokens, log: Log, hosts: frozenset[str] | None = None) -> ASGIApp:
    """The application; `hosts`: names that it may be reached by, None for any."""
    service.document = document()
    routes: list[BaseRoute] = [_routed(entry, service, tokens) for entry in ROUTES]
    routes += [StarletteRoute(path, _file(content)) for path, content in page_files().items()]
    return Guard(Router(routes, redirect_slashes=False), service.metrics, log, hosts)


def _routed(entry: Route, service: Service, tokens: Tokens) -> StarletteRoute:
    answer: Callable[[dict[str, Any], Any], Awaitable[Reply]] = getattr(service, entry.answer)
    cached = entry.answer in CACHED

    async def endpoint(request: Request) -> Response:
        request.scope["precision_time.route"] = entry.path
        request.scope["precision_time.token"] = tokens.check(request.headers.get("authorization"), entry.role)
        if entry.method == "GET":
            return _response(await answer(checked(_query(request), entry.fields, "the query"), request.path_params))
        check_type(request.headers)
        body = await read_body(request.receive, request.headers, entry.largest)
        key = hashlib.sha256(entry.answer.encode() + body).digest() if cached else b""
        if cached:
            kept = service.replies.get(key, service.learned.states)
            service.metrics.count("cache", found=str(kept is not None).lower())
            if kept is not None:
                return Response(kept, media_type="application/json")
        given = await _value(body, entry)
        reply = await answer(checked(given, entry.fields, "the body"), request.path_params)
        if reply.cache is not None:
            service.replies.add(key, *reply.cache, reply.body)
        return _response(reply)

    return StarletteRoute(entry.path, endpoint, methods=[entry.method])


async def _value(body: bytes, entry: Route) -> Any:
    """The value of a body; a large one, which is a graph or a file, is parsed in a thread, beside other requests."""
    if len(body) <= BODY_BYTES:
        return parsed(body, entry.largest)
    given = await asyncio.to_thread(parsed, body, entry.largest)
    if "graph" in entry.fields and not (isinstance(given, dict) and given.get("graph")):
        raise too_large(BODY_BYTES)
    return given


def _query(request: Request) -> dict[str, str]:
    items = request.query_params.multi_items()
    if len(items) > len(dict(items)):
        raise JobError("a field of the query is given twice; keep one of them")
    return dict(items)


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, media_type=reply.media_type)


def _file(content: tuple[bytes, str, str]) -> Callable[[Request], Awaitable[Response]]:
    body, media_type, tag = content

    async def endpoint(request: Request) -> Response:
        request.scope["precision_time.route"] = "page"
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=media_type, headers=headers)

    return endpoint
