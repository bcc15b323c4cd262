"""A process that predicts: `python -m precision_time.child PARENT precision_time.serve.http.worker`.

It reads questions from standard input and writes answers to standard output, each a length of four bytes and JSON:

    {"ask": "predict", "job": {...}, ...}  ->  {"answer": {...}} or {"problem": {...}}

It has no torch, so that nothing is traced and no library of models is imported; its memory is limited beyond what it
holds after its first predictions; standard output belongs to the answers alone. The first answer, to nothing, says that
it is ready.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from precision_time.errors import InternalError, MissingExtraError, PrecisionTimeError
from precision_time.reading import to_json
from precision_time.serve.http.limits import MEMORY_BYTES

HEAD = struct.Struct(">I")
_WARM = (
    {"model": "resnet50", "precision": "amp-fp16", "run": {"epochs": 1}},
    {"model": "bert-large", "precision": "amp-bf16", "gpus": 8, "layout": "fsdp"},
    {"model": "llama3.1-8b", "precision": "bf16", "gpus": 16, "layout": "tp=4,pp=2"},
)
"""Jobs whose predictions load the shipped tables, so that no request waits for them."""
_NO_TORCH = (
    "this job is not shipped and has to be traced with PyTorch, which a server does not run; capture it on your "
    "machine (precision-time capture) and post the graph"
)


def main() -> None:
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to the log
    for name in ("torch", "torchvision", "timm", "transformers", "pandas", "matplotlib"):
        sys.modules[name] = None  # type: ignore[assignment]
    _warm()
    limit_memory(MEMORY_BYTES)
    _write(answers, {"answer": {"pid": os.getpid()}})
    while True:
        head = questions.read(HEAD.size)
        if len(head) < HEAD.size:
            return
        reply = answered(questions.read(HEAD.unpack(head)[0]))
        _write(answers, reply)
        if "ends" in reply:
            os._exit(3)


def _warm() -> None:
    from precision_time.serve.http.answers import ANSWERS

    for job in _WARM:
        ANSWERS["predict"]({"job": job})


def answered(question: bytes) -> dict[str, Any]:
    """The reply to a question; with `ends` where this process should answer no other one."""
    import json

    from precision_time.serve.http.answers import ANSWERS
    from precision_time.serve.http.problems import ProblemError, problem_of

    asked: Mapping[str, Any] = json.loads(question)
    try:
        return {"answer": ANSWERS[asked["ask"]](asked)}
    except MissingExtraError:
        problem = ProblemError(422, _NO_TORCH, field="model")
    except InternalError as error:
        problem = ProblemError(500, f"the estimate contradicts itself, which is a defect: {str(error)[:2000]}")
    except PrecisionTimeError as error:
        problem = problem_of(error)
    except MemoryError:
        size = MEMORY_BYTES >> 20
        problem = ProblemError(422, f"this job needs more than {size} MB to be predicted; take a smaller one")
        return {"problem": problem.to_dict(), "ends": True}
    except Exception as error:
        if "graph" in asked:
            what = f"{type(error).__name__}: {str(error)[:200]}"
            malformed = ProblemError(422, f"graph cannot be predicted ({what}); capture the model again", field="graph")
            return {"problem": malformed.to_dict()}
        import traceback

        sys.stderr.write(traceback.format_exc())
        problem = ProblemError(
            500, f"the prediction failed ({type(error).__name__}), which is a defect; please report it"
        )
        return {"problem": problem.to_dict(), "ends": True}
    return {"problem": problem.to_dict()}


def limit_memory(nbytes: int) -> None:
    """From now on this process may take so many bytes more; a larger request for memory is a `MemoryError`."""
    try:
        import resource

        with open("/proc/self/status", encoding="ascii") as lines:
            held = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = held + nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
    except (ImportError, OSError, StopIteration, ValueError):  # not Linux: the time limit alone holds
        return


def _write(answers: BinaryIO, reply: Mapping[str, Any]) -> None:
    text = to_json(reply).encode()
    answers.write(HEAD.pack(len(text)) + text)
    answers.flush()


if __name__ == "__main__":
    main()
