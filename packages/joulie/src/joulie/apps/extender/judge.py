"""A pod as decisions see it, and what each node is worth to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts, pod_facts
from joulie.apps.extender.fleet import FleetView
from joulie.domain.marginal import PodRequests
from joulie.domain.scoring.extender import PodView, wire_score
from joulie.domain.scoring.marginal_energy import node_scores
from joulie.domain.units import IntArray

Profiles = Callable[[PodFacts], ProfileFacts]
"""The WorkloadProfile that counts for a pod."""


@dataclass(frozen=True)
class JudgedPod:
    """A pod as decisions see it.

    Attributes:
        facts: what its own object says.
        view: with its profile.
        requests: as kube-scheduler counts them.
    """

    facts: PodFacts
    view: PodView
    requests: PodRequests

    @property
    def kind(self) -> tuple[PodView, PodRequests]:
        """All that scores depend on: pods of one Job are alike."""
        return self.view, self.requests


def judge(pod: Pod, profiles: Profiles) -> JudgedPod:
    """What the extender makes of a pod."""
    facts = pod_facts(pod)
    asked = facts.requests
    requests = PodRequests(asked.cpu_cores, asked.memory_gib, asked.gpus)
    return JudgedPod(facts, facts.view(profiles(facts)), requests)


def scores(pod: JudgedPod, fleet: FleetView) -> IntArray:
    """Scores 0..10 of all nodes for a pod, by slot."""
    return wire_score(node_scores(fleet.scoring, pod.view, pod.requests, fleet.twins, fleet.load))
