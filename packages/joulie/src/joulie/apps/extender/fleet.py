"""The nodes as arrays: watches update the fleet, requests read frozen views of it.

Slot 0 represents every unknown node: it has no twin, so it passes the filter and gets the neutral score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import repeat
from operator import attrgetter

import numpy as np
from msgspec.structs import replace

from joulie.adapters.kubernetes.intensities import Intensities
from joulie.apps.extender.node_facts import DEFAULT_PROFILES, FULL_W_TYPES, LoadFacts, TwinFacts, TwinNumbers, ZoneHints
from joulie.apps.extender.power_room import PowerRoom, PowerView
from joulie.apps.extender.wire import host_score, json_text, refusal
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.place import zone_points
from joulie.domain.grid.power_limits import PowerLimits
from joulie.domain.grid.zones import zone_of_node
from joulie.domain.marginal import FullLoad, PodRequests
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import WIRE_MAXIMUM, NodeClass, TwinView, performance_pressure
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.marginal_placement import NodeOccupancy, packing_ranks
from joulie.domain.scoring.occupancy import NO_PODS, LifeClass, Occupancy
from joulie.domain.scoring.shared_gpus import SharedGpus, SharingView
from joulie.domain.units import BoolArray, FloatArray, IntArray

UNKNOWN_SLOT = 0
N_SCORES = WIRE_MAXIMUM + 1
_FIRST_CAPACITY = 64
REFUSALS = {
    NodeClass.ECO: "node(s) run under eco power caps, closed to performance pods",
    NodeClass.DRAINING: "node(s) are draining towards eco power caps, closed to performance pods",
}
"""Reason of a refusal by class: equal for all nodes, since the scheduler's event aggregates equal messages."""


Refusals = Mapping[NodeClass, dict[str, bytes]]
"""Refused nodes by class: entries of FailedAndUnresolvableNodes by node name."""

Policies = Mapping[str, Mapping[str, str]]
"""Annotations of namespaces, by namespace."""


# Rows of the table, one column per node: first the numbers of the twin, then these.
_TWIN_FIELDS = tuple(field.name for field in fields(TwinNumbers))
_N_TWIN = len(_TWIN_FIELDS)
_numbers = attrgetter(*_TWIN_FIELDS)
_CAPPED_W = _TWIN_FIELDS.index("capped_w")
_UPDATED_S, _NODE_CLASS, _INTENSITY, _ZONE, _BASE_W, _GPUS = range(_N_TWIN, _N_TWIN + 6)
_FULL_W = slice(_GPUS + 1, _GPUS + 1 + len(FULL_W_TYPES))
_FLOOR_W = _FULL_W.stop
_CPU_MAX_W, _CORES, _GPU_MAX_W = range(_FLOOR_W + 1, _FLOOR_W + 4)
_N_ROWS = _GPU_MAX_W + 1
_MEASURED_W = _TWIN_FIELDS.index("measured_w")
INTENSITIES_STALE_S = 900.0
"""Age from which published intensities no longer count, s: the grid controller repeats them every minute."""


@dataclass(frozen=True, eq=False)
class Roster:
    """Slots of the nodes, and their serialised scores.

    Attributes:
        slots: slot by node name.
        entries: HostPriority entry of a node and score, at index ``slot * 11 + score``.
        names: node name by slot; empty where there is none.
    """

    slots: dict[str, int]
    entries: list[bytes]
    names: list[str]

    def copy(self) -> Roster:
        """A copy that a view can keep while this roster changes."""
        return Roster(self.slots.copy(), self.entries.copy(), self.names.copy())


@dataclass(frozen=True, eq=False)
class MarginalView:
    """What SCORING=marginal needs of all nodes; arrays have shape ``(n_slots,)``.

    Attributes:
        nodes: what runs on them; those in observe mode are not judged.
        ranks: how empty they are.
        surcharge_w_per_core: surcharge for CPU work on a GPU node, W a core.
        duration_min: expected duration of a pod, by what it is like and the duration that it states.
    """

    nodes: NodeOccupancy
    ranks: FloatArray
    surcharge_w_per_core: float
    duration_min: Callable[[LifeClass, float | None], float]


