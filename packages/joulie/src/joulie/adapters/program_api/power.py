"""The operator's HTTP API for power at `POWER_PATH`: JSON types, which `kubectl joulie top` reads."""

from __future__ import annotations

import msgspec

POWER_PATH = "/debug/power"
MAX_ITEMS = 10_000
"""Maximum number of items in an answer."""


class Item(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Power of one node, pod or namespace; unknown values are omitted.

    Attributes:
        name: name of the node, pod or namespace.
        namespace: namespace of a pod.
        node: node of a pod.
        power_w: power, W.
        low_w: lower bound of an estimate, W.
        high_w: upper bound of an estimate, W.
        cpu_w: power of the CPU packages, W.
        gpu_w: power of the GPUs, W.
        idle_w: idle power of a node, charged to no pod, W.
        system_w: power of a node not attributed to any pod, W.
        energy_j: energy since this operator replica became the leader, J.
        quality: fresh, stale or missing.
        source: source of the node's power, by its name in POWER_SOURCES.
        weight_source: source of the weights by which the node's power is attributed to its pods.
        age_s: age of the sample, s.
        pods: number of running pods of a namespace.
        unknown_pods: number of these whose power is unknown and not included in `power_w`.
    """

    name: str
    namespace: str | None = None
    node: str | None = None
    power_w: float | None = msgspec.field(default=None, name="powerW")
    low_w: float | None = msgspec.field(default=None, name="lowW")
    high_w: float | None = msgspec.field(default=None, name="highW")
    cpu_w: float | None = msgspec.field(default=None, name="cpuW")
    gpu_w: float | None = msgspec.field(default=None, name="gpuW")
    idle_w: float | None = msgspec.field(default=None, name="idleW")
    system_w: float | None = msgspec.field(default=None, name="systemW")
    energy_j: float | None = msgspec.field(default=None, name="energyJ")
    quality: str | None = None
    source: str | None = None
    weight_source: str | None = None
    age_s: float | None = None
    pods: int | None = None
    unknown_pods: int | None = None


class PowerAnswer(msgspec.Struct, frozen=True):
    """The operator's answer.

    Attributes:
        items: nodes, pods or namespaces, largest power first.
        since: start of energy counting, s since the epoch; None before the first poll.
    """

    items: list[Item] = []
    since: float | None = None
