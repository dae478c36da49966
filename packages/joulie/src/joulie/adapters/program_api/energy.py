"""What the accounting program says of energy and savings over HTTP, and `kubectl joulie` reads there."""

from __future__ import annotations

import msgspec

ENERGY_PATH = "/api/v1/energy"
SAVINGS_PATH = "/api/v1/savings"
EXPORT_PATH = "/api/v1/export"
GROUPS = ("pod", "job", "namespace", "node", "day")
"""What energy can be summed by; a job is any workload: a Job, a Deployment, a pod of its own."""

IDLE = "__idle__"
"""Name of what nodes draw for nobody, where a namespace's or pod's would stand."""
FOLDED = "__folded__"
"""Name of energy that is kept by workload and day only, where a pod's or node's would stand."""


class EnergyItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Energy of a pod, of a workload, of a namespace, of a node or of a day.

    Attributes:
        name: of what it is about; of a day ``2026-03-13``.
        namespace: of a pod or workload.
        kind: of a workload.
        node: of a pod.
        cpu_j: of CPUs, without PUE, J.
        mem_j: of memory, without PUE, J.
        gpu_j: of GPUs, without PUE, J.
        energy_j: with PUE, J: what the data centre draws for it. What is neither measured nor assumed was modelled from
            measured use.
        measured_j: of `energy_j`, from power that was measured, J.
        assumed_j: of `energy_j`, from power that was assumed: from requests alone, or over a gap without samples, J.
        emissions_g: gCO2eq, of the energy whose carbon intensity was known.
        cost: in the answer's currency, of the energy whose price was known.
        energy_without_intensity_j: of `energy_j`, whose emissions nobody knows, J.
        energy_without_price_j: of `energy_j`, whose cost nobody knows, J.
    """

    name: str
    namespace: str | None = None
    kind: str | None = None
    node: str | None = None
    cpu_j: float = msgspec.field(default=0.0, name="cpuJ")
    mem_j: float = msgspec.field(default=0.0, name="memJ")
    gpu_j: float = msgspec.field(default=0.0, name="gpuJ")
    energy_j: float = msgspec.field(default=0.0, name="energyJ")
    measured_j: float = msgspec.field(default=0.0, name="measuredJ")
    assumed_j: float = msgspec.field(default=0.0, name="assumedJ")
    emissions_g: float = 0.0
    cost: float = 0.0
    energy_without_intensity_j: float = msgspec.field(default=0.0, name="energyWithoutIntensityJ")
    energy_without_price_j: float = msgspec.field(default=0.0, name="energyWithoutPriceJ")


class EnergyAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer at `ENERGY_PATH`.

    Attributes:
        by: what was summed by.
        since: since when energy is in the sums, s since the epoch: the start of the hour that was asked for, or of the
            day where only days are kept.
        until: s since the epoch.
        currency: of the cost.
        items: most energy first.
    """

    by: str
    since: float
    until: float
    currency: str
    items: list[EnergyItem]


class SavingsItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What holding one pod back, or a day's pods of a namespace, saved; below zero where waiting made it worse.

    Attributes:
        name: of the pod; empty for a day's pods.
        namespace: of the pod.
        completed: s since the epoch.
        measure: carbon or price.
        method: timeseries: the same power profile on the intensity or price of when it was first held; simple: the
            difference of the two moments times the energy.
        amount: saved, gCO2eq or the answer's currency.
        energy_j: that the pods took, with PUE, J.
        pods: how many.
    """

    name: str
    namespace: str
    completed: float
    measure: str
    method: str
    amount: float
    energy_j: float = msgspec.field(default=0.0, name="energyJ")
    pods: int = 1


class SavingsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer at `SAVINGS_PATH`.

    Attributes:
        since: s since the epoch.
        until: s since the epoch.
        currency: of the cost.
        items: the latest first.
    """

    since: float
    until: float
    currency: str
    items: list[SavingsItem]


class ExportItem(msgspec.Struct, frozen=True):
    """A line at `EXPORT_PATH`: energy of one pod in one hour, or of one workload in one day once hours were folded.

    ``energy_j`` is ``(cpu_j + mem_j) * pue + gpu_j * gpu_pue``; emissions are ``intensity_g_per_kwh`` times the energy
    whose intensity was known, and so is the cost.

    Attributes:
        uid: of the pod; empty of folded lines.
        namespace: of the pod; `IDLE` of what nodes draw for nobody.
        pod: its name; empty of folded lines.
        owner_kind: of its workload.
        owner_name: of its workload.
        node: that it ran on; empty of folded lines.
        zone: of the grid.
        from_s: start, s since the epoch.
        until_s: end, s since the epoch.
        source: who said the power; empty of folded lines.
        cpu_j: of CPUs, without PUE, J.
        mem_j: of memory, without PUE, J.
        gpu_j: of GPUs, without PUE, J.
        pue: of the pod, as it is now; None of folded lines.
        gpu_pue: of its GPUs, as it is now; None of folded lines.
        energy_j: with PUE, J.
        measured_j: of `energy_j`, from power that was measured, J.
        assumed_j: of `energy_j`, from power that was assumed, J.
        emissions_g: gCO2eq.
        energy_without_intensity_j: of `energy_j`, whose emissions nobody knows, J.
        intensity_g_per_kwh: mean, weighted by energy, gCO2eq/kWh; None where nothing of it is known.
        cost: in `currency`.
        energy_without_price_j: of `energy_j`, whose cost nobody knows, J.
        price_per_kwh: mean, weighted by energy, currency/kWh; None where nothing of it is known.
        currency: of the cost.
    """

    uid: str
    namespace: str
    pod: str
    owner_kind: str
    owner_name: str
    node: str
    zone: str
    from_s: float
    until_s: float
    source: str
    cpu_j: float
    mem_j: float
    gpu_j: float
    pue: float | None
    gpu_pue: float | None
    energy_j: float
    measured_j: float
    assumed_j: float
    emissions_g: float
    energy_without_intensity_j: float
    intensity_g_per_kwh: float | None
    cost: float
    energy_without_price_j: float
    price_per_kwh: float | None
    currency: str
