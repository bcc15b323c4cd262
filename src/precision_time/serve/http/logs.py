"""The log of the server: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO


class Log:
    """Writes lines; `requests` says whether each request gets one. Bodies and tokens are never written."""

    def __init__(self, stream: TextIO | None = None, requests: bool = True) -> None:
        self._stream, self.requests = stream, requests

    def write(self, event: str, **values: Any) -> None:
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        line = json.dumps({"time": moment, "event": event, **values}, default=str)
        stream = self._stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):  # a full disk or a closed stream must not stop the answers
            return


class Handler(logging.Handler):
    """Lines of libraries (uvicorn) in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("server", level=record.levelname.lower(), message=record.getMessage())
