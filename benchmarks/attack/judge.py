"""Runs an input in this process under limits, and says whether it was answered, refused, or shows a defect."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.attack.input import Input
from precision_time.cli.main import main
from precision_time.errors import PrecisionTimeError

LIMIT_S = 5.0
"""Of processor time; twelve times as much may pass on the clock, since other processes use the machine too."""
LIMIT_BYTES = 1 << 30
ANSWERED, REFUSED, DEFECT = "answered", "refused", "defect"
_LONGEST_ERROR = 1500


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: str
    reason: str = ""
    seconds: float = 0.0


class _TooLongError(BaseException):
    """Raised by the alarm; no handler of `Exception` in the program catches it."""


def judged(given: Input) -> Verdict:
    """The verdict on one input, run in the current folder."""
    before, start = _resident_bytes(), time.process_time()
    try:
        with _limited():
            verdict = _python(given) if given.call is not None else _command(given)
    except _TooLongError:
        verdict = Verdict(DEFECT, f"takes longer than {LIMIT_S:g} s: {_where(sys.exc_info()[2])}")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        verdict = Verdict(DEFECT, f"{type(error).__name__}: {str(error)[:150]} {_where(error.__traceback__)}")
    seconds, grown = time.process_time() - start, _resident_bytes() - before
    if verdict.outcome != DEFECT and grown > LIMIT_BYTES:
        verdict = Verdict(DEFECT, f"takes {grown / 2**30:.1f} GiB")
    return Verdict(verdict.outcome, verdict.reason, seconds)


def _command(given: Input) -> Verdict:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(list(given.arguments))
    text, error = output.getvalue(), errors.getvalue()
    if "Traceback" in error or "Traceback" in text:
        return Verdict(DEFECT, f"traceback: {error[-300:]}")
    if code == 0:
        return _answer(text, "--json" in given.arguments, given.words(Path.cwd()))
    if code != 2:
        return Verdict(DEFECT, f"exit code {code}: {error[:200]}")
    if text.strip():
        return Verdict(DEFECT, f"an error, and an answer on standard output: {text[:100]!r}")
    return _refusal([line for line in error.split("\n") if line])


def _refusal(lines: list[str]) -> Verdict:
    messages = [line for line in lines if line.startswith("precision-time: error: ")]
    if len(messages) != 1:
        return Verdict(DEFECT, f"{len(messages)} error messages: {lines[:3]}")
    message = messages[0]
    if len(message) > _LONGEST_ERROR:
        return Verdict(DEFECT, f"an error of {len(message)} characters: {message[:100]}")
    if any(not (c.isprintable() or c == "\t") for c in message):
        return Verdict(DEFECT, f"control characters in an error: {message[:200]!r}")
    if "internal error" in message.lower():
        return Verdict(DEFECT, message[:300])
    return Verdict(REFUSED, message)


def _answer(text: str, as_json: bool, given: Collection[str] = ()) -> Verdict:
    if as_json:
        try:
            parsed = json.loads(text, parse_constant=_no_constant)
        except ValueError as error:
            return Verdict(DEFECT, f"--json printed no JSON: {str(error)[:100]}")
        return _numbers(parsed)
    if any(not (c.isprintable() or c in "\n\t") for c in text):
        return Verdict(DEFECT, "control characters on standard output")
    if any(word in text.split() and word not in given for word in ("nan", "inf", "-inf")):
        return Verdict(DEFECT, "nan or inf in the answer")
    return Verdict(ANSWERED)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} in JSON")


def _numbers(parsed: Any) -> Verdict:
    """Every number of an answer is finite and every interval ordered."""
    for value in _walk(parsed):
        if isinstance(value, float) and not math.isfinite(value):
            return Verdict(DEFECT, "a number of the answer is not finite")
        if (
            isinstance(value, dict)
            and {"p10", "p50", "p90"} <= value.keys()
            and not (0 <= value["p10"] <= value["p50"] <= value["p90"])
        ):
            return Verdict(DEFECT, f"an interval is not ordered: {value}")
    return Verdict(ANSWERED)


def _walk(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _walk(inner)


def _python(given: Input) -> Verdict:
    assert given.call is not None
    try:
        return _numbers(given.call())
    except PrecisionTimeError as error:
        return _refusal([f"precision-time: error: {error}"])


@contextmanager
def _limited() -> Iterator[None]:
    """Ends the block after the time limit; warnings are errors."""

    def alarm(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S), (signal.SIGALRM, signal.ITIMER_REAL, 12 * LIMIT_S))
    previous = [signal.signal(number, alarm) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for (number, timer, _), handler in zip(timers, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def import_libraries() -> None:
    """Imports, where they are, the libraries that models are traced with, which takes as long as the time limit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("torch", "torch._dynamo", "torchvision", "transformers.modeling_utils"):
            with suppress(ImportError):
                importlib.import_module(name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def limit_memory(nbytes: int = 8 << 30) -> None:
    """An allocation beyond this much address space fails in this process, instead of taking the machine down."""
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _where(trace: Any) -> str:
    frames = [frame for frame in traceback.extract_tb(trace) if "precision_time" in frame.filename]
    last = frames[-1] if frames else None
    return f"[{last.filename.split('precision_time/')[-1]}:{last.lineno} {last.name}]" if last else ""
