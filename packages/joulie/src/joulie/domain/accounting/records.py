"""What is accounted: pods, samples of their power, and the energy, emissions and cost that follow from them.

Powers are of the computers (IT), W. What data centres lose is added when energy is summed: CPU and memory times PUE,
GPUs times their own PUE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from joulie.domain.accounting.embodied import Reservation
from joulie.domain.grid.signals import Measure

if TYPE_CHECKING:  # imports NumPy, which the commands that only read amounts do not need
    from joulie.domain.grid.series import Series


class PowerQuality(StrEnum):
    """How a power is known."""

    MEASURED = "measured"
    """By the hardware's own counters (Kepler, DCGM)."""
    MODELLED = "modelled"
    """From measured utilisation, by the hardware's profile."""
    ASSUMED = "assumed"
    """From what the pod requests, or over a gap without samples."""


@dataclass(frozen=True, slots=True)
class Held:
    """How a pod waited for the grid before it ran. What was not known then is None.

    Attributes:
        carbon_since_s: when it was first held for carbon, s since the epoch; None: never.
        price_since_s: when it was first held for the price, s since the epoch; None: never.
        initial_g_per_kwh: carbon intensity then, gCO2eq/kWh.
        initial_per_kwh: price then, currency/kWh.
        bind_g_per_kwh: carbon intensity when it was let go, gCO2eq/kWh.
        bind_per_kwh: price when it was let go, currency/kWh.
    """

    carbon_since_s: float | None = None
    price_since_s: float | None = None
    initial_g_per_kwh: float | None = None
    initial_per_kwh: float | None = None
    bind_g_per_kwh: float | None = None
    bind_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class PodMeta:
    """Whose energy it is. A pod that was made again under the same name has another uid, and is another pod.

    Attributes:
        uid: of the pod.
        namespace: of the pod.
        name: of the pod.
        owner_kind: of the workload that it belongs to: ``Job``, ``Deployment``; empty for a pod of its own.
        owner_name: of that workload.
        node: that it runs on.
        zone: of the grid that feeds the node; empty where nobody knows.
        started_s: when its containers started, s since the epoch; None where nobody knows.
        pue: power usage effectiveness of the data centre, at least 1.
        gpu_pue: the same for GPUs, power conversion included, at least 1.
        held: how it waited before it ran; None: it did not.
        labels: those of its labels that energy can be summed by, sorted by key.
    """

    uid: str
    namespace: str
    name: str
    owner_kind: str = ""
    owner_name: str = ""
    node: str = ""
    zone: str = ""
    started_s: float | None = None
    pue: float = 1.1
    gpu_pue: float = 1.15
    held: Held | None = None
    labels: tuple[tuple[str, str], ...] = ()


IDLE_OWNER = "Node"
"""Kind of the owner of what `idle_account` accounts for."""


def idle_account(node: str, node_uid: str, zone: str, pue: float, gpu_pue: float) -> PodMeta:
    """What a node draws for nobody, as if it were a pod: nothing that is drawn is left out of the sums."""
    uid = f"idle:{node_uid}"
    return PodMeta(uid, "", "unallocated", IDLE_OWNER, node, node, zone, pue=pue, gpu_pue=gpu_pue)


@dataclass(frozen=True, slots=True)
class Sample:
    """The power of one pod at one moment; the moment is the cycle's.

    Attributes:
        pod: whose.
        cpu_w: CPU power, W.
        mem_w: power of memory, W.
        gpu_w: power of GPUs, W.
        quality: how the worst known part of it is known.
        source: who says so: kepler, cadvisor, metrics-server, requests.
        reservation: what it reserves of its node; of the account of a node, the whole of it. None: not known.
    """

    pod: PodMeta
    cpu_w: float
    mem_w: float
    gpu_w: float
    quality: PowerQuality
    source: str
    reservation: Reservation | None = None

    @property
    def it_w(self) -> float:
        """All of it, W."""
        return self.cpu_w + self.mem_w + self.gpu_w


