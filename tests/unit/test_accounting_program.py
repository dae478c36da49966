"""The accounting program against the fake cluster and a real ledger, with a clock and sources of the test's own."""

import asyncio
import csv
import io
import re
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.holdout import CONFIG_MAP as HOLDOUT_CONFIG_MAP
from joulie.adapters.kubernetes.holdout import EVIDENCE_KEY
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, ENERGY_BUDGETS, EVENTS, JOBS, NAMESPACES, NODES, PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.prometheus.readings import GpuDevice, PodPower
from joulie.adapters.signing import Ed25519Signer
from joulie.apps.accounting.api import EnergyApi
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.budgets import Budgets
from joulie.apps.accounting.closing import Closing, HeadsAddress
from joulie.apps.accounting.controller import Accountant, Components
from joulie.apps.accounting.energy_budgets import DECLARED_NAME, EnergyBudgets
from joulie.apps.accounting.functional_units import FunctionalUnits
from joulie.apps.accounting.holdouts import Holdouts
from joulie.apps.accounting.metrics import PREFIX, AccountingMetrics
from joulie.apps.accounting.policies import NAMESPACE_BUDGET_ACTION, NAMESPACE_BUDGET_KWH, NAMESPACE_BUDGET_PERIOD
from joulie.apps.accounting.sampler import Sampler, SamplerSettings
from joulie.apps.accounting.usage import CADVISOR, Readings
from joulie.apps.accounting.view import ClusterView
from joulie.domain.accounting.holdout_evidence import NO_MONTHS
from joulie.domain.accounting.identity import PowerRange, PowerSettings
from joulie.domain.accounting.journal import Month, corrections
from joulie.domain.accounting.month_savings import DEFERRAL_EVIDENCE, DEFERRAL_MEMORY, LIMITS_EVIDENCE
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.accounting.records import Energy, ExportRow, Grouping, PodMeta, UsageRow
from joulie.domain.grid import names
from joulie.domain.grid.series import of_points
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Provenance
from joulie.domain.mode import Mode
from joulie.domain.signal import Quality, Reading
from joulie.domain.trial.holdout import Effect, left_out
from joulie.domain.usage import PodUsage
from joulie.ports.ledger import LedgerError
from joulie.program.sources import SourceStates
from joulie_lab.fakes.kubernetes import FakeCluster
from support.ledger_site import new_key
from support.played import played

pytestmark = pytest.mark.slow

T0 = 1_800_000_000.0
HEADS = HeadsAddress("default", "joulie-ledger-heads")
"""A whole hour: 2027-01-15 08:00 UTC."""
IDLE_W, MAX_W, CORES = 100.0, 400.0, 10.0
PUE, GPU_PUE = 1.1, 1.15
KWH = 3.6e6
LABEL_KEYS = ("team",)
HOWTO = Path(__file__).parents[2] / "docs/howto/energy.md"


class Usage:
    """Stands for who knows what pods use; the test says."""

    def __init__(self):
        self.readings = Readings()
        self.states = SourceStates()
        self.states.answered(CADVISOR, 1)
        self.asked = []

    def cores(self, **cores):
        self.readings = Readings(
            usage={CADVISOR: PodUsage({("default", pod): value for pod, value in cores.items()}, {})}
        )

    async def read(self, pods, index):
        self.asked.append(pods)
        return self.readings


class Feed:
    """Stands for the grid: steps of intensity and price that the test sets."""

    def __init__(self, clock):
        self.clock = clock
        self.carbon_steps = {T0 - 7200.0: 300.0}
        self.price_steps = {T0 - 7200.0: 0.2}
        self.missing = False
        self.unpublished = []
        self.basis = Basis.AVERAGE

    def want(self, zone):
        return True

    def asked(self, zone):
        return True

    def carbon(self, zone):
        return self._signal(Measure.CARBON, zone, self.carbon_steps, self.basis)

    def price(self, zone):
        return self._signal(Measure.PRICE, zone, self.price_steps, None)

    def gaps(self, measure, zone):
        return self.unpublished

    def _signal(self, measure, zone, steps, basis):
        if self.missing:
            return GridSignal(measure, zone, problem="the API is away")
        time_s = max(start for start in steps if start <= self.clock.now_s)
        provenance = Provenance("test", zone, basis)
        return GridSignal(measure, zone, Quality.FRESH, steps[time_s], time_s, provenance)

    def history(self, measure, zone):
        if self.missing:
            return None
        steps = self.carbon_steps if measure is Measure.CARBON else self.price_steps
        past = [(start, value) for start, value in steps.items() if start <= self.clock.now_s]
        return of_points(past, max(1.0, self.clock.now_s - past[-1][0]))


class Clock:
    now_s = T0

    def __call__(self):
        return self.now_s


class Stage:
    """An accounting program that takes its cycles when it is told to."""

    def __init__(self, client, path):
        self.client, self.path = client, path
        self.clock = Clock()
        self.usage, self.feed = Usage(), Feed(self.clock)
        self.view = ClusterView(client, self.clock, LABEL_KEYS)
        self.signer = None
        self.start()

    def start(self):
        """Run anew: nothing is remembered but the ledger, and the caches list again."""
        self.ledger = open_ledger(f"sqlite:///{self.path}", LedgerSettings())
        self.async_ledger = AsyncLedger(self.ledger)
        self.metrics = AccountingMetrics()
        self.events = EventRecorder(self.client, "joulie-accounting", clock=self.clock)
        self.budgets = Budgets(self.client, self.async_ledger, self.events, self.metrics)
        self.energy_budgets = EnergyBudgets(self.client, self.async_ledger, self.events, "EUR")
        power = PowerSettings(PowerRange(IDLE_W, MAX_W))
        sampler = Sampler(SamplerSettings(HardwareProfiles(), power, "DE", label_keys=LABEL_KEYS))
        self.view.departed.clear()
        self.holdouts = holdouts = Holdouts(self.client, self.async_ledger, "joulie-system")
        components = Components(
            self.view,
            self.usage,
            sampler,
            self.feed,
            self.async_ledger,
            self.budgets,
            self.energy_budgets,
            self.events,
            self.metrics,
            Closing(self.client, self.async_ledger, self.events, HEADS, self.signer),
            FunctionalUnits(None, self.async_ledger, ()),
            holdouts,
        )
        self.accountant = Accountant(components, 30.0, Basis.AVERAGE, self.clock)
        self.api = EnergyApi(self.async_ledger, "EUR", self.clock, label_keys=LABEL_KEYS, holdouts=holdouts)

    async def step(self, passed_s=0.0, *, result="ok"):
        self.clock.now_s += passed_s
        before = self.metric("joulie_accounting_cycles_total", result=result) or 0.0
        await self.accountant.step()
        assert self.metric("joulie_accounting_cycles_total", result=result) == before + 1.0

    def metric(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels)

    def energy_j(self, by=Grouping.POD):
        rows = self.ledger.usage(by)
        return {row.name or row.namespace or row.node: row.energy for row in rows}

    async def ask(self, path, **query):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"path": path, "method": "GET", "query_string": "&".join(f"{k}={v}" for k, v in query.items()).encode()}
        await self.api.before(None)(scope, None, send)
        body = b"".join(one.get("body", b"") for one in sent[1:])
        return sent[0]["status"], body

    # ---- the cluster

    async def add_node(self, name="n1", **status):
        allocatable = {"cpu": f"{CORES:g}", "memory": "1000000000"} | status
        await self.client.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": allocatable}})
        await self.until(lambda: name in self.view.snapshot().nodes)

    async def add_pod(
        self, name, *, cores=2, node="n1", annotations=None, labels=None, owner=None, namespace="default", **requests
    ):
        wanted = {"cpu": str(cores), **requests}
        meta = {
            "name": name,
            "annotations": annotations or {},
            "labels": labels or {},
            "ownerReferences": [owner] if owner else [],
        }
        body = {
            "metadata": meta,
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": wanted}}]},
        }
        pod = await self.client.create(PODS, body, namespace)
        status = {"phase": "Running", "startTime": rfc3339(self.clock.now_s)}
        await self.client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")
        await self.until(lambda: any(one.uid == pod.metadata.uid for one in self.view.pods))
        return pod.metadata.uid

    async def end_pod(self, name, ended_s):
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(ended_s)}
        status = {"phase": "Succeeded", "conditions": [condition]}
        await self.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        await self.until(lambda: any(one.name == name and not one.running for one in self.view.pods))

    async def delete_pod(self, name, namespace="default"):
        await self.client.delete(PODS, name, namespace, grace_s=0)
        await self.until(lambda: all(one.name != name for one in self.view.pods))

    async def until(self, condition):
        async with asyncio.timeout(20.0):
            while not condition():
                await asyncio.sleep(0)

    async def reported(self, reason):
        await self.events.flush()
        return [event for event in (await self.client.list(EVENTS)).items if event.reason == reason]


