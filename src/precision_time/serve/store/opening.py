"""Which store a path or an address means."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import unquote

from precision_time.checks import show
from precision_time.errors import StoreError
from precision_time.serve.store.dialect import Dialect
from precision_time.serve.store.sql_store import SqlStore

FILE = "store.db"


def default_path() -> Path:
    """The file in the user's data directory: $XDG_DATA_HOME, else ~/.local/share, Application Support on macOS."""
    given = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(given):  # others are to be ignored, as the specification says
        base = Path(given)
    else:
        try:
            home = Path.home()
        except RuntimeError:
            raise StoreError("this user has no home directory for a store; name a file with --database") from None
        base = home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share")
    return base / "precision-time" / FILE


def open_store(target: str | Path | None = None, *, check: bool = True) -> SqlStore:
    """The store at a path, at `sqlite:///PATH` or `postgresql://...`; by default in the user's data directory.

    The database is made, or brought to the present version, at the first call that reaches it: with `check`, here.
    Raises `StoreError` where it cannot be, `MissingExtraError` where psycopg is missing.
    """
    store = SqlStore(_dialect(target))
    if check:
        try:
            store.check()
        except BaseException:
            store.close()
            raise
    return store


def _dialect(target: str | Path | None) -> Dialect:
    from precision_time.serve.store.sqlite import Sqlite

    if target is None:
        path = default_path()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StoreError(
                f"folder {str(path.parent)!r} cannot be made: {reason}; name a file with --database"
            ) from None
        return Sqlite(path)
    text = os.fspath(target)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text.strip() or "\0" in text:
            raise StoreError(f"store {show(text)} is no path; name a file, or leave it out for the usual one")
        if text == ":memory:":  # of SQLite's databases that end with their process
            raise StoreError("store ':memory:' keeps nothing; name a file, or leave it out for the usual one")
        return Sqlite(text)
    if scheme in ("postgresql", "postgres"):
        from precision_time.serve.store.postgresql import PostgreSql

        return PostgreSql(text)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(unquote(rest[1:]))
    raise StoreError(
        f"store {show(scheme + '://...')} is of an unknown kind; give a path, sqlite:///PATH or "
        "postgresql://USER:PASSWORD@HOST/DATABASE"
    )
