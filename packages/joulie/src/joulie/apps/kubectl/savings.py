"""`kubectl joulie savings`: what holding pods back saved, pod by pod."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import SAVINGS_PATH, SavingsAnswer, SavingsItem
from joulie.apps.kubectl.accounting import AccountingAt, ask_accounting
from joulie.apps.kubectl.columns import Column, age, aged, count, measured, named, sorted_rows
from joulie.apps.kubectl.energy import energy_text, mass_text, print_rows, query_of
from joulie.program.documents import print_document

_CARBON = "carbon"
_PRICE = "price"


@dataclass(frozen=True)
class Question:
    """What to show.

    Attributes:
        namespace: of the pods; empty for the context's, None for all.
        since_s: how far back to look, s; None for all that is kept.
        form: table, wide, json or yaml.
        sort_by: name of a column.
        reverse: the other way round.
        limit: rows at most.
        where: the accounting program.
    """

    namespace: str | None
    since_s: float | None
    form: str
    sort_by: str
    reverse: bool
    limit: int
    where: AccountingAt


def _saved(item: SavingsItem) -> str:
    return mass_text(item.amount) if item.measure == _CARBON else f"{item.amount:.4f}"


def _name(item: SavingsItem) -> str:
    """The pod; of a day whose pods are kept only as a sum, how many."""
    return item.name or f"({count(item.pods, 'pod')})"


COLUMNS: Mapping[str, Column[SavingsItem]] = {
    "namespace": named("NAMESPACE", lambda item: item.namespace, least=12),
    "name": named("POD", _name, least=20),
    "measure": named("MEASURE", lambda item: item.measure),
    "saved": replace(measured("SAVED", lambda item: item.amount), text=_saved),
    "energy": replace(
        measured("ENERGY", lambda item: item.energy_j, rank=1), text=lambda item: energy_text(item.energy_j)
    ),
    "method": named("METHOD", lambda item: item.method),
    "completed": aged("COMPLETED", lambda item: time.time() - item.completed, rank=2),
}


async def show_savings(client: KubeClient, question: Question) -> None:
    """Print what waiting saved.

    Raises:
        KubernetesError: the accounting program cannot be asked.
    """
    query = query_of(client, question.namespace, question.since_s)
    answer = await ask_accounting(client, question.where, SAVINGS_PATH, query, SavingsAnswer)
    rows = sorted_rows(answer.items, COLUMNS[question.sort_by], reverse=question.reverse)[: question.limit]
    saved = {measure: _sum(answer.items, measure) for measure in (_CARBON, _PRICE)}
    if question.form in {"json", "yaml"}:
        document = {
            "since": rfc3339(answer.since),
            "until": rfc3339(answer.until),
            "currency": answer.currency,
            "total": {"carbonG": saved[_CARBON], "cost": saved[_PRICE]},
            "items": msgspec.to_builtins(rows),
        }
        print_document(document, question.form)
        return
    span = age(answer.until - answer.since)
    if answer.items:
        carbon_g, cost = saved[_CARBON], saved[_PRICE]
        said = [] if carbon_g is None else [f"{mass_text(carbon_g)} CO2eq"]
        said += [] if cost is None else [f"{cost:.2f} {answer.currency}"]
        line = f"Waiting saved {' and '.join(said)} by pods that completed in the last {span}"
    else:
        line = f"No pod that had waited, and of which it can be told, has completed in the last {span}."
    print_rows([line], COLUMNS, rows, len(answer.items), wide=question.form == "wide")


def _sum(items: Sequence[SavingsItem], measure: str) -> float | None:
    """What was saved of a measure; None where nothing is known of it."""
    amounts = [item.amount for item in items if item.measure == measure]
    return sum(amounts) if amounts else None
