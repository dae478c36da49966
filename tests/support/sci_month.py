"""A simulated month of a cluster in two zones, sampled and booked by the accounting's own code.

Two servers of known hardware, one of them with GPUs, a cloud instance that only the inventory knows, and one of unknown
hardware; a service, training Jobs with a functional unit, a batch without one, and a pod without requests. Germany's
intensity is missing for five hours and published later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from joulie.adapters.inventory_file import load_inventory
from joulie.adapters.kubernetes.pods import Owner
from joulie.adapters.ledger import SqlLedger
from joulie.apps.accounting.facts import AccountedNode, AccountedPod
from joulie.apps.accounting.sampler import Sampler, SamplerSettings
from joulie.apps.accounting.usage import CADVISOR, Readings
from joulie.apps.accounting.view import ClusterSnapshot
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.identity import NodeFacts, PowerSettings
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.accounting.records import Completion, Cycle, UnitCount, ZoneSignals
from joulie.domain.accounting.sci import WorkloadKey
from joulie.domain.grid.series import Series
from joulie.domain.usage import PodUsage

OCTOBER = Month(2026, 10)
STEP_S, HOUR_S, DAY_S = 10800.0, 3600.0, 86400.0
OUTAGE_S = (OCTOBER.starts_s + 9 * DAY_S, OCTOBER.starts_s + 9 * DAY_S + 5 * HOUR_S)
REQUESTS_A_DAY = 1_000_000.0
IMAGES_A_JOB = 5000.0
WEB = WorkloadKey("shop", "Deployment", "web")
GIB = 1.024**3
INVENTORY = """
nodes:
- matchLabels: {node.kubernetes.io/instance-type: m5.large}
  name: m5.large (1/48 of a server)
  kg: 28
  lowKg: 18
  highKg: 55
  memoryShare: 0.4
  lifespanYears: 4
  source: example of a provider's statement
pue:
- {zone: DE, pue: 1.25, gpuPue: 1.3, source: "own meters, ISO/IEC 30134-2 category 2, 2025"}
residualMixes:
- {zone: DE, year: 2026, gPerKWh: 690, source: "AIB European Residual Mixes (example figure)"}
instruments:
- {kind: certificate, zone: DE, from: 2026-01-01, until: 2026-12-31, gPerKWh: 0, kWh: 4000, source: GO 42..81 (example)}
functionalUnits:
- namespace: shop
  kind: Deployment
  name: web
  unit: request
  query: sum(increase(http_requests_total{namespace="shop"}[$window]))
