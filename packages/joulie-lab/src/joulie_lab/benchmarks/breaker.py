"""Benchmark of power capping under a breaker with 30 % more servers than it can feed at full power.

Half of the servers are critical. Each second, servers have a demand, draw it up to their power limit, and heat the
breaker; readings are delayed, and an agent on each server applies limits periodically. A tripped breaker leaves all
servers without power for ten minutes. The demand is synthetic (`breaker_load`) and equal for all schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from joulie.domain.capping.feed import FeedReading, FeedServers, FeedSettings
from joulie.domain.capping.trip import EARLIEST, TripCurve
from joulie.domain.power.gpu import MEASURED_RESPONSE
from joulie.domain.units import JOULES_PER_KWH, BoolArray, FloatArray
from joulie_lab.benchmarks.breaker_load import LOADS, Load
from joulie_lab.benchmarks.breaker_schemes import SCHEMES
from joulie_lab.benchmarks.results import Estimate, Figures, Spread, estimate, spread

FULL_W, FLOOR_W, IDLE_W, OTHER_W = 10_200.0, 4_600.0, 2_200.0, 2_000.0
"""A server of eight H100: the most it draws (its data sheet); with GPUs and CPUs at their lowest limits, idle, and
beside the GPUs (assumed)."""
FED = 40
"""Servers that the breaker can feed at full power."""
MORE = 1.3
READ_EVERY_S, READ_LATE_S, AGENT_EVERY_S = 2, 3, 10
REACTION_S = float(READ_EVERY_S + READ_LATE_S + AGENT_EVERY_S + 1)
REPAIR_S = 600
BLIND_S = (240, 480)
"""How long telemetry is lost, from and to, s."""
EXAMPLES = ("no limits", "Thunderbolt", "Joulie")
EXAMPLE_EVERY_S = 10
SLOWED = 0.999
"""A critical server below this rate of work counts as slowed."""


@dataclass(frozen=True)
class Case:
    """A load, and in what the breaker and the readings differ from what controllers are told.

    Attributes:
        load: name of the demand of the servers.
        blind: whether telemetry is lost during peak demand.
        trip_time: time to trip at any load, over that by the curve that controllers are told.
        hold: largest load that the breaker carries for ever, over that by the curve that controllers are told.
        later_s: by how much later readings come than controllers are told, s.
        lost: share of the readings that are lost, each by chance.
    """

    load: Load
    blind: bool = False
    trip_time: float = 1.0
    hold: float = 1.0
    later_s: int = 0
    lost: float = 0.0

    def trip_of(self, told: TripCurve) -> TripCurve:
        """The breaker's own curve: the time to trip is proportional to the time constant of the thermal element."""
        return replace(told, hold=told.hold * self.hold, time_constant_s=told.time_constant_s * self.trip_time)


CASES: Mapping[str, Case] = {
    **{name: Case(load) for name, load in LOADS.items()},
    "inference, blind": Case(LOADS["inference"], blind=True),
    "storm, blind": Case(LOADS["storm"], blind=True),
}

_DEPARTURES: Mapping[str, Mapping[str, Any]] = {
    "trips after 90 % of the time": {"trip_time": 0.9},
    "trips after 70 % of the time": {"trip_time": 0.7},
    "trips after 50 % of the time": {"trip_time": 0.5},
    "holds 102 % of the rating": {"hold": 1.02 / EARLIEST.hold},
    "holds 100 % of the rating": {"hold": 1.0 / EARLIEST.hold},
    "readings 3 s later": {"later_s": 3},
    "readings 10 s later": {"later_s": 10},
    "half of the readings lost": {"lost": 0.5},
    "nine of ten readings lost": {"lost": 0.9},
}
UNTOLD: Mapping[str, Case] = {
    f"{load}, {name}": Case(LOADS[load], **departure)
    for name, departure in _DEPARTURES.items()
    for load in ("inference", "storm")
}
"""Cases in which what controllers are told is wrong, beyond the lost telemetry of `CASES`."""


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark.

    Attributes:
        seeds: held-out seeds of the reported loads.
        hours: length of each run, h.
        warm_up_s: excluded time at the start, s.
        cases: names of cases.
        untold: names of cases in which controllers are told what is wrong.
        schemes: names of schemes.
    """

    seeds: tuple[int, ...] = tuple(range(101, 109))
    hours: float = 1.0
    warm_up_s: int = 300
    cases: tuple[str, ...] = tuple(CASES)
    untold: tuple[str, ...] = tuple(UNTOLD)
    schemes: tuple[str, ...] = tuple(SCHEMES)


FULL = Plan()
SMALL = Plan(
    seeds=(101,),
    hours=0.5,
    cases=("inference", "storm, blind"),
    untold=("storm, trips after 90 % of the time",),
    schemes=("no limits", "static share", "POLCA", "Joulie"),
)
TUNING_SEEDS = (1, 2)
"""Loads that Joulie's settings were chosen on; the published ones have those of their papers."""


