"""A process of this package that ends with the process that started it.

`python -m precision_time.child PARENT MODULE [ARGUMENT ...]` runs a module so, `... PARENT --command TEXT` a shell
command. A parent that is killed (kill -9, out of memory) cannot end its children, which would go on measuring or
training. On Linux the kernel kills them then; elsewhere a thread looks twice a second whether the parent is there.
A child that starts programs of the user runs them in a process group, which it kills when its standard input closes:
the parent holds the other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2). The signal also comes when the thread that started the child ends: who starts a child
waits for it in the same thread."""
_LOOK_S = 0.5
_LINUX = sys.platform.startswith("linux")


def end_with_parent(parent: int) -> None:
    """From now on kill this process when process `parent`, which started it, ends for whatever reason."""
    if _LINUX:
        _set_death_signal(signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def outlive_parent() -> None:
    """Undo `end_with_parent` on Linux, for a process that ends others before itself when its parent is gone."""
    if _LINUX:
        _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches every process of a terminal; only the parent, which then ends its children, acts on it.

    A handler that does nothing, because programs that this process starts would inherit an ignored signal.
    """
    signal.signal(signal.SIGINT, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def wait_for_group(leader: int, poll_s: float = 0.01) -> int:
    """Wait for a process that leads a group, and kill what it left there; its exit code, negative for a signal.

    Kills the group and ends this process when the standard input closes. Looks every `poll_s` seconds.
    """
    while True:
        if hasattr(os, "waitid"):
            # Looks without reaping, so that the group's number is not given to another yet.
            if os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                kill_group(leader)
                return os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
        else:  # macOS before Python 3.13
            done, status = os.waitpid(leader, os.WNOHANG)
            if done:
                kill_group(leader)
                return os.waitstatus_to_exitcode(status)
        if _input_closed(poll_s):
            kill_group(leader)
            os._exit(1)


def _input_closed(seconds: float) -> bool:
    """Wait so long; return whether the standard input has closed."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1 << 16)


def kill_group(leader: int) -> None:
    """Kill all processes of the group that this process leads or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _run_command(text: str) -> int:
    outlive_parent()  # to kill the group first
    process = subprocess.Popen(text, shell=True, stdin=subprocess.DEVNULL, start_new_session=True)
    return wait_for_group(process.pid)


def main() -> None:
    end_with_parent(int(sys.argv[1]))
    leave_interrupts_to_parent()
    if sys.argv[2] == "--command":
        code = _run_command(sys.argv[3])
        os._exit(code if code >= 0 else 128 - code)
    module = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
