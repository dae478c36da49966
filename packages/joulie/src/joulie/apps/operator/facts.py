"""The fields of each Kubernetes object that the operator caches.

Few fields are kept, since a cluster has many objects; the types are comparable, so that changes can be detected.
"""

from __future__ import annotations

import msgspec

from joulie.adapters.kubernetes import names, profiles
from joulie.adapters.kubernetes.api.core import Node, Taint
from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    ControlOutcome,
    ControlResult,
    ControlStatus,
    NodeHardware,
    NodePowerProfile,
    NodeTwin,
    WorkloadProfile,
    WorkloadProfileStatus,
)
from joulie.adapters.kubernetes.control_reports import nothing_limits
from joulie.adapters.kubernetes.hardware import (
    allocatable_devices,
    amount,
    capacity_cpus,
    node_aliases,
    reported_hardware,
)
from joulie.adapters.kubernetes.pods import profile_facts, profile_owner
from joulie.adapters.kubernetes.sleep_marks import has_asleep_taint, sleep_mark
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import Override, StoredState, Would
from joulie.domain.control_caps import NO_REPORT, UNREPORTED, ReportedCap, ReportedCaps
from joulie.domain.hardware.resolve import ReportedHardware
from joulie.domain.mode import Mode, mode_of
from joulie.domain.policy import Cap, Profile

_BYTES_PER_GIB = 1024.0**3
DRAINING_CONDITION = "Draining"
LIFTED_REASON = "CapsLifted"
"""Reason of that condition where pods that need full power reached a capped node, whose caps are lifted for them."""
FORCED_REASON = "Forced"
"""Reason of that condition where the drain timeout set the caps under such pods."""
COUNTED_CONDITION = "Counted"


class NodeFacts(msgspec.Struct, frozen=True):
    """The cached fields of a Node.

    Attributes:
        uid: node UID.
        managed: whether NODE_SELECTOR selects it.
        eligible: whether the policy may plan it: managed, and neither reserved nor cordoned.
        profile_label: value of the power-profile label; None if absent.
        draining_label: value of the draining label; None if absent.
        labels: all labels.
        offered: allocatable CPUs (cores) and GPUs, by resource name.
        capacity_cpus: logical CPUs, those reserved included; None if unknown.
        aliases: other names of the node: its host name and addresses.
        not_ready_since_s: since when its Ready condition is present and not True, s since the epoch; None if it is
            ready, 0 if the condition has no valid time.
        taints: node taints.
        memory_gib: allocatable memory, GiB; 0 if unknown.
        max_pods: maximum number of pods; 0 if unknown.
        enforced: whether its plan is applied, not only reported.
        cordoned: whether somebody has cordoned it (``spec.unschedulable``).
        sleep_mark: annotation that keeps its state of sleep; empty without one.
        asleep: whether it has Joulie's taint of nodes that sleep.
        boot_id: id of its boot; empty if unknown.
        power_switch: annotation by which it lets itself be switched off while it sleeps; empty without one.
        removable: annotation that tells since when its autoscaler could remove it; empty without one.
    """

    uid: str
    managed: bool
    eligible: bool
    profile_label: str | None
    draining_label: str | None
    labels: dict[str, str]
    offered: dict[str, float]
    capacity_cpus: float | None = None
    aliases: tuple[str, ...] = ()
    not_ready_since_s: float | None = None
    taints: tuple[Taint, ...] = ()
    memory_gib: float = 0.0
    max_pods: int = 0
    enforced: bool = True
    cordoned: bool = False
    sleep_mark: str = ""
    asleep: bool = False
    boot_id: str = ""
    power_switch: str = ""
    removable: str = ""

    @property
    def ready(self) -> bool:
        """Whether the node can run new pods, as far as it says."""
        return self.not_ready_since_s is None


class OverrideFacts(msgspec.Struct, frozen=True):
    """The cached fields of a NodePowerProfile.

    Attributes:
        node: node name.
        override: the requested override; None if the profile is not marked as an override.
        counted: its stored `Counted` condition; None if absent.
    """

    node: str
    override: Override | None
    counted: Condition | None


class HardwareFacts(msgspec.Struct, frozen=True):
    """The cached fields of a NodeHardware.

    Attributes:
        node: node name.
        reported: devices of the node.
        slicing_modes: supported modes of GPU sharing.
    """

    node: str
    reported: ReportedHardware
    slicing_modes: tuple[str, ...] = ()


class ProfileEntry(profiles.ProfileEntry, frozen=True):
    """The cached fields of a WorkloadProfile, which the operator's classifier writes.

    Attributes:
        uid: UID of the profile.
        owner_uids: UIDs in its owner references.
        node_name: node name in its spec.
        status: the whole status.
    """

    uid: str
    owner_uids: tuple[str, ...]
    node_name: str | None
    status: WorkloadProfileStatus


def boot_id(node: Node) -> str:
    """The id of a node's boot; empty if it is not known."""
    return "" if node.status.node_info is None else node.status.node_info.boot_id