@dataclass(frozen=True, slots=True)
class UnitCount:
    """What a workload has delivered, in its functional unit.

    Attributes:
        unit: ``request``.
        amount: how many.
        source: who counted: an annotation, or the query.
    """

    unit: str
    amount: float
    source: str


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a pod.

    Attributes:
        uid: of the pod.
        time_s: when its last container ended, s since the epoch.
        delivered: what it has delivered; None: it did not say, or it failed.
    """

    uid: str
    time_s: float
    delivered: UnitCount | None = None


@dataclass(frozen=True, slots=True)
class ZoneSignals:
    """What is known of the grid in one zone, for the time since the last cycle and, after a gap, before it.

    Attributes:
        intensity: average carbon intensity, gCO2eq/kWh; None: missing. Energy outside of the series counts as energy
            without intensity.
        marginal: marginal carbon intensity, gCO2eq/kWh; None: missing. It is booked beside the average one, and never
            added to it.
        price: currency/kWh; None: missing.
    """

    intensity: Series | None = None
    marginal: Series | None = None
    price: Series | None = None


@dataclass(frozen=True, slots=True)
class BudgetScope:
    """What a budget counts, and its pods in one cycle.

    Attributes:
        key: of the budget and what it selects; another selection is another count.
        namespace: of its pods.
        since_s: start of its period, s since the epoch; counts are cut there. A new budget without labels counts what
            the ledger has had since then, rounded outwards to hours or days.
        pods: uids of its pods.
        owner_kind: kind of the workload that it is for; empty for all.
        owner_name: name of that workload; empty for all.
        by_labels: its pods are selected by labels, which the ledger does not have: a new one counts from its first
            cycle on.
    """

    key: str
    namespace: str
    since_s: float
    pods: frozenset[str] = frozenset()
    owner_kind: str = ""
    owner_name: str = ""
    by_labels: bool = False


@dataclass(frozen=True, slots=True)
class BudgetCount:
    """What the pods of a budget have used.

    Attributes:
        used: since the start that was asked for.
        recent: the last part of it.
        counted_since_s: since when the budget is counted, s since the epoch.
    """

    used: Energy
    recent: Energy
    counted_since_s: float


BUDGET_SLOT_S = 900.0
"""Resolution of the count of budgets within a period, s."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """All that one round of sampling found.

    Attributes:
        time_s: when, s since the epoch; later than that of the cycle before.
        samples: of all pods that run, each pod once.
        completions: pods that have ended; saying it twice does no harm.
        signals: of the grid, by zone.
        budgets: what budgets count.
        pue_sources: where PUEs come from, by zone, PUE, and PUE of GPUs.
    """

    time_s: float
    samples: Sequence[Sample] = ()
    completions: Sequence[Completion] = ()
    signals: Mapping[str, ZoneSignals] = field(default_factory=dict)
    budgets: Sequence[BudgetScope] = ()
    pue_sources: Mapping[tuple[str, float, float], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy with its emissions and cost. Adds up.

    Attributes:
        cpu_j: of CPUs, IT, J.
        mem_j: of memory, IT, J.
        gpu_j: of GPUs, IT, J.
        energy_j: of the data centre, PUE included, J.
        measured_j: the part of `energy_j` whose power was measured, J.
        assumed_j: the part of `energy_j` whose power was assumed, J; what is left was modelled.
        emissions_g: of the part with known carbon intensity, gCO2eq.
        energy_without_intensity_j: the part of `energy_j` whose emissions nobody knows, J.
        cost: of the part with a known price, in the currency of the price.
        energy_without_price_j: the part of `energy_j` whose cost nobody knows, J.
        marginal_g: marginal emissions of the part with known marginal carbon intensity, gCO2eq; for decisions, never
            part of an inventory, and never added to `emissions_g`.
        energy_without_marginal_j: the part of `energy_j` whose marginal emissions nobody knows, J.
    """

    cpu_j: float = 0.0
    mem_j: float = 0.0
    gpu_j: float = 0.0
    energy_j: float = 0.0
    measured_j: float = 0.0
    assumed_j: float = 0.0
    emissions_g: float = 0.0
    energy_without_intensity_j: float = 0.0
    cost: float = 0.0
    energy_without_price_j: float = 0.0
    marginal_g: float = 0.0
    energy_without_marginal_j: float = 0.0

    def __add__(self, other: Energy) -> Energy:
        return Energy(*(getattr(self, name) + getattr(other, name) for name in ENERGY_FIELDS))

    @property
    def it_j(self) -> float:
        """Energy of the computers, without what the data centre loses, J."""
        return self.cpu_j + self.mem_j + self.gpu_j


NO_ENERGY = Energy()
ENERGY_FIELDS = tuple(one.name for one in fields(Energy))


