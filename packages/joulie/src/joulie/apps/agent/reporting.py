"""The agent's writes to the API: NodeHardware and the results of control. Unchanged status is not written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.names import AGENT_FIELD_MANAGER, object_name
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES, TELEMETRY_PROFILES, Resource
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.agent.outcome import Outcome
from joulie.apps.agent.views import HardwareView, NodeView, TwinView

_log = logging.getLogger(__name__)


_WATCH_DELAY_S = 10.0
"""Maximum time until a write is visible in the watch cache, s."""


@dataclass(frozen=True)
class _Write:
    """A write to the API: the desired content, the cached object at that time, and when it was sent, by `clock`."""

    desired: object
    cached: object
    at_s: float


@dataclass(frozen=True)
class ControlReport:
    """Control results of one cycle.

    Attributes:
        cpu: outcome for the CPUs.
        gpu: outcome for the GPUs.
        generation: generation of the NodeTwin whose caps were enforced; None where no spec was: the agent restored the
            original limits because it stops, or its node left.
        gpus: what is known about each GPU.
    """

    cpu: Outcome
    gpu: Outcome
    generation: int | None
    gpus: tuple[api.GpuStatus, ...] = ()


class Reporter:
    """Writes the reports of one node.

    A write becomes visible in the agent's watch caches with a delay; it is not repeated meanwhile.

    Args:
        client: Kubernetes API client.
        node_name: node name.
        now_epoch_s: wall clock, s since the epoch.
        boot_id: returns the id of the host's boot; None where it is not known, and in pools.
        clock: monotonic time, s: the wall clock may be set back between a write and the next look at it.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        now_epoch_s: Callable[[], float],
        boot_id: Callable[[], str | None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._name = object_name(node_name)
        self._now_epoch_s = now_epoch_s
        self._boot_id = boot_id
        self._clock = clock
        self._writes: dict[str, _Write] = {}

    async def hardware(
        self, stored: HardwareView | None, node: NodeView | None, status: api.NodeHardwareStatus
    ) -> None:
        """Publish the node's hardware if it differs from the stored object.

        Args:
            stored: the cached NodeHardware; None if there is none.
            node: the Node, set as the owner for garbage collection; None if it was deleted.
            status: status to publish.
        """
        if (stored is not None and stored.status == status) or not self._needs_write("hardware", status, stored):
            return
        metadata = {"ownerReferences": [_owner(self._node_name, node)]} if node else {}
        spec = {"nodeName": self._node_name}
        await self._apply_hardware({"metadata": metadata, "spec": spec}, "")
        await self._apply_hardware({"status": msgspec.to_builtins(status)}, "status")
        self._writes["hardware"] = _Write(status, stored, self._clock())
        _log.info("hardware published", extra={"node": self._node_name, "quality": _overall(status)})

    async def control(self, twin: TwinView, results: ControlReport) -> None:
        """Report control results to the NodeTwin."""
        await self._report("controlStatus", NODE_TWINS, self._name, twin, twin.reported, results)

    async def profile(self, profile: api.TelemetryProfile, results: ControlReport) -> None:
        """Report control results to the TelemetryProfile that targets this node by name."""
        name, stored, results = profile.metadata.name, profile.status.control, replace(results, gpus=())
        await self._report("control", TELEMETRY_PROFILES, name, profile, stored, results)

    async def _report(
        self,
        field: str,
        resource: Resource[Any],
        name: str,
        cached: object,
        stored: api.ControlStatus | None,
        results: ControlReport,
    ) -> None:
        """Write the results to a status field of an object; an object deleted meanwhile is ignored."""
        known = stored or api.ControlStatus()
        status = api.ControlStatus(
            cpu=self._result(known.cpu, results.cpu),
            gpu=self._result(known.gpu, results.gpu),
            observed_generation=results.generation,
            gpus=results.gpus,
            boot_id=self._boot_id(),
        )
        if status == stored or not self._needs_write(field, (name, results), cached):
            return
        body = {"status": {field: msgspec.to_builtins(status)}}
        with suppress(NotFoundError):
            await self._client.apply(resource, name, body, field_manager=AGENT_FIELD_MANAGER, subresource="status")
        self._writes[field] = _Write((name, results), cached, self._clock())

    def _needs_write(self, field: str, desired: object, cached: object) -> bool:
        """Whether this content was not already written since the cached object last changed."""
        last = self._writes.get(field)
        if last is None or last.desired != desired or last.cached is not cached:
            return True
        # An absent object has no version to compare: the written one may have been deleted again before it was cached.
        return cached is None and self._clock() - last.at_s > _WATCH_DELAY_S

    async def _apply_hardware(self, body: Mapping[str, Any], subresource: str) -> None:
        await self._client.apply(
            NODE_HARDWARES, self._name, body, field_manager=AGENT_FIELD_MANAGER, subresource=subresource
        )

    def _result(self, stored: api.ControlResult | None, outcome: Outcome) -> api.ControlResult:
        """Result to write; an equal stored result is kept, with the time of its last change."""
        if stored is not None and (stored.backend, stored.result, stored.message) == (
            outcome.backend,
            outcome.result,
            outcome.message,
        ):
            return stored
        return api.ControlResult(
            backend=outcome.backend,
            result=outcome.result.value,
            message=outcome.message,
            updated_at=rfc3339(self._now_epoch_s()),
        )


def _owner(node_name: str, node: NodeView) -> Mapping[str, Any]:
    return {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node_name, "uid": node.uid}


def _overall(status: api.NodeHardwareStatus) -> str:
    return status.quality.overall or "" if status.quality else ""