class Run(NamedTuple):
    """Time series of a run, in steps of a second.

    Attributes:
        demand: demand of each server, 0..1, shape ``(n_steps, n)``.
        power_w: power of each server, W, shape ``(n_steps, n)``.
        load: load of the breaker, as a share of its rating, shape ``(n_steps,)``.
        heat: heat of the breaker, likewise.
        trips: seconds in which the breaker tripped.
    """

    demand: FloatArray
    power_w: FloatArray
    load: FloatArray
    heat: FloatArray
    trips: tuple[int, ...]


class Feed(NamedTuple):
    """Servers on a feed, and what they draw.

    Attributes:
        servers: on the feed.
        settings: of its controller, the breaker among them.
        fed: number of servers that the breaker can feed at full power.
        natural_w: power without limits, W, by demand, 0..1.
        other_w: power beside what limits act on, W a server.
    """

    servers: FeedServers
    settings: FeedSettings
    fed: int
    natural_w: Callable[[FloatArray], FloatArray]
    other_w: float


def feed() -> Feed:
    """The benchmark's own feed."""
    servers, settings = fleet()
    return Feed(servers, settings, FED, lambda demand: IDLE_W + (FULL_W - IDLE_W) * demand, OTHER_W)


def fleet() -> tuple[FeedServers, FeedSettings]:
    """The servers and their feed."""
    n = round(FED * MORE)
    critical = np.arange(n) % 2 == 0
    servers = FeedServers(critical, np.full(n, FLOOR_W), np.full(n, FULL_W), np.ones(n))
    return servers, FeedSettings(FED * FULL_W, EARLIEST, REACTION_S)


def play(case: Case, scheme: str, seed: int, n_steps: int, on: Feed | None = None) -> Run:
    """One run.

    Args:
        case: the load.
        scheme: name of a scheme.
        seed: of the load and of everything random.
        n_steps: its length, s.
        on: the feed; None for the benchmark's own.
    """
    on = on or feed()
    servers, settings = on.servers, on.settings
    n = servers.critical.size
    of_agents, of_scheme, of_readings = (np.random.default_rng([seed, stream]) for stream in (1, 2, 3))
    demand, lost = demanded(case, seed, n_steps, on, of_agents)
    natural_w = on.natural_w(demand)
    turns = of_agents.integers(0, AGENT_EVERY_S, n)
    controller = SCHEMES[scheme](servers, settings, of_scheme)
    power_w = np.zeros_like(natural_w)
    load, heat = np.zeros(n_steps), np.zeros(n_steps)
    limit_w, asked_w = servers.full_w.copy(), servers.full_w
    reading, warm, dark_until, trips = None, settings.target**2, 0, []
    trip = case.trip_of(settings.trip)
    arrives = of_readings.random(n_steps) >= case.lost
    # What `TripCurve` does with one load after the other, without its checks of every value.
    left = float(trip.heated(1.0, 0.0, 1.0))
    for step in range(n_steps):
        if step % READ_EVERY_S == 0:
            taken = step - READ_LATE_S - case.later_s
            if taken >= 0 and taken not in lost and arrives[taken]:
                reading = FeedReading(float(taken), power_w[taken])
            asked_w = controller.limits_w(float(step), reading)
        limit_w = np.where(turns == step % AGENT_EVERY_S, asked_w, limit_w)
        if step >= dark_until:
            np.minimum(natural_w[step], limit_w, out=power_w[step])
        load[step] = power_w[step].sum() / settings.rating_w
        warm = load[step] ** 2 + (warm - load[step] ** 2) * left
        heat[step] = warm
        if warm >= trip.trip_heat or load[step] >= trip.instantaneous:
            trips.append(step)
            dark_until, warm = step + 1 + REPAIR_S, 0.0
    return Run(demand, power_w, load, heat, tuple(trips))


