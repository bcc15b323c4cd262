"""The facts of a script: of its trainers, then of its loops."""

from __future__ import annotations

import ast

from precision_time.job.scripts import loops, trainers
from precision_time.job.scripts.facts import Facts, Reading
from precision_time.job.scripts.script import Script
from precision_time.job.scripts.values import Values

WANTED = ("batch_size", "precision", "optimizer")
"""Fields that every training has, so that their absence is said."""


def facts_of(script: Script) -> Facts:
    """The facts of a script and of the files beside it; those of the script itself come first."""
    facts = Facts()
    for file in script.files():
        values = Values(file)
        reading = Reading(file, values, values.calls(), facts, script)
        if file is script:
            trainers.read(reading)
        loops.read(reading)
        for call in reading.named("exec"):
            facts.note(f"{reading.place(call, ast.unparse(call.node)[:60])} may change settings")
        for question, place in values.assumed.items():
            facts.note(f"{place}: {question} is taken as true, as on GPUs since Ampere")
    for name in WANTED:
        if name not in facts.fields:
            facts.missing.setdefault(name, "no line says it")
    return facts
