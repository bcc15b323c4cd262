"""Whether the Python code that a job or a file names may run.

A model FILE.py:FUNCTION runs that file when it is traced or trained. A user who names it on the command line or in
Python means to run it; a user who predicts a job file, a table of measured jobs or another program's file does not. So
every job carries a rule that says where its model is from: `Job(...)` and the command line give it `GIVEN`, everything
that reads data a rule that refuses, unless code was allowed (`--allow-code`, `allow_code=True`). `check_code` is called
before such code runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.errors import JobError


@dataclass(frozen=True, slots=True)
class CodeRule:
    """`refused` is the file or mapping that named the code, where it may not run; else "".

    `anything`: code that other data of the job names (its anchors) may run too.
    """

    refused: str = ""
    anything: bool = False


_NAME_IT = "name it on the command line or in Python"

GIVEN = CodeRule()
"""Named on the command line or in Python: it may run."""
ALLOWED = CodeRule(anything=True)
"""Code was allowed, whatever names it."""


def rule_of(place: str, allow_code: bool) -> CodeRule:
    """The rule of what is read from `place`, for example "job file 'job.yaml'"."""
    return ALLOWED if allow_code else CodeRule(place)


MODULE = "module:"
"""Prefix of the model word of a module that a program gave (`capture.given_module`)."""

POSTED = "graph:"
"""Prefix of the model word of a captured graph (`capture.posted_graph`), which is data and never runs."""


def is_code(model: str) -> bool:
    """Whether the model word is a Python file, FILE.py or FILE.py:FUNCTION, or a module of this process."""
    return model.endswith(".py") or ".py:" in model or model.startswith(MODULE)


def check_code(rule: CodeRule, text: str, field: str = "model", fix: str = _NAME_IT) -> None:
    """Raise `JobError` where the rule refuses to run the code `text` of the field; `fix` is a way besides allowing."""
    if rule.refused:
        raise JobError(
            f"{rule.refused}: {field} {text!r} is code, and data runs none by itself; add --allow-code (in Python "
            f"allow_code=True) if you trust it, or {fix}"
        )
