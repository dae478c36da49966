"""What a pod requests, counted as kube-scheduler counts it.

Containers and sidecars (init containers that always restart) run together; any other init container runs beside the
sidecars started before it; the pod needs the larger of the two. What the pod as a whole requests replaces the sum of
its containers, and the runtime's overhead comes on top. Source: k8s.io/component-helpers/resource, PodRequests. This
module needs no numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

Amounts = dict[str, float]
"""Amounts by resource, in its base unit: cores, bytes, a count."""
T = TypeVar("T")


class InitContainer(NamedTuple):
    """What an init container requests, and whether it keeps running as a sidecar."""

    amounts: Amounts
    sidecar: bool


def effective_requests(requests: Mapping[str, T], limits: Mapping[str, T]) -> Mapping[str, T]:
    """Requests; the limit of a resource that has only that."""
    return {**limits, **requests} if limits else requests


def pod_amounts(
    containers: Iterable[Amounts], init_containers: Iterable[InitContainer], pod_level: Amounts, overhead: Amounts
) -> Amounts:
    """What a pod requests in all.

    Args:
        containers: what each of them requests.
        init_containers: in the order in which they start.
        pod_level: what the pod as a whole requests.
        overhead: of the runtime.
    """
    total: Amounts = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: Amounts = {}
    starting: Amounts = {}
    for amounts, sidecar in init_containers:
        if sidecar:
            _add(total, amounts)
            _add(sidecars, amounts)
            continue
        beside = dict(amounts)
        _add(beside, sidecars)
        _raise_to(starting, beside)
    _raise_to(total, starting)
    total |= pod_level
    _add(total, overhead)
    return total


def _add(amounts: Amounts, more: Amounts) -> None:
    for resource, amount in more.items():
        amounts[resource] = amounts.get(resource, 0.0) + amount


def _raise_to(amounts: Amounts, minimum: Amounts) -> None:
    for resource, amount in minimum.items():
        amounts[resource] = max(amounts.get(resource, 0.0), amount)