def demanded(
    case: Case, seed: int, n_steps: int, on: Feed, of_agents: np.random.Generator | None = None
) -> tuple[FloatArray, range]:
    """Demand of each server, 0..1, shape ``(n_steps, n)``, and the seconds in which telemetry is lost.

    Loads, agents and schemes have separate random streams, so that all schemes see the same load.

    Args:
        case: the load.
        seed: of the load.
        n_steps: its length, s.
        on: the feed.
        of_agents: stream that the loss is drawn from; None for a new one.
    """
    demand = case.load(on.servers.critical, n_steps, np.random.default_rng([seed, 0]))
    of_agents = of_agents or np.random.default_rng([seed, 1])
    return demand, _lost_telemetry(on.natural_w(demand), of_agents) if case.blind else range(0)


def _lost_telemetry(natural_w: FloatArray, rng: np.random.Generator) -> range:
    """Seconds without a reading, which begin shortly before the servers want most."""
    length = int(rng.integers(*BLIND_S))
    total_w = np.convolve(natural_w.sum(axis=1), np.full(60, 1.0 / 60.0), mode="same")
    start = int(np.argmax(total_w)) - length // 2
    return range(start, start + length)


class SchemeFigures(Figures, frozen=True):
    """A scheme under one load, over the seeds."""

    trips: Spread
    critical_lost_pct: Spread
    standard_lost_pct: Spread
    critical_slowed_pct: Spread
    standard_slowed_pct: Spread
    more_work_pct: Spread
    energy_kwh: Spread
    work_per_kwh: Spread
    mean_load: Spread
    peak_load: Spread
    peak_heat: Spread


class Example(Figures, frozen=True):
    """The breaker's load in one storm, by scheme."""

    every_s: int
    load: Mapping[str, Sequence[float]]


class FeedResult(Figures, frozen=True):
    """The result, by load and scheme.

    Attributes:
        servers: on the feed.
        fed: number that the breaker can feed at full power.
        rating_kw: of the breaker, kW.
        reaction_s: that controllers are told, s.
        seeds: of the runs.
        hours: length of a run, h.
        cases: what happened where controllers are told the truth, or lose telemetry.
        untold: where they are told what is wrong.
        beyond_static_pct: by case, the work of Joulie's servers over that of the static share's, paired by seed, %.
        example: loads in one storm.
    """

    servers: int
    fed: int
    rating_kw: float
    reaction_s: float
    seeds: Sequence[int]
    hours: float
    cases: Mapping[str, Mapping[str, SchemeFigures]]
    untold: Mapping[str, Mapping[str, SchemeFigures]]
    beyond_static_pct: Mapping[str, Estimate]
    example: Example


