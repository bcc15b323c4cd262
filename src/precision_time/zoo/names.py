"""Which named model a name means: its own, another spelling, or a repository of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from precision_time.bounded_cache import bounded
from precision_time.names import joined, nearest_names
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.tables.hub import REPOSITORIES
from precision_time.zoo.workload import ZooEntry

_STAGES = re.compile(r"(-(instruct|base|chat|it|hf|thinking|[0-9]{4}))+$")
"""Endings of repositories of the same shape: stages of training and dates."""

_COPIES = ("unsloth/", "nousresearch/")
"""Organisations that publish copies of models under their names."""


@bounded(ZooEntry)
def find(name: str) -> ZooEntry | None:
    """The entry of a zoo name or hub repository, ignoring case and separators ('ResNet-50', 'Qwen/Qwen3-8B',
    'Llama-3.1-8B-Instruct'); None where there is none."""
    names = _other_names()
    name = next((name[len(each) :] for each in _COPIES if name.lower().startswith(each)), name)
    known = names.get(_spelling(name)) or names.get(_spelling(_STAGES.sub("", name.lower())))
    return ENTRIES.get(known) if known else None


def zoo_name(name: str) -> str:
    """The name of the entry found, or the name in lower case."""
    entry = find(name)
    return entry.name if entry else name.lower()


def nearest_models(name: str) -> str:
    """The models nearest to an unknown name: repositories, by their names without organisations, where it has one,
    else zoo names."""
    organisation, _, rest = name.partition("/")
    if not rest:
        return nearest_names(organisation, ENTRIES)
    choices = {repository.partition("/")[2]: repository for each in REPOSITORIES.values() for repository in each}
    return ", ".join(choices.get(each, each) for each in nearest_names(rest, choices).split(", "))


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
