"""What the operator's step takes as input: its settings, the nodes, and a frozen snapshot of the cluster.

Source: spec, control loop, operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control_caps import ReportedCaps
from joulie.domain.control_power import SourceReadings
from joulie.domain.drain import DrainSettings
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.policy import DEFAULT_CAPS, Cap, PolicyNode, Profile, ProfileCaps
from joulie.domain.twin import DEFAULT_RACK_CAPACITY_W, hardware_density
from joulie.domain.units import BoolArray, FloatArray, IntArray, non_negative, positive


@dataclass(frozen=True)
class ControlSettings:
    """Settings of the operator's step, fixed for its life.

    Attributes:
        drain: settings of the drain guard.
        caps: caps by profile.
        absolute_gpu_caps: whether GPU percentages are written as watts where the device's range is known.
        stale_after_s: age from which a power sample is stale, s.
        trend_window_s: how far back the power trend looks, s.
        rack_capacity_w: power capacity by rack, W.
        default_capacity_w: capacity of every other rack, W.
        cluster_capacity_w: capacity of the cluster, which counts for the nodes without a rack, W; None for no limit.
        not_ready_grace_s: how long a node that is not ready keeps its performance slot, s.
        time_scale: seconds of the nodes' time in a second of the clock: other than 1 only where they are simulated.
    """

    drain: DrainSettings = field(default_factory=DrainSettings)
    caps: Mapping[Profile, ProfileCaps] = field(default_factory=lambda: DEFAULT_CAPS)
    absolute_gpu_caps: bool = False
    stale_after_s: float = 120.0
    trend_window_s: float = 300.0
    rack_capacity_w: Mapping[str, float] = field(default_factory=dict)
    default_capacity_w: float = DEFAULT_RACK_CAPACITY_W
    cluster_capacity_w: float | None = None
    not_ready_grace_s: float = 300.0
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        non_negative("stale_after_s", self.stale_after_s)
        non_negative("not_ready_grace_s", self.not_ready_grace_s)
        positive("trend_window_s", self.trend_window_s)
        positive("time_scale", self.time_scale)


class ControlledNode(NamedTuple):
    """A node in the operator's scope, as decisions see it; made once a change of the node, kept between steps."""

    name: str
    eligible: bool
    """Whether it is planned. A node in scope that is not (reserved, cordoned) is at full power, without caps."""
    hardware: ResolvedHardware
    planned: PolicyNode
    limits: tuple[float, float, float, float]
    """CPU TDP (W), GPU TDP (W), cores, GPUs."""
    limits_known: bool
    rack: str | None
    zone: str | None
    enforced: bool = True
    """Whether its plan is applied; otherwise it is only reported."""
    not_ready_since_s: float | None = None
    """Since when it cannot run new pods, s since the epoch; None where it is ready."""


def controlled_node(
    name: str,
    hardware: ResolvedHardware,
    *,
    eligible: bool = True,
    rack: str | None = None,
    zone: str | None = None,
    enforced: bool = True,
    not_ready_since_s: float | None = None,
) -> ControlledNode:
    """A node with what follows from its hardware worked out."""
    gpus = 0 if hardware.gpu is None else hardware.gpu.count
    density = float(hardware_density(hardware.cpu.cores, gpus))
    return ControlledNode(
        name,
        eligible,
        hardware,
        PolicyNode(name, hardware.family, density, hardware),
        hardware.limits or (0.0, 0.0, hardware.cpu.cores, gpus),
        hardware.limits is not None,
        rack,
        zone,
        enforced,
        not_ready_since_s,
    )


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """What is fixed about the nodes of a snapshot, in columns; worked out again only when a node changes.

    Attributes:
        nodes: the nodes, in the order of all arrays.
        names: their names.
        planned: what policies see of those that are eligible.
        limits: CPU TDP (W), GPU TDP (W), cores, GPUs; shape ``(n_nodes, 4)``.
        limits_known: whether those are known, shape ``(n_nodes,)``.
        racks: names of the racks.
        rack: index into them, -1 where a node has none, shape ``(n_nodes,)``.
        zones: cooling zone of each node; None where a node has none.
    """

    nodes: tuple[ControlledNode, ...]
    names: tuple[str, ...]
    planned: tuple[PolicyNode, ...]
    limits: FloatArray
    limits_known: BoolArray
    racks: tuple[str, ...]
    rack: IntArray
    zones: tuple[str | None, ...]

    @classmethod
    def of(cls, nodes: tuple[ControlledNode, ...]) -> Self:
        """The columns of these nodes."""
        racks = sorted({node.rack for node in nodes if node.rack is not None})
        index: dict[str | None, int] = {rack: position for position, rack in enumerate(racks)}
        return cls(
            nodes,
            tuple(node.name for node in nodes),
            tuple(node.planned for node in nodes if node.eligible),
            np.array([node.limits for node in nodes], dtype=np.float64).reshape(-1, 4),
            np.array([node.limits_known for node in nodes], dtype=np.bool_),
            tuple(racks),
            np.array([index.get(node.rack, -1) for node in nodes], dtype=np.int64),
            tuple(node.zone for node in nodes),
        )

    def ambient_k(self, facility: Facility) -> FloatArray:
        """Air temperature of each node, K: its own, else its zone's, else the building's, else NaN."""
        everywhere_k = np.nan if facility.ambient_k is None else facility.ambient_k
        by_zone_k, by_node_k = facility.zone_ambient_k, facility.node_ambient_k
        ambient_k = np.full(len(self.nodes), everywhere_k, dtype=np.float64)
        if by_zone_k:
            ambient_k[:] = [by_zone_k.get(zone or "", everywhere_k) for zone in self.zones]
        if by_node_k:
            ambient_k[:] = [by_node_k.get(name, k) for name, k in zip(self.names, ambient_k.tolist(), strict=True)]
        return ambient_k


