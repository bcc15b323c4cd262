"""Former names of flags and of their values. They are accepted, with a note on standard error."""

from __future__ import annotations

from collections.abc import Sequence

from precision_time.cli.streams import note

OLD_FLAGS = {"--shared": "--tables"}
"""Former flag -> its present name."""

OLD_VALUES = {("--predictor", "line"): "simulator"}
"""Flag and former value -> its present name."""


def with_present_names(arguments: Sequence[str]) -> list[str]:
    """The arguments of the command line with every former name replaced; each gets one line on standard error."""
    present: list[str] = []
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if name:
            flag = OLD_FLAGS.get(name, name)
            if flag != name:
                note(f"note: flag {name} is now {flag}")
        renamed = OLD_VALUES.get((flag, value), value)
        if renamed != value:
            note(f"note: {flag} {value} is now {flag} {renamed}")
        present.append(f"{flag}{equals}{renamed}" if name else renamed)
        if not name or equals:
            flag = ""  # its value has been read
    return present
