"""The job's section `data`: sample files, storage, cache and loader workers. Without it, loading takes no time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any

from precision_time.checks import known_fields, show
from precision_time.errors import JobError
from precision_time.field_types import (
    BYTES,
    MILLISECONDS,
    SAMPLES,
    SHARE,
    SWITCH,
    TEXT,
    apply_checks,
    choice,
    number,
    option,
    optional,
    present_fields,
    whole,
)
from precision_time.job.fields import parse_fields

FORMATS = ("jpeg", "png", "raw", "tokens", "flac", "wav", "video")
_FORMAT_ALIASES = {"jpg": "jpeg", "audio": "flac", "npy": "raw", "uint8": "raw", "text": "tokens", "mp4": "video"}
CACHES = ("none", "page-cache", "explicit")
_CACHE_ALIASES = {"no": "none", "page": "page-cache", "page_cache": "page-cache", "pagecache": "page-cache"}
POLICIES = ("lru", "no-eviction")
_POLICY_ALIASES = {"no_eviction": "no-eviction", "coordl": "no-eviction", "minio": "no-eviction"}


# What samples are read from, and how fast: also the ranges of a storage file.
BANDWIDTH = number(1e-6, 1e6, "GB/s")
STREAM = number(1e-3, 1e7, "MB/s")
REQUESTS = number(1e-3, 1e9, "reads per second")
READERS_SHARE = number(1e-3, 1, "")


@dataclass(frozen=True, slots=True, repr=False)
class Data:
    """The fields of the section `data`; None is not set. The section is false, and loading not modelled, if none is."""

    _: KW_ONLY
    samples: int | None = option(None, optional(SAMPLES), "samples of an epoch (default: those of run.dataset)")
    bytes_per_sample: float | None = option(None, optional(BYTES), "mean bytes of a stored sample")
    format: str | None = option(
        None,
        optional(choice(FORMATS, _FORMAT_ALIASES)),
        "format of a stored sample, which decides its decode time",
    )
    samples_per_read: float | None = option(
        None, optional(number(1e-6, 1e9, "samples")), "samples in one read: 1 with a file for each, many in shards"
    )
    storage: str | None = option(None, optional(TEXT), "storage of the catalog, or FILE of calibrate --storage")
    bandwidth_gb_per_s: float | None = option(None, optional(BANDWIDTH), "GB/s that one node reads (shared: all nodes)")
    stream_mb_per_s: float | None = option(None, optional(STREAM), "MB/s that one reader gets")
    latency_ms: float | None = option(None, optional(MILLISECONDS), "milliseconds to the first byte of a read")
    requests_per_s: float | None = option(None, optional(REQUESTS), "reads that the storage answers per second")
    reader_efficiency: float | None = option(
        None, optional(READERS_SHARE), "eta: share of the bandwidth left when two jobs read at once"
    )
    shared: bool | None = option(None, optional(SWITCH), "all nodes share the storage (false: each reads alone)")
    cache: str | None = option(None, optional(choice(CACHES, _CACHE_ALIASES)), "cache of samples that were read")
    cache_gib: float | None = option(None, optional(number(1e-6, 1e9, "GiB")), "GiB of the cache on each node")
    cache_policy: str | None = option(
        None, optional(choice(POLICIES, _POLICY_ALIASES)), "policy of a full cache for a new sample"
    )
    cached: float | None = option(None, optional(SHARE), "share of the samples in the cache at the start")
    decode_ms: float | None = option(
        None, optional(MILLISECONDS), "milliseconds of one worker to decode, augment and batch a sample"
    )
    keep_ms: float | None = option(
        None, optional(MILLISECONDS), "milliseconds of one worker to keep a missed sample in the cache (default 0)"
    )
    samples_per_s_per_worker: float | None = option(
        None, optional(number(1e-3, 1e9, "samples per second")), "the same as samples per second"
    )
    workers: int | None = option(
        None, optional(whole(0, 10**4, "processes")), "loader workers of each rank, as num_workers"
    )
    prefetch_factor: int | None = option(
        None, optional(whole(1, 10**4, "batches")), "batches that each worker prepares ahead (default 2)"
    )
    pin_memory: bool | None = option(None, optional(SWITCH), "batches reach the GPU behind compute (default true)")
    prepared_bytes: float | None = option(None, optional(BYTES), "bytes of a sample as it goes to the GPU")
    cores: int | None = option(None, optional(whole(1, 10**5, "cores")), "CPU cores of a node (default: the catalog's)")

    def __post_init__(self) -> None:
        try:
            apply_checks(self)
        except JobError as error:  # run has samples too
            raise JobError(f"data.{error}") from None
        if not self:
            return
        if self.storage is None and self.bandwidth_gb_per_s is None:
            names = ", ".join(self.to_dict())
            raise JobError(
                f"data gives {names}, but not what is read from; add storage, for example storage: nfs-10gbe, or "
                f"bandwidth_gb_per_s"
            )
        if self.decode_ms is not None and self.samples_per_s_per_worker is not None:
            raise JobError("data gives decode_ms and samples_per_s_per_worker, which set the same; keep one of them")
        if self.cache == "none":
            for name in ("cache_gib", "cache_policy", "cached"):
                if getattr(self, name):
                    raise JobError(f"data gives {name} {getattr(self, name)} with cache none; leave one of them out")
        if self.cache == "explicit" and self.cache_gib is None:
            raise JobError("data cache explicit has no size; add cache_gib, for example cache_gib: 200")

    def __bool__(self) -> bool:
        return _values(self).count(None) < len(DATA_FIELDS)

    def __repr__(self) -> str:
        return f"Data({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    @property
    def prepare_s(self) -> float | None:
        """Seconds that one worker needs to prepare a sample that it has read; None where the job does not set it."""
        if self.samples_per_s_per_worker is not None:
            return 1.0 / self.samples_per_s_per_worker
        return None if self.decode_ms is None else self.decode_ms / 1e3

    def updated(self, changes: Mapping[str, Any]) -> Data:
        """A copy with these fields changed. Of decode_ms and samples_per_s_per_worker, setting one unsets the other."""
        fields = self.to_dict()
        for one, other in (("decode_ms", "samples_per_s_per_worker"), ("samples_per_s_per_worker", "decode_ms")):
            if one in changes:
                fields.pop(other, None)
        return Data(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        return present_fields(self)


def data_fields(field: str, value: Any) -> dict[str, Any]:
    """The fields of a mapping or of `key=value;...` text; names are checked, values are not."""
    if isinstance(value, Data):
        return value.to_dict()
    if isinstance(value, str):
        value = parse_fields(value, field)
    if not isinstance(value, Mapping):
        raise JobError(f"{field} must be a mapping, not {show(value)}; for example {field}: {{storage: nvme-gen4}}")
    return known_fields(value, DATA_FIELDS, field)


def parse_data(field: str, value: Any) -> Data:
    """The section from a mapping or text of its fields; None is an empty section."""
    if value is None or isinstance(value, Data):
        return value or NO_DATA
    fields = data_fields(field, value)
    return Data(**fields) if fields else NO_DATA


DATA_FIELDS = tuple(item.name for item in dataclasses.fields(Data))
_values = attrgetter(*DATA_FIELDS)
NO_DATA = Data()
