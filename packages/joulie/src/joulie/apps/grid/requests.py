"""Resolves the deferral request of a pod or Job from annotations, namespace policy and defaults."""

from __future__ import annotations

from joulie.apps.grid.facts import Asking, NamespaceFacts, Owner
from joulie.domain.grid import names
from joulie.domain.grid.request import GridDefaults, GridRequest, request_of

NO_POLICY = NamespaceFacts("", {}, {})


def requested(asking: Asking, owner: Owner | None, policy: NamespaceFacts, defaults: GridDefaults) -> GridRequest:
    """Resolve the request of a pod or Job: its own annotations win over the namespace's, these over the defaults.

    Args:
        asking: its annotations, scheduler name and labels.
        owner: its controller; None without one.
        policy: labels and annotations of its namespace.
        defaults: used where neither sets a value.
    """
    label = asking.workload_label
    return request_of(
        asking.scheduler_name,
        asking.annotations,
        {} if label is None else {names.WORKLOAD_TYPE_LABEL: label},
        None if owner is None else owner.kind,
        policy.labels,
        policy.annotations,
        defaults,
    )