def outcome(
    run: Run, critical: BoolArray, first: int, on: Feed | None = None, rate: FloatArray | None = None
) -> dict[str, float]:
    """The figures of a run.

    Args:
        run: what happened.
        critical: which servers are.
        first: second from which on it counts.
        on: the feed; None for the benchmark's own.
        rate: rate of work over that without limits, of the shape of `run.demand`; None to derive it from the power.
    """
    on = on or feed()
    demand, power_w = run.demand[first:], run.power_w[first:]
    dark = power_w == 0.0
    if rate is None:
        natural_w = on.natural_w(demand)
        ratio = np.where(dark, 1.0, (power_w - on.other_w) / (natural_w - on.other_w))
        rate = np.where(dark, 0.0, _rate_at(ratio))
    else:
        rate = rate[first:]
    done = demand * rate
    lit = ~dark[:, 0]
    of_critical = rate[:, critical]
    energy_kwh = float(power_w.sum()) / JOULES_PER_KWH
    fed_share = on.fed / critical.size
    return {
        "trips": float(sum(trip >= first for trip in run.trips)),
        "critical_lost_pct": _lost_pct(demand[:, critical], done[:, critical]),
        "standard_lost_pct": _lost_pct(demand[:, ~critical], done[:, ~critical]),
        "critical_slowed_pct": 100.0 * float((of_critical[lit] < SLOWED).mean()) if lit.any() else 0.0,
        "standard_slowed_pct": 100.0 * float((rate[:, ~critical][lit] < SLOWED).mean()) if lit.any() else 0.0,
        "more_work_pct": 100.0 * (float(done.sum()) / (float(demand.sum()) * fed_share) - 1.0),
        "energy_kwh": energy_kwh,
        "work_per_kwh": float(done.sum()) / 3600.0 / energy_kwh,
        "mean_load": float(run.load[first:].mean()),
        "peak_load": float(run.load[first:].max()),
        "peak_heat": float(run.heat[first:].max()),
    }


def _rate_at(power_ratio: FloatArray) -> FloatArray:
    """Rate of the median job's work at an average power, over natural power: servers here are held at a power."""
    power, rate = np.exp(MEASURED_RESPONSE.log_power), np.exp(MEASURED_RESPONSE.log_throughput[0])
    return np.asarray(np.interp(power_ratio, [0.0, *power], [0.0, *rate]))


def _lost_pct(demand: FloatArray, done: FloatArray) -> float:
    return 100.0 * (1.0 - float(done.sum()) / float(demand.sum()))


def measure(plan: Plan, on_stage: Callable[[str], None]) -> FeedResult:
    """Every figure: by case and scheme the mean over seeds, its 95 % confidence interval and the worst.

    Args:
        plan: what to measure.
        on_stage: is told what comes next.
    """
    servers, settings = fleet()
    n_steps = round(3600 * plan.hours)

    def outcomes(name: str) -> dict[str, list[dict[str, float]]]:
        on_stage(f"breaker: {name}")
        case = {**CASES, **UNTOLD}[name]
        return {
            scheme: [
                outcome(play(case, scheme, seed, n_steps), servers.critical, plan.warm_up_s) for seed in plan.seeds
            ]
            for scheme in plan.schemes
        }

    told, untold = ({name: outcomes(name) for name in names} for names in (plan.cases, plan.untold))
    return FeedResult(
        servers=int(servers.critical.size),
        fed=FED,
        rating_kw=settings.rating_w / 1000.0,
        reaction_s=REACTION_S,
        seeds=list(plan.seeds),
        hours=plan.hours,
        cases=_figures(told),
        untold=_figures(untold),
        beyond_static_pct={
            _key(name): _more_pct(schemes["Joulie"], schemes["static share"]) for name, schemes in told.items()
        },
        example=_example(plan.seeds[0], n_steps),
    )


def _figures(found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> dict[str, dict[str, SchemeFigures]]:
    return {
        _key(name): {_key(scheme): _over_seeds(runs) for scheme, runs in schemes.items()}
        for name, schemes in found.items()
    }


def _more_pct(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> Estimate:
    """By how much more work is done, seed by seed, %."""
    done, other = (np.array([1.0 + run["more_work_pct"] / 100.0 for run in runs]) for runs in (ours, theirs))
    return estimate(100.0 * (done / other - 1.0))


def _example(seed: int, n_steps: int) -> Example:
    """The breaker's load in one storm, every ten seconds."""
    found = {}
    for scheme in EXAMPLES:
        run = play(CASES["storm"], scheme, seed, n_steps)
        found[_key(scheme)] = [round(float(load), 3) for load in run.load[::EXAMPLE_EVERY_S]]
    return Example(EXAMPLE_EVERY_S, found)


def _key(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_").lower()


def _over_seeds(outcomes: Sequence[Mapping[str, float]]) -> SchemeFigures:
    return SchemeFigures(**{key: spread([one[key] for one in outcomes]) for key in outcomes[0]})
