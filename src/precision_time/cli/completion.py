"""Completion scripts of shells: flags and their choices by shtab, names of models and GPUs from the catalogs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from precision_time.cli.arguments import FILE_FLAGS
from precision_time.cli.parser import UsageError, build_parser

_MODELS, _LISTS = "_precision_time_models", {"gpu": "_precision_time_gpus", "precision": "_precision_time_precisions"}
_WITH_MODELS = frozenset({"predict", "compare", "plan", "layouts", "walltime", "calibrate", "measure", "verify"})
"""Commands whose first argument is a model or a file."""

# Several values of a flag have commas between them: the last one is completed.
_BASH = (
    """{function}() {{
  compgen -W "{names}" -- "$1"
  compgen -f -- "$1"
}}
""",
    """{function}() {{
  local before=""
  [[ $1 == *,* ]] && before="${{1%,*}},"
  compgen -P "$before" -W "{names}" -- "${{1##*,}}"
}}
""",
)
_ZSH = (
    """{function}() {{
  compadd -- {names}
  _files
}}
""",
    """{function}() {{
  compset -P '*,'
  compadd -- {names}
}}
""",
)
"""Functions that complete a model or a file, and one of several names."""


def completion(shell: str) -> str:
    """The completion script of a shell. Raises `UsageError` where the installed shtab does not know it."""
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(f"the installed shtab has no {shell} completion; run pip install -U shtab")
    parser = build_parser(for_completion=True)
    for name, command in _commands(parser).items():
        _complete(command._actions, name in _WITH_MODELS, shtab.FILE)
    return str(shtab.complete(parser, shell, preamble={"bash": _functions(_BASH), "zsh": _functions(_ZSH)}))


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return found.choices


def _complete(actions: Iterable[argparse.Action], models: bool, files: Mapping[str, str]) -> None:
    """Say by shtab's attribute `complete` what the value of each argument is."""
    for action in actions:
        kind: Any = None
        if action.dest == "model" or (action.dest == "source" and models):
            kind = {**files, "bash": _MODELS, "zsh": _MODELS}
        elif function := _LISTS.get(action.dest):
            kind = {"bash": function, "zsh": function, "tcsh": "", "fish": ""}
        elif action.dest in FILE_FLAGS:
            kind = files
        if kind is not None:
            action.complete = kind  # type: ignore[attr-defined]


def _functions(texts: tuple[str, str]) -> str:
    """The functions of a shell with the names that they offer."""
    from precision_time.hardware.aliases import GPU_ALIASES
    from precision_time.hardware.catalog import default_catalog
    from precision_time.job.precision import PRECISIONS
    from precision_time.zoo.catalog import ENTRIES

    names = {"gpu": sorted({*default_catalog().gpus, *GPU_ALIASES}), "precision": list(PRECISIONS)}
    of_models = texts[0].format(function=_MODELS, names=" ".join(sorted(ENTRIES)))
    return of_models + "".join(
        texts[1].format(function=function, names=" ".join(names[field])) for field, function in _LISTS.items()
    )
