"""The options of an sbatch script, read as Slurm reads them: the lines, their words, and names of options.

- Directives stand before the first line that is neither empty nor a comment. `#SBATCH` begins the line.
- A word ends at white space outside quotes; single and double quotes and backslashes are taken away. A `#` outside
  quotes ends the line, also in the middle of a word.
- Options may be shortened to what is unique, and the value of a short one may follow at once (`-N2`). The last of
  several counts.

`benchmarks/rigs/slurm_parser.py` has Slurm's client read the scripts of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
WITH_VALUE = frozenset(
    """
    account array batch bb bbf begin chdir cluster-constraint clusters comment constraint container container-id
    core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error
    exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem
    mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos reservation
    resv-ports segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
    tres-bind tres-per-task uid wait-all-nodes wckey wrap
    """.split()
)
"""Options of sbatch that need a value (its manual, version 24.05 and before)."""
SWITCHES = frozenset(
    """
    contiguous exclusive get-user-env hold ignore-pbs nice no-kill no-requeue overcommit oversubscribe parsable
    propagate quiet reboot requeue spread-job test-only use-min-nodes verbose wait
    """.split()
)
"""Options without a value, or with one that only `=` gives."""
SHORT = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "s": "oversubscribe",
    "S": "core-spec", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Option:
    """An option as written, with the places in the script where its value begins and ends."""

    name: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Word:
    """Its text without quotes, for every character the place where it stands, and where it begins and ends."""

    text: str
    places: tuple[int, ...]
    start: int
    end: int

    def after(self, count: int) -> tuple[str, int, int]:
        """What follows so many characters, with its places, quotes included."""
        start = self.places[count - 1] + 1 if count else self.start
        return self.text[count:], start, self.end


def directives(text: str) -> dict[str, str]:
    """Option of sbatch -> its value ("" for a switch); the last of several counts."""
    return {option.name: option.value for option in options(text)}


def options(text: str) -> Iterator[Option]:
    """The options of the #SBATCH lines before the first command, in their order."""
    place = 0
    for line in text.splitlines(keepends=True):
        if (match := DIRECTIVE.match(line.rstrip("\r\n"))) is not None:
            yield from _options(list(_words(match[1], place + match.start(1))))
        elif line.strip() and not line.lstrip().startswith("#"):
            return
        place += len(line)


def _words(text: str, place: int) -> Iterator[_Word]:
    """The words of a line that begins at this place of the script."""
    letters: list[tuple[str, int]] = []
    quote, at = "", 0
    start: int | None = None
    while at < len(text):
        letter = text[at]
        start = place + at if start is None and not letter.isspace() and letter != "#" else start
        if letter == "\\":
            if at + 1 < len(text) and (quote or not text[at + 1].isspace()):
                at += 1
                letters.append((text[at], place + at))
        elif letter == quote:
            quote = ""
        elif quote:
            letters.append((letter, place + at))
        elif letter in "\"'":
            quote = letter
        elif letter == "#":
            break
        elif letter.isspace():
            if start is not None:
                yield _word(letters, start, place + at)
            letters, start = [], None
        else:
            letters.append((letter, place + at))
        at += 1
    if start is not None:
        yield _word(letters, start, place + at)


def _word(letters: list[tuple[str, int]], start: int, end: int) -> _Word:
    return _Word("".join(letter for letter, _ in letters), tuple(at for _, at in letters), start, end)


def _options(words: list[_Word]) -> Iterator[Option]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text.startswith("--") and len(word.text) > 2:
            given, equals, _ = word.text[2:].partition("=")
            name = whole_name(given)
            if equals:
                yield Option(name, *word.after(3 + len(given)))
                continue
        elif word.text.startswith("-") and len(word.text) > 1:
            letters = word.text[1:]
            while SHORT.get(letters[0]) in SWITCHES and len(letters) > 1:
                yield Option(SHORT[letters[0]], "", word.end, word.end)
                letters = letters[1:]
            name = SHORT.get(letters[0], letters[0])
            if len(letters) > 1:
                yield Option(name, *word.after(len(word.text) - len(letters) + 1))
                continue
        else:
            continue
        takes = name in WITH_VALUE or (name not in SWITCHES and at < len(words) and not words[at].text.startswith("-"))
        if takes and at < len(words):
            yield Option(name, *words[at].after(0))
            at += 1
        else:
            yield Option(name, "", word.end, word.end)


def whole_name(given: str) -> str:
    """The option that a shortened name stands for; the name itself where none or several do."""
    known = WITH_VALUE | SWITCHES
    longer = [name for name in known if name.startswith(given)]
    name = longer[0] if given not in known and len(longer) == 1 else given
    return "ntasks-per-node" if name == "tasks-per-node" else name
