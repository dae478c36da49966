"""Asks Joulie's programs, for one reader, for what the API server does not have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ForbiddenError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.names import GROUP
from joulie.adapters.kubernetes.resources import LEASES, NODE_TWINS, PODS
from joulie.adapters.kubernetes.times import time_or_none
from joulie.adapters.program_api.energy import (
    ENERGY_PATH,
    ENERGY_RESOURCE,
    EXPORT_PATH,
    SAVINGS_PATH,
    EnergyAnswer,
    SavingsAnswer,
)
from joulie.adapters.program_api.grid import GridAnswer
from joulie.adapters.program_api.power import MAX_ITEMS, POWER_PATH, Item, PowerAnswer
from joulie.adapters.program_api.report import REPORT_PATH, ReportAnswer
from joulie.apps.kubectl.accounting import AccountingEndpoint, query_accounting, stream_accounting
from joulie.apps.kubectl.columns import format_age, format_count
from joulie.apps.kubectl.grid import query_grid
from joulie.apps.kubectl.leader import LeaderEndpoint, query_leader
from joulie.apps.kubectl.web.answers import Check, PodItem, SourceItem
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.program.queries import choice

_MAX_WAITS = 20
"""Maximum number of pods of a page whose latest start is asked for."""
_TIMEOUT_S = 8.0

_ENERGY_QUERY = ("by", "step", "since", "until", "namespace", "node", "limit", "continue", "month")

T = TypeVar("T")


class MayDo(Protocol):
    """Whether a reader may do something in the cluster."""

    async def __call__(self, verb: str, group: str, resource: str, **where: str) -> bool:
        """Whether they may; `where` is a namespace and a name, all without them."""


@dataclass(frozen=True)
class Programs:
    """Joulie's programs.

    Attributes:
        client: Kubernetes client that they are asked with.
        operator: address of the operator.
        grid: address of the grid controller.
        accounting: address of the accounting program.
        may: what the reader may do, where the client has rights of its own; None where it has the reader's, and the
            API server and the accounting program check them.
    """

    client: KubeClient
    operator: LeaderEndpoint
    grid: LeaderEndpoint
    accounting: AccountingEndpoint
    may: MayDo | None = None

    async def energy(self, query: Mapping[str, str]) -> EnergyAnswer:
        """Sums of energy.

        Raises:
            KubernetesError: the accounting program cannot be asked, or the reader may not read this.
        """
        return await self._accounts(ENERGY_PATH, query, EnergyAnswer)

    async def savings(self, query: Mapping[str, str]) -> SavingsAnswer:
        """Savings by deferral, pod by pod.

        Raises:
            KubernetesError: see `energy`.
        """
        return await self._accounts(SAVINGS_PATH, query, SavingsAnswer)

    async def report(self, query: Mapping[str, str]) -> ReportAnswer:
        """Emissions of a month.

        Raises:
            KubernetesError: see `energy`.
        """
        return await self._accounts(REPORT_PATH, query, ReportAnswer)

    async def export(self, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Parts of the stored rows, one JSON object a line.

        Raises:
            KubernetesError: see `energy`.
        """
        asked = await self._allowed_query(query)
        return stream_accounting(self.client, self.accounting, EXPORT_PATH, asked)

    async def _accounts(self, path: str, query: Mapping[str, str], answer: type[T]) -> T:
        asked = await self._allowed_query(query)
        return await _bounded(query_accounting(self.client, self.accounting, path, asked, answer))

    async def _allowed_query(self, query: Mapping[str, str]) -> dict[str, str]:
        """The parameters that the accounting program knows, once the reader may read what they ask for."""
        asked = {name: query[name] for name in _ENERGY_QUERY if query.get(name)}
        await self._check("get", GROUP, ENERGY_RESOURCE, namespace=asked.get("namespace", ""))
        if self.may is not None and not self.accounting.url:
            raise KubernetesError("no accounting program is installed")
        return asked

    async def signals(self) -> GridAnswer | None:
        """Carbon intensities and prices; None if the grid controller does not tell."""
        return await self._grid_or_none("")

    async def node_power(self, node: str) -> Item | None:
        """Power of a node now; None if the operator does not know the node.

        Raises:
            KubernetesError: the operator cannot be asked, or the reader may not read this.
        """
        return next((item for item in (await self.power({})).items if item.name == node), None)

    async def power(self, query: Mapping[str, str]) -> PowerAnswer:
        """Power of nodes, pods or namespaces now, as the operator tells it.

        Raises:
            QueryError: an invalid parameter.
            KubernetesError: the operator cannot be asked, or the reader may not read this.
        """
        kind = choice(query, "kind", ("nodes", "pods", "namespaces"), "nodes")
        asked = {"kind": kind, "limit": str(MAX_ITEMS)}
        if kind == "nodes":
            await self._check("list", NODE_TWINS.group, NODE_TWINS.plural)
        else:
            namespace = query.get("namespace", "") if kind == "pods" else ""
            await self._check("list", PODS.group, PODS.plural, namespace=namespace)
            asked |= {"namespace": namespace} if namespace else {}
        answer = await _bounded(query_leader(self.client, self.operator, POWER_PATH, asked))
        try:
            return msgspec.convert(answer, PowerAnswer)
        except msgspec.ValidationError as error:
            raise KubernetesError(f"{POWER_PATH}: unexpected response from the operator: {error}") from error

    async def grid_state(self, query: Mapping[str, str]) -> GridAnswer:
        """What the grid controller tells: of one pod with ``pod``, else of all.

        Raises:
            KubernetesError: the grid controller cannot be asked, or the reader may not read this.
        """
        pod = query.get("pod", "")
        await self._check("list", PODS.group, PODS.plural, namespace=pod.partition("/")[0])
        return await _bounded(query_grid(self.client, self.grid, pod))

    async def with_latest_starts(self, items: Sequence[PodItem], gated: Sequence[str]) -> list[PodItem]:
        """Pods with the grid controller's reason and latest start of those that it holds.

        Args:
            items: pods of a page.
            gated: ``namespace/name`` of those of them that wait for the grid.
        """
        first = await self._grid_or_none(gated[0]) if gated else None
        # A controller that does not answer once is not asked for every pod.
        rest = () if first is None else await asyncio.gather(*map(self._grid_or_none, gated[1:_MAX_WAITS]))
        found = dict(zip(gated, [first, *rest], strict=False))
        return [_with_grid(item, found.get(f"{item.namespace}/{item.name}")) for item in items]

    async def checks(self) -> tuple[list[Check], list[SourceItem]]:
        """Leaders, the ledger and the grid's signals."""
        leaders = asyncio.gather(*(self._leader(one) for one in (self.operator, self.grid)))
        (operator, controller), ledger, answer = await asyncio.gather(leaders, self._ledger(), self._grid_or_none(""))
        return [operator, controller, ledger], [] if answer is None else signal_items(answer)

    async def _check(self, verb: str, group: str, resource: str, **where: str) -> None:
        """Refuse what the reader may not do, where nobody else does."""
        if self.may is not None and not await self.may(verb, group, resource, **where):
            name = f"{resource}.{group}"
            place = f"namespace {where['namespace']}" if where.get("namespace") else "all namespaces"
            raise ForbiddenError(403, "Forbidden", f"you may not {verb} {name} in {place}")

    async def _grid_or_none(self, pod: str) -> GridAnswer | None:
        try:
            return await _bounded(query_grid(self.client, self.grid, pod))
        except KubernetesError:
            return None

    async def _leader(self, endpoint: LeaderEndpoint) -> Check:
        name = f"Leader of the {endpoint.title}"
        try:
            await self._check("get", LEASES.group, LEASES.plural, namespace=endpoint.namespace, name=endpoint.lease)
            lease = (await self.client.get(LEASES, endpoint.lease, endpoint.namespace)).spec
        except NotFoundError:
            hint = "" if self.may is not None else f" (--{endpoint.program}-namespace)"
            where = f"namespace {endpoint.namespace}{hint}"
            return Check(name=name, health="unknown", text=f"it is not installed in {where}")
        except KubernetesError as error:
            return Check(name=name, health="unknown", text=problem_of(error))
        renewed_s = time_or_none(lease.renew_time)
        if not lease.holder_identity or renewed_s is None:
            return Check(name=name, health="warning", text="no replica leads: see its pods and their logs")
        age_s = time.time() - renewed_s
        late = age_s > (lease.lease_duration_seconds or 0) * 2.0
        holder = lease.holder_identity.rpartition("_")[0] or lease.holder_identity
        text = f"{holder}, renewed {format_age(age_s)} ago, {format_count(lease.lease_transitions or 0, 'change')}"
        return Check(name=name, health="warning" if late else "ok", text=text)

    async def _ledger(self) -> Check:
        name = "Ledger"
        try:
            answer = await self.energy({"by": "node", "since": f"{2.0 * SECONDS_PER_HOUR:g}"})
        except KubernetesError as error:
            return Check(name=name, health="unknown", text=problem_of(error))
        if not answer.items:
            return Check(name=name, health="warning", text="no energy was booked in the last two hours")
        return Check(name=name, health="ok", text=f"energy of {format_count(len(answer.items), 'node')} in two hours")


def problem_of(error: KubernetesError) -> str:
    """What a page says about a failed request: for what is forbidden no more than that."""
    return error.message if isinstance(error, ForbiddenError) and error.message else str(error)


def signal_items(answer: GridAnswer) -> list[SourceItem]:
    """Carbon intensities and prices, by zone."""
    return [
        SourceItem(
            kind=signal.measure,
            name=f"{signal.zone}: {signal.source}" if signal.source else signal.zone,
            nodes=None,
            quality=signal.quality,
            oldest_s=signal.age_s,
            problem=signal.problem,
        )
        for signal in answer.signals
    ]


def _with_grid(item: PodItem, answer: GridAnswer | None) -> PodItem:
    if answer is None or not answer.cases:
        return item
    case = answer.cases[0]
    latest = None if case.latest_start_in_s is None else answer.now + case.latest_start_in_s
    return msgspec.structs.replace(item, why=f"waits: {case.text}" if case.text else item.why, latest_start=latest)


async def _bounded(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await work
    except TimeoutError:
        raise KubernetesError(f"no answer within {_TIMEOUT_S:g} s") from None
