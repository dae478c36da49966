"""What the nodes under power budgets can draw, and under which limits they are, as their agents confirm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlResult, ControlStatus, NodeTwin
from joulie.apps.operator.budgets.other_watts import WHOLE_NODE, OtherWatts
from joulie.apps.operator.facts import asked_caps, other_boot, reported_caps
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.columns import sources_of
from joulie.apps.operator.sources.catalogue import STATIC, estimates
from joulie.domain.capping.budgets import BudgetNodes
from joulie.domain.capping.node_limits import NO_DEVICES, DeviceLimits, NodeLimits, PowerCeiling
from joulie.domain.control import ControlledNode
from joulie.domain.control_caps import ReportedCap
from joulie.domain.control_power import PowerChoice, SourceReadings
from joulie.domain.hardware import CapRange
from joulie.domain.policy import NO_CAP, Cap
from joulie.domain.units import FloatArray

UNKNOWN_NODE_W = 1500.0
"""Worst case of a node of unknown hardware where no other node tells more, W."""
_NO_LIMIT_W = float("inf")
_NO_PRIORITY = (0,)
_SETS_LIMITS = {ControlOutcome.APPLIED, ControlOutcome.NONE}


@dataclass
class _Confirmed:
    """What a node's agent last confirmed.

    Attributes:
        uid: UID of the NodeTwin.
        generation: its newest generation.
        pending: whether the agent has yet to report about it.
        since_s: since when it has, or when it last reported about an older one, s since the epoch.
        reported: generation of its last report.
        cpu_w: limit in force of one package, W; infinite for none.
        gpu_w: the same of one GPU.
        asked_cpu_w: highest limit that was asked for since, W: its agent may have set it and not said so.
        asked_gpu_w: the same of one GPU.
    """

    uid: str
    generation: int
    since_s: float
    pending: bool = True
    reported: int | None = None
    cpu_w: float = _NO_LIMIT_W
    gpu_w: float = _NO_LIMIT_W
    asked_cpu_w: float = 0.0
    asked_gpu_w: float = 0.0


class LimitsOfNodes:
    """The limits of nodes; remembers what agents confirmed while they have yet to report about something newer.

    Args:
        view: cached view of the cluster.
        other_share: what no limit reaches, as a share of the full power of CPUs and GPUs, where a node's own readings
            do not tell.
    """

    def __init__(self, view: ClusterView, other_share: float) -> None:
        self._view = view
        self._other_share = other_share
        self._other = OtherWatts()
        self._confirmed: dict[str, _Confirmed] = {}

    def look(
        self,
        nodes: Sequence[ControlledNode],
        asked: Mapping[str, PowerCeiling | None],
        power: PowerChoice,
        response_s: float,
        now_s: float,
        readings: Sequence[SourceReadings] = (),
    ) -> tuple[BudgetNodes, list[NodeLimits | None]]:
        """The nodes as budgets see them, and the limits of each; None where its hardware is unknown.

        Args:
            nodes: all managed nodes.
            asked: ceilings that nodes were last asked to keep; a node may be left out, see `_asked`.
            power: measured power of the nodes.
            response_s: how long an agent may take to confirm a limit, s.
            now_s: time, s since the epoch.
            readings: of all sources of power, most trusted first.
        """
        names = tuple(node.name for node in nodes)
        devices_w = np.array([sum(node.limits[:2]) if node.limits_known else 0.0 for node in nodes])
        other_w = self._other.watts(names, readings, devices_w, self._other_share, now_s).tolist()
        limits = [self._limits(node, asked, one_w, now_s) for node, one_w in zip(nodes, other_w, strict=True)]
        known = {node.name for node in nodes}
        self._confirmed = {name: one for name, one in self._confirmed.items() if name in known}
        largest_w = max((one.full_w for one in limits if one is not None), default=UNKNOWN_NODE_W)
        unknown = (largest_w,) * 4
        floor_w, full_w, in_force_w, asked_w = (
            np.array(
                [unknown if one is None else (one.floor_w, one.full_w, one.in_force_w, one.asked_w) for one in limits],
                dtype=np.float64,
            )
            .reshape(-1, 4)
            .T
        )
        critical, priorities = self._view.ledger.full_power, self._view.ledger.priorities
        steerable = [
            one is not None and one.floor_w < one.full_w and self._answers(node, response_s, now_s)
            for node, one in zip(nodes, limits, strict=True)
        ]
        found = BudgetNodes(
            names=names,
            critical=np.array([critical.get(node.name, 0) > 0 for node in nodes], dtype=np.bool_),
            floor_w=floor_w,
            full_w=full_w,
            in_force_w=in_force_w,
            asked_w=asked_w,
            steerable=np.array(steerable, dtype=np.bool_),
            power_w=_whole_power_w(power, limits),
            read_s=power.time_s,
            priority=np.array([max(priorities.get(node.name, _NO_PRIORITY)) for node in nodes], dtype=np.int64),
        )
        return found, limits

    def _answers(self, node: ControlledNode, response_s: float, now_s: float) -> bool:
        """Whether a node's agent sets what it is asked for, within the response time."""
        confirmed = self._confirmed.get(node.name)
        if confirmed is None or not (node.enforced and node.eligible) or node.not_ready_since_s is not None:
            return False
        return not confirmed.pending or 0.0 <= now_s - confirmed.since_s <= response_s

    def _limits(
        self, node: ControlledNode, asked: Mapping[str, PowerCeiling | None], other_w: float, now_s: float
    ) -> NodeLimits | None:
        if not node.limits_known:
            return None
        twin = self._view.twin_of(node.name)
        cpu_asked_w, gpu_asked_w = _asked(node, twin, asked)
        cpu_set_w = gpu_set_w = _NO_LIMIT_W
        if twin is not None:
            confirmed = self._confirm(node, twin, now_s)
            if not confirmed.pending:
                confirmed.asked_cpu_w = confirmed.asked_gpu_w = 0.0
            # A leader that was slow, or a person, may have written more than this one asks for.
            cpu_written_w, gpu_written_w = _written(node, twin)
            confirmed.asked_cpu_w = max(confirmed.asked_cpu_w, cpu_asked_w, cpu_written_w)
            confirmed.asked_gpu_w = max(confirmed.asked_gpu_w, gpu_asked_w, gpu_written_w)
            cpu_set_w = max(confirmed.cpu_w, confirmed.asked_cpu_w)
            gpu_set_w = max(confirmed.gpu_w, confirmed.asked_gpu_w)
        control = None if twin is None else twin.status.control_status
        cpu, gpu = node.hardware.cpu, node.hardware.gpu
        cpu_w, gpu_w, _, _ = node.limits
        devices = (
            _device(
                cpu.sockets * cpu.share, cpu.cap_range, cpu_w, None if control is None else control.cpu,
                cpu_set_w, cpu_asked_w,
            ),
            NO_DEVICES
            if gpu is None
            else _device(
                gpu.count, _own_range(gpu.cap_range, control), gpu_w, None if control is None else control.gpu,
                gpu_set_w, gpu_asked_w,
            ),
        )  # fmt: skip
        return NodeLimits(*devices, other_w)

    def _confirm(self, node: ControlledNode, twin: NodeTwin, now_s: float) -> _Confirmed:
        """Take the agent's report about a twin; a node that is not ready may have lost its limits."""
        uid, generation = twin.metadata.uid, twin.metadata.generation
        known = self._confirmed.get(node.name)
        if known is None or known.uid != uid:
            known = self._confirmed[node.name] = _Confirmed(uid, generation, now_s)
        control = twin.status.control_status
        reported = None if control is None else control.observed_generation
        # An agent that is silent gets no more time with each new limit; one that reports does.
        if (known.generation != generation and not known.pending) or reported not in (None, known.reported):
            known.since_s = now_s
        known.pending |= known.generation != generation
        known.generation, known.reported = generation, reported
        facts = self._view.node(node.name)
        # The agent has stopped, or reported before a boot that has reset the limits.
        lost = control is not None and (reported is None or other_boot(control, "" if facts is None else facts.boot_id))
        if node.not_ready_since_s is not None or lost:
            if not known.pending:
                known.pending, known.since_s = True, now_s
            known.cpu_w = known.gpu_w = _NO_LIMIT_W
        elif reported == generation:
            caps = reported_caps(twin)
            gpu = node.hardware.gpu
            known.pending = False
            known.cpu_w = _confirmed_w(caps.cpu, node.hardware.cpu.cap_range)
            known.gpu_w = _confirmed_w(caps.gpu, None if gpu is None else gpu.cap_range)
        return known


