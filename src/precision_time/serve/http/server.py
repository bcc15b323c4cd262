"""The command `serve`: a socket, the processes that predict, and uvicorn between them, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from precision_time.errors import DataError, ServeError, StoreError
from precision_time.serve.http.app import build_app
from precision_time.serve.http.kept_state import EVERY, KeptState
from precision_time.serve.http.logs import Handler, Log
from precision_time.serve.http.pool import Pool
from precision_time.serve.http.service import Service
from precision_time.serve.http.tokens import Tokens
from precision_time.serve.records import Store

PORT = 8750
REFRESH_S = 2.0
"""How often the tokens file and outcomes that other servers got are looked at."""
MOST_CONNECTIONS = 2_000
"""At once; further ones are answered 503 by uvicorn."""
GRACE_S = 30
"""Seconds that in-flight answers may take after a signal."""
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """host, port   address to listen at; port 0: any free one
    workers     processes that predict
    tokens      file of tokens, which may be absent on this machine's own address
    names       further names by which a server without tokens may be reached
    requests    whether each request gets a line in the log
    learned     folder where what was learned outlasts the server; None: nowhere
    """

    host: str = "127.0.0.1"
    port: int = PORT
    workers: int = 2
    tokens: Path | None = None
    names: tuple[str, ...] = ()
    requests: bool = True
    learned: Path | None = None


class _Server(uvicorn.Server):
    """Stops on SIGINT and SIGTERM once answers in flight are sent, and then returns."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_server(
    settings: Settings,
    store: Store,
    log: Log,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` is told the address once requests are answered.

    Raises `ServeError` where the address cannot be listened at, or may not without tokens.
    """
    tokens = Tokens(settings.tokens)
    check_open(settings.host, tokens)
    with _listening(settings.host, settings.port) as listener:
        runner = asyncio.Runner(loop_factory=_loop_factory()) if hasattr(asyncio, "Runner") else None
        serving = _serve(settings, store, (tokens, log), listener, ready)
        if runner is None:
            asyncio.run(serving)
            return
        with runner:
            runner.run(serving)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def check_open(host: str, tokens: Tokens) -> None:
    """Raise `ServeError` for an address that other machines reach, where there are no tokens."""
    if not tokens.needed and not is_local(host):
        raise ServeError(
            f"--host {host} is reached by other machines, and there are no tokens; make one first: precision-time "
            "serve token add NAME --role predict, or leave --host out"
        )


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or str(error)
        raise ServeError(f"--host {host} --port {port} cannot be listened at: {why}; give another address") from None
    try:
        yield listener
    finally:
        listener.close()


async def _serve(
    settings: Settings,
    store: Store,
    around: tuple[Tokens, Log],
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    tokens, log = around
    pool = Pool(settings.workers)
    service = Service(pool, store, None if settings.learned is None else KeptState(settings.learned, store.name))
    refreshing: asyncio.Task[None] | None = None
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [Handler(log)], False
    library.setLevel(logging.WARNING)
    try:
        await pool.start()
        await service.restore()
        await service.learn()
        names = None if tokens.needed else _LOCAL_NAMES | {settings.host.lower(), *map(str.lower, settings.names)}
        app = build_app(service, tokens, log, names)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
        )
        refreshing = asyncio.ensure_future(_refresh(service, tokens, log))
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log.write("listening", address=address, workers=settings.workers, tokens=len(tokens.known))
        ready(address)
        await _Server(config).serve(sockets=[listener])
        await _write_learned(service, log)
        log.write("stopped")
    finally:
        if refreshing is not None:
            refreshing.cancel()
        await pool.close()
        service.close()


async def _write_learned(service: Service, log: Log) -> None:
    """The next server learns everything anew where this fails."""
    try:
        await service.write_learned()
    except DataError as error:
        log.write("learned", detail=str(error))


async def _refresh(service: Service, tokens: Tokens, log: Log) -> None:
    """Follow the tokens file and the store."""
    failing = False
    while True:
        await asyncio.sleep(REFRESH_S)
        try:
            tokens.refresh()
            await service.learn()
            await service.write_learned(EVERY)
            failing = False
        except (ServeError, StoreError, DataError, OSError) as error:
            if not failing:
                log.write("refresh", detail=str(error))
            failing = True