@asynccontextmanager
async def staged(tmp_path):
    async with FakeCluster() as cluster:
        kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
        async with KubeClient.connect(kubeconfig=kubeconfig) as client:
            stage = Stage(client, tmp_path / "ledger.db")
            if not any(one.metadata.name == "default" for one in (await client.list(NAMESPACES)).items):
                await client.create(NAMESPACES, {"metadata": {"name": "default"}})
            watching = [asyncio.create_task(stage.view.run())]
            stage.follow = lambda: watching.append(asyncio.create_task(stage.energy_budgets.run()))
            try:
                await stage.view.wait_synced()
                yield stage
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)
                stage.ledger.close()


def play(story, tmp_path):
    """Run a story on a stage."""

    async def main():
        async with staged(tmp_path) as stage:
            await story(stage)

    asyncio.run(main())


def cpu_w(own_cores, all_cores, requested):
    """What a pod draws, by hand: its share of idle power by requests, and of the rest by use."""
    busy_w = (MAX_W - IDLE_W) * (all_cores / CORES) ** 1.4
    return IDLE_W * requested / CORES + busy_w * own_cores / all_cores


# ---- energy


@played(play)
async def test_energy_emissions_and_cost_are_those_of_a_hand_calculation(stage):
    await stage.add_node()
    await stage.add_pod("a", cores=2)
    await stage.add_pod("b", cores=4)
    stage.feed.carbon_steps[T0 + 40.0] = 500.0
    stage.usage.cores(a=1.0, b=3.0)
    await stage.step()
    stage.usage.cores(a=2.0, b=1.0)
    await stage.step(30.0)
    await stage.step(30.0)

    w0, w1 = cpu_w(1.0, 4.0, 2), cpu_w(2.0, 3.0, 2)
    energy_j = ((w0 + w1) / 2.0 * 30.0 + w1 * 30.0) * PUE
    first_j = ((w0 + w1) / 2.0 * 30.0 + w1 * 10.0) * PUE
    grams = (first_j * 300.0 + (energy_j - first_j) * 500.0) / KWH
    found = stage.energy_j()["a"]
    assert found.energy_j == pytest.approx(energy_j, rel=1e-9)
    assert found.emissions_g == pytest.approx(grams, rel=1e-9)
    assert found.cost == pytest.approx(energy_j / KWH * 0.2, rel=1e-9)
    assert (found.energy_without_intensity_j, found.measured_j, found.assumed_j) == (0.0, 0.0, 0.0)


@played(play)
async def test_trap_the_idle_power_of_a_node_is_shared_and_not_charged_to_each_pod(stage):
    await stage.add_node()
    for name in "abc":
        await stage.add_pod(name, cores=1)
    stage.usage.cores(a=0.0, b=0.0, c=0.0)
    await stage.step()
    await stage.step(3600.0)
    energy = stage.energy_j()
    assert energy["a"].cpu_j == pytest.approx(IDLE_W / CORES * 3600.0)
    assert energy["unallocated"].cpu_j == pytest.approx(IDLE_W * 7 / CORES * 3600.0)
    told = stage.metric("joulie_namespace_energy_joules_total", namespace="__idle__")
    assert told == pytest.approx(energy["unallocated"].energy_j)
    assert sum(one.cpu_j for one in energy.values()) == pytest.approx(IDLE_W * 3600.0)


@played(play)
async def test_trap_a_pod_with_a_gpu_is_charged_one_gpu_and_not_all_of_its_node(stage):
    await stage.add_node(**{"nvidia.com/gpu": "8"})
    await stage.add_pod("g", cores=1, annotations={names.PUE: "1.3"}, **{"nvidia.com/gpu": "1"})
    devices = [
        GpuDevice("n1", f"GPU-{i}", None, None, Reading(T0, 300.0), 50.0, (("default", "g"),) if i == 0 else (), False)
        for i in range(8)
    ]
    stage.usage.readings = Readings({("default", "g"): PodPower(20.0, 5.0)}, {"n1": 80.0}, {}, devices)
    await stage.step()
    await stage.step(10.0)
    found = stage.energy_j()["g"]
    assert found.gpu_j == pytest.approx(300.0 * 10.0)
    assert found.cpu_j == pytest.approx((20.0 + 80.0 / CORES) * 10.0)
    assert found.energy_j == pytest.approx((found.cpu_j + found.mem_j) * 1.3 + found.gpu_j * GPU_PUE)
    assert found.measured_j == found.energy_j


@played(play)
async def test_a_source_that_dies_is_followed_by_the_next_and_the_quality_says_so(stage):
    await stage.add_node()
    await stage.add_pod("a", cores=2)
    kepler = Readings({("default", "a"): PodPower(50.0, 5.0, 0.0)}, {"n1": IDLE_W})
    stage.usage.readings = kepler
    await stage.step()
    await stage.step(30.0)
    measured = stage.energy_j()["a"]
    assert measured.measured_j == measured.energy_j > 0.0
    stage.usage.cores(a=1.0)
    await stage.step(30.0)
    stage.usage.readings = Readings()
    await stage.step(30.0)
    found = stage.energy_j()["a"]
    assert found.measured_j == measured.energy_j
    assert 0.0 < found.assumed_j < found.energy_j - found.measured_j
    assert stage.metric("joulie_accounting_samples", source="requests", quality="assumed") == 1.0


@played(play)
async def test_a_grid_that_is_not_known_is_energy_without_intensity_and_never_zero(stage):
    await stage.add_node()
    await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()
    stage.feed.missing = True
    await stage.step(30.0)
    found = stage.energy_j()["a"]
    assert found.energy_j > 0.0
    assert found.energy_without_intensity_j == found.energy_without_price_j == found.energy_j
    status, body = await stage.ask("/api/v1/export")
    row = next(row for row in msgspec.json.Decoder().decode_lines(body) if row["pod"] == "a")
    assert (status, row["intensity_g_per_kwh"], row["price_per_kwh"]) == (200, None, None)


# ---- pods that come and go


@played(play)
async def test_g5_energy_of_an_outage_is_rebooked_when_its_signal_is_known(stage):
    await stage.add_node()
    await stage.add_pod("a", cores=2)
    stage.usage.cores(a=2.0)
    outage = range(2, 12)  # of half hours
    for half_hour in range(14):
        stage.feed.missing = half_hour in outage
        stage.feed.unpublished = [(T0 + 1800.0, T0 + 20700.0)]  # the source is back, its history is not
        await stage.step(0.0 if half_hour == 0 else 1800.0)
    before = stage.energy_j(Grouping.NAMESPACE)["default"]
    assert 0.7 < before.energy_without_intensity_j / before.energy_j < 0.8
    stage.feed.unpublished = []
    stage.feed.carbon_steps |= {T0 + 3600.0 * hour: 100.0 * hour for hour in range(1, 6)}
    await stage.step(1800.0)
    after = stage.energy_j(Grouping.NAMESPACE)["default"]
    w = cpu_w(2.0, 2.0, 2)
    hours_g = 300.0 * 1.0 + sum(100.0 * hour for hour in range(1, 5)) + 500.0 * 2.0
    assert after.energy_without_intensity_j == pytest.approx(0.0, abs=1e-6)
    assert after.emissions_g == pytest.approx(w * PUE * 3600.0 / KWH * hours_g, rel=1e-9)
    assert after.cost == pytest.approx(after.energy_j / KWH * 0.2, rel=1e-9)
    corrected = [one for one in corrections(stage.ledger.journal()) if one.entry.namespace == "default"]
    assert sum(one.entry.energy.energy_without_intensity_j for one in corrected) == pytest.approx(
        -before.energy_without_intensity_j
    )
    assert {change.was for one in corrected for change in one.changes} == {None, 300.0}
    assert stage.metric("joulie_ledger_corrections_total") > 0.0


