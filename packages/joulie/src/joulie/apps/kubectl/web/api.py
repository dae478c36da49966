"""Answers of the API from the cluster's state and Joulie's programs; pages are drawn from the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.energy import EnergyAnswer
from joulie.adapters.program_api.power import Item
from joulie.apps.kubectl.web.answers import (
    Check,
    FleetAnswer,
    HealthAnswer,
    NodeAnswer,
    PlansAnswer,
    PodsAnswer,
    PowerParts,
    SignalsAnswer,
)
from joulie.apps.kubectl.web.energy import power_hours
from joulie.apps.kubectl.web.fleet import condition_items, gpu_items, power_sources
from joulie.apps.kubectl.web.plans import planned_items, power_budget_item, trial_item
from joulie.apps.kubectl.web.programs import Programs, problem_of
from joulie.apps.kubectl.web.watching import ClusterState, ClusterView
from joulie.apps.kubectl.web.workloads import STATES, budget_items, pod_item, with_limits
from joulie.domain.grid.names import GATE
from joulie.program.queries import choice, page_of

_NODES = 500
_PODS = 100
_MAX_BLOCKED = 200
_HISTORY = {"by": "node", "step": "hour", "since": f"{7 * 86400.0:g}"}
"""Query for the power of a node over the last week."""

Query = Mapping[str, str]


@dataclass(frozen=True)
class WebApi:
    """The API.

    Attributes:
        cluster: the cluster as the reader may see it.
        programs: Joulie's programs, asked with the reader's rights.
    """

    cluster: ClusterView
    programs: Programs

    def fleet(self, query: Query) -> FleetAnswer:
        """All nodes.

        Raises:
            QueryError: an invalid parameter.
        """
        state = self.cluster.state()
        nodes, after = page_of(list(state.nodes.values()), query, _NODES)
        return FleetAnswer(at=state.at, problems=state.problems, summary=state.summary, nodes=nodes, next_page=after)

    async def node(self, name: str) -> NodeAnswer | None:
        """One node; None if there is none of this name."""
        state = self.cluster.state()
        node = state.nodes.get(name)
        if node is None:
            return None
        problems = list(state.problems)
        power, history = await asyncio.gather(
            self.programs.node_power(name), self.programs.energy(_HISTORY | {"node": name}), return_exceptions=True
        )
        for found, what in ((power, "the parts of the power"), (history, "the power over time")):
            if isinstance(found, KubernetesError):
                problems.append(f"{what} cannot be shown: {problem_of(found)}")
            elif isinstance(found, BaseException):
                raise found
        rows = self.cluster.limit_rows(frozenset({name}))
        return NodeAnswer(
            at=state.at,
            problems=tuple(problems),
            node=node,
            power=msgspec.convert(power, PowerParts, from_attributes=True) if isinstance(power, Item) else None,
            history=power_hours(history.items) if isinstance(history, EnergyAnswer) else [],
            gpus=gpu_items(rows, self.cluster.visible),
            conditions=condition_items(self.cluster.twin(name)),
            pods=with_limits(
                [
                    pod_item(pod, state.limits)
                    for pods in state.pods.values()
                    for pod in pods
                    if pod.facts.node_name == name
                ],
                rows,
            ),
        )

    def plans(self) -> PlansAnswer:
        """What would be changed, what is tried, and which limits of power must be kept."""
        state = self.cluster.state()
        messages = self.cluster.visible is None
        planned = planned_items(state.nodes.values())
        return PlansAnswer(
            at=state.at,
            problems=state.problems,
            observed=sum(item.nodes for item in planned),
            planned=planned,
            trials=[trial_item(trial, messages=messages) for trial in self.cluster.trials()],
            power_budgets=[power_budget_item(row, messages=messages) for row in self.cluster.power_budgets()],
        )

    async def signals(self) -> SignalsAnswer:
        """Carbon intensity and prices.

        Raises:
            KubernetesError: the grid controller does not tell.
        """
        found = await self.programs.signals()
        if found is None:
            raise KubernetesError("the grid controller is not installed, or does not answer")
        everything = self.cluster.visible is None
        return SignalsAnswer(at=found.now, signals=found.signals, waiting=found.waiting if everything else None)

    async def pods(self, query: Query) -> PodsAnswer:
        """Unfinished pods and budgets.

        Raises:
            QueryError: an invalid parameter.
        """
        state = self.cluster.state()
        wanted = choice(query, "state", ("", *STATES), "")
        namespace, one = query.get("namespace") or None, query.get("name") or None
        found = {
            name: [
                pod
                for pod in pods
                if namespace in {None, pod.facts.namespace} and (one is None or pod.facts.name == one)
            ]
            for name, pods in state.pods.items()
        }
        shown, after = page_of([pod for name in STATES if wanted in {"", name} for pod in found[name]], query, _PODS)
        gated = [f"{pod.facts.namespace}/{pod.facts.name}" for pod in shown if GATE in pod.gates]
        items = [pod_item(pod, state.limits) for pod in shown]
        limited = frozenset(item.node for item in items if item.limit_w is not None and item.node)
        return PodsAnswer(
            at=state.at,
            problems=state.problems,
            namespaces=list(state.namespaces),
            counts={name: len(pods) for name, pods in found.items()},
            pods=with_limits(
                await self.programs.with_latest_starts(items, gated),
                self.cluster.limit_rows(limited) if limited else [],
            ),
            budgets=budget_items(self.cluster.budgets(namespace)),
            next_page=after,
        )

    async def health(self, _query: Query) -> HealthAnswer:
        """What works and what does not."""
        state = self.cluster.state()
        checks, signals = await self.programs.checks()
        blocked = [
            (node.name, note)
            for node in state.nodes.values()
            if node.cap_state == "notInForce" or node.stale or node.notes
            for note in (node.notes or ("data is stale: the operator has not updated this node",))
        ]
        return HealthAnswer(
            at=state.at,
            problems=state.problems,
            checks=[*checks, *_node_checks(state)],
            sources=[*power_sources(state.nodes.values()), *signals],
            blocked=blocked[:_MAX_BLOCKED],
            blocked_total=len(blocked),
        )


def _node_checks(state: ClusterState) -> list[Check]:
    summary = state.summary
    rows = (
        ("Agents", summary.without_agent, "nodes have no agent: caps stay as they are", "an agent runs on every node"),
        (
            "Caps",
            summary.cap_states.get("notInForce", 0),
            "nodes have caps that are not in force",
            "all wanted caps hold",
        ),
        ("Twins", summary.stale, "nodes have data older than 5 min: see the operator", "all data is fresh"),
        ("Power", summary.nodes - summary.nodes_with_power, "nodes have no measured power", "every node is measured"),
    )
    if not summary.nodes:
        return [Check(name="Nodes", health="unknown", text="no node is visible")]
    return [_node_check(name, bad, summary.nodes, text, good) for name, bad, text, good in rows]


def _node_check(name: str, bad: int | None, nodes: int, text: str, good: str) -> Check:
    if bad is None:
        return Check(name=name, health="unknown", text="the pods of agents are not visible")
    return Check(name=name, health="warning" if bad else "ok", text=f"{bad} of {nodes} {text}" if bad else good)
