"""Pods that come, and whether they get the gate: the admission policy, the webhook and `request_of` must agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GATE = "joulie.io/grid"
GARDENER = "compute-gardener-scheduler"
PREFIX = "compute-gardener-scheduler.kubernetes.io/"
DEFER = "joulie.io/grid-defer"


@dataclass(frozen=True)
class Arrival:
    """One pod that is being created.

    Attributes:
        gated: whether it gets the gate.
        annotations: of the pod.
        asking: whether its namespace asks, by its annotation: "true", "false" or anything.
        spec: beside its container.
        owner: kind of its controller.
        gates: scheduling gates in the end, where there are others.
    """

    gated: bool
    annotations: dict[str, str] = field(default_factory=dict)
    asking: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    owner: str = ""
    gates: tuple[str, ...] = ()

    @property
    def expected_gates(self) -> list[str]:
        """Names of its scheduling gates in the end."""
        return list(self.gates) or ([GATE] if self.gated else [])

    def pod(self, namespace: str) -> dict[str, Any]:
        """As it is sent."""
        owner = {"apiVersion": "v1", "kind": self.owner, "name": "o", "uid": "u", "controller": True}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "namespace": namespace,
                "annotations": self.annotations,
                "ownerReferences": [owner] if self.owner else [],
            },
            "spec": {"containers": [{"name": "c", "image": "i"}], **self.spec},
        }


SEED = {"schedulerName": GARDENER}
OTHER = {"schedulingGates": [{"name": "example.com/quota"}]}
OURS = {"schedulingGates": [{"name": GATE}]}

ARRIVALS: dict[str, Arrival] = {
    "plain": Arrival(False),
    "the seed's scheduler": Arrival(True, spec=SEED),
    "joulie's scheduler": Arrival(False, spec={"schedulerName": "joulie-scheduler"}),
    "a similar scheduler": Arrival(False, spec={"schedulerName": GARDENER + "-2"}),
    "asks": Arrival(True, {DEFER: "true"}),
    "asks in other words": Arrival(False, {DEFER: "yes"}),
    "opts out of the scheduler": Arrival(False, {DEFER: "false"}, spec=SEED),
    "skips": Arrival(False, {PREFIX + "skip": "true"}, spec=SEED),
    "skips nothing": Arrival(True, {PREFIX + "skip": "false"}, spec=SEED),
    "g9 skips as Go spells it": Arrival(False, {PREFIX + "skip": "1"}, spec=SEED),
    "g9 skips nothing as Go spells it": Arrival(True, {PREFIX + "skip": "F"}, spec=SEED),
    "g9 asks as Go spells it": Arrival(True, {DEFER: "True"}),
    "g9 opts out as Go spells it": Arrival(False, {DEFER: "0"}, spec=SEED),
    "skips in other words": Arrival(True, {PREFIX + "skip": "yes"}, spec=SEED),
    "asks and skips": Arrival(False, {DEFER: "true", PREFIX + "skip": "true"}),
    "only a threshold": Arrival(False, {PREFIX + "carbon-intensity-threshold": "100"}),
    "namespace asks": Arrival(True, asking="true"),
    "namespace asks, pod does not": Arrival(False, {DEFER: "false"}, asking="true"),
    "namespace asks, pod skips": Arrival(False, {PREFIX + "skip": "true"}, asking="true"),
    "g9 namespace asks as Go spells it": Arrival(True, asking="TRUE"),
    "namespace asks in other words": Arrival(False, asking="yes"),
    "namespace does not, pod does": Arrival(True, {DEFER: "true"}, asking="false"),
    "namespace does not, scheduler does": Arrival(True, asking="false", spec=SEED),
    "of a Job": Arrival(True, spec=SEED, owner="Job"),
    "of a ReplicaSet": Arrival(True, spec=SEED, owner="ReplicaSet"),
    "of a DaemonSet": Arrival(False, spec=SEED, owner="DaemonSet"),
    "of a DaemonSet in a namespace that asks": Arrival(False, asking="true", owner="DaemonSet"),
    "bound": Arrival(False, spec={**SEED, "nodeName": "n"}),
    "with another gate": Arrival(True, spec={**SEED, **OTHER}, gates=("example.com/quota", GATE)),
    "gated already": Arrival(False, spec={**SEED, **OURS}, gates=(GATE,)),
}
