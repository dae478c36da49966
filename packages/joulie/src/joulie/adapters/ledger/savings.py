"""Savings of completed pods by deferral, computed from their profiles and the history of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, insert

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.accounts import Account
from joulie.adapters.ledger.profiles import profile_of
from joulie.adapters.ledger.signals import history
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.records import CompletedPod, Energy, Saving
from joulie.domain.accounting.savings import Profile, saving
from joulie.domain.grid.signals import Measure


def with_savings(connection: Connection, account: Account) -> CompletedPod:
    """A completed pod, with its savings if it was held."""
    energy, held = Energy(*account.energy), account.pod.held
    done = CompletedPod(account.pod, account.from_s, account.sampled_s, energy)
    if held is None:
        return done
    profile = profile_of(connection, account.id, account.pod)
    basis, emitted_g, unknown_j = FactorKind.INTENSITY, energy.emissions_g, energy.energy_without_intensity_j
    if unknown_j > 0.0 and energy.energy_without_marginal_j <= 0.0:
        basis, emitted_g, unknown_j = FactorKind.MARGINAL, energy.marginal_g, 0.0
    return replace(
        done,
        carbon=_saving(
            connection,
            done,
            profile,
            (basis, held.carbon_since_s),
            None if unknown_j > 0.0 else emitted_g,
            (held.initial_g_per_kwh, held.bind_g_per_kwh),
        ),
        cost=_saving(
            connection,
            done,
            profile,
            (FactorKind.PRICE, held.price_since_s),
            None if energy.energy_without_price_j > 0.0 else energy.cost,
            (held.initial_per_kwh, held.bind_per_kwh),
        ),
    )


def write_savings(connection: Connection, completed: Sequence[CompletedPod]) -> None:
    """Store the savings of completed pods."""
    rows = [
        {
            "uid": one.pod.uid,
            "namespace": one.pod.namespace,
            "measure": measure.value,
            "method": saved.method.value,
            "completed_s": one.until_s,
            "name": one.pod.name,
            "owner_kind": one.pod.owner_kind,
            "owner_name": one.pod.owner_name,
            "amount": saved.amount,
            "energy_j": one.energy.energy_j,
            "pods": 1,
        }
        for one in completed
        for measure, saved in ((Measure.CARBON, one.carbon), (Measure.PRICE, one.cost))
        if saved is not None
    ]
    if rows:
        connection.execute(insert(schema.savings), rows)


def _saving(
    connection: Connection,
    done: CompletedPod,
    profile: Profile | None,
    held: tuple[FactorKind, float | None],
    actual: float | None,
    moments: tuple[float | None, float | None],
) -> Saving | None:
    measure, since_s = held
    if since_s is None:
        return None
    then = history(connection, done.pod.zone, measure, since_s, since_s + done.until_s - done.from_s)
    return saving(profile, since_s, then, done.energy.energy_j, actual, moments)