@dataclass(frozen=True, eq=False)
class FleetView:
    """An immutable snapshot of all nodes; arrays have shape ``(n_slots,)``.

    Attributes:
        roster: slots of the nodes.
        twins: numbers of the twins.
        load: power of the nodes at full load.
        updated_s: last update of each twin, s since the epoch; NaN without one.
        now_s: time of the snapshot, s since the epoch.
        scoring: scoring aim.
        refusals: nodes closed to performance pods, by class.
        zone_points: what the carbon intensity of its zone adds to the score of each node.
        zones: index of each node's zone; -1 without one and in observe mode.
        zone_index: index of each zone by name.
        zone_weight: points that a chosen zone adds.
        full_w: power of each node at full load with PUE by type of GPU workload, W, shape ``(n_types, n_nodes)``; NaN
            if unknown, and in observe mode.
        policies: policies of namespaces about the power of nodes, as annotations by namespace.
        marginal: what SCORING=marginal needs; None with another.
        sharing: what SCORING=frugal needs; None with another.
        power: room of power budgets; None where none holds pods back.
        beyond_limits: nodes beyond limits of power that were asked for, with the reason, as far as it is remembered.
    """

    roster: Roster
    twins: TwinView
    load: FullLoad
    updated_s: FloatArray
    now_s: float
    scoring: ScoringAim
    refusals: Refusals
    zone_points: FloatArray
    zones: IntArray
    zone_index: Mapping[str, int]
    zone_weight: float
    full_w: FloatArray
    policies: Policies
    marginal: MarginalView | None = None
    sharing: SharingView | None = None
    power: PowerView | None = None
    beyond_limits: dict[PowerLimits, Mapping[str, str]] = field(default_factory=dict)

    def points_for(self, chosen_zone: str | None) -> FloatArray:
        """What zones add to the scores of a pod: by its chosen zone, if it has one here, else by their intensity."""
        index = self.zone_index.get(chosen_zone or "")
        return self.zone_points if index is None else np.where(self.zones == index, self.zone_weight, 0.0)


@dataclass
class _Node:
    slot: int
    enforced: bool
    twin: TwinFacts | None = None
    labelled: NodeClass | None = None
    load: LoadFacts | None = None
    zone: ZoneHints | None = None

    @property
    def known(self) -> bool:
        return any(one is not None for one in (self.twin, self.labelled, self.load, self.zone))

    @property
    def node_class(self) -> NodeClass:
        """Class by the twin, else by the node's labels; UNKNOWN, which closes it to nobody, in observe mode."""
        if not self.enforced:
            return NodeClass.UNKNOWN
        if self.twin is not None and self.twin.node_class is not NodeClass.UNKNOWN:
            return self.twin.node_class
        return NodeClass.UNKNOWN if self.labelled is None else self.labelled


