"""Every query of every dashboard and alert returns data from a real Prometheus that scrapes the programs.

The operator, the agent, the extender and the simulator are the real programs in the demo's cluster. What cannot happen
there (local RAPL and frequency control, a facility with sensors, failures, the grid) is in further targets: the
programs' own metrics objects, told by hand.
"""

import asyncio
import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics import Counter, Gauge, Histogram, MetricWrapperBase

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.grid.metrics import GridMetrics
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.apps.agent.gpu_clocks import ClockReport
from joulie.apps.agent.host import Observation
from joulie.apps.agent.metering import PowerSample
from joulie.apps.agent.metrics import registry as agent_registry
from joulie.apps.agent.outcome import blocked
from joulie.apps.agent.views import TwinView
from joulie.apps.extender.metrics import ExtenderMetrics
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.pending import PendingQueue
from joulie.apps.grid.webhook import WebhookMetrics
from joulie.apps.operator.budgets.stored import StoredBudget
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.rescheduler.metrics import Skip
from joulie.domain.capping.budgets import Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.watts_in_force import INVALID, WattsInForce
from joulie.domain.control import Facility
from joulie.domain.dvfs import DvfsAction, DvfsState
from joulie.domain.grid.release import Limits
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Period, Provenance
from joulie.domain.mode import Mode
from joulie.domain.profiles.reschedule import Cause
from joulie.domain.signal import Quality
from joulie.domain.trial.guard import Harm
from joulie.domain.trial.protocol import Arm
from joulie.ports.devices import DeviceKind, FrequencyPolicy, PowerDevice
from joulie.program.sources import SourceStates
from joulie_lab.apps.demo.runtime import DemoRun, on_fake_cluster
from joulie_lab.control_plane import wait_for
from joulie_lab.control_plane.programs import Ports
from support.grid_accounts import NOW_S, accounting, another_cycle, controller
from support.prometheus_server import PrometheusServer

CHART = Path(__file__).parents[2] / "deploy/helm/joulie/files"
VARIABLES = {"$__range": "1m", "$__rate_interval": "30s", "$namespace": ".*", "$node": ".*", "$zone": ".*"}
OF_OTHERS = {"JoulieWebhookFailing", "JoulieApiUnavailable"}
"""Alerts on series of the API server."""
PATIENCE_S = 240.0