def _asked(
    node: ControlledNode, twin: NodeTwin | None, asked: Mapping[str, PowerCeiling | None]
) -> tuple[float, float]:
    """Limits of one package and one GPU that a node may set at any time, W; infinite for none.

    They are those of its ceiling, since the policy may raise its caps to them without asking. A node without a ceiling
    may go to full power. Before the first decision of this leader, the NodeTwin tells what the one before asked for.
    """
    if node.name in asked or twin is None:
        ceiling = asked.get(node.name) or PowerCeiling(None, None)
        return ceiling.cpu_w or _NO_LIMIT_W, ceiling.gpu_w or _NO_LIMIT_W
    return _written(node, twin)


def _written(node: ControlledNode, twin: NodeTwin) -> tuple[float, float]:
    """Limits of one package and one GPU that a NodeTwin asks for, W; infinite for none."""
    cpu, gpu = asked_caps(twin)
    gpus = node.hardware.gpu
    return _cap_w(cpu, node.hardware.cpu.cap_range), _cap_w(gpu, None if gpus is None else gpus.cap_range)


def _cap_w(cap: Cap | None, limits: CapRange | None) -> float:
    return _NO_LIMIT_W if cap is None or cap == NO_CAP or limits is None else cap.for_device(limits)


def _own_range(limits: CapRange | None, control: ControlStatus | None) -> CapRange | None:
    """The range of one GPU's limit, up to the one that it has without a cap: an administrator may have raised it."""
    own_w = max((one.original_watts or one.limit_watts or 0.0 for one in control.gpus), default=0.0) if control else 0.0
    if limits is None or own_w <= limits.base_w:
        return limits
    return CapRange(limits.min_w, max(limits.max_w, own_w), own_w)


