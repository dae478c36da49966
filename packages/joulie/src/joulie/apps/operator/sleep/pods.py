"""The pods that keep nodes awake, as consolidation sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from joulie.adapters.kubernetes.lifetimes import life_class
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.operator.rescheduler.analysis import PodLimits, limits_of, power_of_pod_w
from joulie.apps.operator.sleep.nodes import Seen, is_job, requests_of
from joulie.domain.scoring.occupancy import Occupancy, PlacedPod
from joulie.domain.sleep.snapshot import BoundPod

_NO_PROFILE = ProfileFacts()


class BoundPods:
    """What is known of bound pods; how long they run is learned from their ends, in memory."""

    def __init__(self) -> None:
        self._occupancy = Occupancy()
        self._known: set[str] = set()

    def by_node(self, seen: Seen) -> dict[str, tuple[BoundPod, ...]]:
        """The pods that keep each node awake, by its name."""
        facts, now_s = seen.facts, seen.now_s
        limits = {node.name: limits_of(node, facts[node.name]) for node in seen.controlled if node.name in facts}
        bound = [pod for pod in seen.pods if pod.node_name and is_job(pod)]
        left_min = self._learn(bound, now_s)
        found: dict[str, list[BoundPod]] = defaultdict(list)
        for pod in bound:
            entry = seen.profiles.get((pod.namespace, pod.owner))
            profile = _NO_PROFILE if entry is None else entry.facts
            one = _bound(pod, profile, limits.get(pod.node_name), seen.pod_power_w, left_min[pod.uid], now_s)
            found[pod.node_name].append(one)
        return {name: tuple(on_node) for name, on_node in found.items()}

    def _learn(self, bound: Sequence[PodFacts], now_s: float) -> dict[str, float]:
        """How long each pod is expected to run yet, min, by UID."""
        gone = self._known - {pod.uid for pod in bound}
        for uid in gone:
            self._occupancy.set_pod(uid, None, now_s)
        for pod in bound:
            asked = pod.requests
            placed = PlacedPod(
                pod.node_name, asked.cpu_cores, asked.gpus, life_class(pod), pod.running_since_s or now_s
            )
            if pod.uid not in self._known:
                self._occupancy.set_pod(pod.uid, placed, now_s)
        self._known = {pod.uid for pod in bound}
        self._occupancy.refresh(now_s)
        return {str(uid): left_min for uid, left_min in self._occupancy.left_min(now_s).items()}


def _bound(
    pod: PodFacts,
    profile: ProfileFacts,
    limits: PodLimits | None,
    measured_w: Mapping[str, float],
    left_min: float,
    now_s: float,
) -> BoundPod:
    performance = pod.wants_performance(profile)
    return BoundPod(
        f"{pod.namespace}/{pod.name}",
        requests_of(pod),
        pod.placement,
        # Where a pod that needs full power may go depends on caps, which change.
        movable=limits is not None and pod.movable(profile) and not performance,
        ends=not life_class(pod).service,
        terminating=pod.terminating,
        age_s=0.0 if pod.running_since_s is None else max(0.0, now_s - pod.running_since_s),
        left_min=left_min,
        draw_w=0.0 if limits is None else power_of_pod_w(measured_w.get(pod.uid), pod, limits, performance=performance),
    )