@played(play)
async def test_g11_after_a_switch_to_a_marginal_source_both_bases_are_side_by_side(stage):
    await stage.add_node()
    await stage.add_pod("a", cores=2)
    stage.usage.cores(a=2.0)
    await stage.step()
    await stage.step(1800.0)
    average = stage.energy_j()["a"]
    stage.feed.basis = Basis.MARGINAL
    stage.feed.carbon_steps = {T0 + 1800.0: 700.0}
    await stage.step(1800.0)
    both = stage.energy_j()["a"]
    assert both.emissions_g == average.emissions_g > 0.0, "marginal intensity enters no inventory"
    marginal_j = both.energy_j - both.energy_without_marginal_j
    assert both.energy_without_intensity_j == pytest.approx(both.energy_j / 2.0)
    assert marginal_j == pytest.approx(both.energy_j / 2.0)
    assert both.marginal_g == pytest.approx(marginal_j / KWH * 700.0)
    stage.feed.basis = Basis.AVERAGE
    stage.feed.carbon_steps = {T0: 300.0}
    await stage.step(1800.0)
    whole = stage.energy_j(Grouping.NAMESPACE)["default"]
    assert whole.energy_without_intensity_j == pytest.approx(0.0, abs=1e-6), "the average is known again"
    assert whole.emissions_g == pytest.approx(whole.energy_j / KWH * 300.0)


async def january_ends(stage, tmp_path):
    """January 2027 is closed, and signed; the ConfigMap of heads is missing."""
    stage.signer = Ed25519Signer(new_key(tmp_path / "key.pem"))
    stage.clock.now_s = 1_801_440_000.0 - 3600.0  # the last hour of January 2027
    stage.start()
    await stage.add_node()
    await stage.add_pod("a", cores=2)
    await stage.step()
    for _ in range(3):
        await stage.step(1800.0)


@played(play)
async def test_a_month_is_closed_and_its_head_published_once_the_api_server_takes_it(stage, tmp_path):
    await january_ends(stage, tmp_path)
    assert stage.ledger.closed_s() == 1_801_440_000.0
    closing = list(stage.ledger.journal())[-1]
    await stage.client.create(CONFIG_MAPS, {"metadata": {"name": HEADS.name}}, HEADS.namespace)
    await stage.step(1800.0)
    heads = (await stage.client.get(CONFIG_MAPS, HEADS.name, namespace=HEADS.namespace)).data
    assert heads == {"2027-01": f"{closing.number}:{closing.hash}"}
    (event,) = await stage.reported("LedgerMonthClosed")
    assert closing.hash in event.message


async def january_closed(stage, tmp_path):
    """Close January 2027 while the ConfigMap of heads is missing; the closing entry."""
    await january_ends(stage, tmp_path)
    (closing,) = stage.ledger.closings()
    stage.ledger.close()
    return closing


@played(play)
async def test_the_head_of_a_month_that_was_closed_before_a_restart_is_published_after_it(stage, tmp_path):
    closing = await january_closed(stage, tmp_path)
    december = {"2026-12": "1:abc"}
    await stage.client.create(CONFIG_MAPS, {"metadata": {"name": HEADS.name}, "data": december}, HEADS.namespace)
    stage.start()
    await stage.step(1800.0)
    heads = (await stage.client.get(CONFIG_MAPS, HEADS.name, namespace=HEADS.namespace)).data
    assert heads == december | {"2027-01": f"{closing.number}:{closing.hash}"}


def test_a_published_head_is_never_replaced_by_that_of_a_ledger_that_was_changed(tmp_path, caplog):
    async def story(stage):
        await january_closed(stage, tmp_path)
        published = {"2027-01": "7:0123"}
        await stage.client.create(CONFIG_MAPS, {"metadata": {"name": HEADS.name}, "data": published}, HEADS.namespace)
        stage.start()
        await stage.step(1800.0)
        await stage.step(1800.0)
        assert (await stage.client.get(CONFIG_MAPS, HEADS.name, namespace=HEADS.namespace)).data == published
        (event,) = await stage.reported("LedgerHeadDiffers")
        assert "2027-01 was published with the head 7:0123" in event.message

    play(story, tmp_path)
    assert "the ledger was changed after its head was published" in caplog.text


def test_what_holdouts_have_measured_outlives_the_program(tmp_path, caplog):
    """Deferral's own, and a copy of what the operator keeps; what is spoilt is reported and begun anew."""

    async def story(stage):
        stage.feed.carbon_steps = {T0 - 86400.0: 300.0}
        await stage.client.create(NAMESPACES, {"metadata": {"name": "joulie-system"}})
        evidence = NO_MONTHS
        for number in range(60):
            evidence = evidence.added(T0, Effect(-0.08, 0.01, number % 4 == 0))
        body = {"metadata": {"name": HOLDOUT_CONFIG_MAP}, "data": {EVIDENCE_KEY: evidence.text()}}
        await stage.client.create(CONFIG_MAPS, body, "joulie-system")
        await stage.add_node()
        await stage.step()
        for number in range(2):
            uid = next(uid for uid in (f"{number}-{one}" for one in range(99)) if not left_out(uid, 0.5))
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
            waited = {names.HOLDOUT: "waits 0.5", names.INITIAL_CARBON_INTENSITY: "300"}
            await stage.add_pod(f"p{number}", owner=owner, annotations=waited)
            await stage.step(60.0)
            await stage.end_pod(f"p{number}", stage.clock.now_s)
            await stage.step(600.0)  # and keeps
        known = stage.holdouts.deferral.evidence
        assert known.now.units == 1, "there is nothing to compare the first one with"

        stage.start()
        await stage.step(30.0)
        assert stage.holdouts.evidence == {LIMITS_EVIDENCE: evidence, DEFERRAL_EVIDENCE: known}
        assert stage.metric("joulie_accounting_holdout_workloads", arm="waits") == 1.0
        limits = msgspec.json.decode((await stage.ask("/api/v1/savings"))[1])["limits"]
        assert (limits["workloads"], limits["leftOut"]) == (60, 15)
        assert limits["lowPct"] < limits["savedPct"] < limits["highPct"]
        assert msgspec.json.decode((await stage.ask("/api/v1/savings", namespace="default"))[1])["limits"] is None
        report = msgspec.json.decode((await stage.ask("/api/v1/report"))[1])
        assert [one["units"] for one in report["savings"]] == [60, 1]
        own = msgspec.json.decode((await stage.ask("/api/v1/report", namespace="default"))[1])
        assert own["savings"] == [], "what all namespaces save is for who may see them all"

        # The operator's evidence is spoilt, and that of this program too.
        await stage.client.patch(
            CONFIG_MAPS, HOLDOUT_CONFIG_MAP, {"data": {EVIDENCE_KEY: "{"}}, namespace="joulie-system"
        )
        stage.ledger.keep({DEFERRAL_EVIDENCE: "[]", DEFERRAL_MEMORY: "{}"})
        stage.start()
        await stage.step(30.0)
        await stage.step(600.0)
        assert stage.holdouts.evidence == {LIMITS_EVIDENCE: evidence, DEFERRAL_EVIDENCE: NO_MONTHS}
        assert len(stage.holdouts.problems) == 3
        notes = msgspec.json.decode((await stage.ask("/api/v1/report"))[1])["notes"]
        assert sum(note.startswith("begun anew") for note in notes) == 3

    play(story, tmp_path)
    assert caplog.text.count("evidence of a holdout is spoilt") == 3


