"""Metrics of accounting and of the grid controller as a few cycles leave them, for tests of dashboards."""

from joulie.apps.accounting.energy_budgets import BudgetUse
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.sampler import NodeUse, PodUse, Sampling
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.domain.accounting.records import (
    CompletedPod,
    CycleResult,
    Energy,
    Held,
    Method,
    OpenPod,
    PodMeta,
    PowerQuality,
    Sample,
    Saving,
)
from joulie.domain.grid.deferral import HoldReason, ReleaseReason
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Period, Provenance
from joulie.domain.signal import Quality
from joulie.domain.trial.holdout import Evidence

NOW_S = 1_800_000_000.0
ENERGY = Energy(7.2e6, 0.4e6, 3.6e6, 12e6, 12e6, 0.0, 500.0, 0.0, 0.4, 0.0)


def meta(name: str, held: Held | None = None) -> PodMeta:
    return PodMeta(f"uid-{name}", "ml", name, "Job", name, "gpu-1", "DE", NOW_S - 900.0, held=held)


def sampling(pods: list[PodMeta]) -> Sampling:
    """Samples of pods on one node."""
    samples = [Sample(pod, 200.0, 20.0, 500.0, PowerQuality.MEASURED, "kepler") for pod in pods]
    use = {pod.uid: PodUse(6.0, 2e9, 500.0, 720.0) for pod in pods}
    return Sampling(samples, nodes={"gpu-1": NodeUse(12.0, 4e9, 80.0, 900.0, 1.1, 0.05)}, new=frozenset(use), pods=use)


def accounting() -> AccountingMetrics:
    """The metrics after two cycles: one pod runs, two that had waited have ended."""
    metrics = AccountingMetrics()
    held = Held(NOW_S - 3600.0, NOW_S - 3600.0, 400.0, 0.3, 150.0, 0.1)
    running = meta("train")
    ended = [meta(name, held) for name in ("by-series", "by-sum")]
    energy = ENERGY
    open_pods = {pod.uid: OpenPod(pod, NOW_S, energy, 720.0, "kepler") for pod in (running, *ended)}
    metrics.cycled(sampling([running, *ended]), open_pods, CycleResult({"ml": energy}), NOW_S, ["ml"])
    completed = [
        CompletedPod(pod, NOW_S - 900.0, NOW_S, energy, Saving(700.0, method), Saving(0.6, Method.SIMPLE))
        for pod, method in zip(ended, Method, strict=True)
    ]
    result = CycleResult({"ml": energy}, completed)
    metrics.cycled(sampling([running]), {running.uid: open_pods[running.uid]}, result, NOW_S + 30.0, ["ml"])
    metrics.show_status({"samples": 42, "pods": 3, "bytes": 4096}, {"kepler": True})
    metrics.budgets({running.uid: 0.8}, {running.uid: open_pods[running.uid]}, [BudgetUse("ml", "daily", 0.8, 1.1)])
    metrics.exceeded("ml", "Job", "notify")
    metrics.holdout(Evidence.of(units=400, left_out=40, mean=0.2, error=0.01, weight=1.0))
    return metrics


def another_cycle(metrics: AccountingMetrics) -> None:
    """A further cycle: the namespace has used more."""
    metrics.cycled(sampling([meta("train")]), {}, CycleResult({"ml": ENERGY}), NOW_S + 60.0, ["ml"])


def controller() -> ControllerMetrics:
    metrics = ControllerMetrics()
    real, estimated = (Provenance("test", "DE", Basis.AVERAGE, estimated=flag) for flag in (False, True))
    metrics.show(
        lambda: [
            GridSignal(Measure.CARBON, "DE", Quality.FRESH, 300.0, NOW_S, real),
            GridSignal(Measure.CARBON, "FR", Quality.FRESH, 50.0, NOW_S, estimated),
            GridSignal(Measure.PRICE, "DE", Quality.FRESH, 0.2, NOW_S, Provenance("tou", "DE"), Period.PEAK),
        ]
    )
    for reason in (HoldReason.CARBON, ReleaseReason.DEADLINE):
        metrics.decided(reason)
    metrics.held_for_carbon("DE")
    metrics.held_for_price("peak")
    return metrics
