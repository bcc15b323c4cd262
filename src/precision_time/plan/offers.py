"""What can be rented: instances of clouds, a SkyPilot catalog, or a cluster of one's own.

aws, gcp, any            providers of the shipped price list
vms.csv                  a catalog of SkyPilot: InstanceType, AcceleratorName, AcceleratorCount, Price, Region
our-cluster.yaml         {gpu: h100-80gb-sxm, gpus: 64, usd_per_gpu_hour: 2.1}; without a price it costs nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import ceil
from pathlib import Path
from typing import Any

from precision_time import checks
from precision_time.checks import show, small_number
from precision_time.errors import CatalogError, DataError, nearest
from precision_time.hardware.aliases import SKYPILOT_GPUS
from precision_time.hardware.catalog import Catalog
from precision_time.hardware.fields import CLUSTER, values_of
from precision_time.hardware.prices import ANY, Price
from precision_time.reading import SUFFIXES, plain_entry, read_mapping, read_rows

SKYPILOT = ("instancetype", "acceleratorname", "acceleratorcount", "price", "region")
"""Columns that are read, in lower case; others are left."""


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs that can be had: whole instances of one type, or a cluster of one's own.

    price      of one instance; None for a cluster without a price
    most_gpus  GPUs there are; None: as many as are asked for
    reserved   whether the price is that of a reservation
    node       node type of a cluster of one's own; None: the usual one of the GPU
    """

    provider: str
    gpu: str
    price: Price | None
    most_gpus: int | None = None
    node: str | None = None
    reserved: bool = False

    def usd_per_hour(self, gpus: int) -> float:
        """Of whole instances for so many GPUs."""
        return ceil(gpus / self.price.gpus) * self.price.usd_per_hour if self.price else 0.0

    def text(self, gpus: int) -> str:
        """What is rented, in a few words."""
        if self.price is None:
            return f"{gpus} x {self.gpu} of {self.provider}"
        count = ceil(gpus / self.price.gpus)
        reserved = ", reserved" if self.reserved else ""
        return f"{count} x {self.price.instance} ({self.provider} {self.price.region}{reserved})"

    def to_dict(self, gpus: int) -> dict[str, Any]:
        """Plain JSON values."""
        price = self.price
        listed = {n: getattr(price, n) for n in ("instance", "region", "as_of", "trust", "source")} if price else {}
        usd = self.usd_per_hour(gpus)
        return {"provider": self.provider, "gpu": self.gpu, "usd_per_hour": usd, "reserved": self.reserved, **listed}

    def as_reserved(self) -> Offer | None:
        """The same at the price of a reservation, where it is known."""
        price = self.price
        if price is None or price.reserved_usd_per_hour is None:
            return None
        at = replace(price, usd_per_hour=price.reserved_usd_per_hour, spot_usd_per_hour=None)
        return replace(self, price=at, reserved=True)


def offers_of(providers: Sequence[str], catalog: Catalog, reserved: bool = False) -> tuple[Offer, ...]:
    """The offers of the named providers and files, with `reserved` also at the prices of reservations.

    Raises `CatalogError` for an unknown provider, and where no reservation has a known price.
    """
    found: list[Offer] = []
    for name in providers:
        if name.lower().endswith(".csv"):
            found += _skypilot(Path(name), catalog)
        elif name.lower().endswith(SUFFIXES):
            found.append(_cluster(name, catalog))
        else:
            found += _listed(name, catalog)
    if reserved:
        known = [offer for each in found if (offer := each.as_reserved()) is not None]
        if not known:
            having = sorted({p.provider for p in catalog.prices.values() if p.reserved_usd_per_hour is not None})
            raise CatalogError(
                f"reserved is true, but provider {', '.join(providers)} has no price of a reservation; known: "
                f"{', '.join(having)}; or give reserved_usd_per_hour under `prices:` of a device file"
            )
        found += known
    return tuple(found)


def _listed(provider: str, catalog: Catalog) -> list[Offer]:
    asked = provider.strip().lower()
    prices = [p for p in catalog.prices.values() if asked in (p.provider, ANY)]
    if not prices:
        known = {ANY, *(p.provider for p in catalog.prices.values())}
        raise CatalogError(
            f"provider {show(provider)} is unknown; nearest: {nearest(provider, known)}; or name a price file: a "
            "SkyPilot catalog (.csv), or a cluster of your own (.yaml)"
        )
    return [Offer(p.provider, p.gpu, p) for p in prices]


