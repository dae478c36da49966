"""Disruption budgets, as the disruption controller keeps them."""

from joulie_lab.fakes.kubernetes.api import Writer
from joulie_lab.fakes.kubernetes.kinds import POD_DISRUPTION_BUDGET


def set_budget(cluster, app, allowed):
    """The budget of pods with a label ``app``, which allows so many evictions now."""
    api = cluster.api
    found = api.find(POD_DISRUPTION_BUDGET, "default", app)
    if found is None:
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
        api.create(POD_DISRUPTION_BUDGET, "default", {"metadata": {"name": app}, "spec": spec}, _writer())
        found = api.find(POD_DISRUPTION_BUDGET, "default", app)
    status = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1}
    api.replace(POD_DISRUPTION_BUDGET, "default", app, {**found.obj, "status": status}, _writer("status"))


def _writer(subresource=""):
    return Writer("disruption-controller", subresource)
