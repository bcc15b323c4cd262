"""The job's section `data`: sample files, storage, cache and loader workers. Without it, loading takes no time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from precision_time.checks import (
    apply_checks,
    count,
    count_or_zero,
    known_fields,
    option,
    optional,
    positive,
    positive_or_zero,
    present_fields,
    show,
    switch,
    text,
    word,
)
from precision_time.errors import JobError
from precision_time.job.fields import parse_fields

FORMATS = ("jpeg", "png", "raw", "tokens", "flac", "wav", "video")
_FORMAT_ALIASES = {"jpg": "jpeg", "audio": "flac", "npy": "raw", "uint8": "raw", "text": "tokens", "mp4": "video"}
CACHES = ("none", "page-cache", "explicit")
_CACHE_ALIASES = {"no": "none", "page": "page-cache", "page_cache": "page-cache", "pagecache": "page-cache"}
POLICIES = ("lru", "no-eviction")
_POLICY_ALIASES = {"no_eviction": "no-eviction", "coordl": "no-eviction", "minio": "no-eviction"}


def _share(field: str, value: Any) -> float:
    share = positive_or_zero(field, value)
    if share > 1:
        raise JobError(f"{field} must be a share from 0 to 1, not {show(value)}; for example {field}: 0.5")
    return share


def _positive_share(field: str, value: Any) -> float:
    if not (share := _share(field, value)):
        raise JobError(f"{field} must be a share above 0, not {show(value)}; for example {field}: 0.5")
    return share


@dataclass(frozen=True, slots=True, repr=False)
class Data:
    """The fields of the section `data`; None is not set. The section is false, and loading not modelled, if none is."""

    _: KW_ONLY
    samples: int | None = option(None, optional(count), "samples of an epoch (default: those of run.dataset)")
    bytes_per_sample: float | None = option(None, optional(positive), "mean bytes of a stored sample")
    format: str | None = option(
        None,
        optional(word(FORMATS, _FORMAT_ALIASES)),
        "format of a stored sample, which decides its decode time",
        FORMATS,
    )
    samples_per_read: float | None = option(
        None, optional(positive), "samples in one read: 1 with a file for each, many in shards"
    )
    storage: str | None = option(None, optional(text), "storage of the catalog, or FILE of calibrate --storage")
    bandwidth_gb_per_s: float | None = option(None, optional(positive), "GB/s that one node reads (shared: all nodes)")
    stream_mb_per_s: float | None = option(None, optional(positive), "MB/s that one reader gets")
    latency_ms: float | None = option(None, optional(positive_or_zero), "milliseconds to the first byte of a read")
    requests_per_s: float | None = option(None, optional(positive), "reads that the storage answers per second")
    reader_efficiency: float | None = option(
        None, optional(_positive_share), "eta: share of the bandwidth left when two jobs read at once"
    )
    shared: bool | None = option(None, optional(switch), "all nodes share the storage (false: each reads alone)")
    cache: str | None = option(None, optional(word(CACHES, _CACHE_ALIASES)), "cache of samples that were read", CACHES)
    cache_gib: float | None = option(None, optional(positive), "GiB of the cache on each node")
    cache_policy: str | None = option(
        None, optional(word(POLICIES, _POLICY_ALIASES)), "policy of a full cache for a new sample", POLICIES
    )
    cached: float | None = option(None, optional(_share), "share of the samples in the cache at the start")
    decode_ms: float | None = option(
        None, optional(positive_or_zero), "milliseconds of one worker to decode, augment and batch a sample"
    )
    keep_ms: float | None = option(
        None, optional(positive_or_zero), "milliseconds of one worker to keep a missed sample in the cache (default 0)"
    )
    samples_per_s_per_worker: float | None = option(None, optional(positive), "the same as samples per second")
    workers: int | None = option(None, optional(count_or_zero), "loader workers of each rank, as num_workers")
    prefetch_factor: int | None = option(None, optional(count), "batches that each worker prepares ahead (default 2)")
    pin_memory: bool | None = option(None, optional(switch), "batches reach the GPU behind compute (default true)")
    prepared_bytes: float | None = option(None, optional(positive), "bytes of a sample as it goes to the GPU")
    cores: int | None = option(None, optional(count), "CPU cores of a node (default: the catalog's)")

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
        return any(getattr(self, name) is not None for name in DATA_FIELDS)

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
NO_DATA = Data()