def _cluster(path: str, catalog: Catalog) -> Offer:
    where = f"cluster file {show(path)}"
    entry = plain_entry(where, read_mapping(path, "cluster file", "gpu: h100"))
    checks.known_keys(entry, set(CLUSTER), where)
    checks.required(entry, {"gpu": "gpu", "gpus": "gpus"}, where)
    given = values_of(CLUSTER, entry, where)
    gpu, name = catalog.gpu(given["gpu"]).name, given.get("name") or Path(path).stem
    usd, price = given.get("usd_per_gpu_hour"), None
    if usd:
        price = Price(f"GPU of {name}", name, gpu, 1, usd, "own", given.get("as_of", "an unknown day"), "given", path)
    node = catalog.node(given["node"]).name if given.get("node") else None
    return Offer(name, gpu, price, given["gpus"], node)


def _skypilot(path: Path, catalog: Catalog) -> list[Offer]:
    lines = read_rows(path)
    heads = [head.strip().lower() for head in next(lines, (0, []))[1]]
    missing = [column for column in SKYPILOT if column not in heads]
    if missing:
        raise DataError(
            f"price file {show(str(path))} has no column {missing[0]}; a SkyPilot catalog has {', '.join(SKYPILOT)}"
        )
    cheapest: dict[str, Offer] = {}
    as_of = f"{date.fromtimestamp(path.stat().st_mtime)} (the file)"
    for line, values in lines:
        cells = dict(zip(heads, values, strict=False))
        offer = _instance(path, line, cells, catalog, as_of)
        if offer and offer.price:
            known = cheapest.get(offer.price.instance)
            if known is None or known.price is None or offer.price.usd_per_hour < known.price.usd_per_hour:
                cheapest[offer.price.instance] = offer
    if not cheapest:
        raise DataError(f"price file {show(str(path))} has no priced instance with a GPU of the catalog")
    return list(cheapest.values())


def _instance(path: Path, line: int, cells: Mapping[str, str], catalog: Catalog, as_of: str) -> Offer | None:
    """The offer of a row; None where it has no known GPU, a share of one, or no on-demand price."""
    name = cells.get("acceleratorname", "").strip()
    price, gpus = cells.get("price", "").strip(), cells.get("acceleratorcount", "").strip()
    if not name or not price or not gpus:
        return None
    try:
        gpu = catalog.gpu(SKYPILOT_GPUS.get(name, name)).name
    except CatalogError:
        return None
    count, usd = small_number(gpus.removesuffix(".0")), _usd(price)
    if count is None and _usd(gpus) is not None:
        return None  # a share of a GPU
    if not count or usd is None:
        raise DataError(
            f"price file {show(str(path))}, line {line}: AcceleratorCount {show(gpus)} and Price {show(price)} are no "
            "numbers above 0; correct that line"
        )
    instance = cells.get("instancetype", "").strip() or f"{count} x {name}"
    region = cells.get("region", "").strip() or "an unknown region"
    source, spot = f"SkyPilot catalog {path.name}", _usd(cells.get("spotprice", "").strip())
    found = Price(instance, path.stem, gpu, count, usd, region, as_of, "given", source, spot)
    return Offer(path.stem, gpu, found)


def _usd(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1e-6 <= value <= 1e6 else None


def placed_offers(offers: Sequence[Offer], gpu: str, gpus: int, node_gpus: int) -> list[Offer]:
    """Those with so many of the GPU, the cheapest of each provider first; instances that split a node are left out."""
    fitting = [o for o in offers if o.gpu == gpu and (o.most_gpus is None or gpus <= o.most_gpus)]
    boxes = [o.price.gpus for o in fitting if o.price]
    box = min(node_gpus, max(boxes, default=1))
    kept = [o for o in fitting if o.price is None or o.most_gpus is not None or o.price.gpus >= box]
    best: dict[tuple[str, bool], Offer] = {}
    for offer in sorted(kept, key=lambda o: o.usd_per_hour(gpus)):
        best.setdefault((offer.provider, offer.reserved), offer)
    return list(best.values())
