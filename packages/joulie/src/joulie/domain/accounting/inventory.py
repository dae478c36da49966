"""What an inventory needs that no cluster knows: contracts, residual mixes, PUE and its source, functional units.

Source: GHG Protocol Scope 2 Guidance. The market-based method takes contractual instruments first, and the residual mix
of the zone for what they do not cover; where there is none, the market-based figure of that energy is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulie.domain.accounting.embodied import Asset


@dataclass(frozen=True, slots=True)
class Instrument:
    """A contractual instrument: a certificate, a contract for power, or a supplier's product.

    Attributes:
        kind: ``certificate``, ``contract`` or ``supplier``.
        zone: of the grid that it is valid in.
        from_s: start of the time that it is valid for, s since the epoch.
        until_s: its end.
        g_per_kwh: emission factor that it conveys, gCO2eq/kWh.
        source: registry and serial numbers, or the contract.
        kwh: energy that it conveys over its time, kWh; None where it conveys a share.
        share: of all consumption in its zone that it covers, above 0 to 1; None where it conveys energy.
    """

    kind: str
    zone: str
    from_s: float
    until_s: float
    g_per_kwh: float
    source: str
    kwh: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ResidualMix:
    """Emission factor of what nobody has claimed by an instrument.

    Attributes:
        zone: of the grid.
        year: of the calendar that it holds for.
        g_per_kwh: gCO2eq/kWh.
        source: who publishes it.
    """

    zone: str
    year: int
    g_per_kwh: float
    source: str


@dataclass(frozen=True, slots=True)
class SourcedPue:
    """PUE of a data centre with its source.

    Attributes:
        pue: of CPU and memory.
        gpu_pue: of GPUs.
        source: meter, standard and period, or who assumed it.
    """

    pue: float
    gpu_pue: float
    source: str


DEFAULT_PUE = SourcedPue(1.1, 1.15, "assumed: a default of Joulie, measured by nobody")


@dataclass(frozen=True, slots=True)
class UnitQuery:
    """The functional unit of a workload, counted by a PromQL query.

    Attributes:
        namespace: of the workload.
        kind: of the workload.
        name: of the workload.
        unit: ``request``.
        query: PromQL of one number: units in ``$window`` before the time of evaluation.
    """

    namespace: str
    kind: str
    name: str
    unit: str
    query: str


@dataclass(frozen=True, slots=True)
class NodeFactor:
    """Embodied emissions of the nodes with certain labels.

    Attributes:
        labels: all of these must be the node's.
        asset: their hardware.
    """

    labels: Mapping[str, str] = field(hash=False)
    asset: Asset


@dataclass(frozen=True, slots=True)
class Inventory:
    """Content of an inventory file; see docs/howto/sci-report.md.

    Attributes:
        nodes: embodied emissions of nodes; the first that fits counts, before Joulie's own estimate.
        pue: by zone.
        residual_mixes: by zone and year.
        instruments: all of them.
        units: functional units by query.
    """

    nodes: tuple[NodeFactor, ...] = ()
    pue: Mapping[str, SourcedPue] = field(default_factory=dict, hash=False)
    residual_mixes: tuple[ResidualMix, ...] = ()
    instruments: tuple[Instrument, ...] = ()
    units: tuple[UnitQuery, ...] = ()

    def asset(self, labels: Mapping[str, str]) -> Asset | None:
        """Embodied emissions that the file gives a node; None where it says nothing of it."""
        fits = (one.asset for one in self.nodes if one.labels.items() <= labels.items())
        return next(fits, None)
