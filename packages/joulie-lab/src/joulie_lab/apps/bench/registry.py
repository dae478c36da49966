"""The benchmarks by name; each is a module of this package, which is imported when it runs."""

from __future__ import annotations

SUMMARIES = {
    "parity": "the published figures to every digit, and the speed of the engine",
    "equal-work": "all schedulers doing the same work on nodes that may sleep, beside a lower bound",
    "extender": "how long kube-scheduler waits for the extender, beside one that answers with constants",
    "binding": "pods that the real kube-scheduler binds in a second, with and without an extender",
    "attribution": "whether the power of nodes and GPUs is conserved among pods, and how far off each pod's is",
    "power-estimate": "whether estimates of power without sensors hold servers that they were not calibrated on",
    "profiles": "whether learned trees say more of workloads than the classifier's rules",
    "deferral": "how much waiting for clean power saves, of what it would if the future were known",
    "openb": "how much GPU placement by each policy gives to pods that share GPUs, and at what power",
    "capping": "how near few measurements come to the best power limit, and if a breaker with too many servers holds",
    "native": "what a native run costs, and how that grows with jobs and nodes",
    "traces": "what caps and policies save at equal work, and what of it is caps, placement and an assumption",
}
"""What each benchmark measures."""
PAGES = ("capping", "deferral", "fidelity", "native", "openb", "power-estimate", "traces")
"""Those with a page of the documentation that is made of their committed result."""


def module_of(name: str) -> str:
    """The module of a command of ``joulie bench``."""
    return f"joulie_lab.apps.bench.{name.replace('-', '_')}"
