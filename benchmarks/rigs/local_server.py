"""A real object server on the loopback with a really limited throughput: nginx, unprivileged, in a folder of its own.

The limits are nginx's own. `requests_per_s` is one leaky bucket for all connections together (`limit_req` with a
constant key): a request that comes too early waits its turn and is not refused, and what was not asked for in time is
not saved up. Files of nearly one size make it a limit of bytes per second too.
`stream_requests_per_s` is such a bucket for each connection; nginx's `limit_rate`, in bytes, does nothing to files that
weigh less than a second's share. Latency is left out: nginx cannot add it without modules that are not in every
distribution, and a delayed loopback device would delay all programs of the machine. A bucket is not latency: a reader
that does something else between two reads finds its next turn already there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from precision_time.errors import IngestError

START_S = 10.0
"""A server that does not answer after so long will not."""
TRIES = 5
"""A port that is free when it is asked for may be taken a moment later."""
STATUS = "/nginx-status"

# `master_process off` makes it one process with the rights of whoever starts it, and no `user` is needed.
# 2^30 requests of one connection: a reader keeps its connection.
_CONFIG = """\
daemon off;
master_process off;
pid {home}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  tcp_nodelay on;
  keepalive_timeout 3600s;
  keepalive_requests 1073741824;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  default_type application/octet-stream;
  {zones}
  server {{
    listen 127.0.0.1:{port};
    location = {status} {{ stub_status; }}
    location / {{
      root "{root}";
      {limits}
    }}
  }}
}}
"""

# The shell waits on a pipe that only we hold: if we die in whatever way, it closes, and the server is ended.
_GUARD = 'exec 3<&0; "$@" </dev/null 3<&- & server=$!; read _ <&3; kill -TERM $server; wait $server'


class LocalServer:
    """`with LocalServer(folder, requests_per_s=200) as server: ... server.url`; gone when the block ends.

    `waiting` is how many requests may wait their turn before nginx refuses with 503. `port` is chosen, where it is left
    out.
    """

    def __init__(
        self,
        folder: str | Path,
        requests_per_s: float | None = None,
        stream_requests_per_s: float | None = None,
        waiting: int = 10_000,
        port: int | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise IngestError(f"folder {str(folder)!r} to serve does not exist; make pictures there first")
        if any(character in str(self.folder) for character in '"\\$\n'):
            raise IngestError(f"folder {str(folder)!r} cannot be written in nginx's configuration; choose another name")
        for word, value in (("requests_per_s", requests_per_s), ("stream_requests_per_s", stream_requests_per_s)):
            if value is not None and value < 1:
                raise IngestError(f"{word} of the server is {value:g}; give at least 1, or leave it out")
        self.requests_per_s, self.stream_requests_per_s, self.waiting = requests_per_s, stream_requests_per_s, waiting
        self.port = port
        self._nginx = nginx_path()
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> LocalServer:
        for attempt in range(TRIES):
            try:
                self._start()
                return self
            except IngestError as error:
                self._stop()
                if attempt == TRIES - 1 or "in use" not in str(error):
                    raise
            except BaseException:
                self._stop()
                raise
        raise AssertionError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def requests(self) -> int:
        """Requests served so far, without those for this number."""
        self._status_requests += 1
        with urllib.request.urlopen(f"{self._base}{STATUS}", timeout=START_S) as response:
            numbers = response.read().decode().split("requests")[1].split()
        return int(numbers[2]) - self._status_requests

    @property
    def pid(self) -> int | None:
        """Of the shell whose one child is nginx; None while it does not run."""
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="precision-time-nginx-")
        port = self.port or _free_port()
        config = Path(self._home.name) / "nginx.conf"
        config.write_text(self._config(port))
        command = [self._nginx, "-p", self._home.name, "-e", "stderr", "-c", str(config)]
        self._log = open(Path(self._home.name) / "errors", "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,  # an interrupt from the keyboard is ours to handle; and both end together
        )
        self._base = self.url = f"http://127.0.0.1:{port}"
        self._status_requests = 0
        self._await()

    def _await(self) -> None:
        assert self._process is not None
        assert self._home is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            text = (Path(self._home.name) / "errors").read_text(errors="replace").strip()
            if text:  # nginx writes there only what keeps it from serving
                raise IngestError(f"nginx does not start: {text.splitlines()[0]}; try it by hand with nginx -t")
            try:
                self._status_requests += 1
                with urllib.request.urlopen(f"{self._base}{STATUS}", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                self._status_requests -= 1
                time.sleep(0.01)
        raise IngestError(f"nginx has not answered on {self._base} after {START_S:g} s; try it by hand with nginx -t")

    def _config(self, port: int) -> str:
        zones: list[str] = []
        limits: list[str] = []
        queue = f" burst={self.waiting}" if self.waiting else ""
        if self.requests_per_s is not None:
            # nginx reads whole numbers per second or per minute.
            zones.append(f'limit_req_zone "all" zone=all:64k rate={_rate(self.requests_per_s)};')
            limits.append(f"limit_req zone=all{queue};")
        if self.stream_requests_per_s is not None:
            zones.append(f"limit_req_zone $connection zone=stream:1m rate={_rate(self.stream_requests_per_s)};")
            limits.append(f"limit_req zone=stream{queue};")
        return _CONFIG.format(
            home=self._home.name if self._home else "",
            zones=" ".join(zones),
            port=port,
            status=STATUS,
            root=self.folder,
            limits=" ".join(limits),
        )

    def _stop(self) -> None:
        """End the shell, and wait until shell and server are gone."""
        if self._process is not None:
            assert self._process.stdin is not None
            # A word ends it too: a forked process, a loader's worker say, may hold the pipe open beside us.
            with suppress(BrokenPipeError):
                self._process.stdin.write(b"end\n")
                self._process.stdin.close()
            try:
                self._process.wait(timeout=START_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
            self._log.close()
        if self._home is not None:
            self._home.cleanup()
            self._home = None


def nginx_path() -> str:
    """Where nginx is; `IngestError` that says how to install it."""
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    if path is None:
        raise IngestError("nginx is not installed; install it from your distribution (apt-get install nginx-light)")
    return path


def _rate(per_s: float) -> str:
    return f"{round(per_s)}r/s" if per_s >= 30 else f"{round(per_s * 60)}r/m"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