class Fleet:
    """The mutable table of nodes behind the views. Used from one event loop only."""

    def __init__(
        self,
        staleness_s: float,
        scoring: ScoringAim = ScoringAim.HEADROOM,
        mode: Mode = Mode.ENFORCE,
        *,
        intensity_weight: float = 0.0,
        profiles: HardwareProfiles = DEFAULT_PROFILES,
        occupancy: Occupancy | None = None,
        shared: SharedGpus | None = None,
        power: PowerRoom | None = None,
    ) -> None:
        """Create an empty fleet.

        Args:
            staleness_s: age from which a twin is treated as stale, s.
            scoring: scoring aim.
            mode: mode of nodes without a label of their own.
            intensity_weight: points that a node gains or loses by the carbon intensity of its zone, 0..100.
            profiles: whose default PUEs and GPU workloads count in the power of nodes.
            occupancy: pods of the nodes, for SCORING=marginal; None with another.
            shared: pods of the nodes, for SCORING=frugal; None with another.
            power: room of power budgets; None where pods do not wait for power.
        """
        self._sharing = shared
        self._power = power
        self._occupancy = occupancy
        self._places: tuple[Roster, int, IntArray] | None = None
        self._profiles = profiles
        self._enforced = mode is Mode.ENFORCE
        self._intensity_weight = intensity_weight
        self._intensities: Intensities | None = None
        self._zone_table = CLOUD_REGIONS
        self._zone_index: dict[str, int] = {}
        self._staleness_s = staleness_s
        self._scoring = scoring
        self._nodes: dict[str, _Node] = {}
        self._free: list[int] = []
        self._roster = Roster({}, [b""] * N_SCORES, [""])
        self._shared: Roster | None = None
        self._refusals: Refusals = {node_class: {} for node_class in REFUSALS}
        self._shared_refusals: Refusals | None = None
        self._policies: dict[str, Mapping[str, str]] = {}
        self._shared_policies: Policies | None = None
        self.class_changes = 0
        """Changes so far of the nodes that are closed to performance pods."""
        self._table: FloatArray = np.empty((_N_ROWS, _FIRST_CAPACITY))
        self._clear(UNKNOWN_SLOT)

    def set_twin(self, name: str, twin: TwinFacts | None) -> None:
        """Set or, with None, remove the twin of a node."""
        node = self._node(name)
        node.twin = twin
        self._enter_twin(name, node)
        self._settle(name, node)

    def set_label_class(self, name: str, labelled: NodeClass | None, *, enforced: bool | None = None) -> None:
        """Set the class by a node's labels; None if the node was deleted.

        Args:
            name: node name.
            labelled: class by the operator's labels.
            enforced: whether its class and scores count, else it is open to all pods, with the neutral score; None for
                the mode of nodes without a label.
        """
        node = self._node(name)
        node.labelled, node.enforced = labelled, self._enforced if enforced is None else enforced
        self._enter_twin(name, node)
        self._enter_intensity(node)
        self._enter_full_w(name, node)
        self._settle(name, node)

    def set_zone(self, name: str, hints: ZoneHints | None) -> None:
        """Set what a node says about its grid zone; None if the node was deleted."""
        node = self._node(name)
        node.zone = hints
        self._enter_intensity(node)
        self._settle(name, node)

    def set_intensities(self, intensities: Intensities | None) -> None:
        """Set the carbon intensities of all zones; None if they are missing."""
        former, self._intensities = self._intensities, intensities
        if former is not None and intensities is not None and former == replace(intensities, time_s=former.time_s):
            return  # published again
        self._zone_table = CLOUD_REGIONS if intensities is None else {**CLOUD_REGIONS, **intensities.regions}
        self._zone_index = {}
        for node in self._nodes.values():
            self._enter_intensity(node)

    def set_load(self, name: str, load: LoadFacts | None) -> None:
        """Set the power of a node at full load; None if unknown."""
        node = self._node(name)
        node.load = load
        self._table[_CPU_MAX_W:, node.slot] = (load or LoadFacts()).maxima
        self._enter_full_w(name, node)
        self._settle(name, node)
        if load is None and self._occupancy is not None:
            self._occupancy.forget(name)

    def set_policies(self, namespace: str, policies: Mapping[str, str] | None) -> None:
        """Set a namespace's policies about the power of nodes, as annotations; None without any."""
        self._shared_policies = None
        if policies is None:
            self._policies.pop(namespace, None)
        else:
            self._policies[namespace] = policies

    def added_w(self, node: str, requests: PodRequests, *, performance: bool) -> float:
        """Power that a pod is expected to add to a node, W; a node that is unknown counts with fallbacks."""
        known = self._nodes.get(node)
        columns = self._table[_CPU_MAX_W:, UNKNOWN_SLOT if known is None else known.slot, np.newaxis]
        return float(FullLoad(*columns).marginal_w(requests, performance=performance)[0])

    def view(self, now_s: float) -> FleetView:
        """Take a snapshot of all nodes.

        Args:
            now_s: s since the epoch.
        """
        if self._shared is None:
            self._shared = self._roster.copy()
        if self._shared_refusals is None:
            self._shared_refusals = {node_class: closed.copy() for node_class, closed in self._refusals.items()}
        if self._shared_policies is None:
            self._shared_policies = self._policies.copy()
        table = self._table[:, : self._n_slots].copy()
        numbers = dict(zip(_TWIN_FIELDS, table[:_N_TWIN], strict=True))
        node_class = table[_NODE_CLASS].astype(np.int64)
        fresh = self._fresh(table, now_s)
        twins = TwinView(
            node_class=node_class,
            fresh=fresh,
            cluster_trend_w_per_min=float(numbers["trend_w_per_min"][fresh].sum()),
            perf_pressure=performance_pressure(numbers["headroom_score"], node_class, fresh),
            **numbers,
        )
        load = FullLoad(table[_CPU_MAX_W], table[_CORES], table[_GPU_MAX_W])
        points = self._zone_points(table[_INTENSITY], now_s)
        return FleetView(
            self._shared,
            twins,
            load,
            table[_UPDATED_S],
            now_s,
            self._scoring,
            self._shared_refusals,
            points,
            np.nan_to_num(table[_ZONE], nan=-1.0).astype(np.int64),
            self._zone_index.copy(),
            self._intensity_weight,
            table[_FULL_W],
            self._shared_policies,
            self._marginal(self._shared, table, now_s),
            None if self._sharing is None else self._sharing.view(self._shared.slots, self._n_slots, self._shared),
            self._power_view(self._shared, table, fresh, now_s),
        )

    def _marginal(self, roster: Roster, table: FloatArray, now_s: float) -> MarginalView | None:
        if self._occupancy is None:
            return None
        found, places = self._occupancy.view(now_s), self._places_of(roster, self._occupancy)
        cores, gpus = table[_CORES], np.nan_to_num(table[_GPUS])
        nodes = NodeOccupancy(
            table[_BASE_W],
            found.busy_min[places],
            cores,
            gpus,
            np.maximum(0.0, cores - found.used_cores[places]),
            np.maximum(0.0, gpus - found.used_gpus[places]),
        )
        return MarginalView(nodes, packing_ranks(nodes), nodes.surcharge_w_per_core, self._occupancy.duration_min)

    def _power_view(self, roster: Roster, table: FloatArray, fresh: BoolArray, now_s: float) -> PowerView | None:
        if self._power is None:
            return None
        full_w = table[_CPU_MAX_W] + np.nan_to_num(table[_GPUS]) * table[_GPU_MAX_W]
        drawn_w = np.where(fresh, table[_MEASURED_W], full_w)
        floor_w = np.where(np.isfinite(table[_FLOOR_W]), table[_FLOOR_W], full_w)
        return self._power.view(roster.slots, self._n_slots, now_s, drawn_w, floor_w, roster)

    def _places_of(self, roster: Roster, occupancy: Occupancy) -> IntArray:
        """Index in the occupancy by slot, kept until one of them changes."""
        if self._places is None or self._places[:2] != (roster, occupancy.index_changes):
            slots, places = roster.slots, np.full(len(roster.entries) // N_SCORES, NO_PODS)
            found = np.fromiter(map(occupancy.index.get, slots, repeat(NO_PODS)), np.int64, len(slots))
            places[np.fromiter(slots.values(), np.int64, len(slots))] = found
            self._places = roster, occupancy.index_changes, places
        return self._places[2]

    def _zone_points(self, g_per_kwh: FloatArray, now_s: float) -> FloatArray:
        found = self._intensities
        if found is None or abs(now_s - found.time_s) > INTENSITIES_STALE_S:
            return np.zeros(g_per_kwh.shape)
        return zone_points(g_per_kwh, self._intensity_weight)

    def why_stale(self, name: str, now_s: float) -> str:
        """Why a node gets the neutral score; empty if it does not."""
        node = self._nodes.get(name)
        if not (self._enforced if node is None else node.enforced):
            return "the node is in observe mode"
        if self._sharing is not None:
            return self._sharing.state(name)[1]
        return "no NodeTwin" if node is None or node.twin is None else self._flaw(node.twin, now_s)

    def _flaw(self, twin: TwinFacts, now_s: float) -> str:
        """Why the numbers of a twin do not count; empty if they do."""
        if twin.flaw:
            return twin.flaw
        if twin.updated_s is None:
            return "NodeTwin has no lastUpdated"
        age_s = now_s - twin.updated_s
        if abs(age_s) <= self._staleness_s:
            return ""
        if age_s < 0.0:
            return f"NodeTwin was updated {-age_s:.0f} s in the future: clocks differ"
        return f"NodeTwin is {age_s:.0f} s old, above {self._staleness_s:.0f} s"

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self._nodes)

    def _fresh(self, table: FloatArray, now_s: float) -> BoolArray:
        """Mask of twins with valid numbers that are not stale; a timestamp in the future counts as stale."""
        with np.errstate(invalid="ignore"):
            young = np.abs(now_s - table[_UPDATED_S]) <= self._staleness_s
        fresh: BoolArray = young & np.isfinite(table[_CAPPED_W])
        return fresh

    def _enter_twin(self, name: str, node: _Node) -> None:
        """Enter the twin's numbers into the table; none in observe mode, so that the node has the neutral score."""
        twin = node.twin if node.enforced else None
        numbers = None if twin is None else twin.numbers
        self._table[:_N_TWIN, node.slot] = np.nan if numbers is None else _numbers(numbers)
        updated_s = None if twin is None else twin.updated_s
        self._table[_UPDATED_S, node.slot] = np.nan if updated_s is None else updated_s
        if self._power is not None:
            self._power.set_covering(name, () if twin is None else twin.budgets)

    def _enter_full_w(self, name: str, node: _Node) -> None:
        """Enter the node's power for the limits of pods; none in observe mode, so that it is open to all."""
        load = node.load if node.enforced else None
        self._table[_FULL_W, node.slot] = (load or LoadFacts()).full_w(self._profiles)
        self._table[_BASE_W, node.slot] = np.nan if load is None else load.base_w
        self._table[_GPUS, node.slot] = 0.0 if load is None else load.gpus
        self._table[_FLOOR_W, node.slot] = np.nan if load is None or load.floor_w is None else load.floor_w
        if self._sharing is not None:
            self._sharing.set_node(name, None if load is None else load.shared)

    def _enter_intensity(self, node: _Node) -> None:
        """Enter the intensity of the node's zone; none in observe mode, so that the node has no points."""
        found, value, index = self._intensities, np.nan, np.nan
        if found is not None and node.zone is not None and node.enforced:
            said = node.zone
            zone = zone_of_node(said.labels, said.annotations, said.provider_id, found.default_zone, self._zone_table)
            value = found.g_per_kwh.get(zone, np.nan)
            index = self._zone_index.setdefault(zone, len(self._zone_index))
        self._table[_INTENSITY, node.slot], self._table[_ZONE, node.slot] = value, index

    def _node(self, name: str) -> _Node:
        """The node of a name; a new one gets a slot."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(self._new_slot(), self._enforced)
            quoted = json_text(name)
            first = node.slot * N_SCORES
            self._roster.slots[name] = node.slot
            self._roster.names[node.slot] = name
            self._roster.entries[first : first + N_SCORES] = [host_score(quoted, score) for score in range(N_SCORES)]
            self._shared = None
        return node

    def _settle(self, name: str, node: _Node) -> None:
        """Update the class of a node, or free its slot if nothing is known of it any more."""
        self._close(name, node.node_class)
        if node.known:
            self._table[_NODE_CLASS, node.slot] = node.node_class
            return
        del self._nodes[name], self._roster.slots[name]
        self._roster.names[node.slot] = ""
        self._clear(node.slot)
        self._free.append(node.slot)
        self._shared = None

    def _close(self, name: str, node_class: NodeClass) -> None:
        """List the node among the refusals of its class, and of no other."""
        for closing, refusals in self._refusals.items():
            if (name in refusals) == (closing is node_class):
                continue
            self._shared_refusals = None
            self.class_changes += 1
            if closing is node_class:
                refusals[name] = refusal(name, REFUSALS[closing])
            else:
                del refusals[name]

    @property
    def _n_slots(self) -> int:
        return len(self._roster.entries) // N_SCORES

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = self._n_slots
        if slot == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.empty_like(self._table)], axis=1)
        self._roster.entries.extend([b""] * N_SCORES)
        self._roster.names.append("")
        self._clear(slot)
        return slot

    def _clear(self, slot: int) -> None:
        self._table[:, slot] = np.nan
        self._table[_NODE_CLASS, slot] = NodeClass.UNKNOWN
        self._table[_CPU_MAX_W:, slot] = LoadFacts().maxima


def slots_of(roster: Roster, names: list[str]) -> IntArray:
    """Slot of each name; `UNKNOWN_SLOT` for unknown nodes."""
    return np.fromiter(map(roster.slots.get, names, repeat(UNKNOWN_SLOT)), np.int64, len(names))
