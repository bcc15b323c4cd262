"""The process that launches one job repeatedly: `python -m` this module, controlled by JSON lines.

It imports the file of a python: job once and forks for every run, so that a measured run does not import torch. It is a
separate process, so that a fork copies no threads or unfinished work of the measuring program. When its input closes
for any reason, it kills the job's process group.

    request:   {"import": [FILE, FUNCTION], "arguments": [NAME ...]}
    answer:    {"ready": true} or {"failed": "TEXT"}
    request:   {"call": {...}} or {"command": TEXT}, with "log", "progress", "pattern", "batch_size"
    answer:    {"pid": N, "at": SECONDS}, later {"code": N, "at": SECONDS}
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from precision_time.child import end_with_parent, outlive_parent, wait_for_group
from precision_time.errors import nearest
from precision_time.ingest.progress import VARIABLE, Progress

POLL_S = 0.01
"""Seconds between checks for the end of the job, and so the resolution of that time."""
_INTERRUPTED = 130
_ANSWERS = 1
"""The file descriptor of the answers."""


def load(file: str, function: str) -> Callable[..., Any]:
    """A function of a Python file, imported under the file's name so that worker processes can import it too."""
    path = Path(file).absolute()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    match = getattr(module, function, None)
    if not callable(match):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise WrongCallError(f"it has no function {function}; nearest: {nearest(function, known) or 'none'}")
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):
            # The first optimizer imports it, which takes as long as torch itself.
            import torch._dynamo  # noqa: F401
    return match  # type: ignore[no-any-return]


def check_call(function: Callable[..., Any], arguments: list[str]) -> None:
    """Raise WrongCallError if the function cannot be called with progress and these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it does not say; the call will
    called = f"{function.__name__}{signature}"
    parameters = list(signature.parameters.values())
    free = [one.name for one in parameters[1:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = [name for name in arguments if name not in free]
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        raise WrongCallError(f"{called} takes no argument {unknown[0]!r} by name; nearest: {nearest(unknown[0], free)}")
    try:
        signature.bind(None, **dict.fromkeys(arguments))
    except TypeError as error:
        raise WrongCallError(f"{called} cannot be called with progress and these arguments: {error}") from None


class WrongCallError(Exception):
    """The file has no such function, or the function does not take the arguments."""


def can_fork() -> bool:
    """Whether forking is safe: a single thread and no CUDA context."""
    loaded = sys.modules.get("torch")
    return threading.active_count() == 1 and not (loaded is not None and loaded.cuda.is_initialized())


def serve() -> None:
    """Answer requests until the input ends."""
    work: tuple[str, str] | None = None
    function: Callable[..., Any] | None = None
    for line in _requests():
        request = json.loads(line)
        if "import" in request:
            work = (request["import"][0], request["import"][1])
            try:
                function = load(*work)
                check_call(function, request.get("arguments", []))
            except WrongCallError as error:
                _say({"failed": str(error)})
                return
            except BaseException as error:
                _say({"failed": _last_line(error)})
                return
            _say({"ready": True})
        else:
            _run(request, function, work)


def _last_line(error: BaseException) -> str:
    """The last line of a traceback, with the file and line where it happened."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # says where itself
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


def _requests() -> Any:
    while line := sys.stdin.readline():
        yield line


def _say(answer: dict[str, Any]) -> None:
    try:
        os.write(_ANSWERS, json.dumps(answer).encode() + b"\n")
    except OSError:
        os._exit(1)  # nobody listens any more


def _run(request: dict[str, Any], function: Callable[..., Any] | None, work: tuple[str, str] | None) -> None:
    """Start the job, report its start, wait for it to end, and report its end."""
    parent = os.getppid()
    outlive_parent()  # to kill the job's group first
    at = time.monotonic()
    pipe = None
    if "call" in request and function is not None and can_fork():
        pid = _fork(request, function)
    else:
        command = request.get("command") or _as_command(request, work)
        pid, pipe = _command(command, request)
    _say({"pid": pid, "at": at})
    reader = None
    if pipe is not None:
        reader = threading.Thread(target=_read_log, args=(pipe, request), daemon=True)
        reader.start()
    code = wait_for_group(pid, POLL_S)
    ended = time.monotonic()
    if reader is not None:
        reader.join(2.0)
    _say({"code": code, "at": ended})
    end_with_parent(parent)


def _fork(request: dict[str, Any], function: Callable[..., Any]) -> int:
    host = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(host)
        os.setsid()
        os.close(_ANSWERS)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ[VARIABLE] = request["progress"]
        with Progress(request["progress"]) as progress:
            function(progress, **request["call"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _as_command(request: dict[str, Any], work: tuple[str, str] | None) -> list[str]:
    """The same call in a new interpreter, where a fork is not safe."""
    return [sys.executable, "-m", "precision_time.ingest.stagger.host", json.dumps([work, request["call"]])]


def _command(command: str | list[str], request: dict[str, Any]) -> tuple[int, Any]:
    environment = {**os.environ, VARIABLE: request["progress"], "PYTHONUNBUFFERED": "1"}
    with open(request["log"], "ab") as log:
        process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if request.get("pattern") else log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            # where this is the only thread: elsewhere a fork may copy a lock that another one holds
            preexec_fn=partial(end_with_parent, os.getpid()) if threading.active_count() == 1 else None,
        )
    process.returncode = 0  # we wait for it ourselves
    return process.pid, process.stdout


def _read_log(pipe: Any, request: dict[str, Any]) -> None:
    """Copy the job's output to its log, and write progress for matching lines with the time of their arrival."""
    counter = Counter(request["pattern"], request.get("batch_size"))
    rest = b""
    with open(request["log"], "ab", buffering=0) as log, Progress(request["progress"]) as progress:
        while data := os.read(pipe.fileno(), 1 << 16):
            log.write(data)
            *lines, rest = re.split(rb"[\r\n]", rest + data)
            for line in lines:
                if more := counter(line.decode(errors="replace")):
                    progress(more)


class Counter:
    """Samples that a log line adds. `samples` and `batch` count up and may restart with every epoch."""

    def __init__(self, pattern: str, batch_size: int | None = None) -> None:
        self._pattern = re.compile(pattern)
        self._group = next(name for name in ("samples", "batch", "more") if name in self._pattern.groupindex)
        self._each = (batch_size or 1) if self._group == "batch" else 1
        self._last = 0

    def __call__(self, line: str) -> int:
        match = self._pattern.search(line)
        if not match:
            return 0
        try:
            value = int(float(match[self._group].replace(",", "").replace("_", "")))
        except ValueError:
            return 0
        if self._group == "more":
            return value
        more = value - self._last if value >= self._last else value
        self._last = value
        return more * self._each


def main() -> None:
    """Serve, or make the one call that is given as an argument."""
    if len(sys.argv) > 1:
        work, arguments = json.loads(sys.argv[1])
        with Progress.from_environment() as progress:
            load(*work)(progress, **arguments)
    else:
        # What a file prints when it is imported must not come between the answers.
        global _ANSWERS
        _ANSWERS = os.dup(1)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        serve()


if __name__ == "__main__":
    main()
