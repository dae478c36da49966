"""Reads an inventory file: embodied emissions, PUE, contracts, residual mixes and functional units of an organisation.

All of it is refused if a part of it is invalid: an inventory that silently lacks a contract is a wrong one.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from joulie.domain.accounting.embodied import G_PER_KG, LIFESPAN_S, SECONDS_PER_YEAR, Asset, Spread
from joulie.domain.accounting.inventory import Instrument, Inventory, NodeFactor, ResidualMix, SourcedPue, UnitQuery

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Pue = Annotated[float, msgspec.Meta(ge=1.0, le=10.0)]


class InventoryFileError(ValueError):
    """A file that cannot be read; the message names the file and the place in it."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A mapping of the file."""


class _Nodes(_Entry):
    match_labels: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    kg: _Positive
    source: _Text
    name: str = ""
    low_kg: _Positive | None = None
    high_kg: _Positive | None = None
    memory_share: _Share = 0.0
    gpu_share: _Share = 0.0
    lifespan_years: _Positive = LIFESPAN_S / SECONDS_PER_YEAR

    def factor(self) -> NodeFactor:
        low_kg, high_kg = self.low_kg or self.kg, self.high_kg or self.kg
        if not low_kg <= self.kg <= high_kg:
            raise ValueError("lowKg, kg and highKg must be in this order")
        if self.memory_share + self.gpu_share > 1.0:
            raise ValueError("memoryShare and gpuShare must be at most 1 together")
        total = Spread(self.kg, low_kg, high_kg) * G_PER_KG
        asset = Asset(
            self.name or ", ".join(self.match_labels.values()),
            self.source,
            self.lifespan_years * SECONDS_PER_YEAR,
            total * (1.0 - self.memory_share - self.gpu_share),
            total * self.memory_share,
            total * self.gpu_share,
        )
        return NodeFactor(self.match_labels, asset)


class _PueOfZone(_Entry):
    zone: _Text
    pue: _Pue
    source: _Text
    gpu_pue: _Pue | None = None


class _Instrument(_Entry):
    kind: Literal["certificate", "contract", "supplier"]
    zone: _Text
    from_: Annotated[date, msgspec.Meta(description="first day")] = msgspec.field(name="from")
    until: date
    g_per_kwh: _Amount = msgspec.field(name="gPerKWh")
    source: _Text
    kwh: _Positive | None = msgspec.field(name="kWh", default=None)
    share: _Share | None = None

    def instrument(self) -> Instrument:
        if (self.kwh is None) is (self.share is None):
            raise ValueError("either kWh or share must be given")
        from_s, until_s = _starts_s(self.from_), _starts_s(self.until) + 86400.0
        if until_s <= from_s:
            raise ValueError("until, its last day, must not be before from")
        return Instrument(
            self.kind, self.zone, from_s, until_s, self.g_per_kwh, self.source, kwh=self.kwh, share=self.share
        )


class _Residual(_Entry):
    zone: _Text
    year: Annotated[int, msgspec.Meta(ge=2000, le=2100)]
    g_per_kwh: _Amount = msgspec.field(name="gPerKWh")
    source: _Text


class _Units(_Entry):
    namespace: _Text
    kind: _Text
    name: _Text
    unit: _Text
    query: _Text


class _File(_Entry):
    nodes: list[_Nodes] = []
    pue: list[_PueOfZone] = []
    residual_mixes: list[_Residual] = []
    instruments: list[_Instrument] = []
    functional_units: list[_Units] = []


def load_inventory(path: Path) -> Inventory:
    """The inventory in a YAML file.

    Raises:
        InventoryFileError: the file cannot be read, or a part of it is invalid.
    """
    try:
        file = msgspec.yaml.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError) as error:
        raise InventoryFileError(f"{path}: {error}") from error
    try:
        return Inventory(
            tuple(one.factor() for one in file.nodes),
            {one.zone: SourcedPue(one.pue, one.gpu_pue or one.pue, one.source) for one in file.pue},
            tuple(ResidualMix(one.zone, one.year, one.g_per_kwh, one.source) for one in file.residual_mixes),
            tuple(one.instrument() for one in file.instruments),
            tuple(UnitQuery(one.namespace, one.kind, one.name, one.unit, one.query) for one in file.functional_units),
        )
    except ValueError as error:
        raise InventoryFileError(f"{path}: {error}") from error


def _starts_s(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
