"""`kubectl joulie savings`: emissions and cost saved by deferring pods, by pod, and what limits of GPUs save."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import SAVINGS_PATH, HoldoutSaving, SavingsAnswer, SavingsItem
from joulie.apps.kubectl.accounting import AccountingEndpoint, query_accounting
from joulie.apps.kubectl.columns import (
    Column,
    age_column,
    format_age,
    format_count,
    number_column,
    sorted_rows,
    text_column,
)
from joulie.apps.kubectl.energy import format_energy, format_mass, print_rows, query_of
from joulie.apps.kubectl.holdout import HOW_KNOWN, LimitsSaving, limits_saving
from joulie.apps.kubectl.options import (
    account_options,
    accounting_endpoint,
    limit_option,
    run_with_client,
    table_options,
)
from joulie.program.documents import print_document

_CARBON = "carbon"
_PRICE = "price"
_HOW_KNOWN = "modelled"
"""How these savings are known: the same power at the intensity or price of another time. Nobody has measured that."""


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        namespace: namespace of the pods; empty for that of the context, None for all.
        since_s: length of the period up to now, s; None for all stored data.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
        limit: maximum number of rows.
        endpoint: address of the accounting program.
    """

    namespace: str | None
    since_s: float | None
    output: str
    sort_by: str
    reverse: bool
    limit: int
    endpoint: AccountingEndpoint


def _saved(item: SavingsItem) -> str:
    return format_mass(item.amount) if item.measure == _CARBON else f"{item.amount:.4f}"


def _name(item: SavingsItem) -> str:
    """Pod name; the number of pods for a day that is stored as a sum only."""
    return item.name or f"({format_count(item.pods, 'pod')})"


COLUMNS: Mapping[str, Column[SavingsItem]] = {
    "namespace": text_column("NAMESPACE", lambda item: item.namespace, min_width=12),
    "name": text_column("POD", _name, min_width=20),
    "measure": text_column("MEASURE", lambda item: item.measure),
    "saved": replace(number_column("SAVED", lambda item: item.amount), text=_saved),
    "energy": replace(
        number_column("ENERGY", lambda item: item.energy_j, rank=1), text=lambda item: format_energy(item.energy_j)
    ),
    "method": text_column("METHOD", lambda item: item.method),
    "completed": age_column("COMPLETED", lambda item: time.time() - item.completed, rank=2),
}


async def show_savings(client: KubeClient, request: Request) -> None:
    """Print the savings of deferred pods.

    Raises:
        KubernetesError: the accounting program cannot be queried.
    """
    query = query_of(client, request.namespace, request.since_s)
    answer = await query_accounting(client, request.endpoint, SAVINGS_PATH, query, SavingsAnswer)
    limits = LimitsSaving.of_all(answer.limits) or await _limits(client, request.namespace)
    rows = sorted_rows(answer.items, COLUMNS[request.sort_by], reverse=request.reverse)[: request.limit]
    saved = {measure: _sum(answer.items, measure) for measure in (_CARBON, _PRICE)}
    if request.output in {"json", "yaml"}:
        document = {
            "since": rfc3339(answer.since),
            "until": rfc3339(answer.until),
            "currency": answer.currency,
            "howKnown": _HOW_KNOWN,
            "total": {"carbonG": saved[_CARBON], "cost": saved[_PRICE]},
            "holdout": msgspec.to_builtins(answer.holdout),
            "limits": msgspec.to_builtins(limits),
            "items": msgspec.to_builtins(rows),
        }
        print_document(document, request.output)
        return
    span = format_age(answer.until - answer.since)
    if answer.items:
        carbon_g, cost = saved[_CARBON], saved[_PRICE]
        parts = [] if carbon_g is None else [f"{format_mass(carbon_g)} CO2eq"]
        parts += [] if cost is None else [f"{cost:.2f} {answer.currency}"]
        line = f"Deferral saved {' and '.join(parts)} for pods completed in the last {span} ({_HOW_KNOWN})"
    else:
        line = f"No deferred pod with known savings completed in the last {span}."
    lines = [line]
    lines += [] if answer.holdout is None else [_measured(answer.holdout)]
    lines += [] if limits is None else [limits.sentence]
    print_rows(lines, COLUMNS, rows, len(answer.items), wide=request.output == "wide")


def _measured(saving: HoldoutSaving) -> str:
    return (
        f"Waiting saves {saving.saved_pct:.1f} % of the emissions ({saving.low_pct:.1f} to {saving.high_pct:.1f} %),"
        f" {HOW_KNOWN}: {saving.left_out} of {saving.workloads} workloads were left alone"
    )


async def _limits(client: KubeClient, namespace: str | None) -> LimitsSaving | None:
    """What limits of GPUs save; None where it is not known, or profiles may not be listed."""
    try:
        return limits_saving((await client.list(WORKLOAD_PROFILES, namespace=namespace)).items)
    except KubernetesError:
        return None


def _sum(items: Sequence[SavingsItem], measure: str) -> float | None:
    """Total savings of a measure; None without any item."""
    amounts = [item.amount for item in items if item.measure == measure]
    return sum(amounts) if amounts else None


@click.command("savings")
@account_options
@table_options(COLUMNS, "completed")
@limit_option
def savings(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show emissions and cost saved by pods that waited for cleaner or cheaper power.

    Savings are negative if waiting made it worse. METHOD timeseries applies the pod's power to the intensity or price
    from the time when the pod was first held; simple multiplies the difference between the two times by the energy.
    """
    request = Request(
        None if all_namespaces else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_endpoint(options),
    )
    run_with_client(lambda client: show_savings(client, request), kubeconfig=kubeconfig, context=context)
