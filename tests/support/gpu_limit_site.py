"""Operator and agent around one machine: jobs modelled on a loadable GPU driver, and what Prometheus says of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import HeldGpuLimit
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import PODS, WORKLOAD_PROFILES
from joulie.apps.operator.main import serve
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.held_out import NO_HOLDOUT, Holdout
from joulie.domain.capping.live import Pace
from joulie.domain.control import ControlSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.mode import Mode
from joulie.domain.policy import PolicySettings
from support.agent_machine import Bench, Machine, on_cluster, until
from support.fake_gpus import FakeGpus
from support.scripted_server import Answer, Request, serving

TRAIN, SERVE = ("default", "train-0"), ("default", "serve-0")
METRIC = "train_steps_total"
BASELINE_W, LARGEST_MHZ = 700.0, 1980


@dataclass
class Jobs:
    """Jobs on the GPUs of the driver: what Prometheus says of their power and their steps a second.

    Attributes:
        natural_w: power without a limit, W, by GPU.
        steepness: how fast a job slows below 1.1 of its natural power.
        silent: whether the metric of progress is gone.
        slower: factor by which jobs are slower while their GPU is limited.
        clock_bound: share of their time that stretches as the SM clock falls.
        counts_time: whether the metric of progress goes on as if nothing slowed them.
    """

    driver: FakeGpus
    natural_w: tuple[float, ...] = (500.0, 450.0)
    steepness: float = 1.0
    silent: bool = False
    slower: float = 1.0
    clock_bound: float = 0.1
    counts_time: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    _window: tuple[float, ...] = (1.0, 1.0)
    """Slowdowns of the window that is asked for: all of its queries tell of the same time."""

    def limit_w(self, gpu: int) -> float:
        return self.driver.read(gpu, "set_mw") / 1e3

    def slowdown(self, gpu: int) -> float:
        short = max(0.0, np.log(1.1 * self.natural_w[gpu] / self.limit_w(gpu)))
        limited = self.limit_w(gpu) < BASELINE_W or self.clock(gpu) < 1.0
        stretched = 1.0 - self.clock_bound + self.clock_bound / self.clock(gpu)
        return float(np.exp(self.steepness * short**2)) * (self.slower if limited else 1.0) * stretched

    def clock(self, gpu: int) -> float:
        """As a share of the largest."""
        return (self.driver.read(gpu, "lock_mhz") or LARGEST_MHZ) / LARGEST_MHZ

    def power_w(self, gpu: int) -> float:
        return min(self.natural_w[gpu] * (0.4 + 0.6 * self.clock(gpu) ** 3), 0.97 * self.limit_w(gpu))

    def answer(self, query: str, uuids: list[str]) -> list[tuple[dict[str, str], float]]:
        noise = np.exp(self.rng.normal(0.0, 0.002, 2))
        if "joulie_gpu_power_watts" in query:  # the first query of a window
            self._window = (self.slowdown(0), self.slowdown(1))
            return [({"UUID": uuid}, self.power_w(gpu)) for gpu, uuid in enumerate(uuids)]
        if "DRAM_ACTIVE" in query:
            return [({"UUID": uuid}, 0.4 / self._window[gpu] * noise[gpu]) for gpu, uuid in enumerate(uuids)]
        if METRIC in query and not self.silent:
            pods = {0: TRAIN, 1: SERVE}
            return [
                (
                    {"namespace": pod[0], "pod": pod[1]},
                    10.0 / (1.0 if self.counts_time else self._window[gpu]) * noise[gpu],
                )
                for gpu, pod in pods.items()
            ]
        return []


def operator_settings(bench: Bench, prometheus: str, holdout: Holdout = NO_HOLDOUT) -> OperatorSettings:
    return OperatorSettings(
        kubeconfig=bench.kubeconfig,
        namespace="default",
        metrics_addr="127.0.0.1:0",
        mode=Mode.ENFORCE,
        reconcile_interval_s=0.1,
        prometheus_address=prometheus,
        policy=PolicySettings(static_hp_frac=1.0),
        control=ControlSettings(),
        classify_interval_s=1.0,
        gpu_limits=True,
        gpu_limits_interval_s=0.05,
        gpu_limits_pace=Pace(settling_s=0.0, window_s=0.1),
        power_budget_interval_s=0.05,
        gpu_limits_holdout=holdout,
    )


class Site:
    """The programs and objects around one machine."""

    def __init__(self, bench: Bench, jobs: Jobs, prometheus: str, agent: asyncio.Task[None], holdout: Holdout) -> None:
        self.bench, self.jobs, self.prometheus, self.agent = bench, jobs, prometheus, agent
        self.holdout = holdout

    async def add_pod(self, pod: tuple[str, str], **annotations: str) -> None:
        namespace, name = pod
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
        spec = {"nodeName": self.bench.machine.node, "containers": [{"name": "main", "image": "x", **limits}]}
        metadata = {"name": name, "annotations": {"joulie.io/progress-metric": METRIC, **annotations}}
        await self.bench.client.create(PODS, {"metadata": metadata, "spec": spec}, namespace)
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        await self.bench.client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        settings = operator_settings(self.bench, self.prometheus, self.holdout)
        task = asyncio.create_task(serve(settings, BUILTIN_CATALOGUE, stop))
        try:
            yield task
        finally:
            stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def held(self, pod: tuple[str, str], profile_name: str = "") -> HeldGpuLimit | None:
        """What a profile keeps of a pod's limit: the named one, or the classifier's."""
        with contextlib.suppress(NotFoundError):
            profile = await self.bench.client.get(WORKLOAD_PROFILES, profile_name or f"pod-{pod[1]}", pod[0])
            return profile.status.gpu_limit
        return None

    def limits_w(self) -> list[float]:
        return [self.jobs.limit_w(gpu) for gpu in (0, 1)]


OnCluster = Callable[[Machine, Callable[[Bench], Coroutine[Any, Any, None]]], None]


def at_site(
    machine: Machine, jobs: Jobs, scenario: Any, on: OnCluster = on_cluster, holdout: Holdout = NO_HOLDOUT
) -> None:
    """Run a scenario on a cluster, once the agent has reported both GPUs."""

    async def run(bench: Bench) -> None:
        uuids: list[str] = []

        async def answer(request: Request, answer: Answer) -> None:
            query = parse_qs(request.body.decode()).get("query", [""])[0]
            found = jobs.answer(query, uuids)
            kind = "matrix" if query.endswith("s]") else "vector"
            result = [{"metric": labels, "value": [1.8e9, repr(float(value))]} for labels, value in found]
            body = {"status": "success", "data": {"resultType": kind, "result": result if kind == "vector" else []}}
            await answer.whole(200, json.dumps(body).encode())

        await bench.add_node()
        async with serving(answer) as url, bench.agent() as agent:
            site = Site(bench, jobs, url, agent, holdout)
            async with site.operator() as operator:

                async def known() -> bool:
                    with contextlib.suppress(NotFoundError):
                        uuids[:] = [gpu.id for gpu in (await bench.control()).gpus]
                    return len(uuids) == 2

                await until(known)
                await scenario(site, operator)

    on(machine, run)
