"""What a pod asks for, of what the programs of the grid keep of it."""

from __future__ import annotations

from joulie.apps.grid.facts import Asking, NamespaceFacts, Owner
from joulie.domain.grid import names
from joulie.domain.grid.request import GridDefaults, GridRequest, request_of

NO_POLICY = NamespaceFacts("", {}, {})


def requested(asking: Asking, owner: Owner | None, policy: NamespaceFacts, defaults: GridDefaults) -> GridRequest:
    """What a pod or Job asks for, after the cascade.

    Args:
        asking: what it says.
        owner: its controller; None without one.
        policy: of its namespace.
        defaults: what holds for those that do not say.
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
