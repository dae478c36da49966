"""What the operator says of power at `POWER_PATH`, and `kubectl joulie top` reads there."""

from __future__ import annotations

import msgspec

POWER_PATH = "/debug/power"
MOST_ITEMS = 10_000
"""Items in an answer at most."""


class Item(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A line of the answer; what is not known is left out.

    Attributes:
        name: of the node, pod or namespace.
        namespace: of the pod.
        node: that the pod runs on.
        power_w: W.
        low_w: lower end of the interval of an estimate, W.
        high_w: upper end, W.
        cpu_w: CPU packages, W.
        gpu_w: GPUs, W.
        idle_w: of a node, charged to nobody, W.
        system_w: of a node, what no pod explains, W.
        energy_j: since the operator leads, J.
        quality: fresh, stale or missing.
        source: of the power of the node, as POWER_SOURCES has it.
        weight_source: by whose measurement the power of the node is shared among its pods.
        age_s: of the sample, s.
        pods: of a namespace, that run.
        unknown_pods: of these, whose power is not known, and not part of it.
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
