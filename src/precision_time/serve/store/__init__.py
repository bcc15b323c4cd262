"""The store of predictions and outcomes, in SQLite or PostgreSQL.

    opening         `open_store`: by path or by address
    sql_store       `SqlStore`, whose SQL is the same for both
    dialect         what differs between them: sqlite, postgresql
    schema          the tables, by version
    rows            records as rows, checked
    transactions    connections, transactions, several writes in one
    ids             ids that sort by time
    archive         backup and restore, also from one kind of database to the other

What `add_prediction` and `add_outcome` have returned is on the disk. Rows are never changed or deleted, which triggers
in the database enforce.
"""

from precision_time.serve.store.archive import back_up, check_backup, restore
from precision_time.serve.store.ids import made_at, new_id
from precision_time.serve.store.opening import default_path, open_store
from precision_time.serve.store.sql_store import SqlStore

__all__ = ["SqlStore", "back_up", "check_backup", "default_path", "made_at", "new_id", "open_store", "restore"]
