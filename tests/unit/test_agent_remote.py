"""Caps over HTTP, one node at a time, against an endpoint that keeps what it is told."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from joulie.adapters.control_http import (
    ControlAction,
    ControlResult,
    HostTelemetry,
    HttpControlError,
    HttpGpu,
    HttpResult,
)
from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult as ControlReport
from joulie.apps.agent.outcome import Outcome
from joulie.apps.agent.remote import REFRESH_S, RemoteNode
from joulie.apps.agent.routing import CpuMode, Route, Routing, Via
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import CapRange

ECO = WantedCap(percent=60.0)
PACKAGE = CapRange(72.0, 400.0, 360.0)
GPU = CapRange(350.0, 700.0, 700.0)
HTTP = Route(Via.HTTP, "http://sim/{node}")
DVFS = DvfsSettings(ema_alpha=1.0, trip_count=1, cooldown_s=0.0)


class Endpoint:
    """Stands for `HttpControl`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[ControlAction, ControlResult] = {}
        self.power_w: float | None = 100.0
        self.down = False
        self.gpus: tuple[HttpGpu, ...] = ()

    async def telemetry(self, node: str) -> HostTelemetry:
        if self.power_w is None:
            raise HttpControlError("no answer")
        return HostTelemetry(self.power_w, None)

    async def control(self, node: str, action: ControlAction, **fields: float) -> HttpResult:
        if self.down:
            raise HttpControlError("connection refused")
        self.told.append((action.value.partition(".")[0], fields))
        return HttpResult(self.answers.get(action, ControlResult.APPLIED), "said so", gpus=self.gpus)

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        told, self.told = self.told, []
        return told


class Node:
    """A remote node with fixed hardware, driven by hand."""

    def __init__(self, *, simulate_only: bool = False) -> None:
        self.endpoint = Endpoint()
        self.asked: list[tuple[str, Route]] = []
        self.node = RemoteNode("n1", lambda *_: self.endpoint, self.query, DVFS, simulate_only=simulate_only)  # type: ignore[arg-type, return-value]
        self.now_s = 0.0

    async def query(self, node: str, route: Route) -> float | None:
        self.asked.append((node, route))
        return self.endpoint.power_w

    def cpu(
        self, cap: WantedCap, mode: CpuMode = CpuMode.AUTO, limits: CapRange | None = PACKAGE, source: Route = HTTP
    ) -> Outcome:
        self.now_s += 20.0
        routing = Routing(source, source, HTTP, HTTP, mode)
        return _run(self.node.enforce_cpu(cap, limits, 2, routing, self.now_s))

    def observed(self, cap: WantedCap = ECO, *, kind: str = "cpu", reported: ControlReport | None = None) -> Outcome:
        self.now_s += 20.0
        if kind == "gpu":
            return _run(self.node.observe_gpu(cap, GPU, HTTP, self.now_s, reported, present=True))
        routing = Routing(HTTP, HTTP, HTTP, HTTP, CpuMode.RAPL)
        return _run(self.node.observe_cpu(cap, PACKAGE, 2, routing, self.now_s, reported))

    def gpu(self, cap: WantedCap, limits: CapRange | None = GPU, *, present: bool = True) -> Outcome:
        self.now_s += 20.0
        return _run(self.node.enforce_gpu(cap, limits, HTTP, self.now_s, present=present))


def _run(outcome: Coroutine[Any, Any, Outcome]) -> Outcome:
    return asyncio.run(outcome)


def test_percent_becomes_watts_of_each_package() -> None:
    node = Node()
    outcome = node.cpu(ECO, CpuMode.RAPL)
    assert node.endpoint.take() == [("rapl", {"capWatts": 216.0})]
    assert (outcome.backend, outcome.result, outcome.message) == ("http", "applied", "216 W for each CPU package")
    assert node.node.mode == "rapl"


def test_nothing_is_told_twice_until_it_may_be_forgotten() -> None:
    node = Node()
    node.cpu(ECO, CpuMode.RAPL)
    node.cpu(ECO, CpuMode.RAPL)
    assert len(node.endpoint.take()) == 1
    node.now_s += REFRESH_S * 1.25
    node.cpu(ECO, CpuMode.RAPL)
    assert len(node.endpoint.take()) == 1


def test_lifted_cap_is_the_base_and_null_where_none_is_known() -> None:
    node = Node()
    assert node.cpu(WantedCap(percent=100.0), CpuMode.RAPL).message.startswith("restored")
    node.cpu(WantedCap(), CpuMode.RAPL, limits=None)
    assert node.endpoint.take() == [("rapl", {"capWatts": 360.0}), ("rapl", {"capWatts": None})]


