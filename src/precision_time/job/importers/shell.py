"""The arguments that a launch script or a command line gives to a program, with the script's variables expanded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.job.importers.shell_text import computed, without_documents, without_outputs

LONGEST_TEXT, LONGEST_TOKEN = 256 * 2**10, 64 * 2**10
"""Most characters of a script, which shlex reads in about a second, and of a value with its variables filled in."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_END = "--"
_ENDS = (
    "", ";", "&&", "||", "|", "&", ")", "]", "fi", "done", "$@", "$*", "torchrun", "python", "python3", "srun",
    "deepspeed",
)  # fmt: skip
"""Tokens after which a flag has no more values: ends of commands, and names of programs."""
_COMMAND = re.compile(
    r"^(?=[ \t]*(?:echo|wait|exit|date|sleep|cd|module|source|export|set|mkdir|conda)\b)", re.MULTILINE
)
"""Beginning of a line with a usual command, before which the values of a flag end."""
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_SHORT = re.compile(r"-[A-Za-z]")


def arguments(text: str, known: Mapping[str, str] | None = None) -> dict[str, str | bool]:
    """Flag name, without leading dashes, -> its values joined by spaces; True for a flag without a value.

    Reads plain commands, arrays (ARGS=(...)), arguments in quoted variables (ARGS="--a 1 --b 2") and variables that the
    text sets or `known` has; nothing is run. The last value of a repeated flag counts. Raises DataError for an unclosed
    quote.
    """
    if len(text) > LONGEST_TEXT:
        raise DataError(f"the arguments have more than {LONGEST_TEXT:,} characters; give the script alone")
    variables: dict[str, str] = dict(known or {})
    flags: dict[str, list[str]] = {}
    values: list[str] = []
    plain = without_outputs(without_documents(text).replace("\\\n", " "))
    for token in _flags_of(_split(_COMMAND.sub(" ; ", plain), comments=True), variables):
        if _FLAG.fullmatch(name := token.partition("=")[0]):
            values = flags[name[2:].replace("_", "-")] = [token.partition("=")[2]] if "=" in token else []
        else:
            values.append(token)
    return {flag: " ".join(values) if values else True for flag, values in flags.items()}


def unset_variables(flags: Mapping[str, Any], switches: Collection[str]) -> list[tuple[str, str]]:
    """The flags of `switches` that variables follow which the text does not set, as in `--bf16 $MORE`; and those."""
    return [(name, show(flags[name])) for name in flags if name in switches and "$" in str(flags[name])]


def _split(text: str, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments)
    except ValueError as error:
        raise DataError(f"the arguments are no shell text: {str(error).lower()}; close the quote") from None


def _flags_of(tokens: list[str], variables: dict[str, str]) -> list[str]:
    """The tokens with variables expanded, without assignments and without the parentheses of arrays."""
    result: list[str] = []
    length = 0
    for place, raw in enumerate(tokens):
        token = _filled(raw, variables)
        length += len(token)
        if length > 4 * LONGEST_TEXT:
            raise DataError(f"the arguments have more than {4 * LONGEST_TEXT:,} characters with variables filled in")
        if (match := _ASSIGNMENT.fullmatch(token)) and not token.startswith("-"):
            name, value = match.groups()
            result.append(_END)  # the flag before has no more values
            if value.startswith("(") and not value.startswith("(("):
                result += [part for part in (value.strip("()"),) if part]
            elif re.search(r"(^|\s)--[A-Za-z]", value):
                variables[name] = ""  # its arguments are taken here, once
                result += [*(_filled(part, variables) for part in _split(value)), _END]
            else:
                variables[name] = value
        elif place and tokens[place - 1] in ("-c", "-lc") and re.search(r"\s--[A-Za-z]", token):  # bash -c "..."
            result += [_END, *_flags_of(_split(raw), variables), _END]
        elif token in _ENDS or token.endswith((".py", "[@]}", "[*]}")):
            result.append(_END)
        elif token.endswith(")") and "(" not in token:  # the end of an array, joined to its last element
            result += [token[:-1], _END]
        else:
            result.append(token)
    return _ended(result)


def _ended(tokens: list[str]) -> list[str]:
    """The flags and their values, without tokens that belong to no flag."""
    result, open_flag = [], False
    for token in tokens:
        if token == _END or _SHORT.fullmatch(token):
            open_flag = False
        elif _FLAG.fullmatch(token.partition("=")[0]):
            open_flag = True
            result.append(token)
        elif open_flag:
            result.append(token)
    return result


def _filled(token: str, variables: dict[str, str]) -> str:
    """The token with its known variables expanded; ${NAME:-default} is the default where NAME is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            return variables[name]
        return match[2] if match[2] is not None else match[0]

    filled = computed(_VARIABLE.sub(value, token), variables)
    if len(filled) > LONGEST_TOKEN:  # variables that repeat each other
        raise DataError(f"the arguments have a value of more than {LONGEST_TOKEN:,} characters; shorten it")
    return filled
