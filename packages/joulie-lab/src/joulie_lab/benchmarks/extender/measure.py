"""Response times of the scheduler extender (benchmark B6), compared with an extender that returns constants.

Both run in separate processes with the HTTP server and the protocol code of the product, and are called alternately
over a persistent connection from another core. They differ in the decision, and in the views that the extender
refreshes ten times a second, since 500 twins change per second.

Calls come in pairs as from kube-scheduler, /prioritize for the nodes that pass /filter, but without the pause in which
it runs its own plugins: the extender ranks nodes in that pause, and here this work must be visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import NamedTuple

import msgspec
import numpy as np

from joulie.apps.extender import wire
from joulie.apps.extender.judge import judge, scored
from joulie_lab.benchmarks.extender.calls import BODIES, VERBS, Caller, Pods, body, long_names, requests, short_names
from joulie_lab.benchmarks.extender.servers import MAX_CANDIDATES, World, no_profile, pin, served
from joulie_lab.benchmarks.results import Figures

Naming = Callable[[int], list[str]]
"""Node names by number of nodes."""
_WARM_UP = 0.1


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        sizes: numbers of candidate nodes per call.
        calls: number of calls of each kind and size.
        rounds: number of alternations between the extenders.
        fleet: minimum number of nodes of the cluster: of 5,000 the scheduler usually offers 500.
    """

    sizes: tuple[int, ...]
    calls: int
    rounds: int = 10
    fleet: int = 5_000


FULL = Plan(sizes=(500, 5_000, MAX_CANDIDATES), calls=2_000)
SMALL = Plan(sizes=(500,), calls=100, rounds=2, fleet=1_000)


class _Setting(NamedTuple):
    """An extender that is measured by itself, with 500 and 5,000 candidates.

    Attributes:
        app: its name in `servers.APPS`, and that of the field of the result.
        text: what is told.
        pods: what calls are about.
    """

    app: str
    text: str
    pods: Pods


_SETTINGS = (
    _Setting("watts", "of a performance pod under power budgets", Pods.PERFORMANCE),
    _Setting("watts_crowded", "of a performance pod, half of the racks without a watt left", Pods.CROWDED),
    _Setting("marginal", "with SCORING=marginal", Pods.ALIKE),
    _Setting("marginal_watts", "with SCORING=marginal, power budgets and limits", Pods.ALIKE),
    _Setting("frugal", "with SCORING=frugal", Pods.SHARED),
    _Setting("frugal_watts", "with SCORING=frugal, power budgets and limits", Pods.SHARED),
)


class Times(Figures, frozen=True):
    """Response times: of the calmest round, and of all calls."""

    p50_ms: float
    p99_ms: float
    p99_of_all_ms: float


@dataclass
class _Series:
    """Response times, s, by round."""

    rounds: list[list[float]] = field(default_factory=list)

    def times(self) -> Times:
        """Quantiles in ms: of the calmest round, since other work on the machine only ever adds; and of all calls."""
        p50, p99 = np.min([np.percentile(times, [50.0, 99.0]) for times in self.rounds], axis=0) * 1e3
        overall = np.percentile(np.concatenate(self.rounds), 99.0) * 1e3
        return Times(float(p50), float(p99), float(overall))


ByVerb = Mapping[str, Times]
BySize = Mapping[str, ByVerb]


class ExtenderResult(Figures, frozen=True):
    """The result, by number of candidates and verb; ratios are those of the medians."""

    joulie: BySize
    constants: BySize
    performance: BySize
    decision_ms: Mapping[str, Times]
    long_names: BySize
    ratio_to_constants: Mapping[str, Mapping[str, float]]
    different: BySize = msgspec.field(default_factory=dict)
    marginal: BySize = msgspec.field(default_factory=dict)
    policies: BySize = msgspec.field(default_factory=dict)
    ratio_to_no_policies: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    watts: BySize = msgspec.field(default_factory=dict)
    watts_crowded: BySize = msgspec.field(default_factory=dict)
    marginal_watts: BySize = msgspec.field(default_factory=dict)
    frugal: BySize = msgspec.field(default_factory=dict)
    frugal_watts: BySize = msgspec.field(default_factory=dict)


