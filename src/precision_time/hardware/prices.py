"""Hourly list prices of cloud instances, and the instances that hold the GPUs of a job.

Prices are on demand, each of one region and one day; some instances also have a price on the spot market or for a
reservation. Contracts differ. A cloud charges whole instances: a job on 4 of 8 GPUs pays for 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from precision_time import checks
from precision_time.checks import Entry
from precision_time.errors import CatalogError, nearest
from precision_time.field_types import NAME
from precision_time.hardware.fields import PRICE, TRUSTS, values_of

ANY = "any"
"""Stands for all providers."""
_DEFAULTS = {"region": "all regions", "as_of": "an unknown day", "trust": TRUSTS[0], "source": ""}


@dataclass(frozen=True, slots=True)
class Price:
    """Of one instance type: US dollars an hour for all of it, on demand, in a region.

    gpu, gpus   catalog name of its GPUs, and how many it has
    as_of       day, month or year that the price is of
    trust       "looked up" in `source`, or "recalled" and not read again
    """

    instance: str
    provider: str
    gpu: str
    gpus: int
    usd_per_hour: float
    region: str
    as_of: str
    trust: str
    source: str
    spot_usd_per_hour: float | None = None
    """On the spot market, where it is known."""
    reserved_usd_per_hour: float | None = None
    """For an instance that is reserved, where it is known."""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus


@dataclass(frozen=True, slots=True)
class Rental:
    """A number of whole instances of one type."""

    price: Price
    instances: int

    @property
    def usd_per_hour(self) -> float:
        """Of all of them."""
        return self.instances * self.price.usd_per_hour

    def __str__(self) -> str:
        p = self.price
        return (
            f"{self.instances} x {p.instance} at ${p.usd_per_hour:,.2f} an hour ({p.provider} {p.region}, on demand, "
            f"list price of {p.as_of}, {p.trust}); prices change"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {"instances": self.instances, **asdict(self.price)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rental:
        fields = dict(values)
        instances = fields.pop("instances")
        return cls(Price(**fields), instances)


def price_from_entry(instance: str, entry: Entry, where: str) -> Price:
    """A `Price` from an entry of prices.yaml or of a device file; region, as_of, trust and source may be left out."""
    checks.known_keys(entry, set(PRICE), where)
    checks.required(entry, {key: key for key in ("provider", "gpu", "gpus", "usd_per_hour")}, where)
    NAME.entry(instance, f"{where}: the name")
    fields = {**_DEFAULTS, **values_of(PRICE, entry, where)}
    return Price(instance=instance, **{**fields, "provider": fields["provider"].lower()})


def rental(prices: Iterable[Price], choice: str, gpu: str, gpus: int, per_node: int) -> Rental:
    """The instances for `gpus` GPUs of catalog name `gpu`: the type named, or the cheapest of a provider (or `any`).

    Where a provider has instances with at least `per_node` GPUs, the number that the job places on one node, smaller
    ones are left out, since their GPUs would communicate over a network. Raises `CatalogError` with nearest choices.
    """
    known = list(prices)
    asked = choice.strip().lower()
    named = [p for p in known if p.instance.lower() == asked]
    offered = named or [p for p in known if asked in (p.provider, ANY)]
    if not offered:
        choices = {ANY, *(p.provider for p in known), *(p.instance for p in known)}
        raise CatalogError(
            f"price {checks.show(choice)} is neither a provider nor an instance type; nearest: "
            f"{nearest(choice, choices)}; or give price_per_gpu_hour, or add it under `prices:` of a device file."
        )
    fitting = [p for p in offered if p.gpu == gpu]
    if not fitting:
        others = [f"{p.instance} ({p.provider})" for p in known if p.gpu == gpu]
        holds = f"is an instance with {named[0].gpu}" if named else "has no instance"
        raise CatalogError(
            f"price {checks.show(choice)} {holds}{', not' if named else ' with'} {gpu}; with it: "
            f"{', '.join(others) or 'none known'}; or give "
            "price_per_gpu_hour, or add it under `prices:` of a device file."
        )
    box = min(per_node, max(p.gpus for p in fitting))
    rentals = [Rental(p, ceil(gpus / p.gpus)) for p in fitting if p.gpus >= box]
    return min(rentals, key=lambda r: (r.usd_per_hour, r.instances))
