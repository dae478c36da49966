"""Autoscalers whose maximum Joulie lowers: HorizontalPodAutoscalers and KEDA's ScaledObjects.

A lowered maximum and its record, an annotation with the original one, are written and removed by the same patch, so
whoever finds the record can restore the original: the controller, the guard, the cleanup, or a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.autoscaling import HorizontalPodAutoscaler, Metric, ScaledObject
from joulie.adapters.kubernetes.api.core import Pod, WithTemplate
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.requests import Requests, pod_requests
from joulie.adapters.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    Resource,
)
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.wire import Key
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.domain.grid.maxima import Change, Record, overridden
from joulie.domain.grid.names import PREFIX, REPLICA_CEILING
from joulie.domain.grid.withheld import wanted_replicas
from joulie.domain.resource_quantity import QuantityError, parse_quantity

RESOURCES: dict[str, Resource[Any]] = {one.kind: one for one in (HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS)}
"""Resources of autoscalers, by kind."""
FIELD_MANAGER = "joulie-grid"
_MAXIMUM = {HORIZONTAL_POD_AUTOSCALERS.kind: "maxReplicas", SCALED_OBJECTS.kind: "maxReplicaCount"}
_WITH_TEMPLATE = {
    one.kind: Resource(one.group, one.version, one.plural, one.kind, True, WithTemplate)
    for one in (DEPLOYMENTS, STATEFUL_SETS)
}
_PREFIXES = (PREFIX, "joulie.io/")


class _Record(msgspec.Struct):
    """A `Record` as the annotation `REPLICA_CEILING` holds it, with times in RFC 3339."""

    original: int | None
    ceiling: int | None
    since: str
    changed: str


class Autoscaler(msgspec.Struct, frozen=True):
    """An autoscaler.

    Attributes:
        kind: HorizontalPodAutoscaler or ScaledObject.
        uid: its UID.
        maximum: its maximum; None where none is set, which only KEDA allows.
        minimum: its minimum.
        annotations: annotations of the Compute Gardener and of Joulie.
        running: number of replicas; None if unknown.
        wanted: number of replicas that would run without the maximum, by its metrics; None if unknown.
        target: kind and name of the workload that it scales; empty where only its HorizontalPodAutoscaler knows.
        scaled_object: ScaledObject that owns a HorizontalPodAutoscaler; empty without one. KEDA writes the maximum of
            such a one, and copies the annotations of the ScaledObject to it, the record included.
    """

    kind: str
    uid: str
    maximum: int | None
    minimum: int
    annotations: dict[str, str]
    running: int | None = None
    wanted: int | None = None
    target: tuple[str, str] = ("", "")
    scaled_object: str = ""

    @property
    def record(self) -> Record | None:
        """The record of a lowered maximum; None without one.

        Raises:
            ValueError: somebody has made it invalid.
        """
        text = self.annotations.get(REPLICA_CEILING)
        if text is None:
            return None
        try:
            found = msgspec.json.decode(text, type=_Record)
            return Record(found.original, found.ceiling, parse_rfc3339(found.since), parse_rfc3339(found.changed))
        except (msgspec.DecodeError, QuantityError) as error:
            raise ValueError(f"annotation {REPLICA_CEILING} is invalid: {error}") from None

    def reference(self, key: Key) -> ObjectReference:
        """Reference to it for its events."""
        api_version = RESOURCES[self.kind].api_version
        return ObjectReference(self.kind, key.name, api_version, namespace=key.namespace, uid=self.uid)


def autoscaler_of(found: HorizontalPodAutoscaler | ScaledObject) -> Autoscaler:
    """An object as an autoscaler."""
    meta = found.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key.startswith(_PREFIXES)}
    if isinstance(found, ScaledObject):
        maximum, minimum = found.spec.max_replica_count, found.spec.min_replica_count or 0
        return Autoscaler(SCALED_OBJECTS.kind, meta.uid, maximum, minimum, annotations)
    spec, status = found.spec, found.status
    return Autoscaler(
        HORIZONTAL_POD_AUTOSCALERS.kind,
        meta.uid,
        spec.max_replicas,
        spec.min_replicas,
        annotations,
        status.current_replicas,
        None if status.current_replicas is None else _wanted(found, status.current_replicas),
        (spec.scale_target_ref.kind, spec.scale_target_ref.name),
        next((one.name for one in meta.owner_references if one.kind == SCALED_OBJECTS.kind), ""),
    )


def _wanted(found: HorizontalPodAutoscaler, running: int) -> int:
    limited = any(
        (one.type, one.status, one.reason) == ("ScalingLimited", "True", "TooManyReplicas")
        for one in found.status.conditions
    )
    pairs = zip(found.spec.metrics, found.status.current_metrics or (), strict=False)
    ratios = [ratio for wanted, now in pairs if (ratio := _ratio(wanted, now)) is not None]
    return wanted_replicas(running, ratios, limited=limited, maximum=found.spec.max_replicas)


def _ratio(wanted: Metric, now: Metric) -> float | None:
    """Ratio of a metric to its target; None if it is unknown."""
    if wanted.source is None or now.source is None:
        return None
    target, current = wanted.source.target, now.source.current
    for name in ("average_utilization", "average_value", "value"):
        goal, value = getattr(target, name), getattr(current, name)
        if goal is not None and value is not None:
            try:
                return parse_quantity(value) / parse_quantity(goal)
            except (QuantityError, ZeroDivisionError):
                return None
    return None


async def replica_requests(client: KubeClient, key: Key, target: tuple[str, str]) -> Requests | None:
    """Resource requests of one replica; None if its workload is neither a Deployment nor a StatefulSet.

    Raises:
        KubernetesError: the workload could not be read.
    """
    kind, name = target
    resource = _WITH_TEMPLATE.get(kind)
    if resource is None:
        return None
    found = await client.get(resource, name, key.namespace)
    requests, _mistakes = pod_requests(Pod(spec=found.spec.template.spec))
    return requests


async def find_keda(client: KubeClient) -> bool:
    """Whether the cluster serves KEDA's API.

    Raises:
        KubernetesError: the API server could not be queried.
    """
    try:
        await client.raw("GET", f"/apis/{SCALED_OBJECTS.api_version}")
    except NotFoundError:
        return False
    return True


async def write_change(client: KubeClient, key: Key, seen: Autoscaler, change: Change) -> bool:
    """Set the maximum of an autoscaler together with its record.

    Args:
        client: Kubernetes client.
        key: namespace and name.
        seen: the autoscaler as it was when it was decided about.
        change: what to write.

    Returns:
        False, without writing, if somebody else has changed maximum, minimum or annotations since.

    Raises:
        KubernetesError: the write failed; `ConflictError` if the autoscaler changed during the write.
    """
    resource = RESOURCES[seen.kind]
    found = await client.get(resource, key.name, key.namespace)
    now = autoscaler_of(found)
    if now.scaled_object or _decided_by(now) != _decided_by(seen):
        return False
    annotations = {REPLICA_CEILING: None if change.record is None else _text(change.record)}
    body = {
        "metadata": {"resourceVersion": found.metadata.resource_version, "annotations": annotations},
        "spec": {_MAXIMUM[seen.kind]: change.maximum},
    }
    await client.patch(resource, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER)
    return True


def _decided_by(one: Autoscaler) -> tuple[Any, ...]:
    return one.uid, one.maximum, one.minimum, one.annotations


def _text(record: Record) -> str:
    times = rfc3339(record.since_s), rfc3339(record.changed_s)
    return msgspec.json.encode(_Record(record.original, record.ceiling, *times)).decode()


async def restore_all(client: KubeClient) -> tuple[list[str], list[str]]:
    """Restore every lowered maximum of the cluster, in place of a controller.

    Returns:
        What was restored, as kind, namespace and name, and the errors.
    """
    restored: list[str] = []
    problems: list[str] = []

    async def restore(key: Key, seen: Autoscaler) -> None:
        record = seen.record
        assert record is not None
        ours = not overridden(seen.maximum, record)
        if await write_change(client, key, seen, Change(record.original if ours else seen.maximum, None)) and ours:
            restored.append(f"{seen.kind} {key}")

    jobs: list[Job] = []
    for resource in RESOURCES.values():
        try:
            jobs += [partial(restore, *found) for found in _recorded((await client.list(resource)).items)]
        except NotFoundError:
            continue  # the cluster has no KEDA
        except KubernetesError as error:
            problems.append(str(error))
    failures = [failure.error for failure in await write_all(jobs)]
    problems += [str(error) for error in failures if not isinstance(error, NotFoundError)]
    return sorted(restored), problems


def _recorded(items: Iterable[Any]) -> Iterable[tuple[Key, Autoscaler]]:
    for item in items:
        found = autoscaler_of(item)
        if REPLICA_CEILING in found.annotations and not found.scaled_object:
            yield Key(item.metadata.namespace, item.metadata.name), found