def test_percent_without_a_base_is_blocked() -> None:
    node = Node()
    outcome = node.cpu(ECO, CpuMode.RAPL, limits=None)
    assert outcome.result == "blocked"
    assert "joulie.io/hw.cpu-model" in outcome.message
    assert node.endpoint.take() == []


def test_throttle_of_an_earlier_agent_is_taken_back_once() -> None:
    node = Node()
    node.cpu(ECO)
    node.cpu(ECO)
    assert node.endpoint.take() == [("rapl", {"capWatts": 216.0}), ("dvfs", {"throttlePct": 0.0})]


def test_endpoint_that_knows_no_throttle_is_not_asked_again() -> None:
    node = Node()
    node.endpoint.answers[ControlAction.THROTTLE] = ControlResult.BLOCKED
    assert node.cpu(ECO).result == "applied"
    node.endpoint.take()
    node.cpu(ECO)
    assert node.endpoint.take() == []


def test_frequency_steps_in_where_power_cannot_be_limited_and_back() -> None:
    node = Node()
    node.endpoint.answers[ControlAction.POWER_CAP] = ControlResult.BLOCKED
    node.endpoint.power_w = 600.0
    outcome = node.cpu(ECO)
    assert (outcome.result, node.node.mode) == ("unconfirmed", "dvfs")
    assert node.endpoint.take()[-1] == ("dvfs", {"throttlePct": 10.0})
    node.cpu(ECO)
    assert node.endpoint.take()[-1] == ("dvfs", {"throttlePct": 20.0})
    node.endpoint.answers.clear()
    assert node.cpu(ECO).result == "applied"
    assert node.endpoint.take() == [("rapl", {"capWatts": 216.0}), ("dvfs", {"throttlePct": 0.0})]
    assert node.node.mode == "rapl"


def test_dvfs_mode_holds_measured_power_and_lets_go() -> None:
    node = Node()
    node.endpoint.power_w = 500.0
    node.cpu(ECO, CpuMode.DVFS)
    node.endpoint.power_w = 430.0  # within the margins of 2 x 216 W
    node.cpu(ECO, CpuMode.DVFS)
    assert node.endpoint.take() == [("dvfs", {"throttlePct": 10.0})]
    assert node.cpu(WantedCap(), CpuMode.DVFS).message.startswith("restored")
    assert node.endpoint.take() == [("dvfs", {"throttlePct": 0.0})]


def test_failed_telemetry_changes_nothing() -> None:
    node = Node()
    node.endpoint.power_w = 500.0
    node.cpu(ECO, CpuMode.DVFS)
    node.endpoint.power_w = None
    assert node.cpu(ECO, CpuMode.DVFS).result == "unconfirmed"
    assert node.endpoint.take() == [("dvfs", {"throttlePct": 10.0})]


def test_without_telemetry_the_throttle_is_a_fixed_share() -> None:
    node = Node()
    node.cpu(ECO, CpuMode.DVFS, source=Route(Via.NONE))
    assert node.endpoint.take() == [("dvfs", {"throttlePct": 40.0})]
    assert node.cpu(WantedCap(cap_w=100.0), CpuMode.DVFS, limits=None, source=Route(Via.NONE)).result == "blocked"


def test_dead_endpoint_is_an_error_and_is_asked_again() -> None:
    node = Node()
    node.endpoint.down = True
    outcome = node.cpu(ECO, CpuMode.RAPL)
    assert (outcome.result, outcome.message) == ("error", "connection refused")
    node.endpoint.down = False
    assert node.cpu(ECO, CpuMode.RAPL).result == "applied"


def test_gpus() -> None:
    node = Node()
    assert node.gpu(ECO).result == "applied"
    assert node.gpu(WantedCap(cap_w=1.0)).message == "350 W for each GPU"
    assert node.gpu(WantedCap()).message.startswith("restored")
    assert [fields["capWattsPerGpu"] for _, fields in node.endpoint.take()] == [420.0, 350.0, 700.0]
    assert node.gpu(ECO, None).result == "blocked"


def test_node_without_gpus_has_nothing_to_do() -> None:
    node = Node()
    assert node.gpu(ECO, None, present=False).result == "none"
    assert node.gpu(WantedCap(), None, present=False).message.startswith("restored")
    assert node.endpoint.take() == []


