"""Power profiles of pods over their lives, thinned to a bounded number of samples; savings are computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, bindparam, delete, insert, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.accounts import Account, Power
from joulie.adapters.ledger.statements import bulk
from joulie.domain.accounting.records import PodMeta
from joulie.domain.accounting.savings import Profile
from joulie.domain.accounting.thinning import Thinner

_NEW_SAMPLE = insert(schema.samples)


class NewSample(NamedTuple):
    """The power of a pod at one time."""

    account: Account
    time_s: float
    power_w: Power


def keep_profiles(
    connection: Connection,
    new: Sequence[NewSample],
    changed: Sequence[Account],
    max_samples: int,
    thinner: Thinner,
) -> None:
    """Add samples, and halve the profiles that become full.

    Args:
        connection: connection with the open transaction.
        new: samples to add, already counted by their accounts.
        changed: the accounts with new samples.
        max_samples: maximum number of samples of a pod.
        thinner: selects the samples that are kept.
    """
    rows = [(account.id, time_s, *power_w) for account, time_s, power_w in new]
    bulk(connection, _NEW_SAMPLE, ("pod_id", "time_s", "cpu_w", "mem_w", "gpu_w"), rows)
    for account in changed:
        # Pods that started together fill up at different times, so that no cycle has to thin all of them.
        if account.samples > max_samples - account.id % max(1, max_samples // 4):
            _thin(connection, account, max_samples // 2, thinner)


def profile_of(connection: Connection, number: int, pod: PodMeta) -> Profile | None:
    """The profile of the pod with this number; None where nothing is kept of it."""
    samples = schema.samples.c
    rows = connection.execute(
        select(samples.time_s, samples.cpu_w, samples.mem_w, samples.gpu_w)
        .where(samples.pod_id == number)
        .order_by(samples.time_s)
    ).all()
    if len(rows) < 2:
        return None
    numbers = np.array(rows, dtype=np.float64)
    return Profile(numbers[:, 0], numbers[:, 1:] @ np.array([pod.pue, pod.pue, pod.gpu_pue]))


def _thin(connection: Connection, account: Account, keep: int, thinner: Thinner) -> None:
    profile = profile_of(connection, account.id, account.pod)
    if profile is None:
        return
    kept = np.zeros(len(profile.times_s), np.bool_)
    kept[thinner(profile.times_s, profile.power_w, keep)] = True
    account.samples = int(kept.sum())
    samples = schema.samples.c
    connection.execute(
        delete(schema.samples).where(samples.pod_id == account.id, samples.time_s == bindparam("gone_s")),
        [{"gone_s": time_s} for time_s in profile.times_s[~kept].tolist()],
    )
