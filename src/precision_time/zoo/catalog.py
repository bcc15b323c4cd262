"""All named workloads, one line each, gathered from the tables of the domains. Imports no torch."""

from __future__ import annotations

from precision_time.zoo.tables import (
    decoders,
    diffusion,
    graphs,
    language,
    open_decoders,
    small,
    speech_and_tables,
    vision,
)
from precision_time.zoo.workload import ZooEntry

ENTRIES: dict[str, ZooEntry] = {
    entry.name: entry
    for table in (
        vision.ENTRIES,
        graphs.ENTRIES,
        language.ENTRIES,
        speech_and_tables.ENTRIES,
        decoders.ENTRIES,
        open_decoders.ENTRIES,
        diffusion.ENTRIES,
        small.ENTRIES,
    )
    for entry in table
}
