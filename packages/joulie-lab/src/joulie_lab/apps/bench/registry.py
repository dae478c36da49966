"""The benchmarks by name; each is a module of this package that is imported when it runs."""

from __future__ import annotations

SUMMARIES = {
    "parity": "exact reproduction of the published figures, and the speed of the engine",
    "equal-work": "energy of all schedulers at equal work on nodes that may sleep, against a lower bound",
    "extender": "response times of the scheduler extender, against one that returns constants",
    "binding": "binding throughput of the real kube-scheduler, with and without an extender",
    "operator-step": "CPU time of a step of the operator and its memory, by size of the cluster",
    "attribution": "conservation and error of power attributed from nodes and GPUs to pods",
    "power-estimate": "coverage of the intervals of power estimates on held-out servers without sensors",
    "profiles": "accuracy of learned trees against the classifier's rules",
    "deferral": "carbon savings of deferring jobs, against the optimum with a known future",
    "place": "carbon savings of waiting, moving and both, for jobs that may run in two zones",
    "backtest": "the grid controller's deferral on published zones, by delay of the signal",
    "openb": "GPU allocation and power of placement policies for pods that share GPUs",
    "openb-cluster": "the same pods at the real kube-scheduler, with the extender's frugal score and without",
    "capping": "power limits chosen from few measurements, and power capping under an oversubscribed breaker",
    "feeds": "PowerBudgets behind breakers on a real control plane, with programs killed, against published schemes",
    "rack": "nested PowerBudgets of a rack through a demand-response event",
    "limits": "response to GPU power limits, its prediction for another GPU, and the live search for a job's limit",
    "live-limits": "the live search for each job's GPU power limit, on a real control plane with simulated GPUs",
    "lives": "the agent on modelled machines, and its lives with faults",
    "owners": "energy saved with identical GPUs, mixed GPUs or CPUs alone, by fixed limits and by default settings",
    "native": "CPU time of native runs, and its growth with jobs and nodes",
    "replay": "replay of a recorded week of a plant with hidden differences: its error, its forecast, and its speed",
    "sleep": "what sleeping nodes do to pods in random courses of faults",
    "sleep-forecast": "waits and energy of nodes that sleep on days that the forecast of demand has not seen",
    "consolidation": "energy saved by emptying nodes that have few jobs, and what that costs the jobs",
    "marginal-cluster": "marginal placement with nodes that sleep, natively and on a real control plane, at equal work",
    "trials": "how often the interval of a trial holds the truth, under what disturbs trials",
    "deferral-trial": "how often the interval of a trial of deferral holds the truth, by draws of workloads",
    "holdout": "how often the live interval of a holdout holds the truth, and what is reported falsely",
    "live-trial": "a PowerTrial on a real control plane, faster than the clock, against the saving that is true",
}
"""What each benchmark measures, by name."""
PAGES = (
    *(
        "backtest",
        "capping",
        "consolidation",
        "deferral",
        "deferral-trial",
        "equal-work",
        "feeds",
        "fidelity",
        "holdout",
        "limits",
        "live-limits",
    ),
    *("live-trial", "lives", "marginal-cluster", "native", "openb", "openb-cluster", "operator-step", "owners"),
    *("parity", "place", "power-estimate", "rack", "replay", "sleep", "sleep-forecast", "trials"),
)
"""Benchmarks with a documentation page that is generated from their committed result."""


def module_of(name: str) -> str:
    """Module name of a command of ``joulie bench``."""
    return f"joulie_lab.apps.bench.{name.replace('-', '_')}"
