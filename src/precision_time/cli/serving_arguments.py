"""The flags of `serve`, and of commands that ask a server."""

from __future__ import annotations

import argparse

Parser = argparse.ArgumentParser
ROLES = ("read", "predict", "record", "admin")
"""As in serve/http/tokens.py, which is not imported for a list of names."""


def add_serve(parser: Parser, complete: bool) -> None:
    parser.add_argument(
        "action", nargs="*", metavar="ACTION", help="token add NAME, token list, token remove NAME; none: serve"
    )
    parser.add_argument("--host", metavar="HOST", help="address to listen at (default 127.0.0.1: this machine alone)")
    parser.add_argument("--port", metavar="N", help="port to listen at, 0 for any free one (default 8750)")
    parser.add_argument("--workers", metavar="N", help="processes that predict (default: one for each core)")
    parser.add_argument(
        "--database",
        metavar="FILE|URL",
        help="where predictions and outcomes are kept: a file or postgresql://... (default: a file in the user's data "
        "directory)",
    )
    parser.add_argument(
        "--tokens", metavar="FILE", help="file of tokens (default: tokens.json in the user's data directory)"
    )
    parser.add_argument(
        "--role",
        metavar="ROLE",
        action="append",
        choices=ROLES if complete else None,
        help=f"with token add: {', '.join(ROLES)}; may be repeated (default read, predict and record)",
    )
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", help="a further name of a server without tokens"
    )
    parser.add_argument("--quiet", action="store_true", help="log no single requests")