@played(play)
async def test_a_pod_that_ends_is_accounted_to_its_end(stage):
    await stage.add_node()
    await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()
    await stage.end_pod("a", T0 + 12.0)
    await stage.step(30.0)
    await stage.step(30.0)
    power_w = cpu_w(1.0, 1.0, 2)
    assert stage.energy_j()["a"].cpu_j == pytest.approx(power_w * 12.0, rel=1e-9)
    assert stage.metric(f"{PREFIX}job_energy_usage_kwh", pod="a", namespace="default") == pytest.approx(
        power_w * 12.0 * PUE / KWH
    )


@played(play)
async def test_runtimes_are_learned_from_the_runs_of_a_job_template(stage):
    """Two pods of a Job, one after the other, are one run; services and failures say nothing."""

    await stage.add_node()
    await stage.step()
    for number in range(3):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"etl-x7k2{'bcd'[number]}", "uid": f"u{number}",
                 "controller": True}  # fmt: skip
        for pod, length_s in ((f"a{number}", 60.0), (f"b{number}", 120.0 + number)):
            await stage.add_pod(pod, owner=owner)
            await stage.step(length_s)
            await stage.end_pod(pod, stage.clock.now_s)
            await stage.step(30.0)
    await stage.add_pod("web", owner=owner | {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"})
    await stage.step(60.0)
    await stage.end_pod("web", stage.clock.now_s)
    await stage.step(30.0)
    status, answer = await stage.ask("/api/v1/runtimes", quantile="0.5")
    assert status == 200
    assert msgspec.json.decode(answer) == {
        "quantile": 0.5,
        "items": [{"namespace": "default", "kind": "Job", "name": "etl", "runtimeS": 181.0, "runs": 3}],
    }
    assert (await stage.ask("/api/v1/runtimes", quantile="2"))[0] == 400
    assert msgspec.json.decode((await stage.ask("/api/v1/runtimes", namespace="other"))[1])["items"] == []


@played(play)
async def test_a_pod_that_vanishes_is_accounted_until_it_was_seen_to_go(stage):
    await stage.add_node()
    await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()
    stage.clock.now_s += 20.0
    await stage.delete_pod("a")
    await stage.step(10.0)
    assert stage.energy_j()["a"].cpu_j == pytest.approx(cpu_w(1.0, 1.0, 2) * 20.0, rel=1e-9)
    assert not stage.view.departed


@played(play)
async def test_a_pod_between_two_samples_is_accounted_by_its_requests(stage):
    await stage.add_node()
    await stage.step()
    stage.clock.now_s += 5.0
    await stage.add_pod("quick", cores=2)
    stage.clock.now_s += 10.0
    await stage.delete_pod("quick")
    await stage.step(15.0)
    await stage.step(30.0)
    found = stage.energy_j()["quick"]
    assert found.cpu_j == pytest.approx(cpu_w(2.0, 2.0, 2) * 10.0, rel=1e-9)
    assert found.assumed_j == found.energy_j


@played(play)
async def test_trap_two_pods_of_one_name_are_two(stage):
    await stage.add_node()
    first = await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()
    await stage.step(30.0)
    await stage.delete_pod("a")
    second = await stage.add_pod("a")
    await stage.step(30.0)
    rows = {row.uid: row.energy.cpu_j for row in stage.ledger.usage(Grouping.POD) if row.name == "a"}
    assert set(rows) == {first, second}
    assert rows[first] == pytest.approx(cpu_w(1.0, 1.0, 2) * 30.0, rel=1e-9)
    assert rows[second] == pytest.approx(cpu_w(1.0, 1.0, 2) * 30.0, rel=1e-9)
    shown = stage.metrics.registry.get_sample_value(
        f"{PREFIX}job_energy_usage_kwh", {"pod": "a", "namespace": "default"}
    )
    assert shown is not None


@played(play)
async def test_trap_history_survives_a_restart_and_the_gap_is_accounted(stage):
    await stage.add_node()
    await stage.add_pod("stays")
    await stage.add_pod("goes")
    stage.usage.cores(stays=1.0, goes=1.0)
    await stage.step()
    await stage.step(30.0)
    before = stage.energy_j()
    stage.ledger.close()
    await stage.delete_pod("goes")
    stage.start()
    stage.usage.cores(stays=1.0)
    await stage.step(1800.0)
    after = stage.energy_j()
    assert after["goes"] == before["goes"], "nothing is left that says when it ended: with its last sample"
    assert after["stays"].energy_j > before["stays"].energy_j
    assert after["stays"].assumed_j == pytest.approx(after["stays"].energy_j - before["stays"].energy_j)
    total = stage.metric("joulie_namespace_energy_joules_total", namespace="default")
    assert total == pytest.approx(after["stays"].energy_j + after["goes"].energy_j)
    assert not [uid for uid, one in stage.ledger.open_pods().items() if one.pod.name == "goes"]


@played(play)
async def test_a_ledger_that_fails_costs_no_energy(stage, monkeypatch):
    await stage.add_node()
    await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()

    def fails(_cycle):
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stage.ledger, "append", fails)
        await stage.end_pod("a", T0 + 20.0)
        await stage.step(30.0, result="error")
    with monkeypatch.context() as patch:
        patch.setattr(stage.ledger, "open_pods", lambda: fails(None))
        await stage.step(30.0, result="error")
    await stage.step(30.0)
    assert stage.energy_j()["a"].cpu_j == pytest.approx(cpu_w(1.0, 1.0, 2) * 20.0, rel=1e-9)
    total = stage.metric("joulie_namespace_energy_joules_total", namespace="default")
    assert total == pytest.approx(stage.energy_j()["a"].energy_j)


# ---- savings


async def waited(stage):
    """A pod starts after an hour in which it waited for cleaner power."""
    stage.feed.carbon_steps = {T0: 500.0, T0 + 3600.0: 100.0}
    await stage.add_node()
    await stage.step()
    for _ in range(12):
        await stage.step(300.0)
    held = {
        names.CARBON_DELAY_TIMESTAMP: rfc3339(T0),
        names.INITIAL_CARBON_INTENSITY: "500",
        names.BIND_CARBON_INTENSITY: "100",
    }
    await stage.add_pod("waited", annotations=held)
    stage.usage.cores(waited=1.0)


@played(play)
async def test_a_pod_that_waited_has_savings_by_the_series_of_then(stage):
    await waited(stage)
    await stage.step(300.0)
    await stage.end_pod("waited", T0 + 3900.0 + 60.0)
    await stage.step(300.0)
    energy_j = stage.energy_j()["waited"].energy_j
    (saved,) = stage.ledger.savings()
    assert (saved.method, saved.measure) == ("timeseries", "carbon")
    assert saved.amount == pytest.approx(energy_j / KWH * 400.0, rel=1e-9)
    labels = {"type": "carbon", "unit": "grams_co2", "method": "timeseries", "namespace": "default"}
    assert stage.metric(f"{PREFIX}estimated_savings", **labels) == pytest.approx(saved.amount)
    assert stage.metric(f"{PREFIX}scheduling_efficiency", metric="carbon_intensity_delta", namespace="default") == 400.0
    stage.ledger.close()
    stage.start()
    await stage.step(30.0)
    assert stage.metric(f"{PREFIX}estimated_savings", **labels) == pytest.approx(saved.amount)
    _, body = await stage.ask("/api/v1/savings", namespace="default")
    assert msgspec.json.decode(body)["items"][0]["name"] == "waited"


@played(play)
async def test_g13_g14_pods_have_series_of_their_own_under_the_gardeners_prefix(stage):
    await waited(stage)
    await stage.step(30.0)
    stage.usage.cores(waited=3.0)
    await stage.step(30.0)

    def metric(name, **labels):
        return stage.metric("compute_gardener_scheduler_" + name, **labels)

    def phases(name):
        pod = {"node": "n1", "pod": "waited", "namespace": "default"}
        return [metric(name, **pod, phase=phase) for phase in ("baseline", "current", "final")]

    assert phases("node_cpu_usage_cores") == [1.0, 3.0, None]
    low_w, high_w, _ = phases("node_power_estimate_watts")
    assert 0.0 < low_w < high_w
    assert metric("node_pue", node="n1") == PUE
    assert metric("node_efficiency", node="n1") == pytest.approx(CORES / (MAX_W * PUE))
    await stage.end_pod("waited", stage.clock.now_s + 10.0)
    await stage.step(30.0)
    assert phases("node_cpu_usage_cores") == [None, None, 3.0]
    pod = {"pod": "waited", "namespace": "default"}
    energy, (saved,) = stage.energy_j()["waited"], stage.ledger.savings()
    assert metric("job_energy_usage_kwh", **pod) == pytest.approx(energy.energy_j / KWH)
    assert metric("job_gpu_energy_usage_kwh", **pod) == 0.0
    emitted_g = metric("job_carbon_emissions_grams", **pod)
    assert emitted_g == pytest.approx(energy.energy_j / KWH * 100.0)
    counterfactual_g = metric("job_counterfactual_carbon_emissions_grams", **pod)
    assert counterfactual_g == pytest.approx(emitted_g + saved.amount) == pytest.approx(5.0 * emitted_g)
    labels = {"type": "carbon", "unit": "grams_co2", "method": "timeseries"}
    assert metric("estimated_savings", **labels, **pod) == pytest.approx(saved.amount)
    assert metric("scheduling_efficiency", metric="carbon_intensity_delta", **pod) == 400.0
    assert metric("job_energy_usage_kwh_sum", namespace="default") == pytest.approx(energy.energy_j / KWH)
    await stage.step(7200.0)
    assert phases("node_cpu_usage_cores") == [None, None, None]


# ---- budgets


def budget(kwh, action):
    return {names.ENERGY_BUDGET_KWH: kwh, names.ENERGY_BUDGET_ACTION: action}


async def annotations_of(stage, name):
    return (await stage.client.get(PODS, name, "default")).metadata.annotations


@played(play)
async def test_a_budget_is_acted_on_once_also_over_a_restart(stage):
    await stage.add_node()
    await stage.add_pod("a", annotations=budget("0.001", "annotate"))
    stage.usage.cores(a=5.0)
    await stage.step()
    await stage.step(5.0)
    assert names.BUDGET_EXCEEDED not in await annotations_of(stage, "a")
    await stage.step(600.0)
    said = await annotations_of(stage, "a")
    assert said[names.BUDGET_EXCEEDED] == "true"
    assert float(said[names.ENERGY_USAGE_KWH]) == pytest.approx(stage.energy_j()["a"].energy_j / KWH, rel=1e-5)
    assert float(said[names.BUDGET_EXCEEDED_BY]) == pytest.approx(float(said[names.ENERGY_USAGE_KWH]) - 0.001, rel=1e-4)
    percent = stage.metric(f"{PREFIX}energy_budget_usage_percent", pod="a", namespace="default")
    assert percent == pytest.approx(float(said[names.ENERGY_USAGE_KWH]) / 0.001 * 100.0, rel=1e-5)
    counted = {"namespace": "default", "owner_kind": "Pod", "action": "annotate"}
    assert stage.metric(f"{PREFIX}energy_budget_exceeded_total", **counted) == 1.0
    assert len(await stage.reported("EnergyBudgetExceeded")) == 1
    stage.ledger.close()
    stage.start()
    await stage.step(30.0)
    assert stage.metric(f"{PREFIX}energy_budget_exceeded_total", **counted) is None
    assert await annotations_of(stage, "a") == said


@played(play)
async def test_in_observe_mode_a_budget_is_reported_and_changes_no_object(stage):
    stage.budgets._mode = Mode.OBSERVE
    await stage.add_node()
    for name in ("annotate", "label", "suspend"):
        await stage.add_pod(name, annotations=budget("0.001", name))
    stage.usage.cores(annotate=5.0, label=5.0, suspend=5.0)
    await stage.step()
    versions = {pod.metadata.name: pod.metadata.resource_version for pod in (await stage.client.list(PODS)).items}
    await stage.step(600.0)
    assert versions == {
        pod.metadata.name: pod.metadata.resource_version for pod in (await stage.client.list(PODS)).items
    }
    messages = [event.message for event in await stage.reported("EnergyBudgetExceeded")]
    assert len(messages) == 3
    assert all("observe mode" in message for message in messages)


@played(play)
async def test_a_job_is_suspended_only_where_it_says_that_it_may(stage):
    await stage.add_node()
    jobs = {}
    for name, said in (("may", "true"), ("must-not", "false")):
        meta = {"name": name, "annotations": {names.INTERRUPTIBLE: said}}
        jobs[name] = await stage.client.create(JOBS, {"metadata": meta, "spec": {}}, "default")
    for name, job in jobs.items():
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.metadata.uid, "controller": True}
        await stage.add_pod(f"{name}-x", annotations=budget("0.001", "suspend"), owner=owner)
    await stage.step()
    await stage.step(600.0)
    suspended = {job.metadata.name: job.spec.suspend for job in (await stage.client.list(JOBS)).items}
    assert suspended["may"] is True
    assert not suspended["must-not"]
    said = [event.message for event in await stage.reported("EnergyBudgetExceeded")]
    assert len(said) == 2
    assert sum("suspend failed" in message for message in said) == 1


