"""Benchmark of PowerBudgets behind breakers on a real control plane: loads, baselines, and what the records say.

The loads are those of the breaker benchmark (`breaker_load`), for servers as the simulator service models them. Each
load has a feed of its own. The published schemes and Joulie's controller also run natively on the same demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulie.domain.capping.feed import FeedServers, FeedSettings
from joulie.domain.capping.trip import EARLIEST
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.units import FloatArray
from joulie_lab.benchmarks.breaker import CASES, FED, Feed, Run, demanded, outcome, play
from joulie_lab.benchmarks.breaker_schemes import SCHEMES
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.nodes import FleetLoad, NodeSpec

CPU_MODEL, SOCKETS, CORES = "AMD-EPYC-9654", 2, 192.0
GPU_MODEL, GPUS = "NVIDIA-H100-80GB-HBM3", 8
SERVERS, CRITICAL = 52, 20
"""Servers on a feed for `FED`. So many are critical that they at full power and the others at their floor draw 0.94 of
the rating, as in the breaker benchmark, whose servers have a lower floor."""
OTHER_PCT = 2.0
"""POWER_BUDGET_OTHER_PCT: what the modelled server draws beside CPUs and GPUs, % of their full power."""
RESPONSE_S = 20.0
TARGET = 0.99
WARM_UP_S = 60
_AMBIENT_K = 293.0
_SETTLED_S = 60
EXAMPLE_EVERY_S = 5


class FeedFigures(Figures, frozen=True):
    """A feed under one load and scheme.

    `over_limit_s` is the longest time without a break above the budget's watts.
    """

    trips: float
    critical_slowed_pct: float
    critical_lost_pct: float
    standard_lost_pct: float
    more_work_pct: float
    mean_load: float
    peak_load: float
    peak_heat: float
    over_limit_s: float
    energy_kwh: float


class Reaction(Figures, frozen=True):
    """Time from a changed NodeTwin to its confirmation by the agent, s; both as a watcher of the API server sees it."""

    changes: int
    median_s: float
    p99_s: float
    worst_s: float


class PlaneRun(Figures, frozen=True):
    """A run on the control plane.

    Attributes:
        cases: figures by load.
        reaction: of the agents.
        decide_p99_s: 99th percentile of the operator's decisions about all budgets, upper edge of its bucket, s.
        killed: programs killed, by name.
        storm: load of the breaker in the storm, every `EXAMPLE_EVERY_S`.
    """

    cases: Mapping[str, FeedFigures]
    reaction: Reaction
    decide_p99_s: float
    killed: Mapping[str, int]
    storm: Sequence[float]


class FeedsResult(Figures, frozen=True):
    """The result; natively by load and scheme."""

    servers: int
    fed: int
    critical: int
    rating_kw: float
    full_w: float
    floor_w: float
    response_s: float
    seed: int
    minutes: float
    killed_minutes: float
    killed_response_s: float
    native: Mapping[str, Mapping[str, FeedFigures]]
    native_storm: Mapping[str, Sequence[float]]
    plane: PlaneRun | None = None
    plane_killed: PlaneRun | None = None


def server() -> NodeSpec:
    """A server as the simulator service derives it from its labels."""
    cpu, gpu = BUILTIN_CATALOGUE.cpu(CPU_MODEL).model, BUILTIN_CATALOGUE.gpu(GPU_MODEL).model
    if cpu is None or gpu is None:
        raise LookupError(f"{CPU_MODEL} or {GPU_MODEL} is not in the catalogue")
    return NodeSpec("server", cpu, SOCKETS, CORES, gpu, GPUS)


def modelled_feed(response_s: float = RESPONSE_S) -> Feed:
    """A feed of these servers."""
    spec = server()
    fleet = LiveFleet([spec], ambient_k=_AMBIENT_K)
    demand = np.linspace(0.0, 1.0, 101)
    natural_w = np.array([_at(fleet, share) for share in demand.tolist()])
    other_w = float(fleet.state.package_w[0] + fleet.state.platform_w[0])
    full_w = float(natural_w[-1])
    if spec.gpu is None or spec.cpu.cap_range is None:
        raise LookupError("the server takes no limits")
    fleet.cap_cpu(0, spec.cpu.cap_range.min_w)
    fleet.cap_gpus(0, spec.gpu.cap_range.min_w)
    for _ in range(_SETTLED_S):
        fleet.advance(1.0, _AMBIENT_K)
    floor_w = float(fleet.wall_w[0])
    critical = np.arange(SERVERS) * CRITICAL // SERVERS != (np.arange(SERVERS) - 1) * CRITICAL // SERVERS
    servers = FeedServers(
        critical, np.full(SERVERS, floor_w), np.full(SERVERS, full_w), np.ones(SERVERS)
    )  # fmt: skip
    settings = FeedSettings(FED * full_w, EARLIEST, response_s, target=TARGET, stale_s=response_s / 2.0)
    return Feed(servers, settings, FED, lambda share: np.interp(share, demand, natural_w), other_w)


def _at(fleet: LiveFleet, share: float) -> float:
    """Power of the only server of a fleet at a demand, W."""
    load = FleetLoad.idle(1, GPUS)
    load.cpu_util[:] = load.gpu_util[:] = share
    load.gpu_busy[:] = True
    fleet.set_load(load)
    return float(fleet.wall_w[0])


@dataclass(frozen=True, eq=False)
class Record:
    """What the simulator recorded of a feed, second by second.

    Attributes:
        power_w: of each server, W, shape ``(n_seconds, n)``.
        rate: of its work, as a share of that without limits, of the same shape.
    """

    power_w: FloatArray
    rate: FloatArray


@dataclass(frozen=True, eq=False)
class PlaneRecord:
    """What a run on the control plane left behind.

    Attributes:
        feeds: by load.
        delays_s: from each change of a NodeTwin to its confirmation, s.
        decide_p99_s: of the operator's decisions, s.
        killed: programs killed, by name.
    """

    feeds: Mapping[str, Record]
    delays_s: FloatArray
    decide_p99_s: float
    killed: Mapping[str, int]

    def write(self, path: Path) -> None:
        """Write a file of arrays."""
        arrays = {f"power {name}": one.power_w for name, one in self.feeds.items()}
        arrays |= {f"rate {name}": one.rate for name, one in self.feeds.items()}
        names = np.array(list(self.killed), dtype=np.str_)
        counts = np.array(list(self.killed.values()), dtype=np.int64)
        np.savez_compressed(
            path,
            delays=self.delays_s,
            decide=self.decide_p99_s,
            killed=names,
            counts=counts,
            allow_pickle=False,
            **arrays,
        )

    @classmethod
    def read(cls, path: Path) -> PlaneRecord:
        """Read a file of arrays."""
        with np.load(path, allow_pickle=False) as arrays:
            loads = [name.partition(" ")[2] for name in arrays.files if name.startswith("power ")]
            return cls(
                {name: Record(arrays[f"power {name}"], arrays[f"rate {name}"]) for name in loads},
                arrays["delays"],
                float(arrays["decide"]),
                dict(zip(arrays["killed"].tolist(), arrays["counts"].tolist(), strict=True)),
            )


def key_of(case: str) -> str:
    """A load's name as a key, and as part of node names."""
    return case.replace(", ", "-").replace(" ", "-")


