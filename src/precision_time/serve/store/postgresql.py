"""PostgreSQL, for a team: several servers on one database, through psycopg.

Settings are made in each transaction, not in each session, so that they also hold behind a pooler such as PgBouncer.
`synchronous_commit` is switched on: a commit returns when it is on the disk of the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precision_time.errors import MissingExtraError, StoreError
from precision_time.serve.store.dialect import SNAPSHOT, STATEMENT_S, TIMEOUT_S, WRITE, Fault

try:
    import psycopg
except ImportError:
    psycopg = None  # type: ignore[assignment]

_NUMBERS_LOCK = 5_784_019_001_146_329_427
"""Key of the advisory lock under which outcomes get their numbers; any number that no other program uses."""
_SETTINGS = (
    f"SET LOCAL statement_timeout = {STATEMENT_S * 1000:.0f}; SET LOCAL lock_timeout = {TIMEOUT_S * 1000:.0f}; "
    f"SET LOCAL idle_in_transaction_session_timeout = {STATEMENT_S * 1000:.0f}; SET LOCAL synchronous_commit = on"
)
_CONNECTION = {
    "connect_timeout": int(TIMEOUT_S), "application_name": "precision-time", "keepalives_idle": 30,
    "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": int(2000 * TIMEOUT_S),
}  # fmt: skip
"""Settings of a connection where its address has none (milliseconds for `tcp_user_timeout`, else seconds)."""
_AGAIN = "the next call tries again"
_FAULTS = (
    ("53100", "the disk of the server is full", f"free some space there; {_AGAIN}"),
    ("53300", "the server has no connection left", f"raise max_connections, or run fewer workers; {_AGAIN}"),
    ("25006", "the server is read-only", "name the primary server, not a standby"),
    ("0A000", "the server is read-only", "name the primary server, not a standby"),  # to BEGIN READ WRITE in recovery
    ("57014", f"a statement took more than {STATEMENT_S:.0f} s", f"see what the server is busy with; {_AGAIN}"),
    ("55P03", "another transaction holds a lock", f"see what the server is busy with; {_AGAIN}"),
    ("3D000", "there is no such database", "make it with createdb"),
    ("28", "the server refused the user or the password", "correct the address"),
    ("42501", "the user may not use these tables", "grant it the schema"),
    ("42P07", "it has tables of these names that another program made", "give the store a database of its own"),
    ("XX00", "the database is damaged", "restore a backup with `precision-time store restore`"),
)
"""Beginning of an SQLSTATE (PostgreSQL's appendix A), what it means and what to do."""


class PostgreSql:
    """The database at `address`, a URI or connection string of libpq."""

    types: Mapping[str, str] = {"number": "BIGINT", "real": "DOUBLE PRECISION", "id": 'TEXT COLLATE "C"'}
    forks = True

    def __init__(self, address: str) -> None:
        if psycopg is None:
            raise MissingExtraError("a PostgreSQL store needs psycopg: pip install 'precision-time[postgresql]'")
        self.errors: tuple[type[BaseException], ...] = (psycopg.Error, OverflowError, UnicodeError)
        try:
            given = psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.ProgrammingError:  # its text quotes the address, and with it the password
            raise StoreError(
                "the address of the PostgreSQL store cannot be read; write postgresql://USER:PASSWORD@HOST/DATABASE"
            ) from None
        self._given: dict[str, Any] = {**_CONNECTION, **given}
        self._statements: dict[str, str] = {}
        place = f" on {given['host']}" if given.get("host") else ""
        self.name = f"PostgreSQL store {str(given.get('dbname') or given.get('user') or 'of this user')!r}{place}"

    def connect(self) -> Any:
        return psycopg.connect(**self._given, autocommit=True, prepare_threshold=None)

    def usable(self, connection: Any) -> bool:
        return not connection.closed

    def begin(self, connection: Any, kind: str) -> None:
        level = "REPEATABLE READ" if kind == SNAPSHOT else "READ COMMITTED"
        access = "WRITE" if kind == WRITE else "ONLY"
        connection.execute(f"BEGIN ISOLATION LEVEL {level} READ {access}; {_SETTINGS}")

    def commit(self, connection: Any) -> None:
        """Also raises where the server answers a commit with a rollback."""
        if connection.execute("COMMIT").statusmessage != "COMMIT":
            raise psycopg.OperationalError("the transaction was rolled back")

    def end(self, connection: Any) -> None:
        """Nothing is kept."""

    def execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        own = self._statements.get(statement)
        if own is None:
            own = self._statements[statement] = statement.replace("%", "%%").replace("?", "%s")
        return connection.execute(own, values) if values else connection.execute(statement)

    def number_outcomes(self, connection: Any) -> None:
        """The lock ends after the transaction has become visible to others, so they see its numbers."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_NUMBERS_LOCK,))

    def tables(self, connection: Any) -> set[str]:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        return {name for (name,) in found}

    def guards(self, table: str) -> Sequence[str]:
        return (
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$",
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()",
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
        )

    def fault(self, error: BaseException) -> Fault:
        state = getattr(error, "sqlstate", None) or ""
        for beginning, meaning, fix in _FAULTS:
            if state.startswith(beginning):
                return Fault(meaning, fix)
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, psycopg.OperationalError) and (not state or state[:2] in ("08", "57")):
            return Fault(f"the server cannot be reached ({said})", f"see that it runs; {_AGAIN}", lost=True)
        return Fault(f"the server says: {said}", _AGAIN)