@played(play)
async def test_a_namespace_has_a_budget_of_its_own_and_gives_its_pods_theirs(stage):
    policies = {
        NAMESPACE_BUDGET_KWH: "0.01",
        NAMESPACE_BUDGET_ACTION: "notify",
        names.POLICY_PREFIX + "energy-budget-kwh": "0.001",
        names.POLICY_PREFIX + "energy-budget-action": "label",
    }
    meta = {"name": "team", "annotations": policies, "labels": {names.POLICIES_LABEL: names.POLICIES_ENABLED}}
    await stage.client.create(NAMESPACES, {"metadata": meta})
    await stage.until(lambda: "team" in stage.view.namespaces)
    await stage.add_node()
    await stage.add_pod("a", namespace="team")
    await stage.add_pod("b", namespace="team")
    await stage.step()
    await stage.step(60.0)
    await stage.step(600.0)
    labels = (await stage.client.get(PODS, "a", "team")).metadata.labels
    assert labels[names.BUDGET_EXCEEDED] == "true"
    regarding = {event.involved_object.kind for event in await stage.reported("EnergyBudgetExceeded")}
    assert regarding == {"Pod", "Namespace"}
    used_j = sum(one.energy_j for name, one in stage.energy_j().items() if name in "ab")
    assert used_j > 0.01 * KWH


async def annotate_namespace(stage, name="default", **said):
    keys = {"kwh": NAMESPACE_BUDGET_KWH, "action": NAMESPACE_BUDGET_ACTION, "period": NAMESPACE_BUDGET_PERIOD}
    annotations = {keys[key]: value for key, value in said.items()}
    await stage.client.patch(NAMESPACES, name, {"metadata": {"annotations": annotations}})
    read = {key: value for key, value in annotations.items() if value is not None}
    await stage.until(lambda: read.items() <= stage.view.namespaces[name].annotations.items())


@pytest.mark.parametrize("kind", ["annotate", "label"])
@played(play)
async def test_g4_marks_of_a_namespace_go_when_its_period_turns(stage, kind):
    await annotate_namespace(stage, kwh="0.005", action=kind, period="day")
    await stage.add_node()
    await stage.add_pod("a")
    await stage.step()
    await stage.step(600.0)

    async def marks():
        meta = (await stage.client.get(NAMESPACES, "default")).metadata
        return {key for key in (*meta.annotations, *meta.labels) if key.startswith(names.PREFIX)}

    assert names.BUDGET_EXCEEDED in await marks()
    await stage.until(lambda: names.BUDGET_EXCEEDED in str(stage.view.namespaces["default"]))
    await stage.step(600.0)
    assert names.BUDGET_EXCEEDED in await marks(), "it holds while the day lasts"
    await stage.delete_pod("a")
    await stage.step(16 * 3600.0)  # midnight is after 16 hours
    await stage.step(600.0)
    assert await marks() == set()