@dataclass(frozen=True)
class Override:
    """An administrator's pin of one node: it takes precedence over the policy, never over the drain guard.

    Attributes:
        name: of the object that says so.
        profile: the profile to plan.
        cpu: cap of one CPU package under that profile; None for the profile's usual one.
        gpu: cap of one GPU under that profile; None for the profile's usual one.
    """

    name: str
    profile: Profile
    cpu: Cap | None = None
    gpu: Cap | None = None


class Would(NamedTuple):
    """State that a node in observe mode would be in."""

    profile: Profile
    draining: bool
    """Whether it would have to drain first."""


class StoredState(NamedTuple):
    """State of a node as its NodeTwin stores it; a restarted operator continues from it."""

    profile: Profile | None
    draining: bool
    draining_since_s: float | None
    would: Would | None = None
    """What was reported of a node in observe mode."""
    lifted: bool = False
    """Whether its caps were lifted for pods that need full power."""
    forced: bool = False
    """Whether the drain timeout capped it under such pods."""


@dataclass(frozen=True)
class Facility:
    """Fresh measurements of the facility; unknown values are None or left out.

    Attributes:
        ambient_k: temperature of the air, K.
        zone_ambient_k: by cooling zone, K; takes precedence over it.
        node_ambient_k: by node, K; takes precedence over both.
        rack_power_w: measured power by rack, W; takes precedence over the sum over nodes.
        it_power_w: of all IT, W.
        cooling_power_w: of cooling, W.
        pue: measured PUE.
        it_ramp_w_per_min: change of the power of IT, W/min.
        rack_ramp_w_per_min: change of the measured power by rack, W/min.
    """

    ambient_k: float | None = None
    zone_ambient_k: Mapping[str, float] = field(default_factory=dict)
    node_ambient_k: Mapping[str, float] = field(default_factory=dict)
    rack_power_w: Mapping[str, float] = field(default_factory=dict)
    it_power_w: float | None = None
    cooling_power_w: float | None = None
    pue: float | None = None
    it_ramp_w_per_min: float | None = None
    rack_ramp_w_per_min: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one moment.

    Attributes:
        now_s: time, s since the epoch.
        nodes: all nodes in scope, planned or not, since racks are summed over them.
        performance_demand: weighted count of performance pods, pending and running.
        blocking: pods that hold up a drain, by node; a node without any may be left out.
        full_power: those of them that must not run under caps, likewise; None for all of them.
        reported: what agents report about the caps, by node: only what they confirmed counts as in force. None where
            caps hold as soon as they are decided.
        power: what the sources say, best first, in the order of `nodes`.
        overrides: by node.
        stored: states of nodes that memory does not know, from their NodeTwins.
        facility: measurements of the building.
        ceilings: upper bounds of caps from power budgets, by node, whatever its profile.
    """

    now_s: float
    nodes: tuple[ControlledNode, ...]
    performance_demand: int = 0
    blocking: Mapping[str, int] = field(default_factory=dict)
    power: tuple[SourceReadings, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    stored: Mapping[str, StoredState] = field(default_factory=dict)
    facility: Facility = field(default_factory=Facility)
    full_power: Mapping[str, int] | None = None
    reported: Mapping[str, ReportedCaps] | None = None
    ceilings: Mapping[str, PowerCeiling] = field(default_factory=dict)
