"""Assembles the answer about what Joulie would change, tries and must keep, from cached objects, without any I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.kubernetes.power_trials import RUNNING
from joulie.apps.kubectl.power_budget import PowerBudgetRow
from joulie.apps.kubectl.web.answers import FleetNode, PlannedItem, PowerBudgetItem, TrialItem


def planned_items(nodes: Iterable[FleetNode]) -> list[PlannedItem]:
    """What would be done on nodes in observe mode, the most frequent first."""
    counts = Counter(node.planned for node in nodes if node.planned is not None)
    return [PlannedItem(what=what, nodes=count) for what, count in counts.most_common()]


def trial_item(trial: PowerTrial, *, messages: bool) -> TrialItem:
    """A PowerTrial in the form of the API; `messages` says whether to show why it does not run."""
    protocol = trial.status.protocol
    drawn = protocol or trial.status.workloads
    running = next((one for one in trial.status.conditions if one.type == RUNNING), None)
    return TrialItem(
        name=trial.metadata.name,
        running=None if running is None else running.status == "True",
        why=None if running is None else (running.message if messages else "") or running.reason,
        block=trial.status.block,
        blocks=None if protocol is None else 2 * len(protocol.order),
        nodes=None if protocol is None else len(protocol.first_half) + len(protocol.second_half),
        treated=trial.status.treated,
        starts=None if drawn is None else drawn.start_time,
        ends=None if drawn is None else drawn.end_time,
    )


def power_budget_item(row: PowerBudgetRow, *, messages: bool) -> PowerBudgetItem:
    """A PowerBudget in the form of the API; `messages` says whether to show why it is not kept."""
    why = "; ".join(one for one in (row.message, row.blind) if one) if messages else ""
    return PowerBudgetItem(
        name=row.name,
        nodes_of=row.nodes_of,
        mode=row.mode,
        limit_w=row.limit_w,
        spec_w=row.spec_w,
        limit_by=row.limit_reason,
        measured_w=row.measured_w,
        worst_case_w=row.worst_case_w,
        pod_headroom_w=row.pod_headroom_w,
        nodes=row.nodes,
        curtailed=row.curtailed,
        events=list(row.events),
        kept=row.enforced,
        why=why or row.reason,
    )
