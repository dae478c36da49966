"""Ceilings on the replicas of a HorizontalPodAutoscaler and a ScaledObject, on the real control plane.

The grid controller and the guard are processes with the chart's rights; KEDA's definition is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes.autoscalers import RESOURCES
from joulie.adapters.kubernetes.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    HORIZONTAL_POD_AUTOSCALERS,
    SCALED_OBJECTS,
)
from joulie.domain.grid import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.ports import free_port
from support.loop import NAMESPACE, PATIENCE_S, Loop

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")
Json = dict[str, Any]
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


class Autoscalers:
    """The autoscalers of a namespace, as users, KEDA and Joulie see them."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def path(self, kind: str, name: str = "") -> str:
        return RESOURCES[kind].path("default", name or None)

    def create(self, kind: str, name: str, spec: Json, **metadata: Any) -> Json:
        body = {"metadata": {"name": name, **metadata}, "spec": {"scaleTargetRef": TARGET, **spec}}
        resource = RESOURCES[kind]
        made: Json = self.loop.plane.request(
            "POST", self.path(kind), {"apiVersion": resource.api_version, "kind": kind, **body}
        )
        return made

    def is_at(self, kind: str, name: str, maximum: int | None, *, recorded: bool) -> bool:
        found = self.loop.get(self.path(kind, name))
        field = "maxReplicas" if kind == HORIZONTAL_POD_AUTOSCALERS.kind else "maxReplicaCount"
        return bool(
            found["spec"].get(field) == maximum
            and (names.REPLICA_CEILING in found["metadata"].get("annotations", {})) == recorded
        )

    def await_at(self, kind: str, name: str, maximum: int | None, *, recorded: bool) -> None:
        wait_for(
            lambda: self.is_at(kind, name, maximum, recorded=recorded), PATIENCE_S, f"{kind} {name} is at {maximum}"
        )


def test_maxima_are_lowered_and_come_back_with_the_charts_rights(
    plane: LocalControlPlane, scaled_objects: Path
) -> None:
    hpa, scaled = HORIZONTAL_POD_AUTOSCALERS.kind, SCALED_OBJECTS.kind
    plane.create_all(CUSTOM_RESOURCE_DEFINITIONS.path(), [yaml.safe_load(scaled_objects.read_bytes())])
    plane.await_definitions()
    loop = Loop(plane, "mode=enforce", "grid.enabled=true", "grid.replicaCeilings=true", "grid.admission.mode=policy")
    gating = [item for item in loop._rendered if item["metadata"]["name"] == "joulie-grid-gating"]
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(gating))
    here = Autoscalers(loop)
    asks = {names.CARBON_MAX_REPLICAS: "200: 10"}
    here.create(hpa, "web", {"maxReplicas": 20, "minReplicas": 2}, annotations=asks)
    triggers = [{"type": "cron", "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 9 * * *"}}]
    half = {names.CARBON_MAX_REPLICAS: "200: 50%"}
    queue = here.create(scaled, "queue", {"maxReplicaCount": 30, "triggers": triggers}, annotations=half)
    owner = {"apiVersion": queue["apiVersion"], "kind": scaled, "name": "queue", "uid": queue["metadata"]["uid"]}
    here.create(
        hpa, "keda-hpa-queue", {"maxReplicas": 30}, annotations=half, ownerReferences=[{**owner, "controller": True}]
    )

    address = f"127.0.0.1:{free_port()}"
    controller = loop._start(
        "grid",
        "grid controller",
        "joulie-grid",
        f"http://{address}",
        {
            "POD_NAME": "grid",
            "POD_NAMESPACE": NAMESPACE,
            "METRICS_ADDR": address,
            "METRICS_TLS": "false",
            "KUEUE_ENABLED": "false",
            "REPLICA_CEILINGS_ENABLED": "true",
            "CARBON_SOURCES": "static",
            "CARBON_STATIC_INTENSITY": "300",
        },
    )
    here.await_at(hpa, "web", 10, recorded=True)
    here.await_at(scaled, "queue", 15, recorded=True)
    ceilings = partial(controller.metric, "joulie_grid_replica_ceilings", decision="carbon")
    wait_for(lambda: ceilings() == 2.0, PATIENCE_S, "two ceilings are counted")
    assert here.is_at(hpa, "keda-hpa-queue", 30, recorded=False), "KEDA's own"

    loop.patch(here.path(hpa, "web"), {"spec": {"maxReplicas": 12}})
    here.await_at(hpa, "web", 12, recorded=False)

    controller.process.kill()
    guard_config = plane.folder / "guard.kubeconfig"
    guard_config.touch(mode=0o600)
    guard_config.write_text(plane.kubeconfig_for("joulie-grid-guard", NAMESPACE).read_text())
    environment = {
        **os.environ,
        "KUBECONFIG": str(guard_config),
        "POD_NAMESPACE": NAMESPACE,
        "LEASE_STALE_AFTER": "1s",
        "REPLICA_CEILINGS_ENABLED": "true",
    }

    def restored() -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "joulie", "grid", "guard", "--once", "-o", "json"],
            env=environment,
            capture_output=True,
            check=True,
        )
        return bool(json.loads(done.stdout)["restored"] == ["ScaledObject default/queue"])

    wait_for(restored, PATIENCE_S, "the guard takes the controller for dead")
    assert here.is_at(scaled, "queue", 30, recorded=False)
    assert here.is_at(hpa, "web", 12, recorded=False)
    assert loop.refused() == []