def queries() -> list[str]:
    """Those of all panels, variables and alerts."""
    found = []
    for path in sorted((CHART / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        variables = [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
        found += [re.sub(r"label_values\((.+), (\w+)\)", r"count by (\2) (\1)", query) for query in variables]
    for group in yaml.safe_load((CHART / "rules/joulie.yaml").read_text())["groups"]:
        found += [rule["expr"] for rule in group["rules"] if rule["alert"] not in OF_OTHERS]
    return found


def fitted(query: str) -> str:
    """A query for the minute that this takes: what says 0 without a series, or filters what is calm, must have one."""
    query = re.sub(r" (==|>=|>|<) (?!bool)", r" \1 bool ", query.replace(" or vector(0)", ""))
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def count_all(registry: CollectorRegistry) -> None:
    """Count with every instrument of a registry: what only failures or other clusters bring has series then."""
    for collector in list(registry._collector_to_names):
        if not isinstance(collector, MetricWrapperBase):
            continue
        instrument = collector.labels(*["test"] * len(collector._labelnames)) if collector._labelnames else collector
        match instrument:
            case Counter():
                instrument.inc()
            case Gauge():
                instrument.set(time.time() + 3600.0)  # noqa: TID251 - expiry times among them
            case Histogram():
                instrument.observe(0.01)
            case _:
                raise AssertionError(instrument)


def grid_controller() -> ControllerMetrics:
    """The grid controller while it leads, with two signals."""
    metrics = controller()
    carbon = GridSignal(Measure.CARBON, "DE", Quality.FRESH, 300.0, NOW_S, Provenance("test", "DE", Basis.AVERAGE))
    price = GridSignal(Measure.PRICE, "DE", Quality.FRESH, 0.2, NOW_S, Provenance("tou", "DE"), Period.PEAK)
    GridMetrics(metrics.registry, lambda: [carbon, price], lambda: NOW_S + 60.0)
    metrics.lead(PendingQueue(Limits(10.0, 50), NOW_S))
    return metrics


def operator() -> OperatorMetrics:
    """The operator with sensors of a facility, two sources, of which one failed, an invalid budget, and evictions."""
    metrics = OperatorMetrics()
    states = SourceStates()
    states.answered("http", 3)
    states.failed("prometheus", "refused")
    facility = Facility(300.0, {"a": 301.0}, {}, {"r1": 9e3}, 20e3, 5e3, 1.25, 10.0, {"r1": 5.0})
    metrics.power.show(states, lambda: facility)
    metrics.power.rejected("prometheus", {"unknown-node": 2})
    metrics.trials.show(["InBlock", "Waiting"], 3, 28, {"node-1": Arm.TREATMENT, "node-2": Arm.CONTROL})
    metrics.trials.show_guard([Arm.TREATMENT, Arm.CONTROL], {Harm.SLOWDOWN: 0.4})
    show_invalid_budget(metrics)
    metrics.sleep.show_states(Mode.ENFORCE, [], 0)
    metrics.sleep.moved("moved")
    metrics.reconciles.labels("error").inc()
    metrics.rescheduler.evicted("node-1", "ml", Cause.HEADROOM)
    metrics.rescheduler.skipped("node-1", Skip.COOLDOWN)
    metrics.rescheduler.update(1, ["node-1"], ["ml"])
    return metrics


def show_invalid_budget(metrics: OperatorMetrics) -> None:
    """A PowerBudget of which a part cannot be read; it covers no node."""
    nothing, none = np.zeros(0), np.zeros(0, dtype=bool)
    nodes = BudgetNodes((), none, nothing, nothing, nothing, nothing, none, nothing, nothing)
    budget = Budget("hall", 1e3, np.zeros(0, dtype=np.int64))
    stored = StoredBudget(budget, WattsInForce(1e3, INVALID), (), 1e3, None, "schedule: unknown time zone")
    metrics.budgets.show({"hall": stored}, nodes, decide_budgets(0.0, nodes, [budget], {}).outcomes, {}, 0.0)


def agent() -> CollectorRegistry:
    """An agent on a machine with RAPL, cpufreq and GPUs, one of whose caps is blocked."""
    gpu = PowerDevice("GPU-0", DeviceKind.GPU, limit_w=420.0)
    seen = Observation(
        CpuInfo(None, None, None, None, None),
        gpus=(gpu,),
        policies=(FrequencyPolicy("policy0", 0.8e9, 3.5e9, 3.2e9, 2.1e9),),
        cpu_power=PowerSample({"package-0": 150.0}, {"package-0": 5.0}),
        gpu_power=PowerSample({"GPU-0": 333.0}),
    )
    clocks = {"GPU-0": ClockReport(1.98e9, None, ControlOutcome.ERROR, "something overrides the lock")}
    node: Any = SimpleNamespace(
        name="node-1",
        mode="dvfs",
        inputs=SimpleNamespace(twin=TwinView("node-1", policy="static_partition")),
        cpu=None,
        gpu=blocked("nvml", "no permission"),
        cpu_cap_w=123.0,
        cpu_power_w=150.0,
        errors=2,
        last_cycle_epoch_s=time.time(),  # noqa: TID251 - as a program's
        throttle=SimpleNamespace(state=DvfsState(throttle_pct=20.0, ema_w=155.0, above=1)),
        actions=dict.fromkeys(DvfsAction, 1),
        host=SimpleNamespace(observation=seen, gpu_resets={"GPU-0": 3}, gpu_clocks=clocks),
    )
    return agent_registry(lambda: [node])


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ports]:
    """The real programs on a fake cluster; where they listen."""
    ports = Ports.free()
    monkeypatch.setattr(Ports, "free", lambda: ports)
    stop = threading.Event()

    async def play() -> None:
        async with on_fake_cluster(DemoRun(7, 300, 7200.0, 20.0, 1, tmp_path)):
            await asyncio.to_thread(stop.wait)

    with ThreadPoolExecutor(1) as pool:
        played = pool.submit(asyncio.run, play())
        yield ports
        stop.set()
        played.result()


@contextlib.contextmanager
def served(*registries: CollectorRegistry) -> Iterator[list[str]]:
    """Addresses at which registries are scraped."""
    started = [start_http_server(0, "127.0.0.1", one) for one in registries]
    try:
        yield [f"127.0.0.1:{server.server_port}" for server, _ in started]
    finally:
        for server, thread in started:
            server.shutdown()
            thread.join()
            server.server_close()


def test_u11_every_query_of_dashboards_and_alerts_returns_data(demo: Ports, prometheus: PrometheusServer) -> None:
    told, books, webhook, extender = operator(), accounting(), WebhookMetrics(), CollectorRegistry()
    ExtenderMetrics(extender)
    counted = told.registry, grid_controller().registry, books.registry, webhook.registry, extender
    programs = [f"127.0.0.1:{port}" for port in (demo.operator, demo.agent, demo.extender_metrics)]
    asked = sorted({fitted(query) for query in queries()})

    def all_answered() -> bool:
        for registry in counted:
            count_all(registry)
        another_cycle(books)
        missing = [query for query in asked if not answers(prometheus, query)]
        assert not missing, "\n".join(missing)
        return True

    with served(*counted, agent()) as addresses:
        targets = [{"targets": [*programs, *addresses]}]
        prometheus.start([{"job_name": "joulie", "honor_labels": True, "static_configs": targets}])
        wait_for(all_answered, PATIENCE_S, "every query returns data", poll_s=2.0)


def test_u11_the_cost_in_the_range_is_there_for_a_young_ledger(prometheus: PrometheusServer) -> None:
    (query,) = (one for one in queries() if "joulie_namespace_cost" in one)
    books = accounting()
    with served(books.registry) as addresses:
        prometheus.start([{"job_name": "joulie", "honor_labels": True, "static_configs": [{"targets": addresses}]}])

        def costs() -> bool:
            another_cycle(books)
            day = query.replace("$namespace", ".*").replace("$__range", "1d")
            return answers(prometheus, day)

        wait_for(costs, 90.0, "the cost of a day of which Prometheus knows seconds")


def answers(prometheus: PrometheusServer, query: str) -> bool:
    """Whether a query gives a number."""
    return any(not math.isnan(float(one["value"][1])) for one in prometheus.query(query))