"""


def inventory(folder: Path):
    file = folder / "inventory.yaml"
    file.write_text(INVENTORY)
    return load_inventory(file)


def _node(name, labels, cores, gib, provider_id="", **gpus):
    facts = NodeFacts(
        name,
        labels={key.replace("__", "/"): value for key, value in labels.items()},
        provider_id=provider_id,
        cpu_cores=cores,
        memory_gb=gib * GIB,
        allocatable_gpus=gpus,
    )
    return AccountedNode(f"{name}-uid", facts)


def _nodes():
    xeon = {"joulie.io/hw.cpu-model": "Intel Xeon Gold 6148", "joulie.io/hw.cpu-sockets": "2"}
    gpu = xeon | {"nvidia.com/gpu.product": "NVIDIA-H100-NVL", "nvidia.com/gpu.count": "4"}
    cloud = {"node.kubernetes.io/instance-type": "m5.large"}
    nodes = [
        _node("cpu-1", xeon | {"joulie.io/grid-zone": "DE"}, 80.0, 188.0),
        _node("gpu-1", gpu | {"joulie.io/grid-zone": "DE"}, 80.0, 376.0, **{"nvidia.com/gpu": 4.0}),
        _node("cloud-1", cloud | {"joulie.io/grid-zone": "FR"}, 2.0, 7.6, "aws:///eu-west-3a/i-1"),
        _node("cloud-2", {"joulie.io/grid-zone": "FR"}, 2.0, 7.6, "aws:///eu-west-3a/i-2"),
    ]
    return {node.facts.name: node for node in nodes}


def _pod(name, node, owner, cores, gib, gpus=0.0, namespace="shop", started_s=None):
    return AccountedPod(
        f"{name}-uid",
        namespace,
        name,
        node,
        Owner(*owner),
        cpu_cores=cores,
        memory_gb=gib * GIB,
        gpus=gpus,
        started_s=started_s,
    )


def _running(time_s: float) -> tuple[list[AccountedPod], list[Completion]]:
    """Pods that run, and those that have ended in the step before."""
    start_s = OCTOBER.starts_s
    pods = [
        _pod("web-1", "cpu-1", ("Deployment", "web"), 16.0, 32.0),
        _pod("web-2", "cpu-1", ("Deployment", "web"), 16.0, 32.0),
        _pod("best-effort", "cpu-1", ("Deployment", "best-effort"), 0.0, 0.0, namespace="play"),
        _pod("edge", "cloud-1", ("Deployment", "edge"), 1.0, 4.0),
        _pod("unknown", "cloud-2", ("Deployment", "unknown"), 1.0, 2.0),
        _pod("report", "gpu-1", ("StatefulSet", "report"), 8.0, 64.0, namespace="ml"),
    ]
    ended = []
    day = math.floor((time_s - start_s) / DAY_S)
    for number in range(max(0, day - 1), day + 1):
        from_s = start_s + number * DAY_S + 20 * HOUR_S + 700.0
        until_s = from_s + 9 * HOUR_S
        train = _pod(f"train-{number}", "gpu-1", ("Job", "train"), 32.0, 128.0, 3.0, "ml", from_s)
        if from_s <= time_s < until_s:
            pods.append(train)
        elif until_s <= time_s < until_s + STEP_S:
            ended.append(Completion(train.uid, until_s, UnitCount("image", IMAGES_A_JOB, "annotation")))
    return pods, ended


def _used(pods, time_s):
    """Busy cores and bytes: a daily wave, different for each pod."""
    hour = time_s / HOUR_S
    wave = {pod.name: 0.5 + 0.4 * math.sin(hour * math.pi / 12.0 + len(pod.name)) for pod in pods}
    cores = {(pod.namespace, pod.name): max(pod.cpu_cores, 0.5) * wave[pod.name] for pod in pods}
    memory = {(pod.namespace, pod.name): max(pod.memory_gb, 0.5) * 1e9 * wave[pod.name] for pod in pods}
    return Readings(usage={CADVISOR: PodUsage(cores, memory)})


def signals(kind: FactorKind, zone: str) -> Series:
    """Hourly steps of the whole month, with a day on either side."""
    starts_s = np.arange(OCTOBER.starts_s - DAY_S, OCTOBER.ends_s + DAY_S, HOUR_S)
    hour = starts_s / HOUR_S % 24.0
    base = {"DE": 380.0, "FR": 45.0}[zone] * (1.6 if kind is FactorKind.MARGINAL else 1.0)
    values = base * (1.0 + 0.4 * np.cos((hour - 19.0) * np.pi / 12.0))
    return Series(starts_s, values, OCTOBER.ends_s + DAY_S)


def _known(time_s: float) -> dict[str, ZoneSignals]:
    found = {}
    for zone in ("DE", "FR"):
        average, marginal = signals(FactorKind.INTENSITY, zone), signals(FactorKind.MARGINAL, zone)
        missing = zone == "DE" and OUTAGE_S[0] < time_s <= OUTAGE_S[1]
        from_s = OUTAGE_S[1] if zone == "DE" and time_s > OUTAGE_S[1] else time_s - DAY_S
        from_s = max(from_s, time_s - DAY_S)
        found[zone] = ZoneSignals(
            None if missing else average.between(from_s, time_s), marginal.between(time_s - DAY_S, time_s)
        )
    return found


def cycles(folder: Path) -> Iterator[Cycle]:
    """The cycles of the month, as the accounting program makes them."""
    settings = SamplerSettings(HardwareProfiles(), PowerSettings(), "DE", inventory=inventory(folder))
    sampler, cluster = Sampler(settings), ClusterSnapshot(_nodes())
    for time_s in np.arange(OCTOBER.starts_s, OCTOBER.ends_s + 1.0, STEP_S).tolist():
        pods, ended = _running(time_s)
        sampling = sampler.sample(cluster, pods, [], _used(pods, time_s))
        yield Cycle(time_s, sampling.samples, ended, _known(time_s), pue_sources=sampling.pue_sources)


def book_month(ledger: SqlLedger, folder: Path) -> None:
    """Book the month, maintain the ledger every day, and backfill the outage when it is over."""
    for cycle in cycles(folder):
        ledger.append(cycle)
        if cycle.time_s % DAY_S == 0.0:
            if cycle.time_s > OCTOBER.starts_s:
                ledger.book_units(cycle.time_s - DAY_S, WEB, UnitCount("request", REQUESTS_A_DAY, "query"))
            if cycle.time_s > OUTAGE_S[1]:
                history = {("DE", FactorKind.INTENSITY): [signals(FactorKind.INTENSITY, "DE")]}
                ledger.rebook(history, cycle.time_s)
            ledger.prune(cycle.time_s)
