"""The command `serve`: the server, and the tokens that its clients show."""

from __future__ import annotations

from argparse import Namespace
from datetime import date
from pathlib import Path
from typing import Any

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.cli.workers import MOST_WORKERS
from precision_time.errors import MissingExtraError
from precision_time.processes import cores

USUAL_ROLES = ("read", "predict", "record")
_ACTIONS = "token add NAME, token list or token remove NAME"


def serve(options: Namespace) -> tuple[dict[str, Any], str]:
    """For JSON, and as text; returns when the server is stopped."""
    _check_installed()
    if options.action:
        return _tokens(options)
    if options.role:
        raise UsageError("--role belongs to serve token add NAME; leave it out")
    from precision_time.serve.http.logs import Log
    from precision_time.serve.http.server import PORT, Settings, check_open, run_server
    from precision_time.serve.http.tokens import Tokens
    from precision_time.serve.store import open_store

    settings = Settings(
        host=options.host or "127.0.0.1",
        port=PORT if options.port is None else _number("--port", options.port, 0, 65_535),
        workers=cores() if options.workers is None else _number("--workers", options.workers, 1, MOST_WORKERS),
        tokens=_tokens_file(options),
        names=tuple(options.allow_host or ()),
        requests=not options.quiet,
        learned=_learned_folder(options),
    )
    check_open(settings.host, Tokens(settings.tokens))
    store = open_store(options.database)
    addresses: list[str] = []

    def ready(address: str) -> None:
        addresses.append(address)
        note(f"serving at {address} (Ctrl-C stops)")

    run_server(settings, store, Log(requests=settings.requests), ready)
    return {"address": addresses[0]}, "stopped"


def _check_installed() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("serve needs starlette and uvicorn: pip install 'precision-time[serve]'") from None


def _tokens_file(options: Namespace) -> Path:
    if options.tokens is not None:
        return Path(options.tokens)
    from precision_time.serve.store import default_path

    return default_path().with_name("tokens.json")


def _learned_folder(options: Namespace) -> Path:
    """Beside the database where it is a file."""
    if options.database is not None and "://" not in options.database:
        return Path(options.database).parent
    return _tokens_file(options).parent


def _tokens(options: Namespace) -> tuple[dict[str, Any], str]:
    from precision_time.serve.http.tokens import add_token, list_tokens, remove_token

    path, action = _tokens_file(options), options.action
    if action[:2] == ["token", "add"] and len(action) == 3:
        roles = options.role or USUAL_ROLES
        made = add_token(path, action[2], roles, date.today().isoformat())
        told = f"{made}\n\nroles: {', '.join(roles)}. The token is shown this once; {path} keeps its hash."
        return {"token": made, "name": action[2], "roles": list(roles)}, told
    if action[:2] == ["token", "remove"] and len(action) == 3:
        remove_token(path, action[2])
        return {"removed": action[2]}, f"token {action[2]} removed from {path}"
    if action == ["token", "list"]:
        found = [{"name": token.name, "roles": list(token.roles), "made": token.made} for token in list_tokens(path)]
        lines = [f"{token['name']}  {', '.join(token['roles'])}  {token['made']}" for token in found]
        return {"tokens": found}, "\n".join(lines) or f"no tokens in {path}"
    raise UsageError(f"serve {show(' '.join(action))} is unknown; use {_ACTIONS}, or nothing to serve")


def _number(flag: str, text: str, least: int, most: int) -> int:
    found = small_number(text)
    if found is None or not least <= found <= most:
        raise UsageError(f"flag {flag} is {show(text)}; give a whole number from {least} to {most}")
    return found