def _confirmed_w(reported: ReportedCap, limits: CapRange | None) -> float:
    return _cap_w(reported.cap, limits) if reported.confirmed else _NO_LIMIT_W


def _device(
    count: float,
    limits: CapRange | None,
    all_w: float,
    report: ControlResult | None,
    confirmed_w: float,
    asked_w: float,
) -> DeviceLimits:
    """The limits of one kind of device: within its range where its agent sets them, else what is in force."""
    if limits is None:
        return DeviceLimits(1.0, all_w, all_w, all_w, all_w)
    asked_w = min(max(asked_w, limits.min_w), limits.base_w)
    in_force_w = max(min(confirmed_w, limits.base_w), asked_w)
    if report is None or report.result not in _SETS_LIMITS:
        return DeviceLimits(count, in_force_w, in_force_w, in_force_w, asked_w)
    return DeviceLimits(count, limits.min_w, limits.base_w, in_force_w, asked_w)


def _whole_power_w(power: PowerChoice, limits: Sequence[NodeLimits | None]) -> FloatArray:
    """Measured power of whole nodes, W; NaN where none is measured. An estimate is not a measurement."""
    found = np.full(len(limits), np.nan)
    for index, one in enumerate(limits):
        name = power.source_of(index)
        source = None if name is None else sources_of(name)[0]
        if source is None or source == STATIC or estimates(source):
            continue
        missing_w = 0.0 if one is None or source in WHOLE_NODE else one.other_w
        found[index] = power.power_w[index] + missing_w
    return found
