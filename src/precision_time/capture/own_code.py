"""Runs code of the user: what it raises becomes a `CaptureError`, and what it changes in this process is put back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Generator
from pathlib import Path

from precision_time.errors import CaptureError, Interrupted, PrecisionTimeError

_PACKAGE = str(Path(__file__).parents[1])


@contextlib.contextmanager
def own_code(model: str) -> Generator[None, None, None]:
    """Run code of the file of `model` in the block.

    `sys.exit()`, recursion without end and every other exception become a `CaptureError` that says what happened and
    where; Ctrl-C stays one. The current folder, the standard streams, torch's default dtype and its gradient mode are
    what they were.
    """
    import torch

    folder, dtype, gradients = os.getcwd(), torch.get_default_dtype(), torch.is_grad_enabled()
    streams = sys.stdout, sys.stderr
    try:
        yield
    except (PrecisionTimeError, Interrupted):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _may_be_ctrl_c():
            raise
        raise CaptureError(f"{model} {_what(error)}{where(error)}; correct the file") from error
    finally:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.stdout, sys.stderr = streams
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)


def _may_be_ctrl_c() -> bool:
    """Whether SIGINT raises KeyboardInterrupt: the command line raises `Interrupted`, worker processes block it."""
    if hasattr(signal, "pthread_sigmask") and signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _what(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    if isinstance(error, RecursionError):
        return "calls itself without end (RecursionError)"
    try:
        text = " ".join(str(error).split())
    except BaseException:
        text = "its message cannot be read"
    return f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"


def where(error: BaseException) -> str:
    """The last line outside of this package and of torch that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        each
        for each in frames
        if not each.filename.startswith((_PACKAGE, "<")) and "site-packages" not in each.filename
    ]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
