"""Settings of power budgets."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.settings import duration, percentage


@dataclass(frozen=True, kw_only=True)
class PowerBudgetSettings:
    """How often power budgets are decided, and what no limit reaches."""

    power_budget_interval_s: float = duration(
        "POWER_BUDGET_INTERVAL", "2s", "Time between two decisions about PowerBudgets.", minimum=0.05
    )
    power_budget_other_pct: float = percentage(
        "POWER_BUDGET_OTHER_PCT",
        "20",
        "What no power limit reaches (fans, memory, network, conversion), % of the full power of CPUs and GPUs.",
        minimum=0,
    )
