"""Bearer tokens with roles. The file keeps a salted hash of each; the token itself is shown once, when it is made.

A token is `pt_NAME_SECRET`, its secret 32 bytes from the system's random numbers. Such a secret cannot be guessed or
found in a table, so that one keyed BLAKE2 with a salt of its own is as safe at rest as a slow hash, and costs
microseconds for each request. Without a file there are no tokens: everybody who reaches the server may do everything,
which `server` allows on this machine alone.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError, ServeError, nearest
from precision_time.reading import parse_json, read_text
from precision_time.report.write import write_whole
from precision_time.serve.http.problems import ProblemError

ROLES = ("read", "predict", "record", "admin")
NAME = re.compile(r"[a-z0-9-]{1,40}")
_TOKEN = re.compile(r"pt_([a-z0-9-]{1,40})_([A-Za-z0-9_-]{43})")
_NO_SALT, _NO_HASH = bytes(16), bytes(32)
_SHOWN = "Authorization: Bearer pt_..."


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the file keeps it."""

    name: str
    roles: tuple[str, ...]
    salt: bytes
    digest: bytes
    made: str

    def may(self, role: str) -> bool:
        return role in self.roles or "admin" in self.roles


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=32, salt=salt, person=b"precision-time").digest()


class Tokens:
    """The tokens of a server. `path` None, or a file that is not there: none, and every request may do everything."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._state: tuple[int, int] | None = None
        self._tokens: Mapping[str, Token] = {}
        self.refresh()

    @property
    def needed(self) -> bool:
        """Whether requests need a token."""
        return self._state is not None

    @property
    def known(self) -> Sequence[Token]:
        return tuple(self._tokens.values())

    def refresh(self) -> None:
        """Read the file again where it has changed. A file that is gone leaves the server closed, not open."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._tokens = {}
            return
        state = found.st_mtime_ns, found.st_size
        if state != self._state:
            self._tokens, self._state = _read(self._path), state

    def check(self, header: str | None, role: str) -> str | None:
        """The name of the token in an `Authorization` header, if it has the role; None where none is needed.

        Raises `ProblemError` 401 or 403.
        """
        if not role or not self.needed:
            return None
        scheme, _, given = (header or "").partition(" ")
        found = _TOKEN.fullmatch(given.strip())
        if scheme.lower() != "bearer" or found is None:
            raise ProblemError(401, f"this route needs a token with the role {role}; send {_SHOWN}")
        token = self._tokens.get(found[1])
        salt, digest = (token.salt, token.digest) if token else (_NO_SALT, _NO_HASH)
        same = hmac.compare_digest(_digest(found[2], salt), digest)
        if token is None or not same:
            raise ProblemError(401, "the token is not known to this server; ask for another one")
        if not token.may(role):
            raise ProblemError(403, f"token {token.name} has the roles {', '.join(token.roles)}, and this needs {role}")
        return token.name


def add_token(path: Path, name: str, roles: Sequence[str], today: str) -> str:
    """Make a token and keep its hash; returns the token, which nothing else shows again."""
    if not NAME.fullmatch(name):
        raise ServeError(f"token name {show(name)} is not allowed; use up to 40 small letters, digits and hyphens")
    for role in roles:
        if role not in ROLES:
            raise ServeError(f"role {show(role)} is unknown; nearest: {nearest(role, ROLES)}; use {', '.join(ROLES)}")
    tokens = dict(_read(path)) if path.exists() else {}
    if name in tokens:
        raise ServeError(f"token {name} exists already; remove it first, or take another name")
    secret, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
    tokens[name] = Token(name, tuple(dict.fromkeys(roles)), salt, _digest(secret, salt), today)
    _write(path, tokens)
    return f"pt_{name}_{secret}"


def remove_token(path: Path, name: str) -> None:
    """Forget a token. The last one leaves an empty file, so that the server stays closed."""
    tokens = dict(_read(path)) if path.exists() else {}
    if name not in tokens:
        raise ServeError(f"there is no token {show(name)}; nearest: {nearest(name, tokens) or 'none'}")
    del tokens[name]
    _write(path, tokens)


def list_tokens(path: Path) -> Sequence[Token]:
    """The tokens in a file, by name."""
    return [token for _, token in sorted(_read(path).items())] if path.exists() else []


def _read(path: Path) -> dict[str, Token]:
    content = parse_json(read_text(path, "tokens file"), f"tokens file {str(path)!r}")
    try:
        return {
            name: Token(
                name, tuple(each["roles"]), bytes.fromhex(each["salt"]), bytes.fromhex(each["digest"]), each["made"]
            )
            for name, each in content["tokens"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"tokens file {str(path)!r} is damaged; restore it, or remove it and make new tokens") from None


def _write(path: Path, tokens: Mapping[str, Token]) -> None:
    kept: dict[str, Any] = {
        name: {
            "roles": list(token.roles), "salt": token.salt.hex(), "digest": token.digest.hex(), "made": token.made
        }
        for name, token in sorted(tokens.items())
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(str(path), json.dumps({"tokens": kept}, indent=2) + "\n")
    os.chmod(path, 0o600)