class Method(StrEnum):
    """How a saving was calculated."""

    TIMESERIES = "timeseries"
    """The same power profile, on the intensity or price of the time when it was first held."""
    SIMPLE = "simple"
    """The difference of the two moments, times the energy."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What waiting has saved of one measure; negative where it has cost more.

    Attributes:
        amount: gCO2eq, or currency.
        method: how it was calculated.
    """

    amount: float
    method: Method


@dataclass(frozen=True, slots=True)
class CompletedPod:
    """A pod that has ended.

    Attributes:
        pod: whose.
        from_s: since when it is accounted, s since the epoch.
        until_s: when it ended, s since the epoch.
        energy: all of it.
        carbon: saved emissions; None where it was not held for carbon or nothing can be said.
        cost: saved cost; None likewise.
    """

    pod: PodMeta
    from_s: float
    until_s: float
    energy: Energy
    carbon: Saving | None = None
    cost: Saving | None = None


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle has added to the ledger.

    Attributes:
        added: energy by namespace; what nodes draw for nobody has the namespace "".
        completed: pods that ended with this cycle, each pod once in its life.
        late: samples and completions that said nothing new: of a time that is accounted already, or of an ended pod.
        refused: samples with a power that is negative or no number, which were left out.
    """

    added: Mapping[str, Energy] = field(default_factory=dict)
    completed: Sequence[CompletedPod] = ()
    late: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class OpenPod:
    """A pod whose end the ledger does not know.

    Attributes:
        pod: whose.
        sampled_s: until when it is accounted, s since the epoch.
        energy: all of it until then.
        power_w: its last power, IT, W.
        source: of that power.
    """

    pod: PodMeta
    sampled_s: float
    energy: Energy
    power_w: float
    source: str


class Grouping(StrEnum):
    """What energy is summed by."""

    POD = "pod"
    JOB = "job"
    """The workload that pods belong to."""
    LABEL = "label"
    """The values of some of the labels of pods."""
    NAMESPACE = "namespace"
    NODE = "node"
    DAY = "day"
    """Of UTC."""
    HOUR = "hour"
    """Of UTC; energy whose hours have been folded is in the first hour of its day."""


IDLE_VALUE = "__idle__"
"""Value of every label of what nodes draw for nobody. No label can have it: values begin with a letter or a digit."""
OTHER_VALUE = "__other__"
"""Value of every label of pods beyond the maximum number of sets of labels that a workload's days are kept by."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Energy of one pod, job, namespace, node, day or hour, or of two of them; what it was not grouped by is empty.

    Attributes:
        from_s: start of its first hour with any energy, s since the epoch.
        until_s: end of its last one, s since the epoch.
        energy: its sum.
        uid: of the pod.
        namespace: of pods and jobs.
        name: of the pod.
        owner_kind: of the job, or the pod's.
        owner_name: likewise.
        node: of the pod, or the node.
        labels: values of the labels that were asked for, in their order; empty where a pod has none.
    """

    from_s: float
    until_s: float
    energy: Energy
    uid: str = ""
    namespace: str = ""
    name: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    node: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportRow:
    """Energy of one pod in one hour, or of one job in one day once its hours have been folded; or its correction.

    Attributes:
        from_s: start, s since the epoch.
        until_s: end, s since the epoch.
        pod: whose; of folded rows only namespace, owner, zone and labels are known.
        source: of the pod's latest power; empty of folded rows.
        energy: within that time.
        correction: it is a difference, to be added to what was exported for that time or before.
    """

    from_s: float
    until_s: float
    pod: PodMeta
    source: str
    energy: Energy
    correction: bool = False


@dataclass(frozen=True, slots=True)
class SavingRow:
    """What one pod, or a day's pods of one namespace, have saved by waiting.

    Attributes:
        completed_s: end of the pod, or start of the day, s since the epoch.
        uid: of the pod; empty of folded rows.
        namespace: of it.
        name: of it; empty of folded rows.
        owner_kind: of its workload; empty of folded rows.
        owner_name: of its workload; empty of folded rows.
        measure: carbon or price.
        method: how it was calculated.
        amount: gCO2eq or currency; negative where waiting has cost more.
        energy_j: of the pods, PUE included, J.
        pods: how many.
    """

    completed_s: float
    uid: str
    namespace: str
    name: str
    owner_kind: str
    owner_name: str
    measure: Measure
    method: Method
    amount: float
    energy_j: float
    pods: int = 1
