"""The accounting program's HTTP API for energy and savings: paths and JSON types, which `kubectl joulie` reads."""

from __future__ import annotations

import msgspec

ENERGY_PATH = "/api/v1/energy"
SAVINGS_PATH = "/api/v1/savings"
EXPORT_PATH = "/api/v1/export"
ENERGY_RESOURCE = "energy"
"""Virtual resource of Joulie's API group: who may get it may read these paths. The API server has no such resource."""
TOKEN_HEADER = "x-joulie-token"  # noqa: S105 - the name of a header
"""Header with the bearer token of the user: the API server's proxy removes the header Authorization."""
AUDIENCE = "joulie-accounting"
"""Audience of tokens for this API alone: it accepts them besides those for the API server."""
MAX_ITEMS = 100_000
"""Maximum number of items in an answer; ``limit`` and ``continue`` give all."""
GROUPS = ("pod", "job", "namespace", "node", "day")
"""Groupings of energy; a job is any workload: a Job, a Deployment, or a pod without a controller."""

LABEL_PREFIX = "label:"
"""Before the key of a label in a grouping: ``label:team``."""

IDLE = "__idle__"
"""Name used instead of a namespace or pod for the idle energy of nodes, which is charged to no pod."""
FOLDED = "__folded__"
"""Name used instead of a pod or node for old energy, which is kept by workload and day only."""
UNLABELLED = "__unlabelled__"
"""Value used of a label that pods do not have, and of energy that was folded before the label was kept."""


class EnergyItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Energy of a pod, a workload, a namespace, a node, a day or an hour, or of two of them.

    Attributes:
        name: name of the pod, workload, namespace or node; of a day its date, ``2026-03-13``; value of a label.
        namespace: namespace of a pod or workload; None for other groupings.
        kind: kind of a workload; None for other groupings.
        node: node of a pod; None for other groupings.
        labels: values of the labels of the grouping; None for other groupings.
        start: start of its first hour with energy, s since the epoch, in sums by days and hours and something else.
        end: end of its last one, likewise.
        cpu_j: energy of CPUs, without PUE, J.
        mem_j: energy of memory, without PUE, J.
        gpu_j: energy of GPUs, without PUE, J.
        energy_j: energy with PUE, J, as the data centre draws it. The part neither measured nor assumed is modelled
            from measured use.
        measured_j: part of `energy_j` from measured power, J.
        assumed_j: part of `energy_j` from assumed power, J: from requests alone, or over a gap without samples.
        emissions_g: emissions of the energy with known carbon intensity, gCO2eq.
        cost: cost of the energy with known price, in the answer's currency.
        energy_without_intensity_j: part of `energy_j` with unknown carbon intensity, J.
        energy_without_price_j: part of `energy_j` with unknown price, J.
        marginal_g: marginal emissions of the energy with known marginal intensity, gCO2eq; not part of `emissions_g`.
        energy_without_marginal_j: part of `energy_j` with unknown marginal intensity, J.
    """

    name: str
    namespace: str | None = None
    kind: str | None = None
    node: str | None = None
    labels: dict[str, str] | None = None
    start: float | None = None
    end: float | None = None
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
    marginal_g: float = 0.0
    energy_without_marginal_j: float = msgspec.field(default=0.0, name="energyWithoutMarginalJ")


class EnergyAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer at `ENERGY_PATH`.

    Attributes:
        by: grouping.
        since: start of the summed period, s since the epoch: start of the requested hour, or of the day if only days
            are kept.
        until: end of the period, s since the epoch.
        currency: currency of costs.
        items: items in descending order of energy, by days and hours the earliest first.
        next_page: value of ``continue`` for the next page; None on the last one.
        label_keys: labels of pods that energy can be grouped by.
    """

    by: str
    since: float
    until: float
    currency: str
    items: list[EnergyItem]
    next_page: str | None = msgspec.field(default=None, name="continue")
    label_keys: tuple[str, ...] = ()


class SavingsItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Savings by deferring one pod, or all pods of a namespace in a day; negative if deferral increased the amount.

    Attributes:
        name: name of the pod; empty for the pods of a day.
        namespace: namespace of the pod.
        completed: completion time, s since the epoch.
        measure: carbon or price.
        method: timeseries: the same power profile evaluated at the intensity or price from when it was first held;
            simple: the difference of intensity or price between the two times, multiplied by the energy.
        amount: savings, gCO2eq or the answer's currency.
        energy_j: energy of the pods with PUE, J.
        pods: number of pods.
    """

    name: str
    namespace: str
    completed: float
    measure: str
    method: str
    amount: float
    energy_j: float = msgspec.field(default=0.0, name="energyJ")
    pods: int = 1


class HoldoutSaving(msgspec.Struct, frozen=True, rename="camel"):
    """What is saved, by what was left alone by chance: workloads (GRID_HOLDOUT) or windows (GPU_LIMITS_HOLDOUT).

    It is of the latest months that say enough.

    Attributes:
        saved_pct: emissions, or energy for the same work, that are saved, %; negative where more is used.
        low_pct: lower bound of an interval that holds at all looks together, %.
        high_pct: upper bound, %.
        workloads: number of workloads, or of windows of their time, behind it.
        left_out: number of those that were left alone.
    """

    saved_pct: float
    low_pct: float
    high_pct: float
    workloads: int
    left_out: int


class SavingsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer at `SAVINGS_PATH`.

    Attributes:
        since: start of the period, s since the epoch.
        until: end of the period, s since the epoch.
        currency: currency of costs.
        items: items, latest first.
        holdout: what waiting saves, as measured; None while too little is known, and for one namespace alone.
        limits: what power limits of GPUs save while they are held, likewise, by windows of all workloads.
    """

    since: float
    until: float
    currency: str
    items: list[SavingsItem]
    holdout: HoldoutSaving | None = None
    limits: HoldoutSaving | None = None


class ExportItem(msgspec.Struct, frozen=True):
    """A line at `EXPORT_PATH`: energy of one pod in one hour, or of one workload in one day once hours were folded.

    ``energy_j`` is ``(cpu_j + mem_j) * pue + gpu_j * gpu_pue``. Emissions are ``intensity_g_per_kwh`` times the energy
    with known intensity; cost follows from ``price_per_kwh`` in the same way.

    Attributes:
        uid: pod UID; empty in folded lines.
        namespace: namespace of the pod; `IDLE` for idle energy of nodes.
        pod: pod name; empty in folded lines.
        owner_kind: kind of its workload.
        owner_name: name of its workload.
        node: node that it ran on; empty in folded lines.
        zone: grid zone.
        from_s: start, s since the epoch.
        until_s: end, s since the epoch.
        source: source of the power; empty in folded lines.
        cpu_j: energy of CPUs, without PUE, J.
        mem_j: energy of memory, without PUE, J.
        gpu_j: energy of GPUs, without PUE, J.
        pue: current PUE of the pod; None in folded lines.
        gpu_pue: current PUE for its GPUs; None in folded lines.
        energy_j: energy with PUE, J.
        measured_j: part of `energy_j` from measured power, J.
        assumed_j: part of `energy_j` from assumed power, J.
        emissions_g: emissions of the energy with known carbon intensity, gCO2eq.
        energy_without_intensity_j: part of `energy_j` with unknown carbon intensity, J.
        intensity_g_per_kwh: mean carbon intensity weighted by energy, gCO2eq/kWh; None if unknown.
        cost: cost of the energy with known price, in `currency`.
        energy_without_price_j: part of `energy_j` with unknown price, J.
        price_per_kwh: mean price weighted by energy, currency/kWh; None if unknown.
        currency: currency of costs.
        marginal_g: marginal emissions of the energy with known marginal intensity, gCO2eq; not part of `emissions_g`.
        energy_without_marginal_j: part of `energy_j` with unknown marginal intensity, J.
        correction: whether the line is a difference, to be added as it stands: it has no factors.
        labels: labels of the pod that energy can be grouped by, ``cost-centre=42,team=vision``; empty without any.
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
    marginal_g: float = 0.0
    energy_without_marginal_j: float = 0.0
    correction: bool = False
    labels: str = ""
