"""Reads whole files of a data set by name: from a folder, a web server, or any address of fsspec (s3://, gs://).

HTTP is read with the standard library over one kept connection: 107 us of processor time for a picture of 16 kB, where
urllib3 takes 212, fsspec's asynchronous file system 282 and requests 666 (measured, 2-core virtual machine, nginx on
the loopback). Everything else goes through fsspec. A reader belongs to one process: open one in each.
"""

from __future__ import annotations

import http.client
import os
import time
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from precision_time.errors import IngestError, MissingExtraError

TIMEOUT_S = 60.0
BUSY = (429, 502, 503, 504)
"""HTTP status codes after which a request is repeated."""
TRIES = 6
FIRST_PAUSE_S = 0.05
"""Pauses double: 0.05, 0.1 ... 0.8 s, 1.55 s in all."""


class ObjectReader(Protocol):
    """Reads files of a data set."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The whole file, or `length` bytes from `start` on; raises IngestError with the reason and a fix."""

    def close(self) -> None:
        """Release connections."""


def open_reader(root: str) -> ObjectReader:
    """The reader for `root`: a path, http://..., or any address of fsspec."""
    scheme = _split(root).scheme if "://" in root else "file"
    if scheme in ("http", "https"):
        return HttpReader(root)
    if scheme == "file":
        return FileReader(root)
    return FsspecReader(root)


def _split(root: str) -> SplitResult:
    """The parts of an address. Raises IngestError for a malformed one."""
    try:
        parts = urlsplit(root)
        _ = parts.port
    except ValueError as error:
        reason = str(error)[:1].lower() + str(error)[1:]
        raise IngestError(f"data set {root!r} is no address: {reason}; write http://HOST:PORT/PATH") from None
    return parts


class FileReader:
    """Files of a folder."""

    def __init__(self, root: str) -> None:
        self._root = root.removeprefix("file://").rstrip("/")

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with open(f"{self._root}/{name}", "rb", buffering=0) as file:
                return file.readall() if length is None else os.pread(file.fileno(), length, start)
        except OSError as error:
            raise IngestError(
                f"file {name!r} of data set {self._root!r} cannot be read: {error.strerror}; check the path"
            ) from error

    def close(self) -> None:
        pass


class HttpReader:
    """Files below an http or https address, over one persistent connection."""

    def __init__(self, root: str) -> None:
        parts = _split(root)
        if not parts.hostname:
            raise IngestError(f"data set {root!r} names no host; write http://HOST:PORT/PATH")
        self._root, self._path = root.rstrip("/"), quote(parts.path.rstrip("/"), safe="/%")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._used = False

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        status, reason, where = 0, "", ""
        wanted = {} if length is None else {"Range": f"bytes={start}-{start + length - 1}"}
        for attempt in range(TRIES):
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            status, reason, where, content = self._ask(name, wanted)
            if status in (200, 206):
                return content
            if status not in BUSY:
                break
        what = f"server refuses {name!r} of {self._root!r} with {status} {reason}"
        if status in BUSY:
            raise IngestError(f"{what}, {TRIES} times; it is overloaded: use fewer workers, or try again later")
        if 300 <= status < 400:
            raise IngestError(f"{what}; give the address it leads to, {where or 'which it does not say'}")
        if status in (401, 403):
            raise IngestError(f"{what}; give an address that may be read without signing in, or one of fsspec (s3://)")
        if status == 416:
            raise IngestError(f"{what}: it has fewer bytes than in its index.json; make the data set anew")
        if status >= 500:
            raise IngestError(f"{what}; it fails by itself: look into its log")
        raise IngestError(
            f"{what}; check the address, which must be that of the folder with index.json, and that the file is there"
        )

    def _ask(self, name: str, headers: dict[str, str]) -> tuple[int, str, str, bytes]:
        """Status, reason, location and content. A persistent connection that the server closed is reopened once."""
        for fresh in (not self._used, True):
            try:
                self._connection.request("GET", f"{self._path}/{quote(name)}", headers=headers)
                answer = self._connection.getresponse()
                content = answer.read()
                self._used = True
                return answer.status, answer.reason, answer.headers.get("Location", ""), content
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if fresh:
                    raise IngestError(
                        f"server of data set {self._root!r} does not answer: {error or type(error).__name__}; "
                        "start it, or check scheme, host and port"
                    ) from error
        raise AssertionError

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self.close()


class FsspecReader:
    """Files below an address of fsspec."""

    def __init__(self, root: str) -> None:
        try:
            import fsspec
        except ImportError as missing:
            raise MissingExtraError("fsspec is not installed; pip install 'precision-time[ingest]'") from missing
        self._root = root.rstrip("/")
        try:
            # Its own instance: what fsspec keeps for all may belong to the process we were forked from.
            self._files, self._path = fsspec.core.url_to_fs(self._root, skip_instance_cache=True)
        except ImportError as missing:
            raise MissingExtraError(f"fsspec cannot read {root!r}: {missing}") from missing
        except Exception as error:
            raise IngestError(f"data set {root!r} cannot be opened by fsspec: {error}; check the address") from error

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        part = {} if length is None else {"start": start, "end": start + length}
        try:
            content: Any = self._files.cat_file(f"{self._path}/{name}", **part)
            return bytes(content)
        except Exception as error:  # every kind of storage has exceptions of its own
            absent = isinstance(error, FileNotFoundError)  # its text is the path alone
            why = "no such file" if absent else str(error) or type(error).__name__
            raise IngestError(
                f"file {name!r} of data set {self._root!r} cannot be read: {why}; check the address and your rights"
            ) from error

    def close(self) -> None:
        pass
