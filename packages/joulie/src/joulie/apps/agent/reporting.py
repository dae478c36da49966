"""The agent's writes to the API: NodeHardware, and the results of control. Only what changed is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
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


_SETTLED_S = 10.0
"""By then a write has long come back by the watch."""


@dataclass(frozen=True)
class _Sent:
    """A write: what, over which state of the cache, and when."""

    desired: object
    over: object
    at_epoch_s: float


class Reporter:
    """Writes for one node.

    A write shows in the agent's caches a moment later; until then it is not repeated.

    Args:
        client: the API.
        node_name: the node.
        now_epoch_s: wall clock, seconds since the epoch.
    """

    def __init__(self, client: KubeClient, node_name: str, now_epoch_s: Callable[[], float]) -> None:
        self._client = client
        self._node_name = node_name
        self._name = object_name(node_name)
        self._now_epoch_s = now_epoch_s
        self._sent: dict[str, _Sent] = {}

    async def hardware(
        self, stored: HardwareView | None, node: NodeView | None, status: api.NodeHardwareStatus
    ) -> None:
        """Publish the node's hardware where it is not what is stored.

        Args:
            stored: the object as the cache has it.
            node: the Node, which the object is deleted with.
            status: what was found.
        """
        if (stored is not None and stored.status == status) or not self._is_news("hardware", status, stored):
            return
        metadata = {"ownerReferences": [_owner(self._node_name, node)]} if node else {}
        spec = {"nodeName": self._node_name}
        await self._apply_hardware({"metadata": metadata, "spec": spec}, "")
        await self._apply_hardware({"status": msgspec.to_builtins(status)}, "status")
        self._sent["hardware"] = _Sent(status, stored, self._now_epoch_s())
        _log.info("hardware published", extra={"node": self._node_name, "quality": _overall(status)})

    async def control(self, twin: TwinView, cpu: Outcome, gpu: Outcome) -> None:
        """Report to the NodeTwin."""
        await self._report("controlStatus", NODE_TWINS, self._name, twin, twin.reported, (cpu, gpu))

    async def profile(self, profile: api.TelemetryProfile, cpu: Outcome, gpu: Outcome) -> None:
        """Report to the TelemetryProfile that names this node."""
        name, stored = profile.metadata.name, profile.status.control
        await self._report("control", TELEMETRY_PROFILES, name, profile, stored, (cpu, gpu))

    async def _report(
        self,
        field: str,
        resource: Resource[Any],
        name: str,
        over: object,
        stored: api.ControlStatus | None,
        outcomes: tuple[Outcome, Outcome],
    ) -> None:
        """Write both outcomes to a field of an object's status; one deleted meanwhile needs no report."""
        known = stored or api.ControlStatus()
        status = api.ControlStatus(cpu=self._result(known.cpu, outcomes[0]), gpu=self._result(known.gpu, outcomes[1]))
        if status == stored or not self._is_news(field, (name, outcomes), over):
            return
        body = {"status": {field: msgspec.to_builtins(status)}}
        with suppress(NotFoundError):
            await self._client.apply(resource, name, body, field_manager=AGENT_FIELD_MANAGER, subresource="status")
        self._sent[field] = _Sent((name, outcomes), over, self._now_epoch_s())

    def _is_news(self, field: str, desired: object, over: object) -> bool:
        """Whether this has not just been written over what the cache still shows."""
        sent = self._sent.get(field)
        if sent is None or sent.desired != desired or sent.over is not over:
            return True
        # Nothing was there before; it may have come and gone again without being seen.
        return over is None and self._now_epoch_s() - sent.at_epoch_s > _SETTLED_S

    async def _apply_hardware(self, body: Mapping[str, Any], subresource: str) -> None:
        await self._client.apply(
            NODE_HARDWARES, self._name, body, field_manager=AGENT_FIELD_MANAGER, subresource=subresource
        )

    def _result(self, stored: api.ControlResult | None, outcome: Outcome) -> api.ControlResult:
        """The stored result where it says the same, with the time of its last change."""
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
