"""JSON of the grid controller's status endpoint, read by `kubectl joulie grid` and `explain`."""

from __future__ import annotations

import msgspec

GRID_PATH = "/debug/grid"
MAX_DEFERRALS = 200
"""Maximum number of deferrals in an answer."""
MAX_CEILINGS = 200
"""Maximum number of ceilings in an answer."""


class SignalItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A signal of a zone; unknown fields are left out.

    Attributes:
        measure: carbon or price.
        zone: grid zone.
        quality: fresh, stale or missing.
        value: gCO2eq/kWh or currency/kWh.
        period: tariff period.
        source: provider of the value.
        basis: average or marginal.
        estimated: whether the value is modelled rather than measured.
        age_s: age of the value, s.
        forecast_source: provider of the forecast.
        forecast_until_s: end of the forecast, s from now.
        lowest: lowest forecast value.
        lowest_in_s: time until the lowest value, s.
        problem: why the signal is stale or missing.
    """

    measure: str
    zone: str
    quality: str
    value: float | None = None
    period: str | None = None
    source: str | None = None
    basis: str | None = None
    estimated: bool = False
    age_s: float | None = None
    forecast_source: str | None = None
    forecast_until_s: float | None = None
    lowest: float | None = None
    lowest_in_s: float | None = None
    problem: str | None = None


class DeferralItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Pods with the same deferral, or the one pod that was queried.

    Attributes:
        zone: grid zone.
        pods: number of pods.
        example: namespace and name of one of them.
        decision: hold, release or undecided.
        reason: reason of the decision.
        text: the reason in words.
        mode: threshold, optimal or interruptible.
        asked_by: pod or namespace.
        waiting_s: time since the start of the delay, s.
        runtime_s: expected runtime, s.
        runtime_basis: where it comes from, in words.
        runtime_quantile: share of the earlier runs that took no longer; None unless it is learned.
        runtime_runs: number of these runs; None unless it is learned.
        latest_start_in_s: time until the latest start, s.
        looked_at_in_s: time until the next decision, s.
    """

    zone: str
    pods: int
    example: str
    decision: str
    reason: str | None = None
    text: str | None = None
    mode: str | None = None
    asked_by: str | None = None
    waiting_s: float | None = None
    runtime_s: float | None = None
    runtime_basis: str | None = None
    runtime_quantile: float | None = None
    runtime_runs: int | None = None
    latest_start_in_s: float | None = None
    looked_at_in_s: float | None = None


class CeilingItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An autoscaler that asks for a ceiling on its replicas.

    Attributes:
        kind: HorizontalPodAutoscaler or ScaledObject.
        namespace: namespace of the autoscaler.
        name: name of the autoscaler.
        maximum: its maximum now.
        original: its own maximum.
        decision: what is decided, as in the metric `joulie_grid_replica_ceilings`.
        running: number of replicas; None if unknown.
        withheld: number of replicas that the ceiling withholds now.
        expected_in_s: time until the maximum is expected to change, s; None if no change is forecast.
        text: the reason in words.
    """

    kind: str
    namespace: str
    name: str
    maximum: int
    original: int
    decision: str
    running: int | None = None
    withheld: int = 0
    expected_in_s: float | None = None
    text: str = ""

    @property
    def lowered(self) -> bool:
        """Whether the maximum is below its own one."""
        return self.maximum < self.original


class GridAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The whole answer.

    Attributes:
        leader: whether the answering replica leads.
        now: s since the epoch.
        dry_run: whether decisions are only recorded.
        signals: signals by zone.
        waiting: number of deferred pods by reason.
        next_look_in_s: time until the next decision, s.
        cases: deferrals, those with the most pods first.
        cases_left_out: number of deferrals beyond `MAX_DEFERRALS`.
        ceilings: autoscalers that ask for a ceiling, lowered ones first.
        ceilings_left_out: number of these beyond `MAX_CEILINGS`.
    """

    leader: bool
    now: float = 0.0
    dry_run: bool = False
    signals: list[SignalItem] = []
    waiting: dict[str, int] = {}
    next_look_in_s: float | None = None
    cases: list[DeferralItem] = []
    cases_left_out: int = 0
    ceilings: list[CeilingItem] = []
    ceilings_left_out: int = 0
