"""Which pods are alike in how long they run."""

from __future__ import annotations

from joulie.adapters.kubernetes.pods import PodFacts
from joulie.domain.runtimes import workload_of
from joulie.domain.scoring.occupancy import LifeClass


def life_class(facts: PodFacts) -> LifeClass:
    """The pods whose durations are like those of this one: of a CronJob, of Jobs of one template, of a service."""
    owner = facts.owner
    workload = workload_of(facts.namespace, owner.kind, owner.name)
    of = workload or (facts.namespace, owner.kind, owner.name)
    return LifeClass(of, service=workload is None, gpu=facts.requests.gpus > 0.0)