def test_observing_sends_nothing() -> None:
    node = Node()
    assert (node.observed().result, node.observed(kind="gpu").result) == ("observed", "observed")
    assert "216 W for each CPU package for a cap of 60 %" in node.observed().message
    assert node.observed(WantedCap()).message.startswith("restored")
    assert node.endpoint.take() == []


def test_observing_lifts_an_earlier_cap_once() -> None:
    node = Node()
    node.cpu(ECO, CpuMode.RAPL)
    node.gpu(ECO)
    node.endpoint.take()
    node.endpoint.down = True
    assert node.observed().result == "error"
    node.endpoint.down = False
    assert [node.observed().result, node.observed(kind="gpu").result] == ["observed", "observed"]
    assert node.endpoint.take() == [("rapl", {"capWatts": 360.0}), ("gpu", {"capWattsPerGpu": 700.0})]
    assert [node.observed().result, node.observed(kind="gpu").result] == ["observed", "observed"]
    assert node.endpoint.take() == []


@pytest.mark.parametrize(
    ("reported", "lifts"),
    [
        (ControlReport("http", "applied", "216 W for each CPU package"), True),
        (ControlReport("http", "unconfirmed", "frequency limited"), True),
        (ControlReport("http", "applied", "restored: no cap requested"), False),
        (ControlReport("http", "observed", "observe mode"), False),
        (ControlReport("rapl", "applied", "2 x 123 W in force"), False),
        (None, False),
    ],
)
def test_observing_lifts_what_an_earlier_agent_reported(reported: ControlReport | None, lifts: bool) -> None:
    node = Node()
    assert node.observed(reported=reported).result == "observed"
    assert bool(node.endpoint.take()) is lifts


def test_simulate_only_sends_nothing() -> None:
    node = Node(simulate_only=True)
    assert node.cpu(ECO).result == node.gpu(ECO).result == "blocked"
    assert node.cpu(WantedCap()).message.startswith("restored")
    assert node.endpoint.take() == []


def test_frequency_is_controlled_by_the_power_that_prometheus_knows() -> None:
    node = Node()
    source = Route(Via.PROMETHEUS, "http://prometheus:9090", query='power_w{node="{node}"}')
    node.endpoint.power_w = 700.0
    outcome = node.cpu(ECO, CpuMode.DVFS, source=source)
    assert node.asked == [("n1", source)]
    assert (outcome.message, node.node.power_w) == (
        "frequency limited by measured power, which is not within the cap yet",
        700.0,
    )
    assert node.endpoint.take()[0][1]["throttlePct"] > 0.0


def test_a_prometheus_without_a_query_is_not_asked() -> None:
    node = Node()
    outcome = node.cpu(ECO, CpuMode.DVFS, source=Route(Via.PROMETHEUS))
    assert (node.asked, outcome.message) == (
        [],
        "frequency limited by a fixed share, since power cannot be measured",
    )


GPU_0, GPU_1 = "GPU-0", "GPU-1"
ONE_LIMITED = WantedCap(percent=100.0, by_device=((GPU_0, 500.0),))


def test_single_gpus_are_limited_and_reported_as_the_endpoint_states() -> None:
    node = Node()
    node.endpoint.gpus = tuple(HttpGpu(gpu, limit_w, 700.0, 350.0) for gpu, limit_w in ((GPU_1, 700.0), (GPU_0, 500.0)))
    outcome = node.gpu(ONE_LIMITED)
    assert (outcome.result, outcome.message) == ("applied", "1 GPUs with limits of their own, 700 W for the others")
    assert [(gpu.id, gpu.limit_watts, gpu.original_watts, gpu.min_watts) for gpu in node.node.gpu_statuses] == [
        (GPU_0, 500.0, 700.0, 350.0),
        (GPU_1, 700.0, 700.0, 350.0),
    ]
    node.gpu(ONE_LIMITED)
    assert node.endpoint.take() == [("gpu", {"capWattsPerGpu": 700.0, "capWattsByGpu": {GPU_0: 500.0}})]
    # The limit is withdrawn: the endpoint gets the common one, and nothing of its own.
    node.gpu(WantedCap(percent=100.0))
    assert node.endpoint.take() == [("gpu", {"capWattsPerGpu": 700.0})]


def test_limits_of_single_gpus_only_lower_and_need_an_endpoint_that_knows_them() -> None:
    node = Node()
    assert node.gpu(ONE_LIMITED).message == "the endpoint does not limit single GPUs, or does not know GPU-0"
    node.gpu(WantedCap(cap_w=400.0, by_device=((GPU_0, 500.0),)))
    assert node.endpoint.take()[-1] == ("gpu", {"capWattsPerGpu": 400.0})
