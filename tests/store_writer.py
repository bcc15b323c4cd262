"""Processes that write to a store as fast as they can, and say what was acknowledged; tests kill them.

Reads one line of JSON for each round: {"target", "round", "retry": [keys], "processes"}. Prints, each as one line, the
ids of the processes that it starts, what they begin ("begin KEY") and what was acknowledged ("kept KEY ID"), and "over"
once all of them are gone. `retry` are keys of which it is not known whether they were kept. A process tries a key
again until it is acknowledged.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from precision_time.errors import StoreError
from precision_time.serve.store import SqlStore, open_store
from store_cases import outcome, prediction

THREADS = 2


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # one write: lines of several processes do not mix


def write(store: SqlStore, keys: Iterator[str]) -> None:
    for key in keys:
        say(f"begin {key}")
        while True:
            try:
                kept = store.add_prediction(prediction(key=key, job={"text": "x" * (hash(key) % 3000)}))
                store.add_outcome(outcome(kept, key=key))
            except StoreError as error:
                say(f"failed {' '.join(str(error).split())}")
                time.sleep(0.01)
                continue
            break
        say(f"kept {key} {kept.id}")


def run(given: dict[str, Any], process: int) -> None:
    store = open_store(given["target"], check=False)
    retry = given["retry"][process :: given["processes"]]
    threads = []
    for number in range(THREADS):
        name = f"{given['round']}-{process}-{number}"
        keys = itertools.chain(retry[number::THREADS], (f"{name}-{count}" for count in itertools.count()))
        threads.append(threading.Thread(target=write, args=(store, keys)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def main() -> None:
    for line in sys.stdin:
        given = json.loads(line)
        children = []
        for process in range(given["processes"]):
            child = os.fork()
            if child == 0:
                try:
                    run(given, process)
                finally:
                    os._exit(1)
            children.append(child)
            say(f"process {child}")
        for child in children:
            os.waitpid(child, 0)
        say("over")


if __name__ == "__main__":
    main()