@played(play)
async def test_g4_a_mark_of_a_pod_goes_when_its_budget_is_raised(stage):
    await stage.add_node()
    await stage.add_pod("a", annotations=budget("0.001", "label"))
    await stage.step()
    await stage.step(600.0)
    assert (await stage.client.get(PODS, "a", "default")).metadata.labels[names.BUDGET_EXCEEDED] == "true"
    raised = {"metadata": {"annotations": {names.ENERGY_BUDGET_KWH: "1000"}}}
    await stage.client.patch(PODS, "a", raised, namespace="default")
    await stage.until(lambda: stage.view.pods[0].annotations[names.ENERGY_BUDGET_KWH] == "1000")
    await stage.step(30.0)
    assert names.BUDGET_EXCEEDED not in (await stage.client.get(PODS, "a", "default")).metadata.labels


@pytest.mark.parametrize("spelling", ["true", "True", "1"])
@played(play)
async def test_g4_the_template_of_a_job_is_read(stage, spelling):
    await stage.add_node()
    template = {"metadata": {"annotations": {names.INTERRUPTIBLE: spelling}}}
    body = {"metadata": {"name": "may"}, "spec": {"template": template}}
    job = await stage.client.create(JOBS, body, "default")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "may", "uid": job.metadata.uid, "controller": True}
    await stage.add_pod("may-x", annotations=budget("0.001", "suspend"), owner=owner)
    await stage.step()
    await stage.step(600.0)
    assert (await stage.client.get(JOBS, "may", "default")).spec.suspend is True


@played(play)
async def test_g4_a_namespace_that_suspends_has_an_energy_budget(stage):
    stage.follow()
    await stage.add_node()
    await stage.add_pod("a")
    await annotate_namespace(stage, kwh="0.005", action="suspend", period="day")
    await stage.step()

    def found():
        return stage.energy_budgets.budgets.get(("default", DECLARED_NAME))

    await stage.until(found)
    assert (found().spec.limits.energy_kwh, found().spec.period, found().spec.action) == (0.005, "day", "suspend")
    await stage.step(600.0)
    await stage.until(lambda: found().status.used_pct)
    used_kwh = stage.energy_j()["a"].energy_j / KWH
    assert found().status.used.energy_kwh == pytest.approx(used_kwh, rel=1e-6)
    assert found().status.period_end == "2027-01-16T00:00:00Z"
    assert condition(found(), "Exhausted") == ("True", "Exhausted")
    assert len(await stage.reported("EnergyBudgetExhausted")) == 1
    await annotate_namespace(stage, kwh=None)
    await stage.until(lambda: NAMESPACE_BUDGET_KWH not in stage.view.namespaces["default"].annotations)
    await stage.step(30.0)
    await stage.until(lambda: not found())


# ---- EnergyBudgets


def condition(found, kind):
    (one,) = (each for each in found.status.conditions if each.type == kind)
    return one.status, one.reason


async def energy_budget(stage, name="team", **spec):
    """Makes an EnergyBudget; the function that gives it as it is seen."""
    body = {"metadata": {"name": name}, "spec": {"limits": {"energyKWh": 1.0}, "period": "day", **spec}}
    await stage.client.create(ENERGY_BUDGETS, body, "default")

    def found():
        return stage.energy_budgets.budgets.get(("default", name))

    await stage.until(found)
    return found


@played(play)
async def test_an_energy_budget_says_what_is_used_and_expected_and_warns_before(stage):
    stage.follow()
    await stage.add_node()
    await stage.add_pod("a")
    limits = {"energyKWh": 0.04, "emissionsG": 1000.0, "cost": 100.0}
    found = await energy_budget(stage, limits=limits, warnAt=[0.5, 0.25])
    await stage.step()
    for passed_s in (600.0, 600.0, 600.0):
        await stage.step(passed_s)
    await stage.until(lambda: found().status.used_pct)
    energy, status = stage.energy_j()["a"], found().status
    share = energy.energy_j / KWH / 0.04
    assert status.used_pct == pytest.approx(share * 100.0, abs=0.01)
    assert status.used.emissions_g == pytest.approx(energy.emissions_g, rel=1e-6)
    assert status.used.cost == pytest.approx(energy.cost, rel=1e-6)
    # Half an hour says nothing about a day.
    assert (status.forecast, status.forecast_pct) == (None, None)
    assert status.forecast_from == "2027-01-15T09:00:00Z"
    assert stage.metric("joulie_energy_budget_forecast_ratio", namespace="default", budget="team") is None
    assert status.currency == "EUR"
    notes = [event.message for event in await stage.reported("EnergyBudgetWarning")]
    assert len(notes) == 2
    assert "of 0.04 kWh" in notes[0]
    assert "expected" not in notes[0]
    ratio = stage.metric("joulie_energy_budget_used_ratio", namespace="default", budget="team")
    assert ratio == pytest.approx(share, rel=1e-6)
    stage.ledger.close()
    stage.start()
    stage.follow()
    await stage.until(found)
    await stage.step(30.0)
    assert len(await stage.reported("EnergyBudgetWarning")) == 2, "a restart warns of nothing again"
    for _ in range(3):
        await stage.step(600.0)
    await stage.until(lambda: found().status.forecast is not None)
    power_w = cpu_w(2.0, 2.0, 2) * PUE
    left_s = 15.0 * 3600.0 - 30.0
    expected_kwh = (stage.energy_j()["a"].energy_j + power_w * left_s) / KWH
    assert found().status.forecast.energy_kwh == pytest.approx(expected_kwh, rel=1e-6)
    assert found().status.forecast_from is None


@played(play)
async def test_an_energy_budget_is_for_an_owner_or_for_labels(stage):
    stage.follow()
    await stage.add_node()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    await stage.add_pod("mine", owner=owner)
    await stage.add_pod("other", cores=4)
    labelled = {"metadata": {"labels": {"team": "blue"}}}
    await stage.client.patch(PODS, "other", labelled, namespace="default")
    await stage.step()
    of_job = await energy_budget(stage, "job", target={"owner": {"kind": "Job", "name": "train"}})
    of_team = await energy_budget(stage, "label", target={"matchLabels": {"team": "blue"}})
    await stage.step(300.0)
    await stage.step(300.0)
    await stage.until(lambda: of_job().status.used_pct and of_team().status.used_pct)
    energy_j = {name: one.energy_j / KWH for name, one in stage.energy_j().items()}
    assert of_job().status.used.energy_kwh == pytest.approx(energy_j["mine"], rel=1e-6)
    # Labels are not in the ledger: it counts from its first cycle on, with that cycle's own energy.
    assert of_team().status.used.energy_kwh == pytest.approx(energy_j["other"], rel=1e-6)


@played(play)
async def test_a_period_of_another_zone_turns_at_its_own_midnight(stage):
    stage.follow()
    await stage.add_node()
    await stage.add_pod("a")
    found = await energy_budget(stage, timeZone="Asia/Kathmandu")
    await stage.step()
    await stage.step(10 * 3600.0 + 1800.0)  # 18:30 UTC, midnight is at 18:15
    await stage.until(lambda: found().status.used_pct)
    assert found().status.period_start == "2027-01-15T18:15:00Z"
    power_w = cpu_w(2.0, 2.0, 2) * PUE
    assert found().status.used.energy_kwh == pytest.approx(power_w * 900.0 / KWH, rel=1e-6)


