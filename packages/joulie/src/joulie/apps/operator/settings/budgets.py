"""Settings of power budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulie.settings import duration, listed, number, path, percentage, text


def _levels(value: str) -> Mapping[int, float]:
    """Percentages by level: ``1=10,2=20,3=30``.

    Raises:
        ValueError: it is no such list.
    """
    found: dict[int, float] = {}
    for item in listed(value):
        level, equals, percent = item.partition("=")
        if not equals or not level.isdecimal() or not 0.0 <= float(percent) < 100.0:
            raise ValueError(f"levels and percentages such as 1=10,2=20,3=30, got {item!r}")
        found[int(level)] = float(percent)
    return found


@dataclass(frozen=True, kw_only=True)
class PowerBudgetSettings:
    """How often power budgets are decided, and what no limit reaches."""

    power_budget_interval_s: float = duration(
        "POWER_BUDGET_INTERVAL", "2s", "Time between two decisions about PowerBudgets.", minimum=0.05
    )
    power_budget_other_pct: float = percentage(
        "POWER_BUDGET_OTHER_PCT",
        "20",
        "What no power limit reaches (fans, memory, network, conversion), % of the full power of CPUs and GPUs, where "
        "a node's own readings do not tell.",
        minimum=0,
    )
    openadr_url: str = text(
        "OPENADR_URL", "", "Base URL of an OpenADR 3 VTN whose events reduce OPENADR_BUDGETS; empty for none."
    )
    openadr_program: str = text(
        "OPENADR_PROGRAM_ID", "", "Programme whose events count; empty for all that this client may see."
    )
    openadr_budgets: tuple[str, ...] = text(
        "OPENADR_BUDGETS", "", "PowerBudgets that its events reduce, separated by commas.", to=listed
    )
    openadr_simple_pct: Mapping[int, float] = text(
        "OPENADR_SIMPLE_PCT", "1=10,2=20,3=30", "By how much each level of SIMPLE reduces them, %.", to=_levels
    )
    openadr_token_url: str = text(
        "OPENADR_TOKEN_URL", "", "Where tokens are asked for; OPENADR_URL/auth/token if empty."
    )
    openadr_client_id: str = text(
        "OPENADR_CLIENT_ID", "", "Client id of this VEN; empty for a VTN without authentication."
    )
    openadr_secret_file: Path | None = path("OPENADR_CLIENT_SECRET_FILE", None, "File with its client secret.")
    alerts_addr: str = text(
        "ALERTS_ADDR", "", "Address at which Alertmanager's webhook is answered, such as :8443; empty for none."
    )
    alerts_token_file: Path | None = path(
        "ALERTS_TOKEN_FILE", None, "File with the bearer token that Alertmanager sends; needed with ALERTS_ADDR."
    )
    alerts_budgets: tuple[str, ...] = text(
        "ALERTS_BUDGETS",
        "",
        "PowerBudgets that alerts reduce, separated by commas; an alert's label joulie_power_budget picks one.",
        to=listed,
    )
    alerts_reduce_pct: float = number(
        "ALERTS_REDUCE_PCT",
        "20",
        "By how much an alert reduces a budget, %; its label joulie_reduce_percent may ask for less.",
        minimum=1.0,
        maximum=90.0,
    )
    alerts_hold_s: float = duration(
        "ALERTS_HOLD",
        "5h",
        "How long an alert reduces after its last notification; longer than Alertmanager's repeat_interval.",
        minimum=60.0,
    )
    alerts_certificate: Path | None = path(
        "ALERTS_TLS_CERT_FILE", None, "Certificate chain (PEM): serve the webhook by HTTPS; reloaded when it changes."
    )
    alerts_key: Path | None = path("ALERTS_TLS_KEY_FILE", None, "Private key of the certificate (PEM).")
