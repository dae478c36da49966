"""What all parts of a leading operator work with: client, caches, settings, events, lease and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings


@dataclass(frozen=True)
class Leader:
    """This replica from the time at which it becomes leader until it loses the lease.

    Attributes:
        client: Kubernetes client.
        view: cached view of the cluster.
        settings: operator settings.
        events: recorder of events.
        may_write: whether this process still holds the lease; checked before every write.
        now_s: current time, s since the epoch.
    """

    client: KubeClient
    view: ClusterView
    settings: OperatorSettings
    events: EventRecorder
    may_write: Callable[[], bool]
    now_s: Callable[[], float]