@played(play)
async def test_a_ledger_that_is_away_and_missing_signals_and_unknown_zones_are_told(stage, monkeypatch):
    stage.follow()
    await stage.add_node()
    await stage.add_pod("a")
    team = await energy_budget(stage)
    green = await energy_budget(stage, "green", limits={"emissionsG": 10.0})
    wrong = await energy_budget(stage, "wrong", timeZone="Mars/Olympus")
    stage.feed.missing = True
    await stage.step()
    await stage.step(600.0)
    await stage.until(lambda: condition(team(), "UsageKnown")[0] == "True")
    assert condition(green(), "UsageKnown") == ("False", "SignalsMissing")
    assert condition(green(), "Exhausted") == ("Unknown", "SignalsMissing")
    assert green().status.used_pct is None
    assert condition(wrong(), "UsageKnown") == ("False", "InvalidTimeZone")
    measured = team().status.last_updated

    def away(_cycle):
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stage.ledger, "append", away)
        await stage.step(300.0, result="error")
    await stage.until(lambda: condition(team(), "UsageKnown")[0] == "False")
    assert condition(team(), "UsageKnown") == ("False", "LedgerUnavailable")
    assert (team().status.last_updated, condition(team(), "Exhausted")[0]) == (measured, "False")
    unknown = {"namespace": "default", "budget": "team"}
    assert stage.metric("joulie_energy_budget_usage_unknown", **unknown) == 1.0
    await stage.step(30.0)
    await stage.until(lambda: condition(team(), "UsageKnown")[0] == "True")
    assert stage.metric("joulie_energy_budget_usage_unknown", **unknown) == 0.0


@played(play)
async def test_what_cannot_be_read_is_reported_once_and_ignored(stage):
    await stage.add_node()
    await stage.add_pod("a", annotations={names.PUE: "0.5", names.ENERGY_BUDGET_KWH: "lots"})
    for _ in range(3):
        await stage.step(30.0)
    reported = await stage.reported("InvalidAnnotation")
    assert sorted(event.message.split(" ")[1] for event in reported) == [names.ENERGY_BUDGET_KWH, names.PUE]
    assert {event.count for event in reported} == {1}
    found = stage.energy_j()["a"]
    assert found.energy_j == pytest.approx(found.cpu_j * PUE)


# ---- what is shown


@played(play)
async def test_trap_series_of_single_pods_are_bounded_and_leave(stage):
    stage.metrics = AccountingMetrics(max_pods=2, retention_s=100.0)
    await stage.add_node()
    for number in range(4):
        await stage.add_pod(f"p{number}", cores=1, annotations=budget("1", "log"))
    stage.accountant._components.__dict__["metrics"] = stage.metrics
    await stage.step()
    for number in range(4):
        await stage.end_pod(f"p{number}", stage.clock.now_s + 1.0)
    await stage.step(30.0)

    def series(name):
        family = [one for one in stage.metrics.registry.collect() if one.name == name]
        return [sample.labels for one in family for sample in one.samples]

    assert len(series(f"{PREFIX}job_energy_usage_kwh")) == 2
    await stage.step(200.0)
    assert series(f"{PREFIX}job_energy_usage_kwh") == []
    assert series(f"{PREFIX}energy_budget_usage_percent") == []


@played(play)
async def test_nodes_have_phases(stage):
    await stage.add_node()
    await stage.add_pod("a")
    stage.usage.cores(a=1.0)
    await stage.step()
    await stage.add_pod("b")
    stage.usage.cores(a=1.0, b=3.0)
    await stage.step(30.0)
    await stage.end_pod("b", stage.clock.now_s + 1.0)
    stage.usage.cores(a=1.5)
    await stage.step(30.0)
    cores = {
        phase: stage.metric(f"{PREFIX}node_cpu_usage_cores", node="n1", phase=phase)
        for phase in ("baseline", "current", "final")
    }
    assert cores == {"baseline": 1.0, "current": 1.5, "final": 1.5}
    power_w = stage.metric(f"{PREFIX}node_power_estimate_watts", node="n1", phase="current")
    assert power_w == pytest.approx(IDLE_W + (MAX_W - IDLE_W) * 0.15**1.4)


@played(play)
async def test_what_pods_reserve_and_deliver_is_booked_for_the_report_of_the_month(stage):
    await stage.add_node()
    await stage.add_pod("job", cores=2, annotations={names.FUNCTIONAL_UNITS: "5000 images"})
    await stage.add_pod("bad", cores=1, annotations={names.FUNCTIONAL_UNITS: "many"})
    await stage.step()
    await stage.step(1000.0)
    await stage.end_pod("job", stage.clock.now_s + 500.0)
    for _ in range(2):
        await stage.step(1000.0)
    found = stage.ledger.month(Month.of(T0))
    assert [(workload.name, count.unit, count.amount) for workload, count in found.units] == [("job", "images", 5000.0)]
    reserved = {one.workload.name: one.reserved_s.cpu for one in found.reserved}
    assert reserved["job"] == pytest.approx(1500.0 * 2 / CORES)
    assert sum(reserved.values()) == pytest.approx(3000.0)
    assert {one.asset for one in found.reserved} == {None}, "a node of unknown hardware"
    (event,) = await stage.reported("InvalidAnnotation")
    assert "joulie.io/functional-units" in event.message


@played(play)
async def test_the_export_can_be_recomputed_by_the_script_of_the_howto(stage, tmp_path, monkeypatch):
    await stage.add_node()
    await stage.add_pod("a")
    await stage.add_pod("b", cores=3)
    for cores in (1.0, 2.0, 0.5):
        stage.usage.cores(a=cores, b=2.0)
        await stage.step(600.0)
    _, body = await stage.ask("/api/v1/export")
    rows = msgspec.json.Decoder().decode_lines(body)
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0])
    table.writeheader()
    table.writerows(rows)

    (tmp_path / "energy.csv").write_text(text.getvalue())
    monkeypatch.chdir(tmp_path)
    script = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len(script.strip().splitlines()) <= 15
    made = {}
    exec(script, made)

    status, body = await stage.ask("/api/v1/energy", by="namespace")
    told = {item["name"]: item for item in msgspec.json.decode(body)["items"]}
    assert status == 200
    assert made["energy_j"] == pytest.approx({name: item["energyJ"] for name, item in told.items()}, rel=1e-9)
    assert made["emissions_g"] == pytest.approx({name: item["emissionsG"] for name, item in told.items()}, rel=1e-9)
    assert set(told) == {"default", "__idle__"}


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ({"by": "cluster"}, 400, "invalid by"),
        ({"by": "pod", "since": "-5"}, 400, "since"),
        ({"by": "day"}, 200, "items"),
        ({"by": "label"}, 400, "label:KEY"),
        ({"by": "label:region"}, 400, "label region is not in ENERGY_LABELS of the accounting program: it has team"),
        ({"by": "label:team,node,namespace"}, 400, "at most two"),
        ({"by": "label:team,node", "step": "day"}, 200, '"labelKeys":["team"]'),
    ],
)
@played(play)
async def test_questions_that_cannot_be_are_refused(stage, query, status, word):
    found, body = await stage.ask("/api/v1/energy", **query)
    assert (found, word in body.decode()) == (status, True)


@played(play)
async def test_energy_by_label_and_namespace_is_that_of_its_pods(stage):
    await stage.add_node()
    for name, labels in (("a", {"team": "vision", "run": "1"}), ("b", {"team": "nlp"}), ("c", {})):
        await stage.add_pod(name, labels=labels)
    stage.usage.cores(a=2.0, b=1.0, c=0.5)
    await stage.step()
    await stage.step(60.0)
    pods = stage.energy_j()
    _, body = await stage.ask("/api/v1/energy", by="namespace,label:team")
    answer = msgspec.json.decode(body)
    found = {(item["name"], item["namespace"]): item["energyJ"] for item in answer["items"]}
    assert (answer["by"], answer["labelKeys"]) == ("label:team,namespace", ["team"])
    assert found == {
        ("vision", "default"): pods["a"].energy_j,
        ("nlp", "default"): pods["b"].energy_j,
        ("__unlabelled__", "default"): pods["c"].energy_j,
        ("__idle__", "__idle__"): pods["unallocated"].energy_j,
    }
    assert answer["items"][-1]["labels"] == {"team": answer["items"][-1]["name"]}
    _, body = await stage.ask("/api/v1/export")
    rows = [msgspec.json.decode(line) for line in body.splitlines()]
    assert {row["pod"]: row["labels"] for row in rows if row["pod"] in pods} == {
        "a": "team=vision", "b": "team=nlp", "c": "", "unallocated": ""
    }  # fmt: skip