def keep_node(node: Node, settings: OperatorSettings) -> NodeFacts | None:
    """Reduce a Node to the fields that the operator caches; None for a node that is being deleted."""
    meta = node.metadata
    if meta.deletion_timestamp is not None:
        return None
    labels = meta.labels
    managed = settings.selector.matches(labels)
    planned = managed and not node.spec.unschedulable and settings.reserved_label_key not in labels
    return NodeFacts(
        uid=meta.uid,
        managed=managed,
        eligible=planned,
        profile_label=labels.get(settings.power_profile_label),
        draining_label=labels.get(names.DRAINING_LABEL),
        labels=labels,
        offered=allocatable_devices(node),
        capacity_cpus=capacity_cpus(node),
        aliases=node_aliases(node),
        not_ready_since_s=_not_ready_since_s(node),
        taints=node.spec.taints,
        memory_gib=amount(node.status.allocatable, "memory") / _BYTES_PER_GIB,
        max_pods=int(amount(node.status.allocatable, "pods")),
        enforced=mode_of(labels.get(names.MODE_LABEL), settings.mode) is Mode.ENFORCE,
        cordoned=node.spec.unschedulable,
        sleep_mark=sleep_mark(node),
        asleep=has_asleep_taint(node),
        boot_id=boot_id(node),
        power_switch=meta.annotations.get(names.POWER_SWITCH_ANNOTATION, ""),
        removable=meta.annotations.get(names.REMOVABLE_ANNOTATION, ""),
    )


def _not_ready_since_s(node: Node) -> float | None:
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return None
    return time_or_none(ready.last_transition_time) or 0.0


def keep_hardware(hardware: NodeHardware) -> HardwareFacts:
    """Reduce a NodeHardware to the fields that the operator caches."""
    gpu = hardware.status.gpu
    slicing = gpu.slicing if gpu else None
    return HardwareFacts(
        hardware.spec.node_name,
        reported_hardware(hardware),
        slicing.modes if slicing is not None and slicing.supported else (),
    )


def keep_profile(profile: WorkloadProfile) -> ProfileEntry:
    """Reduce a WorkloadProfile to the fields that the operator caches."""
    meta = profile.metadata
    return ProfileEntry(
        owner=profile_owner(profile),
        facts=profile_facts(profile),
        automatic=profiles.by_classifier(profile),
        uid=meta.uid,
        owner_uids=tuple(owner.uid for owner in meta.owner_references),
        node_name=profile.spec.node_name,
        status=profile.status,
    )


def keep_override(profile: NodePowerProfile) -> OverrideFacts:
    """Reduce a NodePowerProfile to the fields that the operator caches; without the override label it has no effect.

    Raises:
        ValueError: unknown power profile.
        InvalidQuantityError: a cap is out of range.
    """
    spec = profile.spec
    counted = next((one for one in profile.status.conditions if one.type == COUNTED_CONDITION), None)
    if profile.metadata.labels.get(names.OVERRIDE_LABEL) != "true":
        return OverrideFacts(spec.node_name, None, counted)
    cpu, gpu = spec.cpu, spec.gpu.power_cap if spec.gpu else None
    override = Override(
        f"nodepowerprofile/{profile.metadata.name}",
        Profile(spec.profile),
        _cap(cpu.package_power_cap_watts, cpu.package_power_cap_pct_of_max) if cpu else None,
        _cap(gpu.cap_watts_per_gpu, gpu.cap_pct_of_max) if gpu else None,
    )
    return OverrideFacts(spec.node_name, override, counted)


def _cap(watts: float | None, percent: float | None) -> Cap | None:
    if watts is None and percent is None:
        return None
    return Cap(100.0 if percent is None else percent, watts)


def other_boot(control: ControlStatus, boot: str) -> bool:
    """Whether a report is known to be from another boot of its node than `boot`; empty where that is not known."""
    return bool(control.boot_id and boot) and control.boot_id != boot


def reported_caps(twin: NodeTwin) -> ReportedCaps:
    """What the node's agent reports about the caps in this NodeTwin; a report about an earlier spec counts as none."""
    control = twin.status.control_status
    if control is None or control.observed_generation != twin.metadata.generation:
        return UNREPORTED
    cpu, gpu = asked_caps(twin)
    return ReportedCaps(_reported(control.cpu, cpu), _reported(control.gpu, gpu))


def asked_caps(twin: NodeTwin) -> tuple[Cap | None, Cap | None]:
    """The caps of one package and of one GPU that a NodeTwin asks for; None for none."""
    cpu, gpu = twin.spec.cpu, twin.spec.gpu.power_cap if twin.spec.gpu else None
    return (
        _cap(cpu.package_power_cap_watts, cpu.package_power_cap_pct_of_max) if cpu else None,
        _cap(gpu.cap_watts_per_gpu, gpu.cap_pct_of_max) if gpu else None,
    )


def _reported(result: ControlResult | None, cap: Cap | None) -> ReportedCap:
    if result is None or not result.result:
        return NO_REPORT
    return ReportedCap(
        cap,
        str(result.result),
        confirmed=result.result == ControlOutcome.APPLIED,
        unlimited=nothing_limits(result),
    )


def stored_state(twin: NodeTwin) -> StoredState:
    """The node state that a NodeTwin stores."""
    spec = twin.spec
    profile = Profile(spec.profile) if spec.profile in set(Profile) else None
    draining = bool(spec.scheduling and spec.scheduling.draining)
    condition = next((one for one in twin.status.conditions if one.type == DRAINING_CONDITION), None)
    reason = "" if condition is None else condition.reason
    since_s = _draining_since_s(condition) if draining else None
    return StoredState(
        profile, draining, since_s, _stored_would(twin), reason == LIFTED_REASON, reason == FORCED_REASON
    )


def _stored_would(twin: NodeTwin) -> Would | None:
    planned = twin.status.planned
    if planned is None or planned.profile not in set(Profile):
        return None
    return Would(Profile(planned.profile), bool(planned.draining))


def _draining_since_s(condition: Condition | None) -> float | None:
    if condition is None or condition.status != ConditionStatus.TRUE:
        return None
    return time_or_none(condition.last_transition_time)
