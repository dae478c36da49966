"""Write the names of all settings into the chart's values.schema.json, so that misspelt ones are rejected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from joulie.apps.accounting.settings import NODE_POWER_PREFIX, AccountingSettings
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.cleanup.main import CleanupSettings
from joulie.apps.extender.settings import ExtenderSettings
from joulie.apps.grid.guard import GuardSettings
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.grid.webhook import WebhookSettings
from joulie.apps.kubectl.web.settings import WebSettings
from joulie.apps.operator.settings import OperatorSettings
from joulie.program.settings import all_settings
from joulie_lab.apps.simulator.settings import SimulatorSettings

SCHEMA = Path(__file__).parents[1] / "deploy/helm/joulie/values.schema.json"
PROGRAMS: Mapping[str, type[Any]] = {
    "operator.settings": OperatorSettings,
    "agent.settings": AgentSettings,
    "agent.kinds.nvidia.settings": AgentSettings,
    "agent.kinds.amd.settings": AgentSettings,
    "agent.kinds.cpu.settings": AgentSettings,
    "agentPool.settings": AgentSettings,
    "extender.settings": ExtenderSettings,
    "grid.settings": ControllerSettings,
    "grid.guard.settings": GuardSettings,
    "grid.webhook.settings": WebhookSettings,
    "accounting.settings": AccountingSettings,
    "simulator.settings": SimulatorSettings,
    "web.settings": WebSettings,
    "cleanup.settings": CleanupSettings,
}
"""Settings by the value that holds them."""
CHART_SETS = frozenset(
    {
        "AGENT_MODE", "AGENT_POD_SELECTOR", "CARBON_ENABLED", "CARBON_INTENSITY_THRESHOLD",
        "CLEANUP_ONLY_CEILINGS", "CLEANUP_ONLY_GRID",
        "DAEMONSET_NAME", "DAEMONSET_NAMES", "DRY_RUN_ENABLED", "DRY_RUN_FILTER_MODE", "DRY_RUN_MODE",
        "DRY_RUN_WATCH_NAMESPACES", "ELECTRICITY_MAP_API_KEY", "ELECTRICITY_MAP_API_KEY_FILE",
        "ELECTRICITY_MAP_API_REGION", "GRID_STATE_FILE", "HARDWARE_CATALOG_PATH", "HARDWARE_PROFILES_PATH",
        "HOST_DEV", "HOST_PROC", "HOST_SYS", "INTENSITY_NAMESPACE", "INVENTORY_PATH", "KUEUE_ENABLED", "LEASE_NAME",
        "MULTIKUEUE_DISPATCHER",
        "LEDGER_HEADS_CONFIG_MAP", "LEDGER_SIGNING_KEY_FILE", "LEDGER_URL_FILE", "REPLICA_CEILINGS_ENABLED",
        "LOG_FORMAT", "LOG_LEVEL", "MAX_SCHEDULING_DELAY", "METRICS_ADDR", "METRICS_TLS_CERT_FILE",
        "METRICS_TLS_KEY_FILE", "MODE", "NODE_NAME", "POD_NAME", "POD_NAMESPACE", "POOL_SHARDS", "PORT",
        "PRICING_ENABLED", "PRICING_PROVIDER", "PRICING_SCHEDULES_PATH", "SCHEDULER_NAMES", "SERVICE_ACCOUNT",
        "SIM_ADDR", "SIM_WORKLOAD_TRACE_PATH", "POD_RESOURCES_SOCKET", "STATE_DIR", "TLS_CERT_FILE",
        "TLS_CLIENT_CA_FILE", "TLS_KEY_FILE", "WATTTIME_PASSWORD", "WEBHOOK_ADDR", "WEBHOOK_NAME",
        "WEBHOOK_TLS_CERT_FILE", "WEBHOOK_TLS_KEY_FILE", "WEB_ADDR", "WEB_TLS_CERT_FILE", "WEB_TLS_KEY_FILE",
        "PROXY_ADDR", "PROXY_CLIENT_CA_FILE",
    }
)  # fmt: skip
"""Names that other values determine, or that belong into a Secret."""


def schema() -> str:
    """The text of the schema with the names of today's settings."""
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    definitions = document["$defs"]
    for name in [name for name in definitions if name.lower().endswith("settings")]:
        del definitions[name]
    for value, settings in PROGRAMS.items():
        program = settings.__name__[0].lower() + settings.__name__[1:]
        definitions[program] = _settings(all_settings(settings))
        _section(document, value)["settings"] = {"$ref": f"#/$defs/{program}"}
    prefix = {"pattern": f"^{NODE_POWER_PREFIX}[A-Za-z0-9._-]+$"}
    known = definitions["accountingSettings"]["propertyNames"]
    definitions["accountingSettings"]["propertyNames"] = {"anyOf": [known, prefix]}
    definitions["signalSettings"] = _settings(
        all_settings(ControllerSettings).keys() & all_settings(AccountingSettings)
    )
    _section(document, "grid.signals")["signals"] = {"$ref": "#/$defs/signalSettings"}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _section(document: Any, value: str) -> Any:
    """The properties beside a value."""
    for name in value.split(".")[:-1]:
        document = document["properties"][name]
    return document["properties"]


def _settings(names: Iterable[str]) -> dict[str, Any]:
    return {
        "description": "Environment variables of the program, see the reference page of settings.",
        "type": "object",
        "propertyNames": {"enum": sorted(set(names) - CHART_SETS)},
        "additionalProperties": {"type": ["string", "number", "boolean", "object"]},
    }


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