# ---- what must not happen


@played(play)
async def test_trap_a_pod_that_failed_long_ago_is_not_accounted_when_it_is_removed(stage):
    """A kubelet that evicts a pod may leave no conditions, and so no word of when it ended."""
    await stage.add_node()
    await stage.add_pod("evicted")
    stage.usage.cores(evicted=1.0)
    await stage.step()
    await stage.step(30.0)
    status = {"status": {"phase": "Failed", "reason": "Evicted"}}
    await stage.client.patch(PODS, "evicted", status, namespace="default", subresource="status")
    await stage.until(lambda: not stage.view.pods[0].running)
    await stage.step(30.0)
    before = stage.energy_j(Grouping.NAMESPACE)["default"]
    for _ in range(3):
        await stage.step(2 * 86400.0)
    stage.clock.now_s += 10.0
    await stage.delete_pod("evicted")
    await stage.step(20.0)
    assert stage.energy_j(Grouping.NAMESPACE)["default"].energy_j == pytest.approx(before.energy_j)


@played(play)
async def test_energy_of_pods_that_are_kept_no_more_is_not_said_to_be_idle(stage):
    await stage.add_node()
    await stage.add_pod("a", cores=10)
    stage.usage.cores(a=1.0)
    await stage.step()
    await stage.step(30.0)
    await stage.end_pod("a", stage.clock.now_s)
    await stage.step(30.0)
    before = {name: one.energy_j for name, one in stage.energy_j(Grouping.NAMESPACE).items()}
    stage.ledger.prune(stage.clock.now_s + 4 * 86400.0)
    for by in ("pod", "node"):
        _, body = await stage.ask("/api/v1/energy", by=by)
        found = {item["name"]: item["energyJ"] for item in msgspec.json.decode(body)["items"]}
        assert found == {"__folded__": pytest.approx(before["default"] + before[""])}


@played(play)
async def test_the_answer_says_since_when_it_counts(stage):
    await stage.add_node()
    await stage.step()
    await stage.step(7200.0 + 1800.0)
    _, body = await stage.ask("/api/v1/energy", by="node", since=1800 + 600)
    answer = msgspec.json.decode(body)
    assert answer["since"] == T0 + 3600.0, "whole hours: from that before half past"
    assert answer["items"][0]["energyJ"] == pytest.approx(IDLE_W * (3600.0 + 1800.0) * PUE)


async def crossed_at_its_end(stage):
    """A pod ends with more energy than its budget, which no step has seen yet."""
    await stage.add_node()
    await stage.add_pod("a", annotations=budget("0.001", "label"))
    stage.usage.cores(a=5.0)
    await stage.step()
    await stage.end_pod("a", T0 + 600.0)


@played(play)
async def test_a_budget_that_is_crossed_at_the_end_of_a_pod_is_acted_on(stage):
    await crossed_at_its_end(stage)
    await stage.step(600.0)
    assert (await stage.client.get(PODS, "a", "default")).metadata.labels[names.BUDGET_EXCEEDED] == "true"


@pytest.mark.parametrize("status", [503, 429])
@played(play)
async def test_an_action_that_fails_is_tried_again_though_its_pod_has_ended(stage, monkeypatch, status):
    await crossed_at_its_end(stage)

    async def refuses(*_args, **_kwargs):
        raise ApiError(status, "away", "later")

    with monkeypatch.context() as patch:
        patch.setattr(stage.client, "patch", refuses)
        await stage.step(600.0)
    await stage.step(30.0)
    assert (await stage.client.get(PODS, "a", "default")).metadata.labels[names.BUDGET_EXCEEDED] == "true"
    assert len(await stage.reported("EnergyBudgetExceeded")) == 1


@played(play)
async def test_a_job_that_is_gone_keeps_no_other_from_being_suspended(stage):
    meta = {"name": "there", "annotations": {names.INTERRUPTIBLE: "true"}}
    job = await stage.client.create(JOBS, {"metadata": meta, "spec": {}}, "default")
    await stage.add_node()
    for name, uid in (("gone", "1"), ("there", job.metadata.uid)):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
        await stage.add_pod(f"{name}-x", annotations=budget("0.001", "suspend"), owner=owner)
    await stage.step()
    await stage.step(600.0)
    assert (await stage.client.get(JOBS, "there", "default")).spec.suspend is True


@played(play)
async def test_trap_counters_of_namespaces_are_never_lower_after_a_restart(stage):
    """Prometheus takes the least bit less for a reset, and counts all of the energy again."""
    await stage.add_node()
    await stage.add_pod("a", cores=1)
    await stage.add_pod("b", cores=3)
    await stage.step()
    for number in range(60):
        stage.usage.cores(a=0.1 + number / 37.0, b=0.7 + number / 91.0)
        await stage.step(97.3)
    fields = ("energy_joules_total", "emissions_grams_total", "cost")
    before = [stage.metric(f"joulie_namespace_{field}", namespace="default") for field in fields]
    stage.ledger.prune(stage.clock.now_s + 500 * 86400.0)
    stage.ledger.close()
    stage.start()
    await stage.accountant._open_pods()
    told = stage.metrics._exported.totals["default"]
    assert [told.energy_j, told.emissions_g, told.cost] == before


@played(play)
async def test_a_node_that_left_is_no_job(stage):
    await stage.add_node()
    await stage.step()
    await stage.client.delete(NODES, "n1")
    await stage.until(lambda: not stage.view.snapshot().nodes)
    await stage.step(30.0)
    await stage.step(30.0)
    assert stage.metric(f"{PREFIX}job_energy_usage_kwh", pod="unallocated", namespace="") is None


@played(play)
async def test_trap_counts_of_namespaces_that_are_gone_are_removed(stage):
    stage.metrics.exceeded("default", "Pod", "log")
    stage.metrics.exceeded("gone", "Pod", "log")
    await stage.step()
    name = f"{PREFIX}energy_budget_exceeded_total"
    assert stage.metric(name, namespace="default", owner_kind="Pod", action="log") == 1.0
    assert stage.metric(name, namespace="gone", owner_kind="Pod", action="log") is None


@played(play)
async def test_a_clock_that_was_set_back_is_no_good_cycle(stage):
    await stage.add_node()
    await stage.step()
    await stage.step(-3600.0, result="error")
    await stage.step(3660.0)
    assert stage.energy_j()["unallocated"].cpu_j == pytest.approx(IDLE_W * 60.0)


def test_every_row_is_exported_however_many_there_are():
    row = ExportRow(0.0, 1.0, PodMeta("", "team", ""), "", Energy())

    class Many:
        def usage(self, by, **_span):
            return [UsageRow(0.0, 1.0, Energy())]

        def export(self, **_span):
            return iter([row] * 2500)

    async def main():
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"path": "/api/v1/export", "method": "GET", "query_string": b""}
        await EnergyApi(AsyncLedger(Many()), "EUR", lambda: 100.0).before(None)(scope, None, send)
        return b"".join(one.get("body", b"") for one in sent)

    assert asyncio.run(main()).count(b"\n") == 2500


def test_who_is_cancelled_leaves_nobody_else_in_the_ledger():
    async def main():
        started, go_on, seen = threading.Event(), threading.Event(), []

        def slow(_ledger):
            started.set()
            go_on.wait(10.0)
            seen.append("slow")

        ledger = AsyncLedger(None)
        first = asyncio.create_task(ledger.call(slow))
        await asyncio.to_thread(started.wait, 10.0)
        first.cancel()
        second = asyncio.create_task(ledger.call(lambda _ledger: seen.append("next")))
        await asyncio.sleep(0.02)
        go_on.set()
        await second
        assert seen == ["slow", "next"]
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())
