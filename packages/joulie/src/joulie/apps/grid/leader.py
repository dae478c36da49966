"""What the parts of a leading grid controller work with: client, caches, settings, metrics, events, lease and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.settings import ControllerSettings


@dataclass(frozen=True)
class Leader:
    """This replica from the time at which it becomes leader until it loses the lease.

    Attributes:
        client: Kubernetes client.
        view: watch caches of the controller.
        settings: settings of the controller.
        metrics: metrics of the controller.
        events: event recorder.
        may_write: whether this process still holds the lease; checked before every write.
        now_s: current time, s since the epoch.
    """

    client: KubeClient
    view: GridView
    settings: ControllerSettings
    metrics: ControllerMetrics
    events: EventRecorder
    may_write: Callable[[], bool]
    now_s: Callable[[], float]
