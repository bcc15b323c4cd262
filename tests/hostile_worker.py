"""A worker process whose answers are what a pool has to survive; started by `test_serve_pool`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from precision_time.serve.http import answers, worker


def predict(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the field `do` says, in the midst of a prediction."""
    do = asked.get("do")
    if do == "spin":
        while True:
            pass
    if do == "sleep":
        time.sleep(asked["seconds"])
    if do == "die":
        os._exit(1)
    if do == "take":
        held = bytearray(asked["bytes"])
        return {"held": len(held)}
    if do == "fail":
        raise RuntimeError("a defect")
    if do == "print":
        print("not an answer")
    return {"pid": os.getpid(), "do": do}


if __name__ == "__main__":
    answers.ANSWERS = {"predict": predict, "compare": predict, "plan": predict}  # type: ignore[assignment]
    worker.main()
