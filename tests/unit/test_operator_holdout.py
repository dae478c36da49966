"""The operator's holdout: what it draws, tells profiles, pods and metrics of, and what follows from it."""

import asyncio
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes.api.core import ConfigMap
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import HeldOutSaving, WorkloadProfile
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.holdout import CONFIG_MAP
from joulie.adapters.kubernetes.pods import Owner
from joulie.apps.kubectl.holdout import limits_saving
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.limits.controller import GpuLimits
from joulie.apps.operator.limits.jobs import JobKey
from joulie.apps.operator.limits.measure import Measured
from joulie.apps.operator.limits.metrics import GpuLimitMetrics
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.held_out import Holdout
from joulie.domain.capping.live import JobGpus
from joulie.domain.trial.holdout import MIN_LEFT_OUT

pytestmark = pytest.mark.slow

TRAIN = ("ml", "train-0")
KEY = JobKey(("ml", Owner("Job", "train")), 1.05, "steps_total", 700.0, 200.0, 700.0)
JOB = JobGpus(frozenset({TRAIN}), (("n", "a", TRAIN), ("n", "b", TRAIN)), 700.0, 200.0, 700.0)


class Cluster:
    """One job with two GPUs, whose agent puts each limit into force at once, and a profile that keeps what is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holdout: Holdout, saving: float) -> None:
        self.now_s, self.saving, self.working = 0.0, saving, True
        self.rng = np.random.default_rng(2)
        self.events: list[tuple[str, str, str]] = []
        self.written: list[dict[str, Any]] = []
        self.holdout, self.entry = holdout, SimpleNamespace(status=SimpleNamespace(gpu_limit=None), automatic=True)
        self.config_map = ConfigMap(ObjectMeta(name=CONFIG_MAP), data={})
        self.monkeypatch = monkeypatch
        self.leader()

    def leader(self) -> None:
        """A new leader, which knows what was written."""
        entry = self.entry
        pod = SimpleNamespace(namespace="ml", name="train-0", uid="uid-0")
        profiles = SimpleNamespace(
            effective=lambda _workload: entry, effective_key=lambda _workload: Key("ml", "job-train")
        )
        view = SimpleNamespace(workload_profiles=profiles, pods={TRAIN: pod})

        async def apply(_resource: Any, _name: str, body: dict[str, Any], **_how: Any) -> None:
            entry.status.gpu_limit = body["status"]["gpuLimit"]
            self.written.append(body)

        async def get(*_which: Any) -> ConfigMap:
            return self.config_map

        async def patch(_resource: Any, _name: str, body: dict[str, Any], **_how: Any) -> None:
            self.config_map = msgspec.structs.replace(self.config_map, data=body["data"])

        self.registry = CollectorRegistry()
        self.search = GpuLimits(
            Leader(
                cast("Any", SimpleNamespace(apply=apply, get=get, patch=patch)),
                cast("Any", view),
                OperatorSettings(gpu_limits_holdout=self.holdout),
                cast("Any", SimpleNamespace(emit=lambda to, kind, why, what: self.events.append((to.uid, why, what)))),
                lambda: True,
                lambda: self.now_s,
            ),
            cast("Any", None),
            cast("Any", None),
            GpuLimitMetrics(self.registry),
            lambda: None,
            lambda _node: None,
        )
        self.search.decided(cast("Any", SimpleNamespace(nodes=())))
        monkeypatch = self.monkeypatch
        monkeypatch.setattr(self.search, "_meters", SimpleNamespace(measure=self.measure))
        monkeypatch.setattr("joulie.apps.operator.limits.controller.jobs", self.jobs)
        monkeypatch.setattr("joulie.apps.operator.limits.controller.stated", lambda *_arguments: ())

    @property
    def limit_w(self) -> float:
        published = self.search.of_node("n")
        return published[0].watts if published else 700.0

    def jobs(self, *_arguments: Any) -> dict[JobKey, JobGpus]:
        return {KEY: replace(JOB, in_force_w=self.limit_w)}

    async def measure(self, _metrics: Any, _window_s: float) -> Any:
        if not self.working:
            return lambda _metric, _job: Measured(120.0, 0.0)
        power_w = 600.0 * (1.0 if self.limit_w >= 600.0 else 1.0 - self.saving)
        noise = np.exp(self.rng.normal(0.0, 0.003, 2))
        return lambda _metric, _job: Measured(power_w * noise[0], 10.0 * noise[1])

    async def windows(self, count: int) -> None:
        for _ in range(2 * count):
            await self.search.look()
            self.now_s += 210.0

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"joulie_operator_{name}", labels)


def test_the_saving_of_a_held_limit_goes_on_being_measured_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, Holdout(0.2, least_saving=0.01), 0.10)
    asyncio.run(cluster.windows(150))
    assert cluster.value("holdout_windows", arm="left-alone") > MIN_LEFT_OUT
    low, saved, high = (cluster.value("holdout_saved_ratio", bound=bound) for bound in ("low", "saved", "high"))
    assert low < 0.10 < high
    assert saved == pytest.approx(0.10, abs=0.01)
    told = cluster.written[-1]["status"]["gpuLimit"]
    kept = [one["status"]["gpuLimit"] for one in cluster.written]
    assert all(one.watts < 700.0 for one in kept if one.holdout), "the limit, not that of a window left alone"
    assert kept[1].holdout.saved_pct is None, "no interval with too few windows left alone"
    assert told.holdout.low_pct < 10.0 < told.holdout.high_pct
    assert len(cluster.written) < 30, "not with every window"
    assert cluster.events == []
    assert cluster.value("holdout_stopped_paying_workloads") == 0.0


@pytest.mark.parametrize("withdraws", [False, True])
def test_a_limit_that_does_not_pay_is_told_to_its_pod_once_and_withdrawn_where_asked(
    monkeypatch: pytest.MonkeyPatch, withdraws: bool
) -> None:
    # The goal is set beyond what the limit saves, as if it had paid more once.
    cluster = Cluster(monkeypatch, Holdout(0.2, least_saving=0.25, withdraws=withdraws), 0.10)
    asyncio.run(cluster.windows(150))
    ((uid, reason, message),) = cluster.events
    assert (uid, reason) == ("uid-0", "LimitStoppedPaying")
    assert ("withdrawn" if withdraws else "kept") in message
    assert cluster.value("holdout_stopped_paying_workloads") == (0.0 if withdraws else 1.0)
    assert cluster.value("gpu_limits_withdrawn_total", reason="not-paying") == (1.0 if withdraws else None)
    if withdraws:
        assert cluster.limit_w == 700.0


def test_the_next_leader_goes_on_with_what_is_known_of_a_job_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, Holdout(0.2, least_saving=0.01), 0.10)
    asyncio.run(cluster.windows(150))
    told = cluster.written[-1]["status"]["gpuLimit"].holdout
    fleet = cluster.value("holdout_windows", arm="left-alone")
    cluster.leader()
    asyncio.run(cluster.windows(1))
    assert cluster.value("holdout_windows", arm="left-alone") == pytest.approx(fleet, abs=2), "of all, at once"
    assert cluster.value("holdout_saved_ratio", bound="low") < 0.10
    asyncio.run(cluster.windows(40))
    later = cluster.written[-1]["status"]["gpuLimit"].holdout
    assert told.windows < later.windows < told.windows + 45
    assert later.left_out > told.left_out
    assert later.low_pct < 10.0 < later.high_pct


def test_a_run_that_has_yet_to_load_its_data_keeps_what_its_workload_has_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, Holdout(), 0.10)
    cluster.working = False
    asyncio.run(cluster.windows(5))
    assert cluster.entry.status.gpu_limit.watts == 700.0
    cluster.working = True
    asyncio.run(cluster.windows(40))
    learned = cluster.entry.status.gpu_limit
    assert learned.watts < 700.0
    cluster.leader()
    cluster.working = False
    asyncio.run(cluster.windows(5))
    assert cluster.limit_w == 700.0
    assert cluster.entry.status.gpu_limit is learned


def test_a_withdrawn_limit_stays_withdrawn_from_the_run_and_the_next_run_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, Holdout(0.2, least_saving=0.25, withdraws=True), 0.10)
    asyncio.run(cluster.windows(150))
    assert cluster.entry.status.gpu_limit.holdout.high_pct < 25.0, "its profile says why"
    cluster.leader()
    asyncio.run(cluster.windows(30))
    assert cluster.limit_w == 700.0
    assert cluster.value("gpu_limits_workloads", state="given-up") == 1.0
    # The run ends; a later one has its limit again.
    monkeypatch.setattr("joulie.apps.operator.limits.controller.jobs", lambda *_arguments: {})
    asyncio.run(cluster.windows(1))
    monkeypatch.setattr("joulie.apps.operator.limits.controller.jobs", cluster.jobs)
    asyncio.run(cluster.windows(30))
    assert cluster.value("gpu_limits_workloads", state="given-up") == 0.0


def test_a_profile_that_says_what_cannot_be_is_reported_and_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(monkeypatch, Holdout(0.2, least_saving=0.01), 0.10)
    asyncio.run(cluster.windows(60))
    stored = cluster.entry.status.gpu_limit
    spoilt = msgspec.structs.replace(stored.holdout, left_out=stored.holdout.windows + 1)
    cluster.entry.status.gpu_limit = msgspec.structs.replace(stored, holdout=spoilt)
    cluster.leader()
    asyncio.run(cluster.windows(1))
    assert "evidence of a workload's holdout is spoilt" in caplog.text
    asyncio.run(cluster.windows(40))
    assert cluster.entry.status.gpu_limit.holdout.windows < stored.holdout.windows + 30, "begun anew"
    assert limits_saving([profile(spoilt)]) is None


def profile(saving: HeldOutSaving | None) -> WorkloadProfile:
    document = {
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"workloadRef": {"kind": "Job", "namespace": "ml", "name": "train"}},
        "status": {"gpuLimit": {"watts": 500.0}},
    }
    found = msgspec.convert(document, WorkloadProfile)
    limit = msgspec.structs.replace(found.status.gpu_limit, holdout=saving)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, gpu_limit=limit))


def test_the_saving_over_workloads_counts_each_by_its_power() -> None:
    large = HeldOutSaving(300, 15, math.log(0.90), 0.002, 900.0, 9.5, 8.0, 11.0)
    small = HeldOutSaving(300, 15, 0.0, 0.002, 100.0)
    found = limits_saving([profile(large), profile(small), profile(None)])
    assert found is not None
    assert found.saved_pct == pytest.approx(100.0 * (1.0 - 0.90**0.9), abs=0.01)
    assert found.low_pct < found.saved_pct < found.high_pct
    assert (found.windows, found.left_out, found.workloads) == (600, 30, 2)
    assert "measured by holdout: 30 of 600 windows of 2 workloads" in found.sentence
    assert json.loads(msgspec.json.encode(found))["howKnown"] == "measured by holdout"
    assert limits_saving([profile(None)]) is None
