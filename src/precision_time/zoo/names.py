"""Which named model a name means: its own, another spelling, or a repository of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from precision_time.bounded_cache import bounded
from precision_time.names import joined, nearest_names
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.tables.hub import REPOSITORIES
from precision_time.zoo.workload import ZooEntry

_STAGES = re.compile(r"(-(instruct|base|chat|it|hf|thinking|[0-9]{4}))+$")
"""Endings of repositories of the same shape: stages of training and dates."""


@bounded(ZooEntry)
def find(name: str) -> ZooEntry | None:
    """The entry of a zoo name or hub repository, ignoring case and separators ('ResNet-50', 'Qwen/Qwen3-8B',
    'Llama-3.1-8B-Instruct'); None where there is none."""
    names = _other_names()
    known = names.get(_spelling(name)) or names.get(_spelling(_STAGES.sub("", name.lower())))
    return ENTRIES.get(known) if known else None


def zoo_name(name: str) -> str:
    """The name of the entry found, or the name in lower case."""
    entry = find(name)
    return entry.name if entry else name.lower()


def nearest_models(name: str) -> str:
    """The models nearest to an unknown name: repositories where it names an organisation, else zoo names."""
    choices: Iterable[str] = ENTRIES
    if "/" in name:
        choices = [repository for each in REPOSITORIES.values() for repository in each]
    return nearest_names(name, choices)


@cache
def _other_names() -> Mapping[str, str]:
    """Spelling -> zoo name. A repository is also known without its organisation; zoo names come first."""
    names = {joined(name): name for name in ENTRIES}
    for name, repositories in REPOSITORIES.items():
        for repository in repositories:
            names.setdefault(_spelling(repository), name)
            names.setdefault(_spelling(repository.partition("/")[2]), name)
    return names


def _spelling(name: str) -> str:
    organisation, slash, rest = name.lower().rpartition("/")
    return organisation + slash + joined(rest)
