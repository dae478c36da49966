"""The pods of a running trial, as the guard judges them: when they were seen to start and to end, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulie.adapters.kubernetes.pods import PodFacts
from joulie.domain.policy import PodPhase
from joulie.domain.trial.guard import EndedPod
from joulie.domain.trial.protocol import Arm, Protocol
from joulie.domain.trial.workload_protocol import Drawn, WorkloadProtocol


@dataclass(frozen=True)
class _Running:
    node: str
    since_s: float
    wait_s: float | None


class TrialPods:
    """Follows the pods of one trial by looking at them every few seconds: times are as exact as that.

    Args:
        protocol: the trial.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.ended: list[EndedPod] = []
        self._nodes = frozenset((*protocol.first_half, *protocol.second_half))
        self._pending_since_s: dict[str, float] = {}
        self._running: dict[str, _Running] = {}

    def look(self, pods: Iterable[PodFacts], now_s: float) -> None:
        """See the pods as they are now. Pods that ran under both arms, or were deleted while they ran, do not count."""
        pending: dict[str, float] = {}
        running: dict[str, _Running] = {}
        for pod in pods:
            if pod.daemon or pod.static:
                continue
            before = self._running.get(pod.uid)
            if pod.phase is PodPhase.PENDING and not pod.gated:
                pending[pod.uid] = self._pending_since_s.get(pod.uid, now_s)
            elif pod.phase is PodPhase.RUNNING and pod.node_name in self._nodes and pod.running_since_s is not None:
                running[pod.uid] = before or self._started(pod, pod.running_since_s)
            elif pod.phase is PodPhase.FINISHED and before is not None:
                self._end(pod, before, now_s)
        self._pending_since_s, self._running = pending, running

    def _started(self, pod: PodFacts, since_s: float) -> _Running:
        waited_s = self._pending_since_s.get(pod.uid)
        return _Running(pod.node_name, since_s, 0.0 if waited_s is None else max(since_s - waited_s, 0.0))

    def _end(self, pod: PodFacts, before: _Running, now_s: float) -> None:
        arms = self._arms(before, now_s)
        arm = next(iter(arms))
        if len(arms) == 1 and arm is not None:
            owner = f"{pod.namespace}/{pod.owner.kind}/{pod.owner.name}"
            self.ended.append(EndedPod(owner, arm, max(now_s - before.since_s, 0.0), pod.failed, before.wait_s))

    def _arms(self, before: _Running, now_s: float) -> set[Arm | None]:
        """Arms under which a pod ran; None among them for time outside the trial."""
        found: set[Arm | None] = set()
        at_s = before.since_s
        while at_s <= now_s:
            arms: Mapping[str, Arm] = self.protocol.arms_at(at_s)
            found.add(arms.get(before.node))
            block = self.protocol.block_at(at_s)
            if block is None:
                break
            at_s = block.end_s
        return found


class DrawnPods:
    """Follows the pods of a trial of deferral: from when they were seen to wait until they were seen to end.

    Args:
        trial: name of the trial, as it is noted on its pods.
        protocol: its draw.
    """

    def __init__(self, trial: str, protocol: WorkloadProtocol) -> None:
        self.protocol = protocol
        self.ended: list[EndedPod] = []
        self._trial = trial
        self._waiting_since_s: dict[str, float] = {}
        self._running: dict[str, tuple[float, float | None]] = {}
        self._began_s: float | None = None

    def look(self, pods: Iterable[PodFacts], now_s: float) -> None:
        """See the pods as they are now. Of pods that waited before the first look nobody knows how long they did."""
        if self._began_s is None:
            self._began_s = now_s
        waiting: dict[str, float] = {}
        running: dict[str, tuple[float, float | None]] = {}
        for pod in pods:
            before = self._running.get(pod.uid)
            if pod.phase is PodPhase.PENDING:
                waiting[pod.uid] = self._waiting_since_s.get(pod.uid, now_s)
            elif pod.phase is PodPhase.RUNNING and pod.running_since_s is not None and pod.drawn:
                running[pod.uid] = before or (pod.running_since_s, self._waited_s(pod.uid, pod.running_since_s))
            elif pod.phase is PodPhase.FINISHED and before is not None:
                drawn = Drawn.read(pod.drawn)
                if drawn is not None and drawn.trial == self._trial:
                    since_s, waited_s = before
                    owner = f"{pod.namespace}/{drawn.workload}"
                    self.ended.append(EndedPod(owner, drawn.arm, max(now_s - since_s, 0.0), pod.failed, waited_s))
        self._waiting_since_s, self._running = waiting, running

    def _waited_s(self, uid: str, running_since_s: float) -> float | None:
        since_s = self._waiting_since_s.get(uid)
        if since_s is None:  # created since the last look, or before the first
            return 0.0 if self._began_s is not None and running_since_s > self._began_s else None
        return None if since_s == self._began_s else max(running_since_s - since_s, 0.0)