def measure(plan: Plan, note: Callable[[str], None]) -> ExtenderResult:
    """Response times by extender, verb and number of candidates, and the time of the decision alone.

    Args:
        plan: what to measure.
        note: told what is being measured.
    """
    joulie: dict[str, ByVerb] = {}
    constants: dict[str, ByVerb] = {}
    performance: dict[str, ByVerb] = {}
    decision_ms = {}
    for size in plan.sizes:
        note(f"{size:,} candidates")
        compared = _compare(short_names, size, plan)
        joulie[str(size)], constants[str(size)] = compared["joulie"], compared["constants"]
        note(f"{size:,} candidates of a performance pod")
        performance[str(size)] = _compare(short_names, size, plan, Pods.PERFORMANCE)["joulie"]
        decision_ms[str(size)] = _decision_ms(size, plan)
    ratios = {size: _ratios(joulie[size], constants[size]) for size in joulie}
    longest = plan.sizes[min(1, len(plan.sizes) - 1)]
    others: dict[str, BySize] = {}
    for name, text, naming, pods in (
        ("long_names", f"with names of {len(long_names(1)[0])} letters", long_names, Pods.ALIKE),
        ("different", "of pods that all differ", short_names, Pods.DIFFERENT),
    ):
        note(f"{longest:,} candidates {text}")
        compared = _compare(naming, longest, plan, pods)
        others[name] = {str(longest): compared["joulie"]}
        ratios[name] = _ratios(compared["joulie"], compared["constants"])
    note(f"{longest:,} candidates of a performance pod whose namespace limits the power of nodes")
    compared = _compare(short_names, longest, plan, Pods.PERFORMANCE, apps=("policies", "joulie"))
    others["policies"] = {str(longest): compared["policies"]}
    ratio_to_no_policies = {str(longest): _ratios(compared["policies"], compared["joulie"])}
    for app, text, pods in _SETTINGS:
        by_size = {}
        for size in plan.sizes[:2]:
            note(f"{size:,} candidates {text}")
            by_size[str(size)] = _compare(short_names, size, plan, pods, apps=(app,))[app]
        others[app] = by_size
    return ExtenderResult(
        joulie=joulie,
        constants=constants,
        performance=performance,
        decision_ms=decision_ms,
        ratio_to_constants=ratios,
        ratio_to_no_policies=ratio_to_no_policies,
        **others,
    )


def _ratios(times: ByVerb, to: ByVerb) -> dict[str, float]:
    """By verb, at the median."""
    return {verb: times[verb].p50_ms / to[verb].p50_ms for verb in VERBS}


def _compare(
    naming: Naming,
    size: int,
    plan: Plan,
    pods: Pods = Pods.ALIKE,
    apps: tuple[str, ...] = ("joulie", "constants"),
) -> dict[str, ByVerb]:
    """Response times of extenders, asked in turn for `size` candidates, by verb."""
    names = naming(max(size, plan.fleet))
    series = {name: {verb: _Series() for verb in VERBS} for name in apps}
    asked = list(requests(names, size, pods))
    calls = max(1, plan.calls // plan.rounds)
    pin(-1)
    with ExitStack() as stack:
        ports = {name: stack.enter_context(served(name, names, core=0)) for name in apps}
        callers = {name: stack.enter_context(Caller(port)) for name, port in ports.items()}
        for _ in range(plan.rounds):
            for name, caller in callers.items():
                pairs = [[caller.ask(one) for one in asked[call % BODIES]] for call in range(calls)]
                for verb, times in zip(VERBS, zip(*pairs[int(calls * _WARM_UP) :], strict=True), strict=True):
                    series[name][verb].rounds.append(list(times))
    return {name: {verb: found.times() for verb, found in by_verb.items()} for name, by_verb in series.items()}


def _decision_ms(size: int, plan: Plan) -> Times:
    """Time from arrays to scores, without a protocol around it."""
    view = World(short_names(size)).fleet.view(time())
    pod = judge(wire.read_args(body(["n"]))[0], no_profile)
    series = _Series()
    for _ in range(plan.rounds):
        times = []
        for _ in range(max(1, plan.calls // plan.rounds)):
            began_s = perf_counter()
            scored(pod, view)
            times.append(perf_counter() - began_s)
        series.rounds.append(times)
    return series.times()