def steps(minutes: float) -> int:
    """Length of a run with its warm-up, s."""
    return WARM_UP_S + round(60.0 * minutes)


def native(
    cases: Sequence[str], seed: int, minutes: float, on: Feed, tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, FeedFigures]], dict[str, list[float]]]:
    """Every scheme natively: figures by load and scheme, and the breaker's load in the storm by scheme."""
    found: dict[str, dict[str, FeedFigures]] = {}
    storm: dict[str, list[float]] = {}
    for name in cases:
        tell(f"natively: {name}")
        runs = {scheme: play(CASES[name], scheme, seed, steps(minutes), on) for scheme in SCHEMES}
        found[key_of(name)] = {key_of(scheme.lower()): figures(run, on) for scheme, run in runs.items()}
        if name == "storm":
            storm = {key_of(scheme.lower()): _example(run.load) for scheme, run in runs.items()}
    return found, storm


def plane_run(record: PlaneRecord, seed: int, minutes: float, on: Feed) -> PlaneRun:
    """Figures of a run on the control plane."""
    cases, storm = {}, []
    for name, feed in record.feeds.items():
        case = next(one for one in CASES if key_of(one) == name)
        run = recorded(feed, demanded(CASES[case], seed, steps(minutes), on)[0], on)
        cases[name] = figures(run, on, feed.rate[: len(run.demand)])
        if case == "storm":
            storm = _example(run.load)
    delays_s = record.delays_s
    median_s, p99_s, worst_s = np.quantile(delays_s, [0.5, 0.99, 1.0]).tolist() if delays_s.size else (0.0, 0.0, 0.0)
    reaction = Reaction(int(delays_s.size), median_s, p99_s, worst_s)
    return PlaneRun(cases, reaction, record.decide_p99_s, record.killed, storm)


def recorded(feed: Record, demand: FloatArray, on: Feed) -> Run:
    """A record as a run: the breaker's load and heat, and when it would have tripped; it stays closed all the same."""
    length = min(len(feed.power_w), len(demand))
    power_w = feed.power_w[:length]
    load = power_w.sum(axis=1) / on.settings.rating_w
    heat, trips, warm, open_until = np.zeros(length), [], on.settings.target**2, 0
    for step in range(length):
        warm = float(on.settings.trip.heated(warm, load[step], 1.0))
        heat[step] = warm
        if step >= open_until and on.settings.trip.trips(warm, load[step]):
            trips.append(step)
            open_until = step + 600
    return Run(demand[:length], power_w, load, heat, tuple(trips))


def figures(run: Run, on: Feed, rate: FloatArray | None = None) -> FeedFigures:
    """The figures of a run.

    Work is derived from power by the same response for all runs. Whether a server was slowed is what the simulator says
    where it was recorded, since its power has rounding.

    Args:
        run: what happened.
        on: the feed.
        rate: recorded rate of work; None natively.
    """
    found = outcome(run, on.servers.critical, WARM_UP_S, on)
    if rate is not None:
        slowed = outcome(run, on.servers.critical, WARM_UP_S, on, rate)["critical_slowed_pct"]
        found["critical_slowed_pct"] = slowed
    over = run.load[WARM_UP_S:] > on.settings.target + 1e-9
    return FeedFigures(
        **{name: found[name] for name in FeedFigures.__struct_fields__ if name in found},
        over_limit_s=float(longest(over.tolist())),
    )


def longest(holds: Sequence[bool]) -> int:
    """Length of the longest run of true values."""
    best = now = 0
    for one in holds:
        now = now + 1 if one else 0
        best = max(best, now)
    return best


def _example(load: FloatArray) -> list[float]:
    return [round(float(one), 3) for one in load[WARM_UP_S::EXAMPLE_EVERY_S]]
