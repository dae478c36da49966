"""A recording of a cluster: rows of its tables, the hours that it is made of, and anonymised names.

The files are described in docs/reference/recording.md. What was not measured has no row, and what is not known is
None: neither is ever zero.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from joulie.domain.quantities import SECONDS_PER_HOUR

FORMAT = 1
"""Version of the layout; readers refuse others."""
_DIGEST_CHARS = 12


class Exit(StrEnum):
    """How a pod ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is known of a pod; times are s since the epoch.

    Attributes:
        uid: of the pod.
        namespace: of the pod.
        name: of the pod.
        owner_kind: kind of the workload that it belongs to.
        owner_name: name of that workload.
        workload_class: performance or standard, where its annotation says.
        cpu_cores: requested cores.
        memory_gib: requested memory, GiB.
        gpus: requested GPUs.
        gpu_vendor: their vendor.
        gates: names of its scheduling gates, separated by commas; empty where it has none any more.
        arrived_s: when it was created.
        scheduled_s: when it was given its node; what it waited at gates is part of the time before.
        started_s: when it started to run.
        ended_s: when it ended.
        node: that it ran on.
        exit: how it ended.
        progress_metric: counter of its work that it names; empty or None without one.
        trial: name of the trial of deferral that it takes part in.
        trial_arm: treatment (it waits) or control (it starts at once).
        trial_workload: name by which its workload was drawn there.
    """

    uid: str
    namespace: str
    name: str
    owner_kind: str | None = None
    owner_name: str | None = None
    workload_class: str | None = None
    cpu_cores: float | None = None
    memory_gib: float | None = None
    gpus: float | None = None
    gpu_vendor: str | None = None
    gates: str | None = None
    arrived_s: float | None = None
    scheduled_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    node: str | None = None
    exit: str | None = None
    progress_metric: str | None = None
    trial: str | None = None
    trial_arm: str | None = None
    trial_workload: str | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Hardware of a node; None where it is not known.

    Attributes:
        node: its name.
        cpu_model: key of its CPUs in the hardware catalogue.
        sockets: CPU packages.
        cores: cores that pods can request.
        memory_gib: memory that pods can request, GiB.
        gpu_model: key of its GPUs in the hardware catalogue.
        gpus: number of GPUs.
        gpu_resource: extended resource by which pods request them.
        idle_w: power when idle, by the catalogue, W.
        max_w: power at full load, by the catalogue, W.
    """

    node: str
    cpu_model: str | None = None
    sockets: int | None = None
    cores: float | None = None
    memory_gib: float | None = None
    gpu_model: str | None = None
    gpus: int = 0
    gpu_resource: str | None = None
    idle_w: float | None = None
    max_w: float | None = None


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours of a recording, s since the epoch."""

    from_s: float
    until_s: float

    @classmethod
    def last(cls, length_s: float, now_s: float) -> Period:
        """As many whole hours as fit `length_s` seconds; the last one has just ended.

        Raises:
            ValueError: not one fits.
        """
        until_s = math.floor(now_s / SECONDS_PER_HOUR) * SECONDS_PER_HOUR
        hours = math.floor(length_s / SECONDS_PER_HOUR)
        if hours < 1:
            raise ValueError("only whole hours are recorded: record at least the last 1h")
        return cls(until_s - hours * SECONDS_PER_HOUR, until_s)

    @property
    def hours(self) -> Sequence[Period]:
        """Its hours, in order."""
        count = round((self.until_s - self.from_s) / SECONDS_PER_HOUR)
        starts = (self.from_s + number * SECONDS_PER_HOUR for number in range(count))
        return [Period(start_s, start_s + SECONDS_PER_HOUR) for start_s in starts]


def merge_pods(records: Iterable[PodRecord]) -> list[PodRecord]:
    """One record for each pod, in order of arrival: of each field the last value that is known."""
    found: dict[str, PodRecord] = {}
    for one in records:
        before = found.get(one.uid)
        if before is None:
            found[one.uid] = one
            continue
        known = {field.name: value for field in fields(one) if (value := getattr(one, field.name)) is not None}
        found[one.uid] = replace(before, **known)
    return sorted(found.values(), key=lambda one: (one.arrived_s or one.started_s or 0.0, one.uid))


class Pseudonyms:
    """Names that say nothing to whoever has no key; equal names stay equal.

    Args:
        key: secret key; it must not be stored with the recording.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, row: Mapping[str, object]) -> dict[str, object]:
        """A row of any table with its names replaced."""
        return {key: self._name(key, value) for key, value in row.items()}

    def _name(self, field: str, value: object) -> object:
        kind = _KINDS.get(field)
        if kind is None or not isinstance(value, str) or not value:
            return value
        digest = hmac.new(self._key, f"{kind} {value}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_DIGEST_CHARS]}"


_KINDS = {
    "node": "node",
    "namespace": "ns",
    "name": "pod",
    "pod": "pod",
    "uid": "uid",
    "owner_name": "owner",
    "trial_workload": "owner",
    "zone": "zone",
    "gates": "gates",
    "progress_metric": "metric",
}
"""Fields with names, and what a replaced one begins with."""
